"""The shelf: one TOML file for each scenario that comes with Forewarn. (docs/scenarios.md)"""

from __future__ import annotations

from importlib import resources

from forewarn.errors import Unknown, nearest

_ENDING = ".toml"


def names() -> list[str]:
    """What there is, by name."""
    found = (file.name for file in resources.files(__package__).iterdir())
    return sorted(name.removesuffix(_ENDING) for name in found if name.endswith(_ENDING))


def text(name: str) -> str:
    """The file of that name."""
    known = names()
    if name not in known:
        hint = nearest(name, known) or f" Known are: {', '.join(known)}."
        raise Unknown(
            what="scenario", name=name, hint=f"{hint} One of your own is given by its path, like ./mine.toml."
        )
    return resources.files(__package__).joinpath(name + _ENDING).read_text("utf-8")

"""The scenarios that come with Forewarn: one TOML file each. (docs/how-to/scenarios.md)"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.errors import UnknownResource, UnreadableFile, nearest
from forewarn.files.scenario_file import parse_scenario

if TYPE_CHECKING:
    from forewarn.core.scenarios import Scenario


_ENDING = ".toml"


def names() -> list[str]:
    """What there is, by name."""
    found = (file.name for file in resources.files(__package__).iterdir())
    return sorted(name.removesuffix(_ENDING) for name in found if name.endswith(_ENDING))


def text(name: str) -> str:
    """The file of that name."""
    known = names()
    if name not in known:
        hint = nearest(name, known) or f" Scenarios: {', '.join(known)}."
        raise UnknownResource(
            what="scenario", name=name, hint=f"{hint} For your own scenario use its path, like ./mine.toml."
        )
    return resources.files(__package__).joinpath(name + _ENDING).read_text("utf-8")


def is_file(scenario: str) -> bool:
    """A name is that of a scenario that comes with Forewarn, if there is one; a path is a path."""
    return scenario.endswith(_ENDING) or "/" in scenario


def find(scenario: str) -> tuple[Scenario, str]:
    """A scenario by its name or its path, with its text."""
    if not is_file(scenario):
        found = text(scenario)
        return parse_scenario(found, scenario, scenario + _ENDING), found
    try:
        found = Path(scenario).read_text("utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise UnreadableFile(
            path=scenario, problem=getattr(error, "strerror", None) or "it is not UTF-8 text"
        ) from error
    return parse_scenario(found, scenario, scenario), found

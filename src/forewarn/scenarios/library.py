"""The built-in scenarios: one TOML file each. (docs/how-to/scenarios.md)"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.errors import UnknownResource, UnreadableFile, nearest
from forewarn.files.scenario_file import parse_scenario

if TYPE_CHECKING:
    from forewarn.core.scenarios import Scenario


_SUFFIX = ".toml"


def names() -> list[str]:
    """Return the names of the built-in scenarios."""
    found = (file.name for file in resources.files(__package__).iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))


def text(name: str) -> str:
    """Return the text of a built-in scenario."""
    known = names()
    if name not in known:
        hint = nearest(name, known) or f" Scenarios: {', '.join(known)}."
        raise UnknownResource(
            what="scenario", name=name, hint=f"{hint} For your own scenario use its path, like ./mine.toml."
        )
    return resources.files(__package__).joinpath(name + _SUFFIX).read_text("utf-8")


def is_file(scenario: str) -> bool:
    """Return whether the argument is a path: it ends in .toml or has a slash. Otherwise it is a name."""
    return scenario.endswith(_SUFFIX) or "/" in scenario


def find(scenario: str) -> tuple[Scenario, str]:
    """Return a scenario, given by name or path, and its text."""
    if not is_file(scenario):
        found = text(scenario)
        return parse_scenario(found, scenario, scenario + _SUFFIX), found
    try:
        found = Path(scenario).read_text("utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise UnreadableFile(
            path=scenario, problem=getattr(error, "strerror", None) or "it is not UTF-8 text"
        ) from error
    return parse_scenario(found, scenario, scenario), found

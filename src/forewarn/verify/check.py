"""A check: one rule of the contract, its name and mark, and the function that tests it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.verify.session import Session

SECTIONS = {
    1: "Versions",
    2: "The document",
    3: "Requests and responses",
    4: "Event lifecycle",
    5: "Scope",
    6: "/metadata/instance",
    7: "Finding the endpoint",
}
"""Sections of the contract. Section 8, ARM, has no checks: this endpoint does not serve it."""


class Mark(StrEnum):
    """How a rule is known."""

    DOCUMENTED = "documented"
    OBSERVED = "observed"
    ASSUMED = "assumed"


class Requirement(StrEnum):
    """An input that a check cannot run without. The value names the option that provides it."""

    SCHEDULE = "--schedule-command"
    CANCEL = "--cancel-command"
    TIME = "--advance-command or --max-wait"
    ADVANCE = "--advance-command"
    SAME_GROUP = "--same-group"
    OTHER_GROUP = "--other-group"


class CheckFailed(Exception):
    """The server does not follow the rule."""

    def __init__(self, expected: str, *, request: str = "", actual: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.request = request
        self.actual = actual


class CheckSkipped(Exception):
    """The check cannot run here. The reason says what would make it possible."""


class EventMissing(CheckSkipped):
    """The schedule command succeeded, but the document shows no such event."""


class Check(NamedTuple):
    """One rule."""

    name: str
    section: int
    mark: Mark
    rule: str
    needs: tuple[Requirement, ...]
    late: bool
    """Run after the other checks, because it judges everything they received or because it changes the server."""
    run: Callable[[Session], None]


class CheckRegistry:
    """The checks of one part of the contract, in definition order."""

    def __init__(self, section: int, prefix: str) -> None:
        self.checks: list[Check] = []
        self._section = section
        self._prefix = prefix

    def __call__(
        self, name: str, mark: Mark, rule: str, *needs: Requirement, late: bool = False
    ) -> Callable[[Callable[[Session], None]], Callable[[Session], None]]:
        """Register the decorated function as a check."""

        def register(function: Callable[[Session], None]) -> Callable[[Session], None]:
            self.checks.append(Check(f"{self._prefix}/{name}", self._section, mark, rule, needs, late, function))
            return function

        return register

"""What a check is: a rule of the contract with its name and its mark, and how it ends."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.verify.session import Session

SECTIONS = {
    1: "Versions",
    2: "The document",
    3: "Requests and answers",
    4: "Life of an event",
    5: "Scope",
    6: "/metadata/instance",
    7: "Finding the endpoint",
}
"""The sections of docs/contract.md. The eighth, ARM, is not spoken at this endpoint."""


class Mark(StrEnum):
    """How a rule is known."""

    DOCUMENTED = "documented"
    OBSERVED = "observed"
    ASSUMED = "assumed"


class Need(StrEnum):
    """What a check cannot do without, named by the option that gives it."""

    SCHEDULE = "--schedule-command"
    CANCEL = "--cancel-command"
    TIME = "--advance-command or --patience"
    ADVANCE = "--advance-command"
    OTHER = "--other"
    OUTSIDE = "--outside"


class Departure(Exception):
    """The server does otherwise than the rule says."""

    def __init__(self, right: str, *, sent: str = "", came: str = "") -> None:
        super().__init__(right)
        self.right = right
        self.sent = sent
        self.came = came


class Skip(Exception):
    """A check cannot be made here; the reason says what would let it."""


class NotTold(Skip):
    """The command says that it has made an event, and no such event was seen."""


class Check(NamedTuple):
    """One rule."""

    name: str
    section: int
    mark: Mark
    rule: str
    needs: tuple[Need, ...]
    late: bool
    """Made after the others: it judges all that they have seen, or the server is not the same afterwards."""
    run: Callable[[Session], None]


class Rules:
    """The checks of one part of the contract, in the order in which they are written."""

    def __init__(self, section: int, word: str) -> None:
        self.checks: list[Check] = []
        self._section = section
        self._word = word

    def __call__(
        self, name: str, mark: Mark, rule: str, *needs: Need, late: bool = False
    ) -> Callable[[Callable[[Session], None]], Callable[[Session], None]]:
        """Make a function a check."""

        def register(function: Callable[[Session], None]) -> Callable[[Session], None]:
            self.checks.append(Check(f"{self._word}/{name}", self._section, mark, rule, needs, late, function))
            return function

        return register

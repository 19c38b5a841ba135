"""A rule: for which events it is, and what is then done."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.wire.document_reader import ToldEvent

SELF, LEADER, NEVER = APPROVALS = ("self", "leader", "never")
STOP, CONTINUE, APPROVE = ON_FAILURE = ("stop", "continue", "approve")
"""After a handler has failed: leave it at that; run the others all the same; and approve in spite of it."""


class Rule(NamedTuple):
    """What is done about some events."""

    name: str
    on: tuple[str, ...] = ()
    """Types of events; none: of any type."""
    source: str = ""
    description: tuple[str, ...] = ()
    """Words of which one must be in the description, in any letter case."""
    max_duration: timedelta | None = None
    min_notice: timedelta | None = None
    prepare: tuple[str, ...] = ()
    lead: timedelta | None = None
    """How long before NotBefore preparing begins; None: now."""
    timeout: timedelta | None = None
    """For all of prepare together."""
    approve: str = NEVER
    approve_lead: timedelta | None = None
    """How long before NotBefore it is approved at the earliest; None: as soon as it is prepared."""
    on_failure: str = STOP
    undo: tuple[str, ...] | None = None
    """Which handlers undo, in this order; None: what was prepared, in reverse."""

    def fits(self, event: ToldEvent, now: datetime) -> bool:
        """Whether it is for this event."""
        kinds = {kind.casefold() for kind in self.on}
        if kinds and event.type.casefold() not in kinds:
            return False
        if self.source and (event.source or "").casefold() != self.source.casefold():
            return False
        said = (event.description or "").casefold()
        if self.description and not any(word.casefold() in said for word in self.description):
            return False
        if self.max_duration is not None:
            seconds = event.duration_seconds
            if seconds is None or seconds < 0 or seconds > self.max_duration.total_seconds():
                return False
        return self.min_notice is None or notice_of(event, now) >= self.min_notice


def notice_of(event: ToldEvent, now: datetime) -> timedelta:
    """How long until it may start; nothing, once it has."""
    return timedelta(0) if event.not_before is None else max(event.not_before - now, timedelta(0))


def before(moment: datetime, length: timedelta) -> datetime:
    """So long before a moment; a moment at the beginning of all time has nothing before it."""
    try:
        return moment - length
    except OverflowError:
        return moment


def choose_rule(rules: tuple[Rule, ...], event: ToldEvent, now: datetime) -> Rule | None:
    """The first rule that fits."""
    return next((rule for rule in rules if rule.fits(event, now)), None)

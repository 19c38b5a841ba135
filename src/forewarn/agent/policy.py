"""The agent's policy as values: rules, handlers, peers and the rest of the config.

`config_file` reads them from a file.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.core.durations import format_duration, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from forewarn.agent.handlers.handler import Handler
    from forewarn.wire.document_reader import ToldEvent


# --- Rules ----------------------------------------------------------------------------------------


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
        return next(self.misfits(event, now), None) is None

    def misfits(self, event: ToldEvent, now: datetime) -> Iterator[str]:
        """Every reason why the rule is not for this event; none: it is."""
        if self.on and event.type.casefold() not in {kind.casefold() for kind in self.on}:
            yield f"it is for {listed(self.on, 'or')}, not for {event.type}"
        if self.source and (event.source or "").casefold() != self.source.casefold():
            origin = f"is from {event.source}" if event.source else "does not say where it is from"
            yield f"it is for events from {self.source}, and this one {origin}"
        said = (event.description or "").casefold()
        if self.description and not any(word.casefold() in said for word in self.description):
            quoted = [f'"{word}"' for word in self.description]
            yield f"the description has {'not' if len(quoted) == 1 else 'none of'} {listed(quoted, 'and')}"
        if self.max_duration is not None:
            longest, seconds = format_duration(self.max_duration), event.duration_seconds
            if seconds is None or seconds < 0:
                yield f"it is for interruptions of at most {longest}, and nobody knows how long this one is"
            elif seconds > self.max_duration.total_seconds():
                yield f"it is for interruptions of at most {longest}, and this one is {format_seconds(seconds)}"
        if self.min_notice is not None and (notice := notice_of(event, now)) < self.min_notice:
            yield f"it needs {format_duration(self.min_notice)} of notice, and there are {format_duration(notice)}"

    @property
    def undo_order(self) -> tuple[str, ...]:
        """Which handlers undo, the first first, if all of them have prepared."""
        return self.prepare[::-1] if self.undo is None else self.undo


def listed(words: Sequence[str], joint: str) -> str:
    """`a, b or c`."""
    return f" {joint} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


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


# --- The config -----------------------------------------------------------------------------------


class NamedHandler(NamedTuple):
    """One `[handler.NAME]`."""

    name: str
    kind: str
    timeout: timedelta
    handler: Handler
    table: dict[str, Any]
    """As it is written: kept beside what it has prepared, so that it can undo that when the config has changed."""

    def does(self, action: str) -> str:
        """In words that follow 'would'; empty: nothing."""
        try:
            return str(self.handler.describe(action) or "")
        except Exception as error:  # noqa: BLE001 - code of others
            return f"do what it cannot describe ({type(error).__name__}: {error})"


class Member(NamedTuple):
    """Another agent, or this one."""

    vm: str
    host: str
    port: int


class PeersSettings(NamedTuple):
    """The `[peers]` of a config."""

    listen: tuple[str, int]
    secret: bytes
    members: tuple[Member, ...]
    """By VM name; this machine may be among them."""
    timeout: timedelta
    """Without a response for this long, a peer is unreachable. A response is fresh for half of it, at most 3 s."""


class Config(NamedTuple):
    """All that an agent is told by its file."""

    source: str = "(no config)"
    endpoint: str = ""
    vm_name: str = ""
    state: str = ""
    listen: tuple[str, int] | None = None
    """Where metrics and health are served; None: nowhere."""
    rules: tuple[Rule, ...] = ()
    handlers: dict[str, NamedHandler] = {}  # noqa: RUF012 - never changed
    peers: PeersSettings | None = None

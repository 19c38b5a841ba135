"""The agent's config as values: rules, handlers, peers and settings.

`config_file` reads them from a file.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import ADVISORY_TYPES, deadline_of, is_advisory
from forewarn.core.durations import format_duration, format_seconds
from forewarn.errors import ForewarnError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from forewarn.agent.handlers.handler import Handler
    from forewarn.wire.document_reader import ScheduledEvent


# --- Rules ----------------------------------------------------------------------------------------


SELF, LEADER, NEVER = APPROVALS = ("self", "leader", "never")
STOP, CONTINUE, APPROVE, UNDO_NOW = ON_FAILURE = ("stop", "continue", "approve", "undo")
"""After a handler has failed: stop; run the other handlers; run them and approve anyway; or undo everything at once."""


class Rule(NamedTuple):
    """What the agent does about matching events."""

    name: str
    on: tuple[str, ...] = ()
    """Event types; empty: any type, but no recommendation."""
    source: str = ""
    description: tuple[str, ...] = ()
    """The event's description must contain one of these words, in any letter case."""
    max_duration: timedelta | None = None
    min_notice: timedelta | None = None
    prepare: tuple[str, ...] = ()
    lead: timedelta | None = None
    """How long before NotBefore preparation starts; None: at once."""
    timeout: timedelta | None = None
    """For all handlers in `prepare` together."""
    approve: str = NEVER
    approve_lead: timedelta | None = None
    """How long before NotBefore the event is approved at the earliest; None: as soon as it is prepared."""
    on_failure: str = STOP
    undo: tuple[str, ...] | None = None
    """Handlers that undo, in this order; None: those that prepared, in reverse order."""

    def matches(self, event: ScheduledEvent, now: datetime) -> bool:
        """Whether the rule matches the event."""
        return next(self.mismatches(event, now), None) is None

    def mismatches(self, event: ScheduledEvent, now: datetime) -> Iterator[str]:
        """Yield every reason why the rule does not match the event."""
        if not self.on and is_advisory(event):
            yield f"it does not name {event.type} in on"
        if self.on and event.type.casefold() not in {kind.casefold() for kind in self.on}:
            yield f"it matches {listed(self.on, 'or')}, not {event.type}"
        if self.source and (event.source or "").casefold() != self.source.casefold():
            origin = f"is from {event.source}" if event.source else "has no source"
            yield f"it matches events from {self.source}; this one {origin}"
        event_description = (event.description or "").casefold()
        if self.description and not any(word.casefold() in event_description for word in self.description):
            quoted = [f'"{word}"' for word in self.description]
            yield f"the description does not contain {listed(quoted, 'or')}"
        if self.max_duration is not None:
            maximum, seconds = format_duration(self.max_duration), event.duration_seconds
            if seconds is None or seconds < 0:
                yield f"it matches interruptions of at most {maximum}; the duration of this one is unknown"
            elif seconds > self.max_duration.total_seconds():
                yield f"it matches interruptions of at most {maximum}; this one takes {format_seconds(seconds)}"
        if self.min_notice is not None and (notice := notice_of(event, now)) < self.min_notice:
            yield f"it needs {format_duration(self.min_notice)} of notice; {format_duration(notice)} are left"

    @property
    def is_for_advice(self) -> bool:
        """Whether the rule matches recommendations only."""
        return bool(self.on) and all(kind.casefold() in ADVISORY_TYPES for kind in self.on)

    @property
    def undo_order(self) -> tuple[str, ...]:
        """Handlers in the order of undo, if all of them have prepared."""
        return self.prepare[::-1] if self.undo is None else self.undo


def listed(words: Sequence[str], conjunction: str) -> str:
    """`a, b or c`."""
    return f" {conjunction} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def notice_of(event: ScheduledEvent, now: datetime) -> timedelta:
    """Return the time until the event may start; zero once it has started, and for a recommendation."""
    deadline = deadline_of(event)
    return timedelta(0) if deadline is None else max(deadline - now, timedelta(0))


def subtract(time: datetime, duration: timedelta) -> datetime:
    """Return an earlier time; the time itself if the result would be below the minimum of datetime."""
    try:
        return time - duration
    except OverflowError:
        return time


def choose_rule(rules: tuple[Rule, ...], event: ScheduledEvent, now: datetime) -> Rule | None:
    """Return the first rule that matches."""
    return next((rule for rule in rules if rule.matches(event, now)), None)


# --- The config -----------------------------------------------------------------------------------


class NamedHandler(NamedTuple):
    """A `[handler.NAME]` table."""

    name: str
    kind: str
    timeout: timedelta
    handler: Handler
    table: dict[str, Any]
    """The table as written. The state file keeps it, so that undo works even if the config has changed."""

    def does(self, action: str) -> str:
        """Return what the action does, as text that follows "would"; empty: nothing."""
        try:
            return str(self.handler.describe(action) or "")
        except Exception as error:  # noqa: BLE001 - a user's code
            return f"do something unknown (describe() failed: {type(error).__name__}: {error})"

    def problems_here(self) -> list[str]:
        """Return what would fail on this machine."""
        try:
            return [str(problem) for problem in self.handler.problems_here()]
        except ForewarnError as error:
            return [str(error)]
        except Exception as error:  # noqa: BLE001 - a user's code, or a program that does not end
            return [f"{type(error).__name__}: {error}"]


class Member(NamedTuple):
    """A member of the peer group; it may be this agent."""

    vm: str
    host: str
    port: int


class PeersSettings(NamedTuple):
    """The `[peers]` table."""

    listen: tuple[str, int]
    secret: bytes
    members: tuple[Member, ...]
    """In any order; this machine may be among them."""
    timeout: timedelta
    """Without a response for this long, a peer is unreachable. A response is fresh for half of it, at most 3 s."""


SHORT_FREEZE = timedelta(seconds=10)


class Config(NamedTuple):
    """The agent's config."""

    source: str = "(no config)"
    endpoint: str = ""
    vm_name: str = ""
    state: str = ""
    listen: tuple[str, int] | None = None
    """Address of the metrics and health server; None: not served."""
    preview_versions: bool = True
    """Whether the agent also requests an api-version that is a preview."""
    short_freeze: timedelta = SHORT_FREEZE
    """During a Freeze of at most this duration, the machine still takes work, unless a rule prepares for it."""
    rules: tuple[Rule, ...] = ()
    handlers: dict[str, NamedHandler] = {}  # noqa: RUF012 - never changed
    peers: PeersSettings | None = None

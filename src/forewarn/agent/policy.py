"""The agent's policy as values: rules, handlers, peers and the rest of the config.

`config_file` reads them from a file.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
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
    silence: timedelta
    """Who has not answered for so long is silent, and the next in line takes over."""


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

"""Limits and durations that the operator sets for all groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import format_exact_duration
from forewarn.core.operations import CAUSES
from forewarn.core.webhooks import AllowedNetworks

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST = timedelta(days=36_525)
"""Longest duration after division by the speed, which can be less than 1."""


@dataclass(frozen=True, slots=True)
class OperatorLimits:
    """The operator's limits and durations. Commands of the core receive them as an argument."""

    speed: float = 1.0
    """Notices, settle times, pauses and the inactivity timeout are divided by this. The clock keeps its pace."""
    inactivity_timeout: timedelta = timedelta(hours=24)
    """The service disables a scope after this long without a poll."""
    settle: Mapping[str, timedelta] = field(default_factory=dict)
    """Settle time by cause. A cause that is not here has its default."""
    description: Mapping[str, str] = field(default_factory=dict)
    """Description of events by cause. A cause that is not here has its default."""
    max_pending_user_operations: int = 0
    """For each group. 0: no limit."""
    max_postponement: timedelta = timedelta(days=7)
    """How far a routine operation can be postponed, from its first NotBefore."""
    history_retention: timedelta = timedelta(days=400)
    """How long history is kept. Zero: without a limit."""
    makes_hosts: bool = False
    """Whether the fabric can add a spare host when no host can take a VM."""
    webhook_private_networks: AllowedNetworks = field(default_factory=AllowedNetworks)
    """Addresses that webhooks can reach besides the public Internet."""

    def at(self, speed: float) -> OperatorLimits:
        """Return these limits with the speed multiplied by `speed`."""
        return self if speed == 1 else replace(self, speed=self.speed * speed)

    def quicken(self, duration: timedelta) -> timedelta:
        """Divide a duration by the speed. The result is at most 100 years, so that no time is after year 9999."""
        too_long = duration.total_seconds() / self.speed > LONGEST.total_seconds()
        return LONGEST if too_long else duration / self.speed

    def settle_time(self, cause: str) -> timedelta:
        return self.quicken(self.settle.get(cause, CAUSES[cause].settle))

    def description_of(self, cause: str) -> str:
        return self.description.get(cause, CAUSES[cause].description)


# --- Short notices --------------------------------------------------------------------------------


SLOW_POLL = timedelta(seconds=10)
"""Many clients poll this seldom. They can miss an event with a shorter notice."""


class ShortNotices(NamedTuple):
    """Notices that a speed makes shorter than SLOW_POLL."""

    text: str
    """Event types, each with its notice: `Terminate 5s, Preempt 0.5s`."""
    max_speed: float
    """The highest speed at which no notice is too short."""


def short_notices(notices: Mapping[str, timedelta], speed: float) -> ShortNotices | None:
    """Return which notices are too short for slow polls at this speed; None: none is."""
    at_speed = {event_type: notice / speed for event_type, notice in notices.items() if notice}
    short = {event_type: notice for event_type, notice in at_speed.items() if notice < SLOW_POLL}
    if not short:
        return None
    text = ", ".join(f"{event_type} {format_exact_duration(notice)}" for event_type, notice in short.items())
    return ShortNotices(text, min(notices[event_type] for event_type in short) / SLOW_POLL)

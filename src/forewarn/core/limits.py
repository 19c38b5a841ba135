"""Limits and times that the operator chose for all groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core.operations import CAUSES
from forewarn.core.webhooks import AllowedNetworks

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Terms:
    """How fast things go, and how much may be asked for. The clock itself stays true."""

    speed: float = 1.0
    """Notices, settle times, pauses and silence are this many times shorter."""
    silence: timedelta = timedelta(hours=24)
    settle: Mapping[str, timedelta] = field(default_factory=dict)
    """Settle times by cause, where they are not the published ones."""
    pending_user_operations: int = 0
    """How many operations of users a group may have pending; 0: any number."""
    postponement: timedelta = timedelta(days=7)
    """How far a routine operation may be postponed, counted from its first NotBefore."""
    history_retention: timedelta = timedelta(days=400)
    """How long history is kept, by the clock; zero: for ever."""
    makes_hosts: bool = False
    """Whether a spare host can be had where none fits."""
    webhook_targets: AllowedNetworks = field(default_factory=AllowedNetworks)
    """Where webhooks may go beyond the public Internet."""

    def at(self, speed: float) -> Terms:
        """The terms for something that goes so many times faster still."""
        return self if speed == 1 else replace(self, speed=self.speed * speed)

    def quicken(self, length: timedelta) -> timedelta:
        return length / self.speed

    def settle_time(self, cause: str) -> timedelta:
        return self.quicken(self.settle.get(cause, CAUSES[cause].settle))

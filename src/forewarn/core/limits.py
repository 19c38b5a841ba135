"""Limits and times that the operator sets for all groups."""

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
    """Limits and times from the settings."""

    speed: float = 1.0
    """Notices, settle times, pauses and the inactivity timeout are divided by this."""
    silence: timedelta = timedelta(hours=24)
    settle: Mapping[str, timedelta] = field(default_factory=dict)
    """Settle times by cause that differ from the published ones."""
    pending_user_operations: int = 0
    """Maximum number of pending user operations of a group; 0: no limit."""
    postponement: timedelta = timedelta(days=7)
    """How long a routine operation may be postponed after its first NotBefore."""
    history_retention: timedelta = timedelta(days=400)
    """How long history is kept; zero: without limit."""
    makes_hosts: bool = False
    """Whether the fabric can add a spare host if no host can take a VM."""
    webhook_targets: AllowedNetworks = field(default_factory=AllowedNetworks)
    """Private networks that webhooks may be sent to."""

    def at(self, speed: float) -> Terms:
        """Return these limits with an additional speed factor."""
        return self if speed == 1 else replace(self, speed=self.speed * speed)

    def quicken(self, length: timedelta) -> timedelta:
        return length / self.speed

    def settle_time(self, cause: str) -> timedelta:
        return self.quicken(self.settle.get(cause, CAUSES[cause].settle))

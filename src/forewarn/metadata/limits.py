"""What a VM may send, and how slowly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from forewarn.system.connections import Limits


class Rounds(NamedTuple):
    """The deadlines, in rounds of the sweeper."""

    head: int
    body: int
    idle: int
    unread: int


@dataclass(frozen=True, slots=True)
class MetadataLimits(Limits):
    """The limits of a connection to the metadata service."""

    pipelined_requests: int = 1
    """Read ahead while an earlier request is in progress. A few more can come in one packet."""

    @property
    def _deadlines(self) -> tuple[float, ...]:
        return self.head_seconds, self.body_seconds, self.idle_seconds, self.unread_seconds

    @property
    def sweep_seconds(self) -> float:
        """How often the sweeper looks at the connections."""
        return min(1.0, *(seconds / 4 for seconds in self._deadlines))

    @property
    def rounds(self) -> Rounds:
        return Rounds(*(round(seconds / self.sweep_seconds) for seconds in self._deadlines))

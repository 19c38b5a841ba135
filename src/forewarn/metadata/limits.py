"""Limits of a connection to the metadata service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from forewarn.system.connections import ConnectionLimits
from forewarn.system.networks import Networks


class Rounds(NamedTuple):
    """The timeouts, in rounds of the sweeper."""

    header: int
    body: int
    idle: int
    send: int


@dataclass(frozen=True, slots=True)
class MetadataLimits(ConnectionLimits):
    """Size, time and number limits."""

    max_pipelined_requests: int = 1
    """Read ahead while an earlier request is in progress. One packet can exceed this by a few."""
    proxy_protocol: Networks = field(default_factory=Networks)
    """Networks of load balancers whose connections begin with the PROXY protocol."""

    @property
    def _timeouts(self) -> tuple[float, ...]:
        return self.header_seconds, self.body_seconds, self.idle_seconds, self.send_seconds

    @property
    def sweep_seconds(self) -> float:
        """Interval between two rounds of the sweeper."""
        return min(1.0, *(seconds / 4 for seconds in self._timeouts))

    @property
    def rounds(self) -> Rounds:
        return Rounds(*(round(seconds / self.sweep_seconds) for seconds in self._timeouts))

"""Which VM is calling: by its source address or the address it connected to, never by the request itself."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, NamedTuple

from forewarn.clock import real_seconds

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.engine.engine import Engine, Published
    from forewarn.ports import Clock


LOOPBACK = "127.0.0.1"
PERIOD_SECONDS = 60.0
"""The average time between polls is that of this period and the one before it."""


class Caller:
    """A VM that calls the metadata service, with the token bucket of its rate limit.

    The bucket holds one second's worth of requests and refills at the same rate.
    """

    __slots__ = ("_at_seconds", "_rate", "_tokens", "polls", "scope", "vm")

    def __init__(self, vm: str, scope: str, polls: VMPolls, rate: float) -> None:
        self.vm = vm
        self.scope = scope
        self.polls = polls
        self._rate = rate
        self._tokens = max(rate, 1.0)
        self._at_seconds = 0.0

    def take_token(self) -> bool:
        """Take one token from the bucket. Return whether there was one."""
        rate = self._rate
        if not rate:
            return True
        now_seconds = real_seconds()
        tokens = min(max(rate, 1.0), self._tokens + (now_seconds - self._at_seconds) * rate)
        self._at_seconds = now_seconds
        if tokens < 1.0:
            self._tokens = tokens
            return False
        self._tokens = tokens - 1.0
        return True


class PollStatistics(NamedTuple):
    """How often a VM polls."""

    polls: int = 0
    last_at: datetime | None = None
    """The service's time of its last poll."""
    interval_seconds: float | None = None
    """The average real time between its recent polls."""


class VMPolls:
    """The polls of one VM since the service started.

    A repeated poll only adds to `count`. The sweeper of the connections notices the new count, and notes the time.
    """

    __slots__ = ("_earlier", "_first", "_last", "_noted", "count", "last_at")

    def __init__(self) -> None:
        self.count = 0
        self.last_at: datetime | None = None
        self._noted = 0
        # Real seconds and count: at the begin of the period before this one, at the begin of this one, and now.
        self._earlier = self._first = self._last = (0.0, 0)

    def add(self, clock: Clock) -> None:
        """Count a poll that is not a repeated one."""
        self.count += 1
        self.note(clock)

    def note(self, clock: Clock) -> None:
        """Note the time if there was a poll since the last call."""
        if self.count == self._noted:
            return
        self.last_at = clock.now()
        point = (real_seconds(), self.count)
        if not self._noted:
            self._earlier = self._first = point
        elif point[0] - self._first[0] >= PERIOD_SECONDS:
            self._earlier, self._first = self._first, point
        self._noted, self._last = self.count, point

    def statistics(self) -> PollStatistics:
        polls = self._last[1] - self._earlier[1]
        interval = (self._last[0] - self._earlier[0]) / polls if polls else None
        return PollStatistics(self.count, self.last_at, interval)


class Callers:
    """VMs that have called since the fleet last changed."""

    def __init__(self, engine: Engine, rate: float) -> None:
        self.generation = 0
        """Incremented with every change of the fleet. A connection then looks up its caller again."""
        self._engine = engine
        self._rate = rate
        self._known: dict[str, Caller] = {}
        self._polls: dict[str, VMPolls] = {}
        """By VM. Unlike the callers, they stay when the fleet changes."""
        self.extra_listeners: dict[str, str] = {}
        """Addresses of single VMs that no fleet file declares: the test kit opens them."""
        engine.subscribe(self._on_published)

    def find(self, peer: str | None, called: str | None, listener: str | None) -> Caller | None:
        """Return the VM behind a connection: by the listener it connected to, otherwise by its source address.

        A local program that connects to another address of this machine (such as 169.254.169.254) has that same
        address as its source. It counts as 127.0.0.1.
        """
        fleet = self._engine.fleet
        vm = None
        if listener is not None:
            vm = fleet.at_listener(listener) or fleet.vms.get(self.extra_listeners.get(listener, ""))
        elif peer is not None:
            vm = fleet.at_address(normal_address(peer))
            if vm is None and peer == called:
                vm = fleet.at_address(LOOPBACK)
        if vm is None:
            return None
        caller = self._known.get(vm.name)
        if caller is None:
            caller = self._known[vm.name] = Caller(
                vm.name, fleet.scope_of(vm), self._polls.setdefault(vm.name, VMPolls()), self._rate
            )
        return caller

    def polls(self, vm: str) -> VMPolls | None:
        """Return the polls of a VM, if it has called."""
        return self._polls.get(vm)

    def _on_published(self, published: Published) -> None:
        if published.fleet:
            self._known.clear()
            self._polls = {name: polls for name, polls in self._polls.items() if name in self._engine.fleet.vms}
            self.generation += 1


def normal_address(address: str) -> str:
    """Return the canonical form of an address: an IPv4-mapped IPv6 address becomes IPv4."""
    if ":" not in address:
        return address
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(parsed)

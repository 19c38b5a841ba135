"""Who is calling: by source address or by the address that was called, never by anything in the request."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

from forewarn.clock import real_seconds

if TYPE_CHECKING:
    from forewarn.core.fleet import VM
    from forewarn.engine.engine import Engine, Published


LOOPBACK = "127.0.0.1"


class Caller:
    """A VM as the metadata service meets it, with the bucket that limits its requests.

    A bucket holds as many requests as are allowed in a second, and fills at that rate.
    """

    __slots__ = ("_at_seconds", "_rate", "_tokens", "group", "vm")

    def __init__(self, vm: VM, rate: float) -> None:
        self.vm = vm.name
        self.group = vm.group
        self._rate = rate
        self._tokens = max(rate, 1.0)
        self._at_seconds = 0.0

    def allowed(self) -> bool:
        """Take one request out of the bucket, if there is one."""
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


class Callers:
    """All who have called since the fleet last changed."""

    def __init__(self, engine: Engine, rate: float) -> None:
        self.generation = 0
        """Goes up with every change of the fleet: who holds a caller must ask again then."""
        self._engine = engine
        self._rate = rate
        self._known: dict[str, Caller] = {}
        self.doors: dict[str, str] = {}
        """Addresses that always mean one VM, though no fleet file says so."""
        engine.subscribe(self._on_published)

    def find(self, peer: str | None, called: str | None, listener: str | None) -> Caller | None:
        """The VM behind a connection: the one whose own address was called, else the one at the peer's address.

        A program on this machine that calls another of its addresses (169.254.169.254, say) comes from
        that very address: it is the machine itself, as if it came from 127.0.0.1.
        """
        fleet = self._engine.fleet
        vm = None
        if listener is not None:
            vm = fleet.at_listener(listener) or fleet.vms.get(self.doors.get(listener, ""))
        elif peer is not None:
            vm = fleet.at_address(normal_address(peer))
            if vm is None and peer == called:
                vm = fleet.at_address(LOOPBACK)
        if vm is None:
            return None
        caller = self._known.get(vm.name)
        if caller is None:
            caller = self._known[vm.name] = Caller(vm, self._rate)
        return caller

    def _on_published(self, published: Published) -> None:
        if published.fleet:
            self._known.clear()
            self.generation += 1


def normal_address(address: str) -> str:
    """One spelling per address: an IPv4 caller on an IPv6 socket is still that IPv4 address."""
    if ":" not in address:
        return address
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(parsed)

"""Lists of networks."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network


@dataclass(frozen=True, slots=True)
class Networks:
    """A list of networks."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, self.networks))

    def __contains__(self, text: str) -> bool:
        """Return whether an address is in one of the networks. An IPv4-mapped IPv6 address counts as IPv4."""
        if not self.networks or not text:
            return False
        address = ip_address(text.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.networks)


def read_networks(text: str) -> Networks:
    """Parse a comma-separated list of networks. Raises ValueError with a hint."""
    try:
        return Networks(tuple(ip_network(part.strip()) for part in text.split(",") if part.strip()))
    except ValueError as error:
        raise ValueError(f"{error}. Write networks like 10.0.0.0/8, 192.0.2.10/32") from None

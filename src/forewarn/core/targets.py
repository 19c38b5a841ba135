"""Where webhooks may go: which URLs, and which addresses. Pure; names are looked up elsewhere, and each time anew."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from forewarn.errors import BadWebhookTarget, ForbiddenTarget

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

SETTING = "webhook_private_targets"
ALL = "all"
LONGEST_URL = 2000

_GLOBAL_UNICAST = ip_network("2000::/3")
"""All that IANA gives out of IPv6. Old Pythons take some of the rest, site-local addresses say, for global."""
_DOCUMENTATION = ip_network("3fff::/20")
_NAT64 = ip_network("64:ff9b::/96")
_UNIQUE_LOCAL = ip_network("fc00::/7")
_THIS_NETWORK = ip_network("0.0.0.0/8")
_PROTOCOLS = ip_network("192.0.0.0/24")
"""Kept for protocols; metadata of Oracle's cloud has been there. Old Pythons take most of it for global."""
_METADATA = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # Azure's own services to its VMs, from a public range
            "100.100.100.200/32",  # Alibaba's metadata
            "fd00:ec2::254/128",  # Amazon's metadata
            "fd20:ce::254/128",  # Google's metadata
        ),
    )
)
"""What clouds tell their machines, secrets among it, from addresses that look like any other."""


class Targets(NamedTuple):
    """What the operator allows beyond the public Internet."""

    everything: bool = False
    """All private and loopback addresses. Not where the metadata of clouds is: link-local, and a few others."""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def __str__(self) -> str:
        return ALL if self.everything else ", ".join(map(str, self.networks))

    def allow(self, text: str) -> bool:
        """Whether a connection to this address is allowed."""
        address = unwrapped(ip_address(text))
        if any(address in network for network in self.networks):
            return True
        if address in _PROTOCOLS or any(address in network for network in _METADATA):
            return False
        return _is_global(address) or (self.everything and _is_private(address))


def parse_targets(text: str) -> Targets:
    """Read "all", or networks with commas between them. A ValueError's text says what would be right."""
    if text.strip() == ALL:
        return Targets(everything=True)
    networks = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            raise ValueError(f"{error}. Write networks like 10.0.0.0/8, 127.0.0.1/32; or all; or nothing") from None
    return Targets(networks=tuple(networks))


def unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for, where it stands for one: that is where packets end up."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    # Without its zone ("%eth0"), which says through which interface, not where to.
    return inner or IPv6Address(int(address))


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    return isinstance(address, IPv4Address) or (address in _GLOBAL_UNICAST and address not in _DOCUMENTATION)


def _is_private(address: IPv4Address | IPv6Address) -> bool:
    """Not what reaches many, or whoever happens to be on the same wire, or the machine itself by an odd name."""
    odd = address.is_link_local or address.is_multicast or address.is_unspecified or address in _THIS_NETWORK
    if isinstance(address, IPv4Address):
        return not odd and not address.is_reserved
    return not odd and (address.is_loopback or address in _UNIQUE_LOCAL)


def check_target(url: str, targets: Targets) -> SplitResult:
    """The parts of a URL that a webhook may have. An address in it is judged here; a name when it is looked up."""
    parts, host = _split(url)
    try:
        allowed = targets.allow(host)
    except ValueError:
        return parts  # a name
    if not allowed:
        raise ForbiddenTarget(address=host, setting=SETTING)
    return parts


def _split(url: str) -> tuple[SplitResult, str]:
    if len(url) > LONGEST_URL:
        raise BadWebhookTarget(url=url[:80] + "…", problem=f"it is longer than {LONGEST_URL} characters")
    if not url.isascii() or any(sign <= " " or sign in '\\"<>^`{|}\x7f' for sign in url):
        problem = "it has characters that no URL has. Write them percent-encoded, and names of hosts as xn--…"
        raise BadWebhookTarget(url=url, problem=problem)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise BadWebhookTarget(url=url, problem=f"{error}") from None
    problem = ""
    if parts.scheme not in ("http", "https"):
        problem = "it begins with neither http:// nor https://"
    elif not host or "%" in host:
        problem = "it has no host, or one that cannot be: write it like https://example.com/hook"
    elif port == 0:
        problem = "a port is from 1 to 65535"
    elif "@" in parts.netloc:
        problem = "a user name or password does not belong in it: what is sent is signed instead"
    elif "#" in url:
        problem = "what follows a # is never sent: leave it out"
    if problem:
        raise BadWebhookTarget(url=url, problem=problem)
    return parts, host

"""The address of an endpoint: its URL, and how it was found."""

from __future__ import annotations

import re
from typing import NamedTuple

from forewarn.errors import BadEndpoint
from forewarn.system.addresses import is_host_name, is_ipv4, is_ipv6, read_port, show_host_port

PORTS = {"http": 80, "https": 443}
_PATHS = ("", "/", "/metadata/scheduledevents", "/metadata/scheduledevents/")
"""What may follow the address: it is known anyway."""
_PARTS = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]*)://)?"
    r"(?P<user>[^/?#@]*@)?"
    r"(?P<host>\[[^\]/?#]*\]|[^:/?#\[\]]*)"
    r"(?::(?P<port>[^:/?#\[\]]*))?"
    r"(?P<path>/(?!/)[^?#]*)?"
    r"(?P<rest>[?#].*)?",
    re.IGNORECASE | re.DOTALL,
)


class Endpoint(NamedTuple):
    """Where Scheduled Events are asked for."""

    scheme: str
    host: str
    """A name or an address; of IPv6 without brackets."""
    port: int
    origin: str
    """How it was found, in words."""

    @property
    def url(self) -> str:
        """Without a path, and the port always there."""
        return f"{self.scheme}://{show_host_port(self.host, self.port)}"


def read_endpoint(text: str, origin: str) -> Endpoint:
    """An endpoint as people write it: a URL, host:port, or only a host."""
    parts = _PARTS.fullmatch(text.strip())
    if parts is None:
        raise _bad(text, origin, "it is neither a URL nor a host and port. An address of IPv6 stands in [brackets]")
    if parts["user"]:
        # What is before the @ may be a secret: it is not repeated.
        shown = text.replace(parts["user"], "…@")
        raise _bad(shown, origin, "it names a user, and the endpoint knows none")
    scheme = (parts["scheme"] or "http").lower()
    if scheme not in PORTS:
        raise _bad(text, origin, f"{scheme}:// is neither http:// nor https://")
    if parts["rest"]:
        raise _bad(text, origin, f"leave out what begins with {parts['rest'][0]!r}, the agent writes that itself")
    if (parts["path"] or "").lower() not in _PATHS:
        raise _bad(text, origin, f"the path {parts['path']} is not the endpoint's, and none is needed")
    problem = _wrong_with_host(parts["host"])
    if problem:
        raise _bad(text, origin, problem)
    number = PORTS[scheme] if parts["port"] is None else read_port(parts["port"])
    if not number:
        raise _bad(text, origin, f"the port is {parts['port']!r}, and not a number from 1 to 65535")
    return Endpoint(scheme, parts["host"].strip("[]"), number, origin)


def _wrong_with_host(host: str) -> str:
    """What is wrong with it, or nothing."""
    if host.startswith("["):
        address, _, zone = host[1:-1].partition("%")
        if not is_ipv6(address):
            return f"{host} is no address of IPv6"
        return "" if is_ipv6(host[1:-1]) else f"{zone!r} is no interface"
    if not host:
        return "it has no host"
    if re.fullmatch("[0-9.]+", host):
        return "" if is_ipv4(host) else f"{host} is no address: four numbers from 0 to 255 are"
    return "" if is_host_name(host) else f"{host!r} is no host name"


def _bad(text: str, origin: str, problem: str) -> BadEndpoint:
    return BadEndpoint(url=text, problem=f"{problem} (it comes from {origin}).")

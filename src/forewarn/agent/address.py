"""The address of an endpoint: its URL, and how it was found."""

from __future__ import annotations

import re
from typing import NamedTuple

from forewarn.errors import BadEndpoint
from forewarn.system.addresses import is_host_name, is_ipv4, is_ipv6, read_port, show_host_port

PORTS = {"http": 80, "https": 443}
_PATHS = ("", "/", "/metadata/scheduledevents", "/metadata/scheduledevents/")
"""Paths that a user may write after the address. The agent adds the right one in any case."""
_PARTS = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]*)://)?"
    r"(?P<user>[^/?#@]*@)?"
    r"(?P<host>\[[^\]/?#]*\]|[^:/?#\[\]]*)"
    r"(?::(?P<port>[^:/?#\[\]]*))?"
    r"(?P<path>/(?!/)[^?#]*)?"
    r"(?P<rest>[?#].*)?",
    re.IGNORECASE | re.DOTALL,
)


class EndpointAddress(NamedTuple):
    """Where the agent requests Scheduled Events."""

    scheme: str
    host: str
    """A host name or an IP address; IPv6 without brackets."""
    port: int
    origin: str
    """Where the address comes from, for example `--endpoint`."""

    @property
    def url(self) -> str:
        """The URL without a path, always with a port."""
        return f"{self.scheme}://{show_host_port(self.host, self.port)}"


def read_endpoint(text: str, origin: str) -> EndpointAddress:
    """Read an endpoint as users write it: a URL, host:port, or only a host."""
    parts = _PARTS.fullmatch(text.strip())
    if parts is None:
        raise _bad(text, origin, "it is neither a URL nor HOST:PORT. Write an IPv6 address in [brackets]")
    if parts["user"]:
        # The user part may contain a password: do not print it.
        shown = text.replace(parts["user"], "…@")
        raise _bad(shown, origin, "it contains a user name; remove it")
    scheme = (parts["scheme"] or "http").lower()
    if scheme not in PORTS:
        raise _bad(text, origin, f"the scheme must be http or https, not {scheme}")
    if parts["rest"]:
        raise _bad(text, origin, f"remove the part from {parts['rest'][0]!r} on; the agent adds its own")
    if (parts["path"] or "").lower() not in _PATHS:
        raise _bad(text, origin, f"remove the path {parts['path']}")
    problem = _host_problem(parts["host"])
    if problem:
        raise _bad(text, origin, problem)
    number = PORTS[scheme] if parts["port"] is None else read_port(parts["port"])
    if not number:
        raise _bad(text, origin, f"the port must be a number from 1 to 65535, not {parts['port']!r}")
    return EndpointAddress(scheme, parts["host"].strip("[]"), number, origin)


def _host_problem(host: str) -> str:
    """Return the error in a host, or an empty string."""
    if host.startswith("["):
        address, _, zone = host[1:-1].partition("%")
        if not is_ipv6(address):
            return f"{host} is not an IPv6 address"
        return "" if is_ipv6(host[1:-1]) else f"{zone!r} is not a valid network interface"
    if not host:
        return "it has no host"
    if re.fullmatch("[0-9.]+", host):
        return "" if is_ipv4(host) else f"{host} is not an IPv4 address"
    return "" if is_host_name(host) else f"{host!r} is not a valid host name"


def _bad(text: str, origin: str, problem: str) -> BadEndpoint:
    return BadEndpoint(url=text, problem=f"{problem} (from {origin}).")

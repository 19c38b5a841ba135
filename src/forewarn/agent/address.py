"""Addresses: a host with a port, and the URL of an endpoint with how it was found."""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

from forewarn.errors import BadEndpoint

# --- A host with a port ---------------------------------------------------------------------------


_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_ZONE = re.compile(r"[a-z0-9_.-]+", re.IGNORECASE)
_LONGEST_NAME = 253


def read_host_port(text: str) -> tuple[str, int]:
    """`127.0.0.1:9169`, `[::1]:9169`, `web-0.local:9169`. ValueError says what is wrong."""
    host, _, port = text.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError("write it like 127.0.0.1:9169 or [::1]:9169.")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        good = _is_ipv6(host)
    elif ":" in host:
        raise ValueError(f"an address of IPv6 stands in brackets: [{host}]:{port}")
    elif re.fullmatch("[0-9.]+", host):
        good = _is_address(socket.AF_INET, host)
    else:
        good = _is_name(host)
    if not good:
        raise ValueError(f"{host!r} is neither an address nor the name of a host.")
    return host, int(port)


def show_host_port(host: str, port: int) -> str:
    """The inverse."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ipv6(text: str) -> bool:
    address, percent, zone = text.partition("%")
    return _is_address(socket.AF_INET6, address) and (not percent or _ZONE.fullmatch(zone) is not None)


def _is_address(family: int, text: str) -> bool:
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):
        return False
    return True


def _is_name(text: str) -> bool:
    # What is asked for a name's address raises errors of its own at labels that are empty or too long.
    labels = text.removesuffix(".").split(".")
    return len(text) <= _LONGEST_NAME and all(_LABEL.fullmatch(label) for label in labels)


# --- The address of an endpoint -------------------------------------------------------------------


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
_ZONE_PART = re.compile(r"(?:%[a-z0-9_.-]+)?", re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_.])?", re.IGNORECASE)


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
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


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
    port = parts["port"]
    if port is None:
        number = PORTS[scheme]
    elif re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= 65535:
        number = int(port)
    else:
        raise _bad(text, origin, f"the port is {port!r}, and not a number from 1 to 65535")
    return Endpoint(scheme, parts["host"].strip("[]"), number, origin)


def _wrong_with_host(host: str) -> str:
    """What is wrong with it, or nothing."""
    if host.startswith("["):
        address, percent, zone = host[1:-1].partition("%")
        try:
            socket.inet_pton(socket.AF_INET6, address)
        except (OSError, ValueError):
            return f"{host} is no address of IPv6"
        return "" if _ZONE_PART.fullmatch(percent + zone) else f"{zone!r} is no interface"
    if not host:
        return "it has no host"
    if not _NAME.fullmatch(host):
        return f"{host!r} is no host name"
    if re.fullmatch("[0-9.]+", host) and read_ipv4(host) is None:
        return f"{host} is no address: four numbers from 0 to 255 are"
    return ""


def read_ipv4(dotted: str) -> bytes | None:
    """The four bytes of an address; None: it is none."""
    numbers = dotted.split(".")
    # Not int() alone: it takes signs, blanks, underscores, and digits of other scripts.
    if len(numbers) != 4 or not all(re.fullmatch("[0-9]{1,3}", number) and int(number) < 256 for number in numbers):
        return None
    return bytes(map(int, numbers))


def _bad(text: str, origin: str, problem: str) -> BadEndpoint:
    return BadEndpoint(url=text, problem=f"{problem} (it comes from {origin}).")

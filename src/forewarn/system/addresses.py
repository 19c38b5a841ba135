"""Network addresses as text: a host with a port."""

from __future__ import annotations

import re
import socket

LAST_PORT = 65535
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_ZONE = re.compile(r"[a-z0-9_.-]+", re.IGNORECASE)
_MAX_NAME_LENGTH = 253


def read_host_port(text: str) -> tuple[str, int]:
    """Parse `127.0.0.1:9169`, `[::1]:9169` or `web-0.local:9169`. Raises ValueError with a hint."""
    host, _, digits = text.rpartition(":")
    port = read_port(digits)
    if not host or port is None:
        raise ValueError("write it like 127.0.0.1:9169 or [::1]:9169.")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        good = is_ipv6(host)
    elif ":" in host:
        raise ValueError(f"write an IPv6 address in brackets: [{host}]:{port}")
    else:
        good = is_ipv4(host) or is_host_name(host)
    if not good:
        raise ValueError(f"{host!r} is not an IP address or a host name.")
    return host, port


def show_host_port(host: str, port: int) -> str:
    """Format a host and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_port(text: str) -> int | None:
    """Parse a port from 0 to 65535, or return None. int() alone accepts signs, blanks and other digits."""
    return int(text) if re.fullmatch("[0-9]{1,5}", text) and int(text) <= LAST_PORT else None


def is_ipv4(text: str) -> bool:
    return _is_address(socket.AF_INET, text)


def is_ipv6(text: str) -> bool:
    """Return whether it is an IPv6 address without brackets, optionally with a zone like fe80::1%eth0."""
    address, percent, zone = text.partition("%")
    return _is_address(socket.AF_INET6, address) and (not percent or _ZONE.fullmatch(zone) is not None)


def is_host_name(text: str) -> bool:
    """Return whether it has the form of a host name. Digits and dots alone are not a name."""
    # Name resolution raises other errors for empty or long labels.
    labels = text.removesuffix(".").split(".")
    short = len(text) <= _MAX_NAME_LENGTH and not re.fullmatch("[0-9.]*", text)
    return short and all(_LABEL.fullmatch(label) for label in labels)


def _is_address(family: int, text: str) -> bool:
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):
        return False
    return True

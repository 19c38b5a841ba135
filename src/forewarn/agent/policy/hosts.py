"""A host and a port, as people write them."""

from __future__ import annotations

import re
import socket

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

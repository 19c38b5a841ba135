"""The PROXY protocol, version 2: a load balancer says at the start of a connection which address its client has.

Only connections from trusted networks may begin with it, and they must. All others are served without it: a header from
them is rejected, so nobody else can choose an address. A header with the command LOCAL is a health check of the load
balancer itself.
"""

from __future__ import annotations

import asyncio
import struct
from ipaddress import ip_address
from typing import TYPE_CHECKING

from forewarn.metadata.protocol import PROXY_SIGNATURE, MetadataConnection
from forewarn.system.logs import OncePerMinute, get_logger

if TYPE_CHECKING:
    from forewarn.metadata.server import MetadataServer

_log = get_logger(__name__)
_warnings = OncePerMinute()

FIXED_BYTES = 16
MAX_HEADER_BYTES = 4096
LOCAL, PROXY = 0x20, 0x21
"""Version 2, and the command."""
ADDRESS_BYTES = {0x11: 4, 0x21: 16}
"""Length of an address, by family and transport: TCP over IPv4 and IPv6."""


class BadProxyHeader(ValueError):
    """The start of the connection is not a header of this protocol."""


def parse(data: bytes) -> tuple[str | None, int] | None:
    """Return the address of the client and the length of the header; None: more data is needed.

    The address is None for a connection of the load balancer itself. Raises BadProxyHeader.
    """
    if data[:12] != PROXY_SIGNATURE[: len(data)]:
        raise BadProxyHeader("it does not begin with a header of the PROXY protocol, version 2")
    if len(data) < FIXED_BYTES:
        return None
    command, family, length = struct.unpack_from(">BBH", data, len(PROXY_SIGNATURE))
    end = FIXED_BYTES + length
    if command not in (LOCAL, PROXY) or end > MAX_HEADER_BYTES:
        raise BadProxyHeader(f"command {command:#x} with {length} bytes is not supported")
    if len(data) < end:
        return None
    if command == LOCAL:
        return None, end
    size = ADDRESS_BYTES.get(family)
    if size is None or length < 2 * size + 4:
        raise BadProxyHeader(f"address family {family:#x} with {length} bytes is not supported")
    return str(ip_address(data[FIXED_BYTES : FIXED_BYTES + size])), end


class ProxiedConnection(asyncio.Protocol):
    """The start of a connection. Then a MetadataConnection takes its place."""

    def __init__(self, server: MetadataServer) -> None:
        self._server = server
        self._data = b""
        self._peer = ""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # uvloop's class does not inherit from it
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if peer else ""
        if self._peer in self._server.limits.proxy_protocol:
            seconds = self._server.limits.header_seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)
        else:
            self._continue(None)

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            found = parse(self._data)
        except BadProxyHeader as error:
            self._transport.abort()
            if _warnings.allows(self._peer, asyncio.get_running_loop().time()):
                _log.warning(
                    "proxy_header_rejected",
                    "A load balancer opened a connection that cannot be used. Enable send-proxy-v2 there.",
                    address=self._peer,
                    error=str(error),
                )
            return
        if found is not None:
            client, end = found
            rest, self._data = self._data[end:], b""
            self._continue(client, rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _continue(self, client: str | None, rest: bytes = b"") -> None:
        if self._timer is not None:
            self._timer.cancel()
        connection = MetadataConnection(self._server, client=client)
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        if rest and not self._transport.is_closing():
            connection.data_received(rest)

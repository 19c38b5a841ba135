"""The connection between two nodes: frames in both directions, after both have proved that they know the secret.

A frame is its length in four bytes, and a msgpack array. The secret is in the database, so only nodes of the same
service know it. With a certificate, the connection is encrypted too.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import struct
from contextlib import suppress
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from forewarn import errors
from forewarn.clock import real_seconds
from forewarn.errors import ForewarnError, LeaderLost, NoLeader
from forewarn.ports import JournalRow
from forewarn.system.logs import OncePerMinute, get_logger

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    Handle = Callable[[str, Any], Awaitable[Any]]
    """Does what a request of another node asks for: its kind and its content. Returns the content of the response."""

_log = get_logger(__name__)

MAX_FRAME_BYTES = 512 * 1024 * 1024
MAX_UNPROVED_BYTES = 1024
"""Largest frame of a client that has not yet proved that it is a node."""
MAX_UNPROVED, MAX_UNPROVED_OF_ADDRESS = 64, 8
"""Most connections of clients that have not proved it, in all and from one address."""
PROOF_SECONDS = 5.0
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    # A peer that is gone without a word is noticed after about five seconds.
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000),
)
_LENGTH = struct.Struct(">I")
_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder()


def _proof(secret: str, role: str, *parts: str) -> str:
    return hmac.new(secret.encode(), "\n".join((role, *parts)).encode(), sha256).hexdigest()


def encode_error(error: BaseException) -> tuple[str, dict[str, Any]]:
    """Return an error as a name and its fields."""
    if not isinstance(error, ForewarnError):
        return "Unavailable", {"problem": f"the leader failed with {type(error).__name__}; see its log"}
    plain = (str, int, float, bool, type(None))
    return type(error).__name__, {
        name: value if isinstance(value, plain) else str(value) for name, value in error.fields.items()
    }


def decode_error(name: str, fields: dict[str, Any]) -> ForewarnError:
    """Return the error that another node has encoded. A newer node may have errors that this one does not know."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, ForewarnError):
        with suppress(KeyError, TypeError):
            found: ForewarnError = kind(**fields)
            str(found)
            return found
    return errors.Unavailable(problem=f"{name}: {fields}")


class _Frames(asyncio.Protocol):
    """Cuts what arrives into frames."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._buffer = bytearray()
        self.proved = False
        self.received_at = 0.0
        """When something arrived last, by the monotonic clock."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # uvloop's class does not inherit from it
        for option in _SOCKET_OPTIONS:
            transport.get_extra_info("socket").setsockopt(*option)

    def data_received(self, data: bytes) -> None:
        self.received_at = real_seconds()
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size and not self.transport.is_closing():
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > (MAX_FRAME_BYTES if self.proved else MAX_UNPROVED_BYTES):
                self.transport.abort()
                return
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                self.on_frame(_DECODER.decode(frame))
            except (msgspec.DecodeError, TypeError, ValueError, IndexError, RecursionError):
                self.transport.abort()
                return

    def send(self, content: Any) -> None:
        frame = _ENCODER.encode(content)
        self.transport.write(_LENGTH.pack(len(frame)) + frame)

    def on_frame(self, content: Any) -> None:
        raise NotImplementedError


# --- The node that is connected to ----------------------------------------------------------------


class _Accepted(_Frames):
    """A connection from another node."""

    def __init__(self, server: LinkServer) -> None:
        super().__init__()
        self._server = server
        self.address = ""
        self._nonce = secrets.token_hex(16)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections.add(self)
        self.address = (transport.get_extra_info("peername") or ("",))[0]
        unproved = [each.address for each in self._server.connections if not each.proved]
        if len(unproved) > MAX_UNPROVED or unproved.count(self.address) > MAX_UNPROVED_OF_ADDRESS:
            self.transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(PROOF_SECONDS, self._end_unproved)
        self.send([self._nonce, self._server.node])

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _end_unproved(self) -> None:
        if not self.proved:
            self.transport.abort()

    def on_frame(self, content: Any) -> None:
        if self.proved:
            number, kind, payload, position = content
            task = asyncio.get_running_loop().create_task(self._respond(number, kind, payload, position))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        nonce, node, given = content
        parts = (self._nonce, nonce, self._server.node, node)
        if not hmac.compare_digest(str(given), _proof(self._server.secret, "client", *parts)):
            self._server.reject(self.address)
            self.transport.abort()
            return
        self.proved = True
        self.send([_proof(self._server.secret, "server", *parts)])

    async def _respond(self, number: int, kind: str, payload: Any, position: int) -> None:
        try:
            result, error = await self._server.handle(kind, payload), None
        except Exception as failure:  # noqa: BLE001 - the other node gets it
            if not isinstance(failure, ForewarnError):
                _log.exception("node_request_failed", "Unexpected error in a request of another node.", kind=kind)
            result, error = None, encode_error(failure)
        if not self.transport.is_closing():
            # Without their epochs: a node of an earlier release knows two fields.
            rows = [(row.number, row.data) for row in self._server.rows_after(position)]
            self.send([number, error, self._server.position(), result, rows])


class LinkServer:
    """Accepts connections of other nodes."""

    def __init__(
        self,
        node: str,
        secret: str,
        handle: Handle,
        position: Callable[[], int],
        rows_after: Callable[[int], list[JournalRow]],
    ) -> None:
        """`position` returns the last commit of this node. The other node waits until it has applied it. `rows_after`
        returns the commits that it does not have yet, or nothing: then it reads them from the journal."""
        self.node = node
        self.secret = secret
        self.handle = handle
        self.position = position
        self.rows_after = rows_after
        self.connections: set[_Accepted] = set()
        self._server: asyncio.AbstractServer | None = None
        self._warnings = OncePerMinute()

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        timeout = PROOF_SECONDS if tls is not None else None
        self._server = await loop.create_server(
            lambda: _Accepted(self), sock=listener, ssl=tls, ssl_handshake_timeout=timeout
        )

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.transport.close()

    def reject(self, address: str) -> None:
        if self._warnings.allows(address, asyncio.get_running_loop().time()):
            _log.warning(
                "node_rejected",
                "A client at the address for nodes does not know the secret of this service. Nodes of two services may "
                "have the same address.",
                address=address,
            )


# --- The node that connects -----------------------------------------------------------------------


class Answer(NamedTuple):
    """The answer to a request."""

    position: int
    """The last commit of the other node."""
    result: Any
    rows: list[JournalRow]
    """Commits that this node does not have yet, if they are few."""


class Link(_Frames):
    """A connection to another node. Use `open_link`."""

    def __init__(self, node: str, secret: str, expected: str) -> None:
        super().__init__()
        self._node = node
        self._secret = secret
        self._expected = expected
        self._nonce = secrets.token_hex(16)
        self._parts: tuple[str, ...] = ()
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_open = True

    def on_frame(self, content: Any) -> None:
        if not self._parts:
            nonce, node = content
            if node != self._expected:
                self._fail("another node has its address")
                return
            self._parts = (nonce, self._nonce, node, self._node)
            self.send([self._nonce, self._node, _proof(self._secret, "client", *self._parts)])
        elif not self.proved:
            if not hmac.compare_digest(str(content[0]), _proof(self._secret, "server", *self._parts)):
                self._fail("it does not know the secret of this service")
                return
            self.proved = True
            if not self.opened.done():
                self.opened.set_result(None)
        else:
            number, error, position, result, rows = content
            waiting = self._waiting.pop(number, None)
            if waiting is None or waiting.done():
                return
            if error is not None:
                waiting.set_exception(decode_error(*error))
            else:
                waiting.set_result(Answer(position, result, [JournalRow(*row) for row in rows]))

    def _fail(self, problem: str) -> None:
        self._fail_to_open(problem)
        self.transport.abort()

    def _fail_to_open(self, problem: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(NoLeader(problem=problem))
            self.opened.exception()  # whoever opened it may no longer wait, and that is no error

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        problem = str(exc or "it was closed")
        self._fail_to_open(f"the connection to the leader failed: {problem}")
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(LeaderLost(problem=problem))

    async def request(self, kind: str, payload: Any, position: int) -> Answer:
        """Send a request. `position` is the last commit that this node has. Raises the other's error, or LeaderLost."""
        number = next(self._numbers)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.send([number, kind, payload, position])
        try:
            return await future
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        self.is_open = False
        self.transport.abort()


async def open_link(host: str, port: int, tls: ssl.SSLContext | None, *, node: str, secret: str, expected: str) -> Link:
    """Connect to a node with the id `expected`. Raises NoLeader."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PROOF_SECONDS):
            _, link = await loop.create_connection(
                lambda: Link(node, secret, expected), host, port, ssl=tls, server_hostname="" if tls else None
            )
            try:
                await asyncio.shield(link.opened)
            except BaseException:
                link.close()
                raise
    except (OSError, TimeoutError) as error:
        raise NoLeader(problem=f"cannot connect to the leader at {host}:{port}: {str(error) or 'timeout'}") from error
    return link

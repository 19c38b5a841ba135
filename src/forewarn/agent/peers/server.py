"""Serves the status to peers: one thread, few connections, short requests, no patience for strangers."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from typing import TYPE_CHECKING

from forewarn.agent.clock import real_seconds
from forewarn.agent.peers.message import END, LARGEST_HEAD, read_ask, write_reply
from forewarn.agent.peers.seal import is_right, seal_answer, seal_ask
from forewarn.errors import PeersNotListening

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.agent.peers.message import Ask

_log = logging.getLogger(__name__)

MOST_CONNECTIONS = 32
MOST_SECONDS = 5.0
"""For a whole connection, from its first byte to its last."""
_PAUSE_SECONDS = 1.0
"""After no connection could be taken: there are no more descriptors, and asking again at once would not make any."""
_MOST_NAMED = 64


class _Connection:
    def __init__(self, link: socket.socket, caller: str) -> None:
        self.link = link
        self.caller = caller
        self.until = real_seconds() + MOST_SECONDS
        self.head = b""
        self.rest = b""
        """Of the answer."""


class StatusServer:
    """Answers from `start` to `stop`. `listener` is from `listen`.

    `answer(asker, asked)` gives the body for a member that asks, or None if it asks for another machine.
    """

    def __init__(self, listener: socket.socket, secret: bytes, answer: Callable[[str, str], bytes | None]) -> None:
        self._secret = secret
        self._answer = answer
        self._listener = listener
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._waking, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._connections: dict[socket.socket, _Connection] = {}
        self._paused_until: float | None = None
        self._named: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="peers-server", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close everything; nobody is answered once this has returned."""
        self._waking.close()
        if self._thread.ident is not None:
            self._thread.join(MOST_SECONDS)
        else:
            self._close()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            self._close()

    def _turn(self) -> bool:
        """Wait for something to happen, and deal with it. False: it is over."""
        for chosen, _ in self._selector.select(self._seconds_to_wait()):
            if chosen.fileobj is self._woken:
                return False
            if chosen.fileobj is self._listener:
                self._accept()
            elif (connection := self._connections.get(chosen.fileobj)) is not None:  # type: ignore[call-overload]
                self._serve(connection)
        now = real_seconds()
        for connection in [one for one in self._connections.values() if now >= one.until]:
            self._drop(connection)
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        return True

    def _seconds_to_wait(self) -> float | None:
        moments = [connection.until for connection in self._connections.values()]
        if self._paused_until is not None:
            moments.append(self._paused_until)
        return max(0.0, min(moments) - real_seconds()) if moments else None

    def _accept(self) -> None:
        try:
            link, caller = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            _log.warning("No connection of a peer can be taken: %s.", error.strerror)
            self._selector.unregister(self._listener)
            self._paused_until = real_seconds() + _PAUSE_SECONDS
            return
        link.setblocking(False)
        if len(self._connections) >= MOST_CONNECTIONS:
            # A member has its answer at once: whoever has been here longest is hardly one.
            self._drop(next(iter(self._connections.values())))
        self._connections[link] = _Connection(link, str(caller[0]))
        self._selector.register(link, selectors.EVENT_READ)

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.rest:
                self._send(connection)
            else:
                self._read(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        got = connection.link.recv(LARGEST_HEAD)
        connection.head += got
        if END in connection.head:
            connection.rest = self._respond(connection)
            self._selector.modify(connection.link, selectors.EVENT_WRITE)
            self._send(connection)
        elif not got or len(connection.head) > LARGEST_HEAD:
            self._drop(connection)

    def _send(self, connection: _Connection) -> None:
        sent = connection.link.send(connection.rest)
        connection.rest = connection.rest[sent:]
        if not connection.rest:
            self._drop(connection)

    def _respond(self, connection: _Connection) -> bytes:
        ask = read_ask(connection.head.partition(END)[0])
        if ask is None or not self._is_sealed(ask):
            if self._is_new(connection.caller):
                _log.warning("%s asked as a peer and does not have our secret: it was told nothing.", connection.caller)
            return write_reply(401)
        body = self._answer(ask.asker, ask.asked)
        if body is None:
            if self._is_new(f"{ask.asker} {ask.asked}"):
                _log.warning("%s takes this machine for %s: see its [peers] members.", ask.asker, ask.asked)
            return write_reply(421)
        return write_reply(200, seal_answer(self._secret, ask.nonce, body), body)

    def _is_sealed(self, ask: Ask) -> bool:
        return is_right(ask.seal, seal_ask(self._secret, ask.nonce, ask.asker, ask.asked))

    def _is_new(self, complaint: str) -> bool:
        """Whether it is to be said: once for each address or name, and not for every one there is."""
        if complaint in self._named or len(self._named) >= _MOST_NAMED:
            return False
        self._named.add(complaint)
        return True

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.link, None) is not None:
            self._selector.unregister(connection.link)
            connection.link.close()

    def _close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        for end in (self._listener, self._waking, self._woken):
            end.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address of this machine, or the error that names the key it came from.

    Whoever connects before it is served waits, as with a slow machine.
    """
    listener = None
    try:
        family, kind, number, _, place = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, number)
        # The agent may start again at once: connections that are only waiting to be forgotten are no obstacle.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(MOST_CONNECTIONS)
    except (OSError, OverflowError, ValueError) as error:
        if listener is not None:
            listener.close()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        problem = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise PeersNotListening(address=address, problem=f"{problem}.") from error
    return listener

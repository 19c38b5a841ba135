"""A small HTTP server: one thread, few connections, one answer for each, within a short time limit."""

from __future__ import annotations

import logging
import re
import selectors
import socket
import threading
from typing import TYPE_CHECKING

from forewarn.agent.clock import real_seconds
from forewarn.system.addresses import show_host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forewarn.errors import ForewarnError

_log = logging.getLogger(__name__)


# --- Listening ------------------------------------------------------------------------------------


_WAITING = 32
"""Callers that the kernel keeps until they are served."""


def listen_on(host: str, port: int, failure: type[ForewarnError]) -> socket.socket:
    """A socket at a TCP address, or the failure, whose message names the setting that the address came from.

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
        listener.listen(_WAITING)
    except (OSError, OverflowError, ValueError) as error:
        if listener is not None:
            listener.close()
        problem = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise failure(address=show_host_port(host, port), problem=f"{problem}.") from error
    return listener


# --- The server -----------------------------------------------------------------------------------


_EMPTY_LINE = re.compile(rb"\n\r?\n")
_PAUSE_SECONDS = 0.2  # after no connection could be taken: asking again at once would not make descriptors
_STOP_SECONDS = 5.0


class _Connection:
    """One who asks: what has come, what is still to be sent, and until when."""

    def __init__(self, line: socket.socket, caller: str, until: float) -> None:
        self.line = line
        self.caller = caller
        self.until = until
        self.came = bytearray()
        self.to_send: bytes | None = None  # None: it is not known yet


class SmallServer:
    """Answers from `start` to `stop`. The listeners are its own from now on.

    `respond(head, caller)` gives the whole answer, or nothing to send the caller away. The head ends with its empty
    line; one that does not is longer than `largest_head`. `beat()` is called at each turn, and says by when it wants to
    be called again; None: it does not mind. `callers` is what the log calls whoever comes.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        respond: Callable[[bytes, str], bytes],
        *,
        name: str,
        callers: str = "a caller",
        most_connections: int = 32,
        seconds_each: float = 5.0,
        largest_head: int = 8192,
        beat: Callable[[], float | None] | None = None,
    ) -> None:
        self._listeners = tuple(listeners)
        self._respond = respond
        self._callers = callers
        self._most_connections = most_connections
        self._seconds_each = seconds_each
        self._largest_head = largest_head
        self._beat = beat
        self._connections: dict[socket.socket, _Connection] = {}  # the oldest first
        self._paused_until: float | None = None
        self._short = self._failed = False  # which of the two has been said
        self._waking, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._listen()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close everything; who is being answered is cut off."""
        self._waking.close()
        if self._thread.ident is None:
            self._close()
        else:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            self._close()

    def _turn(self) -> bool:
        """Wait for something to happen, and deal with it. False: it is over."""
        due = None if self._beat is None else self._beat()
        ready = [key for key, _ in self._selector.select(self._seconds_to_wait(due))]
        if any(key.fileobj is self._woken for key in ready):
            return False
        # Newcomers last: whoever has to make room for them and has asked is answered first.
        for key in ready:
            if isinstance(key.data, _Connection):
                self._go_on(key.data)
        for key in ready:
            if isinstance(key.data, socket.socket) and self._paused_until is None:
                self._accept(key.data)
        now = real_seconds()
        for late in [each for each in self._connections.values() if each.until <= now]:
            self._drop(late)
        if self._paused_until is not None and self._paused_until <= now:
            self._listen()
        return True

    def _seconds_to_wait(self, due: float | None) -> float | None:
        moments = [connection.until for connection in self._connections.values()]
        moments += [moment for moment in (due, self._paused_until) if moment is not None]
        return max(0.0, min(moments) - real_seconds()) if moments else None

    def _listen(self) -> None:
        self._paused_until = None
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            line, place = listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # it has gone again
        except OSError as error:
            self._pause(error)
            return
        self._short = False
        line.setblocking(False)
        if len(self._connections) >= self._most_connections:
            # Who asks well has the answer at once: whoever has been here longest hardly does, and keeps nobody out.
            self._drop_oldest()
        caller = str(place[0]) if isinstance(place, tuple) else ""  # at a socket in a folder nobody has a name
        self._connections[line] = connection = _Connection(line, caller, real_seconds() + self._seconds_each)
        self._selector.register(line, selectors.EVENT_READ, connection)

    def _pause(self, error: OSError) -> None:
        """Not by waiting: those who are here go on. The kernel would say at once that somebody is at the door."""
        if not self._short:
            _log.warning("No connection of %s can be taken: %s.", self._callers, error.strerror)
        self._short = True
        self._drop_oldest()
        self._paused_until = real_seconds() + _PAUSE_SECONDS
        for listener in self._listeners:
            self._selector.unregister(listener)

    def _go_on(self, connection: _Connection) -> None:
        try:
            if connection.to_send:
                self._send(connection, connection.to_send)
            elif not (came := connection.line.recv(4096)):
                self._drop(connection)
            elif connection.to_send is None:  # else: it is read so that the answer is not lost to a reset
                connection.came += came
                self._answer(connection)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)

    def _answer(self, connection: _Connection) -> None:
        """If the whole head has come, or too much."""
        found = _EMPTY_LINE.search(connection.came)
        if found is None and len(connection.came) <= self._largest_head:
            return
        head = bytes(connection.came if found is None else connection.came[: found.end()])
        try:
            connection.to_send = self._respond(head, connection.caller)
        except Exception:  # noqa: BLE001 - whatever it is, the next one is answered
            if not self._failed:  # whoever asks does so every few seconds: once is enough
                _log.exception("A request of %s cannot be answered.", self._callers)
            self._failed = True
        if not connection.to_send:
            self._drop(connection)
            return
        self._selector.modify(connection.line, selectors.EVENT_WRITE, connection)
        self._send(connection, connection.to_send)

    def _send(self, connection: _Connection, rest: bytes) -> None:
        connection.to_send = rest[connection.line.send(rest) :]
        if not connection.to_send:
            connection.line.shutdown(socket.SHUT_WR)
            self._selector.modify(connection.line, selectors.EVENT_READ, connection)

    def _drop_oldest(self) -> None:
        if self._connections:
            self._drop(next(iter(self._connections.values())))

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection.line]
        self._selector.unregister(connection.line)
        connection.line.close()

    def _close(self) -> None:
        for line in (*self._connections, *self._listeners, self._waking, self._woken):
            line.close()
        self._selector.close()

"""Serves the agent's pages: one thread, few connections, little time for each.

Not http.server: that takes a thread and as long as it likes for each connection, and an agent at rest would carry it.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from forewarn.agent.clock import real_seconds
from forewarn.agent.pages.routes import Page, answer
from forewarn.agent.pages.sockets import listen_in, listen_on, remove_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from forewarn.agent.pages.watchdog import Watchdog

_log = logging.getLogger(__name__)

MOST_CONNECTIONS = 32
LARGEST_REQUEST = 8192
SECONDS_EACH = 5.0


class Connection:
    """One who asks: what has come, what is still to be sent, and until when."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.came = bytearray()
        self.to_send = b""
        self.answered = False
        self.deadline = real_seconds() + SECONDS_EACH


class Pages:
    """The pages of an agent, over TCP and over the socket in its state folder."""

    def __init__(
        self,
        snapshot: Callable[[], Mapping[str, Any]],
        folder: Path | None,
        listen: tuple[str, int] | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Without a folder, by TCP alone."""
        self._snapshot = snapshot
        self._folder = folder
        self._listen = listen
        self._watchdog = watchdog
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._connections: list[Connection] = []
        self._listeners: list[socket.socket] = []
        self._failed = False
        self.address: tuple[str, int] | None = None
        """Where it listens by TCP, with the port that it was given."""

    def start(self) -> None:
        """Listen, and answer from now on; an error if an address cannot be had."""
        if self._folder is not None:
            local, self._number = listen_in(self._folder)
            self._listeners.append(local)
        try:
            if self._listen is not None:
                self._listeners.append(listen_on(self._listen))
                self.address = self._listeners[-1].getsockname()[:2]
        except BaseException:
            self._close()
            raise
        self._woken, self._waker = socket.socketpair()
        for line in (*self._listeners, self._woken):
            line.setblocking(False)
            self._selector.register(line, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="pages", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; who is being answered is cut off."""
        self._stopping = True
        self._waker.send(b"x")
        self._thread.join(SECONDS_EACH)
        self._close()
        self._waker.close()
        self._woken.close()

    def __enter__(self) -> Pages:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _close(self) -> None:
        if self._folder is not None:
            remove_from(self._folder, self._number)
        for connection in self._connections[:]:
            self._drop(connection)
        for line in self._listeners:
            line.close()
        self._selector.close()

    def _serve(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(self._pause()):
                if key.data is not None:
                    self._go_on(key.data)
                elif key.fileobj in self._listeners:
                    self._accept(key.fileobj)
            now = real_seconds()
            for connection in [each for each in self._connections if each.deadline <= now]:
                self._drop(connection)
            if self._watchdog is not None:
                self._watchdog.beat(self._look)

    def _pause(self) -> float | None:
        """Until the next deadline."""
        now = real_seconds()
        pauses = [connection.deadline - now for connection in self._connections]
        if self._watchdog is not None and self._watchdog.due_at is not None:
            pauses.append(self._watchdog.due_at - now)
        return max(0.0, min(pauses)) if pauses else None

    def _accept(self, listener: socket.socket) -> None:
        try:
            line, _ = listener.accept()
        except BlockingIOError:
            return  # it has gone again
        except OSError:
            # There are no descriptors left. The kernel would say at once that somebody waits: not to turn in circles.
            if self._connections:
                self._drop(self._connections[0])
            threading.Event().wait(0.2)
            return
        line.setblocking(False)
        if len(self._connections) >= MOST_CONNECTIONS:
            # Whoever holds connections and says nothing must not keep a health check out.
            self._drop(self._connections[0])
        connection = Connection(line)
        self._connections.append(connection)
        self._selector.register(line, selectors.EVENT_READ, connection)

    def _go_on(self, connection: Connection) -> None:
        if connection not in self._connections:
            return  # it had to make room for another that came at the same time
        try:
            if connection.to_send:
                sent = connection.line.send(connection.to_send)
                connection.to_send = connection.to_send[sent:]
                if not connection.to_send:
                    connection.line.shutdown(socket.SHUT_WR)
                    self._selector.modify(connection.line, selectors.EVENT_READ, connection)
                return
            came = connection.line.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
            return
        if not came:
            self._drop(connection)
        elif not connection.answered:  # else: what comes after the answer is read so that the answer is not lost
            connection.came += came
            self._answer(connection)

    def _answer(self, connection: Connection) -> None:
        """If the whole request has come."""
        head, end, _ = bytes(connection.came).replace(b"\r\n", b"\n").partition(b"\n\n")
        if end:
            words = head.partition(b"\n")[0].decode("latin-1").split(" ")
            if len(words) == 3 and words[2].startswith("HTTP/1."):
                page, with_body = self._page(words[0], words[1]), words[0] != "HEAD"
            else:
                page, with_body = Page(400, "This is no request of HTTP.\n"), True
        elif len(connection.came) > LARGEST_REQUEST:
            page, with_body = Page(431, f"A request may have {LARGEST_REQUEST} bytes.\n"), True
        else:
            return
        connection.to_send = page.render(with_body=with_body)
        connection.answered = True
        self._selector.modify(connection.line, selectors.EVENT_WRITE, connection)

    def _page(self, method: str, target: str) -> Page:
        try:
            return answer(method, target, self._snapshot())
        except Exception:  # noqa: BLE001 - whatever it is, the next page is served
            self._note_failure()
            return Page(500, "The agent cannot say how it is; its log says why.\n")

    def _look(self) -> Mapping[str, Any] | None:
        try:
            return self._snapshot()
        except Exception:  # noqa: BLE001 - whatever it is, the pages go on
            self._note_failure()
            return None

    def _note_failure(self) -> None:
        if not self._failed:  # a scraper comes every few seconds: once is enough
            _log.exception("The agent cannot say how it is.")
        self._failed = True

    def _drop(self, connection: Connection) -> None:
        self._connections.remove(connection)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.line)
        connection.line.close()

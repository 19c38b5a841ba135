"""Serves the agent's pages: over TCP, and over the socket in its state folder."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from forewarn.agent.listening import listen_on
from forewarn.agent.pages.routes import Page, answer
from forewarn.agent.pages.sockets import listen_in, remove_from
from forewarn.agent.serving import SmallServer
from forewarn.errors import PagesNotListening

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from forewarn.agent.pages.watchdog import Watchdog

_log = logging.getLogger(__name__)

LARGEST_REQUEST = 8192


class Pages:
    """The pages of an agent, and its word to systemd, which comes from the same thread."""

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
        self._number: int | None = None
        self._listen = listen
        self._watchdog = watchdog
        self._failed = False
        self.address: tuple[str, int] | None = None
        """Where it listens by TCP, with the port that it was given."""

    def start(self) -> None:
        """Listen, and answer from now on; an error if an address cannot be had."""
        listeners: list[socket.socket] = []
        try:
            if self._folder is not None:
                local, self._number = listen_in(self._folder)
                listeners.append(local)
            if self._listen is not None:
                listeners.append(listen_on(*self._listen, PagesNotListening))
                self.address = listeners[-1].getsockname()[:2]
            self._server = SmallServer(
                listeners, self._respond, name="pages", largest_head=LARGEST_REQUEST, beat=self._beat
            )
        except BaseException:
            self._remove()
            for listener in listeners:
                listener.close()
            raise
        self._server.start()

    def stop(self) -> None:
        """End; who is being answered is cut off."""
        self._remove()
        self._server.stop()

    def __enter__(self) -> Pages:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _remove(self) -> None:
        if self._folder is not None and self._number is not None:
            remove_from(self._folder, self._number)

    def _respond(self, head: bytes, _: str) -> bytes:
        plain = head.replace(b"\r\n", b"\n")
        if not plain.endswith(b"\n\n"):
            return Page(431, f"A request may have {LARGEST_REQUEST} bytes.\n").render()
        words = plain.partition(b"\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Page(400, "This is no request of HTTP.\n").render()
        return self._page(words[0], words[1]).render(with_body=words[0] != "HEAD")

    def _page(self, method: str, target: str) -> Page:
        try:
            return answer(method, target, self._snapshot())
        except Exception:  # noqa: BLE001 - whatever it is, the next page is served
            self._note_failure()
            return Page(500, "The agent cannot say how it is; its log says why.\n")

    def _beat(self) -> float | None:
        if self._watchdog is None:
            return None
        self._watchdog.beat(self._look)
        return self._watchdog.due_at

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

"""How long a client of the control API may leave its answers unread: uvicorn waits for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

UNREAD_SECONDS = 30.0
UNREAD_AT_STOP_SECONDS = 0.5
"""The same once the service stops: it does not wait for a client that takes nothing."""


class Outflow(HttpToolsProtocol):
    """A connection that is cut off when its client takes nothing any more."""

    _timer: asyncio.TimerHandle | None = None
    _stopping = False

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self._stopping:
            self._timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._stopping:
            self._cancel_timer()

    def shutdown(self) -> None:
        super().shutdown()
        self._stopping = True
        self._cut_if_stuck(0)

    def _cut_if_stuck(self, unread_before: int) -> None:
        unread = self.transport.get_write_buffer_size()
        self._cancel_timer()
        if unread and unread == unread_before:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(UNREAD_AT_STOP_SECONDS, self._cut_if_stuck, unread)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

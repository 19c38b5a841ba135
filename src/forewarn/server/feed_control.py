"""/v1/feed: following history over HTTP."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import Response

from forewarn.wire.feed import EVENT_STREAM

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from forewarn.server.feed import Reader


class Following(Response):
    """An answer that goes on until the client goes away or the service stops."""

    media_type = EVENT_STREAM

    def __init__(self, reader: Reader) -> None:
        # A proxy in between must neither keep it nor collect it.
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] != "HEAD":
            watch = asyncio.create_task(self._end_with_client(receive))
            try:
                async with aclosing(self._reader.parts()) as parts:
                    async for part in parts:
                        # Returns when there is room for more: a client that does not read holds up itself alone.
                        await send({"type": "http.response.body", "body": part, "more_body": True})
            finally:
                watch.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _end_with_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._reader.end()

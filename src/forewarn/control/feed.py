"""/v1/feed: history as server-sent events. A tenant sees only rows of its group."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field
from starlette.responses import Response

from forewarn.control.filters import one_of, visible_groups
from forewarn.control.history import EventType, requested_kinds, requested_type
from forewarn.control.live_topics import CLOCK, TENANT_CLOCK, TOPICS
from forewarn.control.routing import Route, caller
from forewarn.control.schema import MAX_LIST, Name, at_most, choice, help_text
from forewarn.core.history import HISTORY_KINDS
from forewarn.delivery.feed import EVENT_STREAM
from forewarn.errors import BadParameter, InsufficientRole, shown

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.types import Receive, Scope, Send

    from forewarn.control.connection_guard import ConnectionGuard
    from forewarn.core.access import Token
    from forewarn.delivery.feed import Feed, FeedSubscriber
    from forewarn.engine.engine import Engine


MAX_SEQUENCE = 2**63 - 1
MAX_UNSENT_BYTES = 32_768
"""In the kernel, for each client. More than one part of the feed is never in the memory of this process."""


class FeedQuery(Struct):
    """Which rows to follow."""

    group: Annotated[
        Annotated[tuple[Name, ...], at_most(MAX_LIST)], help_text("Only rows about this group. Can be repeated.")
    ] = ()
    kind: Annotated[
        Annotated[tuple[Annotated[str, choice(*HISTORY_KINDS)], ...], at_most(len(HISTORY_KINDS))],
        help_text("Only rows of this kind. Can be repeated."),
    ] = ()
    type: EventType = ""
    after: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] | None,
        help_text("Only rows after this sequence number; 0: all stored rows. Default: only new rows."),
    ] = None
    include: Annotated[
        Annotated[tuple[Annotated[str, choice(*TOPICS)], ...], at_most(len(TOPICS))],
        help_text(
            "Also send the current state of this topic, and its changes, as events without an id. Can be repeated."
        ),
    ] = ()


class FeedHeaders(Struct):
    """How a client continues after a disconnect."""

    last_event_id: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        help_text("The last row that the client received. Takes precedence over after."),
    ] = field(name="Last-Event-ID", default=None)


LAST_EVENT_ID = "last-event-id"
"""Sent by a client that reconnects. Takes precedence over `after`, because a browser reconnects with its first URL."""


class FeedControl:
    """The feed."""

    def __init__(self, engine: Engine, feed: Feed) -> None:
        self._engine = engine
        self._feed = feed

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/feed",
                self.follow,
                "Follow history as server-sent events.",
                {"type": "string"},
                tenant=True,
                query=FeedQuery,
                headers=FeedHeaders,
                response_type=EVENT_STREAM,
            )
        ]

    async def follow(self, request: HttpRequest) -> Response:
        token, after = caller(request), _position(request)
        groups = visible_groups(token, request.state.query.group)
        # With a position, the rows of a group that has left the fleet can still be read.
        for group in groups if after is None and not token.group else ():
            self._engine.fleet.known_group(group)

        kinds = frozenset(requested_kinds(request))
        reader = await self._feed.reader(
            frozenset(groups),
            kinds,
            after,
            request.state.is_authorized,  # the token may be revoked or expire while the client is connected
            event_type=requested_type(request),
            tenant=bool(token.group),
            generation=token.generation,
            owner=token.name,
            topics=_topics(token, request.state.query.include),
        )
        return FeedResponse(reader)


def _topics(token: Token, requested: tuple[str, ...]) -> tuple[str, ...]:
    """Return the topics to follow. Tenants can follow the clock, without what is due next."""
    topics = tuple(dict.fromkeys(one_of("include", name, TOPICS) for name in requested))
    if not token.group:
        return topics
    for name in topics:
        if name != CLOCK:
            what, needed = f"{name} in the feed", "viewer, operator or admin"
            raise InsufficientRole(role=token.role.value, what=what, needed=needed)
    return tuple(TENANT_CLOCK for _ in topics)


def _position(request: HttpRequest) -> int | None:
    header = request.headers.get(LAST_EVENT_ID)
    if header:
        if not (header.isascii() and header.isdecimal() and len(header) < 20 and int(header) <= MAX_SEQUENCE):
            allowed = "an id from this feed"
            raise BadParameter(parameter="Last-Event-ID", problem=f"{shown(header)} is not {allowed}", allowed=allowed)
        return int(header)
    query: FeedQuery = request.state.query
    return query.after


class FeedResponse(Response):
    """A response that continues until the client disconnects or the service stops."""

    media_type = EVENT_STREAM

    def __init__(self, reader: FeedSubscriber) -> None:
        # A proxy must neither cache nor buffer it.
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guard: ConnectionGuard = scope["state"]["guard"]
        guard.limit_write_buffer(MAX_UNSENT_BYTES)
        try:
            await self._follow(scope, receive, send)
        finally:
            self._reader.close()

    async def _follow(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] != "HEAD":
            watch = asyncio.create_task(self._end_on_disconnect(receive))
            try:
                async with aclosing(self._reader.parts()) as parts:
                    async for part in parts:
                        # Waits until the client has read enough: a slow client delays only itself.
                        await send({"type": "http.response.body", "body": part, "more_body": True})
            finally:
                watch.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _end_on_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._reader.end()

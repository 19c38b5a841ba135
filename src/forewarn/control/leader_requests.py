"""Requests to the control API that only the leader can answer: a node that follows sends them to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from forewarn.control.auth import OPEN_PATHS, SIGN_IN, ApiUser
from forewarn.control.input import read_bytes
from forewarn.control.problems import unauthorized
from forewarn.errors import ForewarnError, NotLeading, ServiceStopping, UnknownToken

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from forewarn.control.routing import Route
    from forewarn.control.slices import Slices
    from forewarn.core.access import Token
    from forewarn.nodes.forwarding import NodeForwarder

KIND = "control"


class LeaderRequests:
    """ASGI middleware inside the authentication. A node that leads answers itself, unless it stops to lead.

    A node that follows first checks path, role and query, as the leader does. Only then it reads the body.
    """

    def __init__(self, app: ASGIApp, forwarder: NodeForwarder, slices: Slices) -> None:
        self._app = app
        self._slices = slices
        self._forwarder = forwarder
        self._engine = forwarder.engine
        forwarder.handlers[KIND] = self._answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token: Token | None = scope.get("state", {}).get("token")
        if not _needs_leader(scope, token):
            await self._app(scope, receive, send)
            return
        if self._forwarder.is_certain:
            received: list[Message] = []

            async def receive_and_keep() -> Message:
                received.append(await receive())
                return received[-1]

            if await self._lead(scope, receive_and_keep, send, NotLeading) is None:
                return
            receive = _replay(received, receive)
        scope.setdefault("state", {})["forward"] = self._forward
        await self._app(scope, receive, send)

    async def _lead(
        self, scope: Scope, receive: Receive, send: Send, *refusals: type[ForewarnError]
    ) -> ForewarnError | None:
        """Let this node answer. If that ends with one of these errors, and nothing was changed, return it, and send
        nothing: then another node can do everything."""
        state = scope.setdefault("state", {})

        def refusal() -> ForewarnError | None:
            error = state.get("error")
            return error if isinstance(error, refusals) and not state.get("committed") else None

        async def send_answer(message: Message) -> None:
            if refusal() is None:
                await send(message)

        await self._app(scope, receive, send_answer)
        return refusal()

    async def _forward(self, request: Request, route: Route) -> Response:
        scope = request.scope
        token: Token | None = scope["state"].get("token")
        with self._slices.body_place(route.body_limit):
            body = await read_bytes(request, route.body_limit) if route.body is not None else b""
            payload = {
                "method": scope["method"],
                "path": scope["path"],
                "query": scope["query_string"],
                "headers": [(name, value) for name, value in scope["headers"] if name != b"authorization"],
                "client": scope["client"][0] if scope["client"] else "",
                "body": body,
                "token": token.hash if token is not None else "",
            }
            status, headers, answer = await self._forwarder.request(KIND, payload, repeatable=False)
        response = Response(answer, status)
        response.raw_headers = [tuple(each) for each in headers]
        return response

    async def _answer(self, payload: dict[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Answer a request of another node, which has authenticated its client."""
        found = next((each for each in self._engine.draft().all_tokens() if each.hash == payload["token"]), None)
        user = ApiUser.of(found) if found is not None else None
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": payload["method"],
            "path": payload["path"],
            "raw_path": payload["path"].encode(),
            "root_path": "",
            "query_string": payload["query"],
            "headers": [tuple(each) for each in payload["headers"]],
            "client": (payload["client"], 0),
            "server": None,
            "state": {"token": user.token, "session": user.session} if user is not None else {},
        }
        status, headers, parts = 500, [], []

        messages: list[Message] = [{"type": "http.request", "body": payload["body"], "more_body": False}]

        async def receive() -> Message:
            if not messages:
                await asyncio.Event().wait()  # the client is connected to the other node
            return messages.pop()

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message["headers"])
            else:
                parts.append(message.get("body", b""))

        is_known = user is not None or (payload["method"], payload["path"]) == SIGN_IN
        if not is_known:
            await unauthorized(UnknownToken())(scope, receive, send)
        elif refusal := await self._lead(scope, receive, send, NotLeading, ServiceStopping):
            raise refusal  # the other node sends it to the next leader
        return status, headers, b"".join(parts)


def _needs_leader(scope: Scope, token: Token | None) -> bool:
    if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
        return False
    if token is None:  # a file of the portal, or signing in, which creates a session
        return (scope["method"], scope["path"]) == SIGN_IN
    return scope["method"] not in ("GET", "HEAD", "OPTIONS")


def _replay(received: list[Message], receive: Receive) -> Receive:
    """Return a function that returns what was received before, and then what follows."""
    earlier = iter(received)

    async def again() -> Message:
        found = next(earlier, None)
        return found if found is not None else await receive()

    return again

"""One log line for each request to the control API: who sent it, what it was, and the result. Never with a body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.clock import real_seconds
from forewarn.control.auth import OPEN_PATHS
from forewarn.system.access_log import log_access
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from forewarn.core.access import Token
    from forewarn.errors import BadToken

_log = get_logger(__name__)

UNAUDITED_PATHS = OPEN_PATHS | {"/metrics"}
"""Requests of monitoring programs, every few seconds."""


class RequestLog:
    """ASGI middleware around the authentication, so that it also sees requests without a valid token."""

    def __init__(self, app: ASGIApp, *, has_access_log: bool) -> None:
        self._app = app
        self._has_access_log = has_access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        may_be_audited = scope["path"] not in UNAUDITED_PATHS
        if scope["type"] != "http" or not (may_be_audited or self._has_access_log):
            await self._app(scope, receive, send)
            return
        started = real_seconds()
        status, size = 0, 0  # status 0: the client disconnected before a response

        async def counting_send(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, counting_send)
        finally:
            token: Token | None = scope["state"].get("token")
            rejected: BadToken | None = scope["state"].get("rejected")
            address = scope["client"][0] if scope["client"] else ""
            method, path = scope["method"], scope["path"]
            if may_be_audited and not scope["state"].get("public"):
                _log.info(
                    "control_request",
                    "Request to the control API.",
                    token=token.name if token else rejected and rejected.fields.get("name"),
                    role=token and token.role.value,
                    address=address,
                    method=method,
                    path=path,
                    status=status,
                    **({"reason": type(rejected).__name__} if rejected else {}),
                )
            if self._has_access_log:
                caller = token.name if token is not None else ""
                log_access("control", caller, address, method, path, status, size, real_seconds() - started)

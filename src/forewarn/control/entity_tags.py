"""Responses with an entity tag: a client that has the current content gets a 304 without it (RFC 9110, 13.1.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request


def tagged_response(
    request: Request, content: bytes, tag: str, media_type: str, headers: dict[str, str] | None = None
) -> Response:
    """Return the content with its tag, or a 304. A cache must ask each time whether the content is current."""
    sent = {"etag": tag, "cache-control": "no-cache", **(headers or {})}
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if tag in known or known == ["*"]:
        return Response(status_code=304, headers=sent)
    return Response(content, headers=sent, media_type=media_type)

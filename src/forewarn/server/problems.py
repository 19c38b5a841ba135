"""Error → response: one table per plane. Families decide, not single errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.errors import (
    BadRequestBody,
    Conflict,
    Forbidden,
    ForewarnError,
    Invalid,
    NotFound,
    Unavailable,
    UnknownPath,
)
from forewarn.wire.answer import error_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import ExceptionHandler

    from forewarn.wire.answer import Answer

# On this wire a thing that is not known is a bad request: 404 is for paths and versions.
METADATA_STATUS: dict[type[ForewarnError], int] = {
    Invalid: 400,
    NotFound: 400,
    Conflict: 400,
    Forbidden: 400,
    Unavailable: 503,
}

CONTROL_STATUS: dict[type[ForewarnError], int] = {
    Invalid: 400,
    NotFound: 404,
    Conflict: 409,
    Forbidden: 403,
    Unavailable: 503,
}


def family(error: ForewarnError) -> type[ForewarnError]:
    """Which of the five an error belongs to."""
    return next(kind for kind in CONTROL_STATUS if isinstance(error, kind))


def metadata_answer(error: ForewarnError) -> Answer:
    """The error as the metadata service says it."""
    return error_answer(METADATA_STATUS[family(error)], str(error))


def problem(error: ForewarnError, status: int | None = None, headers: dict[str, str] | None = None) -> Response:
    """The error as problem details."""
    kind = family(error)
    details: dict[str, Any] = {
        "type": f"urn:forewarn:{type(error).__name__}",
        "title": kind.__name__,
        "status": status or CONTROL_STATUS[kind],
        "detail": str(error),
    }
    if isinstance(error, BadRequestBody):
        details["pointer"] = error.pointer
    return JSONResponse(details, details["status"], headers, media_type="application/problem+json")


async def _on_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ForewarnError)  # noqa: S101 - it is registered for no other
    return problem(error)


async def _on_unknown_path(request: Request, _: Exception) -> Response:
    return problem(UnknownPath(path=request.url.path, hint=" The API is below /v1."))


async def _on_unknown_verb(request: Request, error: Exception) -> Response:
    allowed = getattr(error, "headers", None) or {}
    wrong = Invalid(
        problem=f"{request.method} is not possible at {request.url.path}, {allowed.get('Allow', 'GET')} is."
    )
    return problem(wrong, status=405, headers=dict(allowed))


HANDLERS: Mapping[Any, ExceptionHandler] = {
    ForewarnError: _on_error,
    404: _on_unknown_path,
    405: _on_unknown_verb,
}

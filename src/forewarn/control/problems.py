"""Errors as HTTP responses (RFC 9457). The error family determines the status code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from forewarn.control.schema import Count, Shape, choice, help_text
from forewarn.errors import (
    MAX_LISTED_MISTAKES,
    BadFile,
    BadOption,
    BadParameter,
    BadRequestBody,
    BadToken,
    BodyTooLarge,
    Conflict,
    Forbidden,
    ForewarnError,
    Invalid,
    NodeBehind,
    NoLeader,
    NotFound,
    ServiceBusy,
    ServiceStopping,
    StoreFailed,
    StoreOutcomeUnknown,
    TooManyFeedClients,
    TooManySignIns,
    Unavailable,
    UnknownPath,
    UnknownResource,
    shortened,
)
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import ExceptionHandler


_log = get_logger(__name__)

PROBLEM = "application/problem+json"
RETRY_SECONDS = "10"
"""After this time a client can try again to follow the feed."""

SHORT_RETRY_SECONDS = "2"
"""After this time another node may lead, or the store may work again."""
REPEATABLE = (StoreFailed, ServiceBusy, ServiceStopping, NoLeader, NodeBehind)
"""Errors that say that nothing was changed, except for StoreOutcomeUnknown."""

CONTROL_STATUS: dict[type[ForewarnError], int] = {
    Invalid: 400,
    NotFound: 404,
    Conflict: 409,
    Forbidden: 403,
    Unavailable: 503,
}
OTHER_STATUS: dict[type[ForewarnError], int] = {BodyTooLarge: 413, TooManySignIns: 429}
"""Statuses of errors whose status is not that of the family."""


def family(error: ForewarnError) -> type[ForewarnError]:
    """Return the family of an error."""
    return next(kind for kind in CONTROL_STATUS if isinstance(error, kind))


OTHER_TITLES = {401: "Unauthorized", 405: "Method Not Allowed"}
"""Titles of responses whose status is not that of the family."""


class MistakeShape(Shape):
    """A mistake in a file."""

    line: Annotated[Count, help_text("0: not known, because the file has more than 1 MB.")]
    key: str
    detail: Annotated[str, help_text("What is wrong, and how to fix it.")]


class ProblemShape(Shape):
    """Problem details (RFC 9457). The title is one of five error families, or that of the status 401, 405 or 500."""

    type: Annotated[str, help_text("urn:forewarn: and the name of the error.")]
    title: Annotated[str, choice(*(kind.__name__ for kind in CONTROL_STATUS), *OTHER_TITLES.values(), "Internal")]
    status: Count
    detail: Annotated[str, help_text("What is wrong, and how to fix it.")]
    pointer: Annotated[str | UnsetType, help_text("The invalid member of the body, as a JSON pointer.")] = UNSET
    parameter: Annotated[str | UnsetType, help_text("The invalid query parameter or header.")] = UNSET
    allowed: Annotated[Any, help_text("What is allowed there: a list of values, or a description.")] = UNSET
    errors: Annotated[
        list[MistakeShape] | UnsetType,
        help_text(f"The mistakes of a file in the order of its lines, at most {MAX_LISTED_MISTAKES}."),
    ] = UNSET


def problem(
    error: ForewarnError,
    status: int | None = None,
    headers: dict[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
) -> Response:
    """Return the error as problem details. `body` is the request body, to find the invalid member in it."""
    kind = family(error)
    status = status or CONTROL_STATUS[kind]
    title = OTHER_TITLES.get(status, kind.__name__)
    found = ProblemShape(f"urn:forewarn:{type(error).__name__}", title, status, str(error))
    if isinstance(error, BadParameter):
        found.parameter = error.parameter
    else:
        pointer = error.pointer if isinstance(error, BadRequestBody) else _pointer(error, body or {})
        found.pointer = UNSET if pointer is None else pointer
    if isinstance(error, BadRequestBody | BadParameter):
        found.allowed = UNSET if error.allowed is None else error.allowed
    elif isinstance(error, BadFile):
        found.errors = [MistakeShape(*mistake) for mistake in error.mistakes]
    elif "known" in error.fields:
        found.allowed = str(error.fields["known"]).split(", ")
    return _response(found, headers)


def _response(found: ProblemShape, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(found), found.status, headers, media_type=PROBLEM)


def _pointer(error: ForewarnError, body: Mapping[str, Any]) -> str | None:
    """Return a JSON pointer to the member of the body that an error of the core is about."""
    if isinstance(error, BadOption):
        member = str(error.fields["name"])
    else:
        member = str(error.fields["what"]) if isinstance(error, UnknownResource) else error.member
    if body.get(member) is None:
        return None
    if isinstance(body[member], list):
        for index, value in enumerate(body[member]):
            if value in error.fields.values():
                return f"/{member}/{index}"
    return f"/{member}"


def unauthorized(error: BadToken) -> Response:
    """Return the response to a request without a valid token."""
    return problem(error, status=401, headers={"www-authenticate": 'Bearer realm="forewarn"'})


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ForewarnError)  # noqa: S101 - registered for this class only
    if isinstance(error, BadToken):
        return unauthorized(error)
    request.state.error = error  # for LeaderRequests
    return problem(
        error, OTHER_STATUS.get(type(error)), headers=retry_headers(error), body=getattr(request.state, "body", None)
    )


def retry_headers(error: ForewarnError) -> dict[str, str] | None:
    """Return the header that says when the client can try again."""
    if isinstance(error, TooManyFeedClients):
        return {"retry-after": RETRY_SECONDS}
    if isinstance(error, TooManySignIns):
        return {"retry-after": str(error.fields["seconds"])}
    can_repeat = isinstance(error, REPEATABLE) and not isinstance(error, StoreOutcomeUnknown)
    return {"retry-after": SHORT_RETRY_SECONDS} if can_repeat else None


async def _on_unexpected_error(request: Request, error: Exception) -> Response:
    _log.error("request_failed", "Unexpected error in the control API.", path=request.url.path, exc_info=error)
    detail = "Unexpected error in Forewarn; see the service's log. The request may have had no effect."
    return _response(ProblemShape("about:blank", "Internal", 500, detail))


async def _on_unknown_path(request: Request, _: Exception) -> Response:
    return problem(UnknownPath(path=shortened(request.url.path), hint=" The API is below /v1."))


async def _on_method_not_allowed(request: Request, error: Exception) -> Response:
    headers = getattr(error, "headers", None) or {}
    allowed = sorted(headers.get("Allow", "GET").split(", "))
    wrong = Invalid(
        problem=f"{shortened(request.url.path)} does not support {request.method}. Use {' or '.join(allowed)}."
    )
    return problem(wrong, status=405, headers={"allow": ", ".join(allowed)})


async def _on_disconnect(_: Request, __: Exception) -> Response:
    # The client disconnected before its request was complete. Nobody reads this, but the log has the status.
    return Response(status_code=400)


HANDLERS: Mapping[Any, ExceptionHandler] = {
    ForewarnError: _on_error,
    ClientDisconnect: _on_disconnect,
    Exception: _on_unexpected_error,
    404: _on_unknown_path,
    405: _on_method_not_allowed,
}

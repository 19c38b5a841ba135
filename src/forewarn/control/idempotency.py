"""Idempotency-Key: a client can repeat a request whose response was lost; it has an effect only once."""

from __future__ import annotations

import json
from collections.abc import Generator
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from forewarn.control.routing import caller
from forewarn.control.schema import json_response
from forewarn.core.access import known_response, run_once
from forewarn.errors import BadParameter, ChangeMade, IdempotencyKeyReused, StoreNotReadable

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from msgspec import Struct
    from starlette.requests import Request

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps
    from forewarn.engine.engine import Engine

    Decide = Callable[[Draft, datetime, OperatorLimits], Struct | Steps[Struct]]


HEADER = "idempotency-key"
MAX_KEY_LENGTH = 255


async def create_once(
    engine: Engine, request: Request, decide: Decide, hidden: tuple[str, ...] = (), status: int = 201
) -> Response:
    """Create a resource, and return 201 with the shape from `decide`. For a repeated key, return the stored response.

    Only the first response has the `hidden` members. In the stored response they are null.
    """
    key = _key(request)
    if key is None:
        return json_response(await engine.execute(decide), status)
    created: list[Struct] = []

    def decide_and_store(draft: Draft, now: datetime, limits: OperatorLimits) -> Steps[tuple[int, str]]:
        shape = decide(draft, now, limits)
        created[:] = [(yield from shape) if isinstance(shape, Generator) else shape]
        stored = msgspec.structs.replace(created[0], **dict.fromkeys(hidden))
        return status, msgspec.json.encode(stored).decode()

    # Only members that the request has: a member that a later release adds must not change the fingerprint.
    given = {name: value for name, value in request.state.body.items() if value is not None}
    content = json.dumps(given, sort_keys=True)
    fingerprint = sha256(f"{request.method} {request.url.path} {content}".encode()).hexdigest()
    stored = await engine.execute_in_steps(run_once, _stored_key(request, key), fingerprint, decide_and_store)
    if created:
        return json_response(created[0], stored.status)
    try:
        replayed = stored if stored.body else await engine.records.stored_response(stored.key)
    except StoreNotReadable as error:  # an earlier request has made the change
        raise ChangeMade(problem=error.fields["problem"]) from error
    if replayed is None:  # it expired just now
        raise IdempotencyKeyReused(key=key)
    return Response(replayed.body, replayed.status, {"idempotency-replayed": "true"}, media_type="application/json")


def is_repeated(engine: Engine, request: Request) -> bool:
    """Return whether a request with this key has been answered: `create_once` does not decide it again."""
    key = _key(request)
    return key is not None and bool(known_response(engine.draft(), engine.clock.now(), _stored_key(request, key)))


def _stored_key(request: Request, key: str) -> str:
    return f"{caller(request).hash} {key}"


def _key(request: Request) -> str | None:
    keys = request.headers.getlist(HEADER)
    if not keys:
        return None
    key = keys[0]
    if len(keys) > 1 or not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
        allowed = f"one value of 1 to {MAX_KEY_LENGTH} printable ASCII characters"
        raise BadParameter(parameter="Idempotency-Key", problem=f"must be {allowed}", allowed=allowed)
    return key

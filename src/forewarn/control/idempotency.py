"""Idempotency-Key: a request that is sent again, because its response was lost, has an effect only once."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from forewarn.control.routing import caller
from forewarn.control.schema import json_response
from forewarn.core.access import run_once
from forewarn.errors import BadParameter, IdempotencyKeyReused

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from msgspec import Struct
    from starlette.requests import Request

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine

    Decide = Callable[[Draft, datetime, OperatorLimits], Struct]


HEADER = "idempotency-key"
MAX_KEY_LENGTH = 255


async def make_once(engine: Engine, request: Request, decide: Decide, hidden: tuple[str, ...] = ()) -> Response:
    """Create a resource and return 201 with the shape from `decide`; for a repeated key, the stored response.

    The `hidden` members are only in the first response. They are null in the stored one.
    """
    key = _key(request)
    if key is None:
        return json_response(await engine.execute(decide), 201)
    made: list[Struct] = []

    def decide_and_keep(draft: Draft, now: datetime, limits: OperatorLimits) -> tuple[int, str]:
        made[:] = [decide(draft, now, limits)]
        kept = msgspec.structs.replace(made[0], **dict.fromkeys(hidden))
        return 201, msgspec.json.encode(kept).decode()

    # Only members that were given: one that a later release adds must not change the fingerprint of an old request.
    given = {name: value for name, value in request.state.body.items() if value is not None}
    content = json.dumps(given, sort_keys=True)
    fingerprint = sha256(f"{request.method} {request.url.path} {content}".encode()).hexdigest()
    kept = await engine.execute(run_once, f"{caller(request).hash} {key}", fingerprint, decide_and_keep)
    if made:
        return json_response(made[0], kept.status)
    whole = kept if kept.body else await engine.records.stored_response(kept.key)
    if whole is None:  # it expired just now
        raise IdempotencyKeyReused(key=key)
    return Response(whole.body, whole.status, {"idempotency-replayed": "true"}, media_type="application/json")


def _key(request: Request) -> str | None:
    keys = request.headers.getlist(HEADER)
    if not keys:
        return None
    key = keys[0]
    if len(keys) > 1 or not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
        allowed = f"one value of 1 to {MAX_KEY_LENGTH} printable ASCII characters"
        raise BadParameter(parameter="Idempotency-Key", problem=f"must be {allowed}", allowed=allowed)
    return key

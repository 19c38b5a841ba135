"""Idempotency-Key: a request that is sent again, because its answer was lost, is done once."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from forewarn.control.routing import caller
from forewarn.control.schema import answer
from forewarn.core.access import run_once
from forewarn.errors import BadParameter, IdempotencyKeyReused

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from msgspec import Struct
    from starlette.requests import Request

    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine

    Decide = Callable[[Draft, datetime, Terms], Struct]


HEADER = "idempotency-key"
LONGEST_KEY = 255


async def make_once(engine: Engine, request: Request, decide: Decide, hidden: tuple[str, ...] = ()) -> Response:
    """Have something made, and answer 201 with what `decide` says of it; the same again where a key is repeated.

    What is `hidden` is in the first answer only, and null in what is kept.
    """
    key = _key(request)
    if key is None:
        return answer(await engine.execute(decide), 201)
    made: list[Struct] = []

    def decide_and_keep(draft: Draft, now: datetime, terms: Terms) -> tuple[int, str]:
        made[:] = [decide(draft, now, terms)]
        kept = msgspec.structs.replace(made[0], **dict.fromkeys(hidden))
        return 201, msgspec.json.encode(kept).decode()

    # Only what was given: a member that a later release adds must not make an old request another one.
    given = {name: value for name, value in request.state.body.items() if value is not None}
    content = json.dumps(given, sort_keys=True)
    fingerprint = sha256(f"{request.method} {request.url.path} {content}".encode()).hexdigest()
    kept = await engine.execute(run_once, f"{caller(request).hash} {key}", fingerprint, decide_and_keep)
    if made:
        return answer(made[0], kept.status)
    whole = kept if kept.body else await engine.records.kept_answer(kept.key)
    if whole is None:  # its day is over at this very moment
        raise IdempotencyKeyReused(key=key)
    return Response(whole.body, whole.status, {"idempotency-replayed": "true"}, media_type="application/json")


def _key(request: Request) -> str | None:
    keys = request.headers.getlist(HEADER)
    if not keys:
        return None
    key = keys[0]
    if len(keys) > 1 or not (0 < len(key) <= LONGEST_KEY and key.isascii() and key.isprintable()):
        valid = f"one key of 1 to {LONGEST_KEY} printable ASCII characters"
        raise BadParameter(parameter="Idempotency-Key", problem=f"must be {valid}", valid=valid)
    return key

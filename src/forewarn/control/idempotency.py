"""Idempotency-Key: a request that is sent again, because its answer was lost, is done once."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from forewarn.control.routing import caller
from forewarn.core.access import once
from forewarn.errors import BadParameter, KeyReused
from forewarn.metadata.answers import JSON

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.control.input import Fields
    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine

    Decide = Callable[[Draft, datetime, Terms], dict[str, Any]]


HEADER = "idempotency-key"
LONGEST_KEY = 255


async def make_once(
    engine: Engine, request: Request, fields: Fields, decide: Decide, hidden: tuple[str, ...] = ()
) -> Response:
    """Have something made, and answer 201 with what `decide` says of it; the same again where a key is repeated.

    What is `hidden` is in the first answer only, and null in what is kept.
    """
    key = _key(request)
    if key is None:
        return _answer(201, json.dumps(await engine.execute(decide), ensure_ascii=False))
    made: dict[str, Any] = {}

    def decide_and_keep(draft: Draft, now: datetime, terms: Terms) -> tuple[int, str]:
        made.update(decide(draft, now, terms))
        return 201, json.dumps({**made, **dict.fromkeys(hidden)}, ensure_ascii=False)

    content = json.dumps(fields.values, sort_keys=True)
    fingerprint = sha256(f"{request.method} {request.url.path} {content}".encode()).hexdigest()
    kept = await engine.execute(once, f"{caller(request).hash} {key}", fingerprint, decide_and_keep)
    if made:
        return _answer(kept.status, json.dumps(made, ensure_ascii=False))
    whole = kept if kept.body else await engine.archive.kept_answer(kept.key)
    if whole is None:  # its day is over at this very moment
        raise KeyReused(key=key)
    return _answer(whole.status, whole.body, {"idempotency-replayed": "true"})


def _answer(status: int, body: str, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type=JSON)


def _key(request: Request) -> str | None:
    keys = request.headers.getlist(HEADER)
    if not keys:
        return None
    key = keys[0]
    if len(keys) > 1 or not (0 < len(key) <= LONGEST_KEY and key.isascii() and key.isprintable()):
        valid = f"one, of 1 to {LONGEST_KEY} printable ASCII characters"
        raise BadParameter(parameter="Idempotency-Key", problem=f"must be {valid}", valid=valid)
    return key

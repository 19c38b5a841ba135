"""Bodies of the control API: read with a bound, written a part at a time."""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from forewarn.errors import BadRequestBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request

LARGEST_OBJECT = 1_048_576
LARGEST_FLEET = 256 * 1_048_576
PART = 100
"""How many things of a list are written at once."""


def stream_list(name: str, items: Iterator[dict[str, Any]]) -> Response:
    """A list of any length, a part at a time, so that polls are answered in between."""

    async def parts() -> AsyncIterator[bytes]:
        yield f'{{"{name}":['.encode()
        separator = b""
        while part := list(islice(items, PART)):
            yield separator + json.dumps(part, separators=(",", ":"), ensure_ascii=False)[1:-1].encode()
            separator = b","
            await asyncio.sleep(0)
        yield b"]}"

    return StreamingResponse(parts(), media_type="application/json")


async def read_body(request: Request, most: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise BadRequestBody(pointer="", problem=f"has more than {most} bytes")
    return bytes(body)


async def read_object(request: Request) -> dict[str, Any]:
    try:
        parsed = json.loads(await read_body(request, LARGEST_OBJECT))
    except (ValueError, RecursionError) as error:
        raise BadRequestBody(pointer="", problem="is not JSON") from error
    if not isinstance(parsed, dict):
        raise BadRequestBody(pointer="", problem="is not a JSON object")
    return parsed


def text_of(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise BadRequestBody(pointer=f"/{name}", problem="must be a string")
    return value

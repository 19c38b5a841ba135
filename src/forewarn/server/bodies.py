"""Bodies of the control API: read with a bound, written a part at a time."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from forewarn.core.durations import parse_duration
from forewarn.errors import BadDuration, BadRequestBody, nearest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from starlette.requests import Request

LARGEST_OBJECT = 1_048_576
LARGEST_FLEET = 256 * 1_048_576
FURTHEST = timedelta(days=3660)
"""How far from now a moment may be."""
PART = 100
"""How many things of a list are written at once."""


def stream_list(name: str, found: Iterable[dict[str, Any]]) -> Response:
    """A list of any length, a part at a time, so that polls are answered in between."""
    items = iter(found)

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


async def read_fields(request: Request, known: Sequence[str]) -> Fields:
    """The members of a request's object; an empty body has none."""
    if request.headers.get("content-length") == "0":
        return Fields({}, known)
    return Fields(await read_object(request), known)


async def read_object(request: Request) -> dict[str, Any]:
    body = await read_body(request, LARGEST_OBJECT)
    try:
        parsed = json.loads(body)
        json.dumps(parsed, ensure_ascii=False).encode()  # half a surrogate pair can be written, but is no text
    except UnicodeEncodeError as error:
        raise BadRequestBody(pointer="", problem="has a string that is not Unicode text") from error
    except (ValueError, RecursionError) as error:
        raise BadRequestBody(pointer="", problem="is not JSON") from error
    if not isinstance(parsed, dict):
        raise BadRequestBody(pointer="", problem="is not a JSON object")
    return parsed


class Fields:
    """The members of a request's object, each read with its type; what is not known is refused."""

    def __init__(self, values: dict[str, Any], known: Sequence[str]) -> None:
        self._values = values
        for name in values:
            if name not in known:
                raise BadRequestBody(pointer=f"/{name}", problem=f"is not known here.{nearest(name, known)}")

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise BadRequestBody(pointer=f"/{name}", problem="must be a string")
        return default if value is None else value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._values.get(name)
        if values is None:
            return ()
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise BadRequestBody(pointer=f"/{name}", problem="must be a list of strings")
        return tuple(values)

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise BadRequestBody(pointer=f"/{name}", problem="must be true or false")
        return bool(value)

    def number(self, name: str, default: int) -> int:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadRequestBody(pointer=f"/{name}", problem="must be a whole number")
        return value

    def length(self, name: str) -> timedelta | None:
        """A length of time, like 90s or 2h."""
        text = self.text(name)
        if not text:
            return None
        try:
            return parse_duration(text)
        except BadDuration as error:
            raise BadRequestBody(pointer=f"/{name}", problem=str(error)) from error

    def moment(self, name: str, now: datetime) -> datetime | None:
        """A moment, or how long it is until then."""
        text = self.text(name)
        if not text:
            return None
        if not text.isdecimal():  # 20260101 is meant as a date, if anything
            with suppress(BadDuration):
                return now + parse_duration(text)
        try:
            moment = datetime.fromisoformat(text)
            moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            problem = f"{text!r} is no moment. Write it like 2026-11-20T02:00:00Z, or from now on, like 2h"
            raise BadRequestBody(pointer=f"/{name}", problem=problem) from None
        if abs(moment - now) > FURTHEST:
            problem = f"{text!r} is too far away: write a moment within {FURTHEST.days} days"
            raise BadRequestBody(pointer=f"/{name}", problem=problem)
        return moment


def text_of(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise BadRequestBody(pointer=f"/{name}", problem="must be a string")
    return value

"""Reads the body and the query of a request, each value with its type and within a bound."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from forewarn.core.durations import LONGEST, parse_duration, parse_future_moment
from forewarn.errors import BadDuration, BadParameter, BadRequestBody, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from starlette.requests import Request


LARGEST_OBJECT = 1_048_576
LARGEST_FLEET = 256 * 1_048_576
LARGEST_NUMBER = 1_000_000_000
A_LENGTH = "a length of time, like 90s, 14m50s, 2h or 7d"
A_MOMENT = "a moment like 2026-11-20T02:00:00Z, or from now on, like 2h"


async def read_body(request: Request, most: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise BadRequestBody(pointer="", problem=f"has more than {most} bytes")
    return bytes(body)


async def until_gone(request: Request) -> None:
    """Returns when the client has hung up. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def read_fields(request: Request) -> Fields:
    """The members of a request's object, of those that its endpoint knows; an empty body has none."""
    known = [field.name for field in request.state.endpoint.body]
    values = await _read_object(request)
    request.state.body = values
    fields = Fields(values, known)
    for field in request.state.endpoint.body:
        if field.required and field.name not in fields:
            problem = f"must be given: {field.help[0].lower()}{field.help[1:]}"
            raise BadRequestBody(pointer=f"/{field.name}", problem=problem, valid=field.schema.get("enum"))
    return fields


async def _read_object(request: Request) -> dict[str, Any]:
    body = await read_body(request, LARGEST_OBJECT)
    if not body:
        return {}
    try:
        parsed = json.loads(body)
        json.dumps(parsed, ensure_ascii=False).encode()  # half a surrogate pair can be written, but is no text
    except UnicodeEncodeError as error:
        raise BadRequestBody(
            pointer="", problem="has a string that is not Unicode text", valid="Unicode text"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadRequestBody(pointer="", problem="is not JSON", valid="a JSON object") from error
    if not isinstance(parsed, dict):
        raise BadRequestBody(pointer="", problem="is not a JSON object", valid="a JSON object")
    return parsed


class Fields:
    """The members of a request's object, each read with its type; what is not known is refused."""

    def __init__(self, values: dict[str, Any], known: Sequence[str]) -> None:
        self.values = values
        for name in values:
            if name not in known:
                problem = f"is not known here.{nearest(name, known)}"
                raise BadRequestBody(pointer=f"/{_escaped(name)}", problem=problem, valid=list(known))

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise BadRequestBody(pointer=f"/{name}", problem="must be a string", valid="a string")
        return default if value is None else value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.values.get(name)
        if values is None:
            return ()
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise BadRequestBody(pointer=f"/{name}", problem="must be a list of strings", valid="a list of strings")
        return tuple(values)

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise BadRequestBody(pointer=f"/{name}", problem="must be true or false", valid=[True, False])
        return bool(value)

    def number(self, name: str, default: int) -> int:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > LARGEST_NUMBER:
            valid = f"a whole number up to {LARGEST_NUMBER}"
            raise BadRequestBody(pointer=f"/{name}", problem=f"must be {valid}", valid=valid)
        return value

    def length(self, name: str) -> timedelta | None:
        """A length of time, like 90s or 2h."""
        text = self.text(name)
        if not text:
            return None
        try:
            return parse_duration(text)
        except BadDuration as error:
            raise BadRequestBody(pointer=f"/{name}", problem=str(error), valid=A_LENGTH) from error

    def moment(self, name: str, now: datetime) -> datetime | None:
        """A moment, or how long it is until then."""
        text = self.text(name)
        if not text:
            return None
        try:
            moment = parse_future_moment(text, now)
        except (ValueError, OverflowError):
            problem = f"{text!r} is no moment. Write {A_MOMENT}"
            raise BadRequestBody(pointer=f"/{name}", problem=problem, valid=A_MOMENT) from None
        if abs(moment - now) > LONGEST:
            problem = f"{text!r} is too far away: write a moment within {LONGEST.days} days"
            raise BadRequestBody(pointer=f"/{name}", problem=problem, valid=A_MOMENT)
        return moment


def _escaped(name: str) -> str:
    """As a JSON pointer writes it (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


# --- Queries --------------------------------------------------------------------------------------


class Query:
    """What was asked for behind the question mark. Which parameters there are was checked before."""

    def __init__(self, request: Request) -> None:
        self._values = request.query_params

    def text(self, name: str, default: str = "") -> str:
        values = self._values.getlist(name)
        if len(values) > 1:
            raise BadParameter(parameter=name, problem="is given more than once", valid="one value")
        return values[0] if values else default

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._values.getlist(name)))

    def flag(self, name: str) -> bool:
        text = self.text(name, "false")
        if text not in ("true", "false"):
            raise BadParameter(parameter=name, problem=f"{text!r} is neither true nor false", valid=["true", "false"])
        return text == "true"

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name, str(default))
        # int() also takes other digits than these, blanks and underscores.
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
            valid = f"a whole number from {least} to {most}"
            raise BadParameter(parameter=name, problem=f"{text!r} is not {valid}", valid=valid)
        return int(text)

"""Reads and checks the body and the query of a request."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from forewarn.control.schema import MAX_NAME, MAX_NUMBER, properties_of
from forewarn.core.durations import MAX_DURATION, TooFarAwayError, parse_duration, parse_future_time
from forewarn.core.operations import UNKNOWN, parse_interruption
from forewarn.core.requests import MAX_VMS
from forewarn.errors import BadDuration, BadParameter, BadRequestBody, BodyTooLarge, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta

    from starlette.requests import Request


B = TypeVar("B", bound=msgspec.Struct)

MAX_BODY_BYTES = 1_048_576
MAX_BODY_BYTES_WITHOUT_TOKEN = 16_384
"""Of a request without a valid token. Only signing in has such a body: a token or a code, of at most 200 characters."""
DURATION_FORMAT = "a duration, like 90s, 14m50s, 2h or 7d"
INTERRUPTION_FORMAT = f"{DURATION_FORMAT}; or {UNKNOWN}"
TIME_FORMAT = "a time like 2026-11-20T02:00:00Z, or a duration from now, like 2h"


FILE_MEMBER = "text"
"""The member that has the content of a file. Other strings may be printed, so they have no control characters. The
message does not repeat the value, which can be a secret."""
_NOT_PLAIN = "contains control characters or other invisible characters. Write plain text in one line"
_PLAIN = "plain text in one line"


class BodyLimit(NamedTuple):
    """How large the body of a request may be."""

    max_bytes: int = MAX_BODY_BYTES
    hint: str = ""
    """What else the client can do."""
    what: str = ""
    """What the bodies are, if only some can be received at a time."""
    at_once: int = 0


async def read_bytes(request: Request, limit: BodyLimit) -> bytearray:
    max_bytes = limit.max_bytes if hasattr(request.state, "token") else MAX_BODY_BYTES_WITHOUT_TOKEN
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise BodyTooLarge(maximum=max_bytes, hint=limit.hint)
    return body


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client has disconnected. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- Bodies ---------------------------------------------------------------------------------------


async def read_body(request: Request, kind: type[B]) -> B:
    """Decode the body of a request. An empty body is an empty object."""
    data = await read_bytes(request, BodyLimit()) or b"{}"
    try:
        body = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _rejected(str(error), kind) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if re.search(rb"\\u[dD][89a-fA-F]", data):  # half a surrogate pair is valid JSON, but not valid text
            problem, allowed = "has a string that is not Unicode text", "Unicode text"
        else:
            problem, allowed = "is not JSON", "a JSON object"
        raise BadRequestBody(pointer="", problem=problem, allowed=allowed) from error
    request.state.body = msgspec.to_builtins(body)
    for name, value in request.state.body.items():
        if name != FILE_MEMBER and not all(text.isprintable() for text in _strings(value)):
            raise BadRequestBody(pointer=f"/{_escaped(name)}", problem=_NOT_PLAIN, allowed=_PLAIN)
    return body


def _strings(value: Any) -> Iterator[str]:
    """Return all strings of a value, also the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in (*value, *value.values()) if isinstance(value, dict) else islice(value, MAX_VMS):
            yield from _strings(each)  # the core rejects longer lists


_TYPES: dict[str, tuple[str, Any]] = {
    "string": ("a string", "a string"),
    "array": ("a list of strings", "a list of strings"),
    "boolean": ("true or false", [True, False]),
    "object": ("an object", "a JSON object"),
}
"""By type of JSON Schema: what a value must be, and what is allowed."""
_UNITS = {"str": "characters", "array": "items", "object": "members"}


def _rejected(text: str, kind: type[msgspec.Struct]) -> BadRequestBody:
    """Translate msgspec's error: which member, what is wrong, and what is allowed."""
    # First, because only this message has text of the caller. It has no path: no body has objects with such members.
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        known = list(properties_of(kind))
        problem = f"is not a known member.{nearest(unknown[1], known)}"
        return BadRequestBody(pointer=f"/{_escaped(unknown[1])}", problem=problem, allowed=known)
    message, _, path = text.partition(" - at `")  # `$.vms[0]`, or `key` in `$.hosts`
    names = re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", path)
    pointer = "".join(f"/{_escaped(name or index)}" for name, index in names)
    if missing := re.fullmatch(r"Object missing required field `(.*)`", message):
        schema = properties_of(kind)[missing[1]]
        words = schema["description"]
        problem = f"is required: {words[0].lower()}{words[1:]}"
        return BadRequestBody(pointer=f"{pointer}/{missing[1]}", problem=problem, allowed=schema.get("enum"))
    if not pointer:
        return BadRequestBody(pointer="", problem="is not a JSON object", allowed="a JSON object")
    if long := re.fullmatch(r"Expected `(\w+)(?: \| null)?` of length <= (\d+)", message):
        allowed = f"at most {long[2]} {_UNITS[long[1]]}"
        what = "has a name with" if path.startswith("key") else "has"
        return BadRequestBody(pointer=pointer, problem=f"{what} more than {long[2]} {_UNITS[long[1]]}", allowed=allowed)
    schema = properties_of(kind)[names[0][0]]
    form = next(each for each in schema.get("anyOf", [schema]) if each["type"] != "null")
    if len(names) > 1:
        form = form["items"]
    elif path.endswith("[...]`"):
        form = form["additionalProperties"]
    if "minimum" in form:
        allowed = (
            f"a whole number up to {MAX_NUMBER}"
            if form["type"] == "integer"
            else f"a number from {form['minimum']} to {form['maximum']:,}"
        )
        return BadRequestBody(pointer=pointer, problem=f"must be {allowed}", allowed=allowed)
    problem, right = _TYPES[form["type"]]
    return BadRequestBody(pointer=pointer, problem=f"must be {problem}", allowed=right)


def _escaped(name: str) -> str:
    """Escape a name for a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def read_duration(text: str | None, pointer: str) -> timedelta | None:
    """Parse a duration like 90s or 2h; None if it is not given."""
    if not text:
        return None
    try:
        return parse_duration(text)
    except BadDuration as error:
        raise BadRequestBody(pointer=pointer, problem=str(error), allowed=DURATION_FORMAT) from error


def read_interruption(text: str | None, pointer: str) -> timedelta | None:
    """Parse the duration of an interruption, which can be unknown; None if it is not given."""
    if not text:
        return None
    try:
        return parse_interruption(text)
    except BadDuration as error:
        problem = f"{error} Or write {UNKNOWN}."
        raise BadRequestBody(pointer=pointer, problem=problem, allowed=INTERRUPTION_FORMAT) from error


def read_time(text: str | None, pointer: str, now: datetime) -> datetime | None:
    """Parse a time, or a duration from now; None if it is not given."""
    if not text:
        return None
    try:
        time = parse_future_time(text, now)
        if abs(time - now) > MAX_DURATION:
            raise TooFarAwayError
    except TooFarAwayError:
        problem = f"{shown(text)} is too far away. Write a time within {MAX_DURATION.days} days"
        raise BadRequestBody(pointer=pointer, problem=problem, allowed=TIME_FORMAT) from None
    except (ValueError, OverflowError):
        problem = f"{shown(text)} is not a time. Write {TIME_FORMAT}"
        raise BadRequestBody(pointer=pointer, problem=problem, allowed=TIME_FORMAT) from None
    return time


# --- Queries --------------------------------------------------------------------------------------


def read_query(request: Request, kind: type[B]) -> B:
    """Decode the query. Unknown, mistyped and empty parameters are errors."""
    known = properties_of(kind)
    values: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name not in known:
            problem = f"is not a known parameter.{nearest(name, known)}"
            raise BadParameter(parameter=name, problem=problem, allowed=list(known))
        schema = next((each for each in known[name].get("anyOf", ()) if each.get("type") != "null"), known[name])
        if schema.get("type") == "array":
            found = values.setdefault(name, [])
            found.append(_parameter(name, text, schema["items"], known[name]))
            if len(found) > schema["maxItems"]:
                allowed = f"at most {schema['maxItems']} values"
                problem = f"is given more than {schema['maxItems']} times"
                raise BadParameter(parameter=name, problem=problem, allowed=allowed)
        elif name in values:
            raise BadParameter(parameter=name, problem="is given more than once", allowed="one value")
        else:
            values[name] = _parameter(name, text, schema, known[name])
    return msgspec.convert(values, kind)


def _parameter(name: str, text: str, schema: dict[str, Any], described: dict[str, Any]) -> str | int | bool:
    if not text and schema.get("minLength"):
        raise BadParameter(parameter=name, problem="is empty. Omit it instead", allowed=described["description"])
    if schema["type"] == "boolean":
        if text not in ("true", "false"):
            raise BadParameter(
                parameter=name, problem=f"{shown(text)} is neither true nor false", allowed=["true", "false"]
            )
        return text == "true"
    if schema["type"] == "integer":
        minimum, maximum = schema["minimum"], schema["maximum"]
        # int() also accepts other digits, blanks and underscores.
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and minimum <= int(text) <= maximum):
            allowed = f"a whole number from {minimum} to {maximum}"
            raise BadParameter(parameter=name, problem=f"{shown(text)} is not {allowed}", allowed=allowed)
        return int(text)
    if len(text) > (longest := schema.get("maxLength", MAX_NAME)):
        problem, allowed = f"has more than {longest} characters", f"at most {longest} characters"
        raise BadParameter(parameter=name, problem=problem, allowed=allowed)
    if not text.isprintable():
        raise BadParameter(parameter=name, problem=_NOT_PLAIN, allowed=_PLAIN)
    return text

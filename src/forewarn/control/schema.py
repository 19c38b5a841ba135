"""Types of the control API. Each is one msgspec class: it encodes, decodes with error paths, and yields JSON Schema.

A response is a `Shape`, a request body is a `Body`. The core checks most values, with better messages than msgspec.
So `choice` and `integer` only describe values in the JSON Schema; msgspec checks the types.

Every string and every list of a request has a maximum length, so that a request has a maximum of work.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from forewarn.core.requests import MAX_DESCRIPTION, MAX_VMS
from forewarn.delivery.event_shapes import Shape as Shape
from forewarn.delivery.event_shapes import Time as Time
from forewarn.delivery.event_shapes import choice as choice

Schema: TypeAlias = dict[str, Any]


class Body(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request. A null member means the same as a missing one."""


class NoMembers(Body):
    """An empty object, or nothing."""


class DryRun(Struct, forbid_unknown_fields=True, kw_only=True):
    """A body with dry_run."""

    dry_run: Annotated[bool | None, Meta(description="Return what would happen, without changing anything.")] = None


MAX_NUMBER = 1_000_000_000


def integer(minimum: int, maximum: int) -> Meta:
    """An integer. The range is only described: the core checks it, with a better message."""
    return Meta(ge=-MAX_NUMBER, le=MAX_NUMBER, extra_json_schema={_RANGE: (minimum, maximum)})


_RANGE = "x-range"


MAX_NAME = 100
"""Maximum length of names, ids, durations and times."""
MAX_LIST = 100
"""Maximum number of values of a filter."""
MAX_REASON = 1000
MAX_SECRET = 200


def at_most(length: int) -> Meta:
    """The maximum number of characters of a string, of items of a list or of members of an object."""
    return Meta(max_length=length)


def at_most_items(count: int) -> Meta:
    """The maximum number of items of a list. It is only described: the core checks it, with a better message."""
    return Meta(extra_json_schema={"maxItems": count})


def pattern(text: str) -> Meta:
    return Meta(max_length=MAX_NAME, extra_json_schema={"pattern": text})


def help_text(text: str) -> Meta:
    return Meta(description=text)


Count: TypeAlias = Annotated[int, Meta(ge=0)]
Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME, extra_json_schema={"minLength": 1})]
NameIfAny: TypeAlias = Annotated[str, at_most(MAX_NAME)]
"""A name; empty means the same as none."""
HostsOfVMs: TypeAlias = Annotated[
    dict[Name, Name],
    # Earlier versions of msgspec do not describe the keys.
    Meta(max_length=MAX_VMS, extra_json_schema={"propertyNames": {"minLength": 1, "maxLength": MAX_NAME}}),
]
VMNames: TypeAlias = Annotated[list[NameIfAny], at_most_items(MAX_VMS)]
Duration: TypeAlias = Annotated[
    str,
    Meta(
        max_length=MAX_NAME,
        extra_json_schema={
            "description": "A duration, like 90s, 14m50s, 2h or 7d.",
            "examples": ["15m"],
        },
    ),
]
Interruption: TypeAlias = Annotated[
    str,
    Meta(
        max_length=MAX_NAME,
        extra_json_schema={
            "description": "A duration, like 9s; 0s for no interruption; or unknown.",
            "examples": ["9s"],
        },
    ),
]
Description: TypeAlias = Annotated[
    Annotated[str, at_most(MAX_DESCRIPTION)] | None,
    Meta(description="The text of its events, for causes of the platform. Default: from the settings of the service."),
]
Speed: TypeAlias = Annotated[
    Annotated[float, Meta(ge=0.001, le=1_000_000)] | None,
    Meta(
        description="Divide its notice and the times of its work by this, besides the speed of the service. Default: 1."
    ),
]
RequireNotice: TypeAlias = Annotated[
    bool | None, Meta(description="Reject the request if a group that it affects would get no notice.")
]
TimeOrDuration: TypeAlias = Annotated[
    str,
    Meta(
        max_length=MAX_NAME,
        extra_json_schema={
            "description": "A time, like 2026-11-20T02:00:00Z, or a duration from now, like 2h.",
            "examples": ["2h"],
        },
    ),
]


@cache
def page_of(name: str, shape: type[Struct], *, counted: bool = False) -> type[Struct]:
    """Return the type of a page: the items under this name, the cursor of the next page, and perhaps their number."""
    help_ = "The cursor of the next page; null on the last page."
    title = f"{shape.__name__.removesuffix('Shape')}PageShape"
    total = Annotated[Count | UnsetType, Meta(description="With count=true: the number of all matching items.")]
    fields: list[Any] = [
        (name, list[shape]),  # type: ignore[valid-type]
        ("next", Annotated[str | None, Meta(description=help_)]),
        *([("total", total, UNSET)] if counted else []),
    ]
    return msgspec.defstruct(title, fields, bases=(Shape,), module=__name__)


def json_response(shape: Any, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(shape), status, media_type="application/json")


class Schemas:
    """JSON Schemas of types, and of all types that they refer to."""

    def __init__(self, kinds: list[Any]) -> None:
        found, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
        self._of = dict(zip(kinds, map(_cleaned, found), strict=True))
        self.components = {name.removesuffix("Shape"): _cleaned(schema) for name, schema in components.items()}

    def __getitem__(self, kind: Any) -> Schema:
        found: Schema = self._of[kind]
        return found


def _cleaned(schema: Any) -> Any:
    """Return a schema for publication: class names without their suffix, no titles, and the described ranges."""
    if isinstance(schema, list):
        return [_cleaned(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _cleaned(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    if "$ref" in found:
        found["$ref"] = found["$ref"].removesuffix("Shape")
    if "anyOf" in found:  # null last: versions of msgspec differ in the order
        found["anyOf"].sort(key=lambda each: each.get("type") == "null")
    if "propertyNames" in found:  # last, for the same reason
        found["propertyNames"] = found.pop("propertyNames")
    if _RANGE in found:
        found["minimum"], found["maximum"] = found.pop(_RANGE)
    return found


@cache
def properties_of(kind: type[Struct]) -> dict[str, Schema]:
    """Return the members of a type, each with its JSON Schema."""
    (_,), components = msgspec.json.schema_components([kind])
    properties: dict[str, Schema] = _cleaned(components[kind.__name__]["properties"])
    return properties

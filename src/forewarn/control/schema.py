"""Words for describing the control API's JSON: a little of JSON Schema 2020-12, as OpenAPI 3.1 takes it."""

from __future__ import annotations

from typing import Any, NamedTuple

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
MOMENT: Schema = {"type": "string", "format": "date-time"}
LENGTH: Schema = {
    "type": "string",
    "description": "A length of time, like 90s, 14m50s, 2h or 7d.",
    "examples": ["15m"],
}
MOMENT_OR_LENGTH: Schema = {
    "type": "string",
    "description": "A moment, like 2026-11-20T02:00:00Z, or how long it is until then, like 2h.",
    "examples": ["2h"],
}


class Field(NamedTuple):
    """A member of a request's object, or a parameter of its query."""

    name: str
    schema: Schema
    help: str
    required: bool = False


def choice(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def list_of(schema: Schema, **rules: Any) -> Schema:
    return {"type": "array", "items": schema, **rules}


def map_of(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def nullable(schema: Schema) -> Schema:
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    """One of the named shapes."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(members: dict[str, Schema], *optional: str) -> Schema:
    """An object with exactly these members, all of them there but for the optional ones."""
    return {
        "type": "object",
        "properties": members,
        "required": [name for name in members if name not in optional],
        "additionalProperties": False,
    }


def fields_schema(fields: tuple[Field, ...]) -> Schema:
    """The object that a request may send."""
    return {
        "type": "object",
        "properties": {
            field.name: {**(field.schema if field.required else nullable(field.schema)), "description": field.help}
            for field in fields
        },
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def page_schema(name: str, shape: str) -> Schema:
    """A page of a list."""
    cursor = {**MAYBE_TEXT, "description": "What to give as cursor for the next page; null: this is the last."}
    return record({name: list_of(ref(shape)), "next": cursor})


TEXTS = list_of(TEXT)
MAYBE_TEXT, MAYBE_MOMENT, MAYBE_NUMBER = nullable(TEXT), nullable(MOMENT), nullable(NUMBER)

"""Every string and every list of a request has a bound in the description of the API, and the service enforces it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import pytest

from forewarn.control.input import FILE_MEMBER
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DESCRIBED = json.loads((ROOT / "docs" / "openapi.json").read_text())
SCHEMAS = DESCRIBED["components"]["schemas"]
ROUTES = [(method, path) for path, item in DESCRIBED["paths"].items() for method in item]


NUL = "a\0b"


class Place(NamedTuple):
    """A place of a request."""

    name: str
    schema: dict[str, Any]
    path: tuple[str, ...] = ()
    """Where it is in a value: `[]` for an item, `{}` for a value of an object, `key` for a key of it."""


def places(place: Place) -> Iterator[Place]:
    """All strings, lists and objects with any members, in a schema."""
    schema = place.schema
    for form in schema.get("anyOf", ()):
        yield from places(place._replace(schema=form))
    if schema.get("type") == "string":
        yield place
    elif schema.get("type") == "array":
        yield place
        yield from places(Place(place.name, schema["items"], (*place.path, "[]")))
    elif schema.get("type") == "object":
        yield place
        keys = {"type": "string", **schema.get("propertyNames", {})}
        yield from places(Place(place.name, keys, (*place.path, "key")))
        yield from places(Place(place.name, schema["additionalProperties"], (*place.path, "{}")))
    else:
        assert "anyOf" in schema or schema["type"] in ("boolean", "integer", "number", "null"), place


def members(operation: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The members of a body, and the names of the required ones."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return {}, []
    schema = SCHEMAS[content["schema"]["$ref"].rpartition("/")[2]]
    return schema["properties"], schema.get("required", [])


def of_body(operation: dict[str, Any]) -> Iterator[Place]:
    for name, schema in members(operation)[0].items():
        yield from places(Place(name, schema))


def of_parameters(operation: dict[str, Any], where: str) -> Iterator[Place]:
    for parameter in operation["parameters"]:
        if parameter["in"] == where:
            yield from places(Place(parameter["name"], parameter["schema"]))


BOUNDS = {"string": {"maxLength", "enum", "const"}, "array": {"maxItems"}, "object": {"maxProperties"}}


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_string_and_every_list_of_a_request_has_a_bound(method: str, path: str) -> None:
    operation = DESCRIBED["paths"][path][method]
    found = [
        *of_body(operation),
        *(each for where in ("path", "query", "header") for each in of_parameters(operation, where)),
    ]
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        if media != "application/json":
            found += places(Place(media, content["schema"]))
    for place in found:
        assert BOUNDS[place.schema["type"]] & place.schema.keys(), f"{place.name} {place.path} has no bound"


# --- The service enforces them --------------------------------------------------------------------


def too_much(schema: dict[str, Any]) -> Any:
    """A value just above the bound of a schema; None if its values are listed, or it is no bound of a value."""
    if schema["type"] == "array":
        item = schema["items"]
        return [item["enum"][0] if "enum" in item else "x"] * (schema["maxItems"] + 1)
    if schema["type"] == "object":
        return {str(number): "x" for number in range(schema["maxProperties"] + 1)}
    return None if "enum" in schema else "x" * (schema["maxLength"] + 1)


def wrapped(value: Any, path: tuple[str, ...]) -> Any:
    for part in reversed(path):
        value = {"[]": [value], "{}": {"x": value}, "key": {str(value): "x"}}[part]
    return value


def example(schema: dict[str, Any]) -> Any:
    if "URL" in schema["description"]:
        return "https://example.com/"
    form = schema.get("anyOf", [schema])[0]
    return {"string": (form.get("enum") or ["web"])[0], "array": ["web"]}.get(form["type"], 1)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service('[[vm]]\nname = "web"\n') as running:
        yield running


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_the_service_enforces_the_bounds_of_a_route(service: Service, method: str, path: str) -> None:
    operation = DESCRIBED["paths"][path][method]
    short = "/".join("web" if part.startswith("{") else part for part in path.split("/"))
    for place in of_parameters(operation, "path"):
        answer = service.control(method.upper(), path.replace(f"{{{place.name}}}", too_much(place.schema)), {})
        assert (answer.status, answer.json()["parameter"]) == (400, place.name)
    for place in of_parameters(operation, "query"):
        if (value := too_much(place.schema)) is not None:
            query = urlencode(
                [(place.name, each) for each in value] if isinstance(value, list) else {place.name: value}
            )
            answer = service.control(method.upper(), f"{short}?{query}", {})
            assert (answer.status, answer.json()["parameter"], "more than" in answer.json()["detail"]) == (
                400,
                place.name,
                True,
            )
    schemas, required = members(operation)
    needed = {name: example(schemas[name]) for name in required}
    if path == "/v1/operations":
        needed["cause"] = "restart"
    for place in of_body(operation):
        if (value := too_much(place.schema)) is not None:
            body = {**needed, place.name: wrapped(value, place.path)}
            answer = service.control(method.upper(), short, body, headers={"Origin": service.control_url})
            problem = answer.json()
            assert answer.status == 400, (place.name, place.path, problem)
            words = problem["detail"]
            assert any(each in words for each in ("more than", "maximum is", "longer than", "at most", "16 to 256")), (
                words
            )


def strings(places: Iterator[Place]) -> Iterator[Place]:
    return (place for place in places if place.schema["type"] == "string" and place.name != FILE_MEMBER)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_string_of_a_request_has_a_nul_character(service: Service, method: str, path: str) -> None:
    """Databases do not accept it everywhere."""
    operation = DESCRIBED["paths"][path][method]
    short = "/".join("web" if part.startswith("{") else part for part in path.split("/"))
    for place in of_parameters(operation, "path"):
        answer = service.control(method.upper(), path.replace(f"{{{place.name}}}", "a%00b"), {})
        assert answer.status in (400, 404), answer.body
    for place in strings(of_parameters(operation, "query")):
        answer = service.control(method.upper(), f"{short}?{urlencode({place.name: NUL})}", {})
        assert (answer.status, answer.json()["parameter"]) == (400, place.name)
    schemas, required = members(operation)
    needed = {name: example(schemas[name]) for name in required}
    for place in strings(of_body(operation)):
        body = {**needed, place.name: wrapped(NUL, place.path)}
        answer = service.control(method.upper(), short, body, headers={"Origin": service.control_url})
        assert (answer.status, answer.json()["pointer"].split("/")[1]) == (400, place.name), answer.body

"""The OpenAPI 3.1 description of the control API, derived from its routes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from forewarn import __version__
from forewarn.control.idempotency import MAX_KEY_LENGTH
from forewarn.control.problems import PROBLEM, ProblemShape
from forewarn.control.schema import MAX_NAME, Schema, Schemas, properties_of
from forewarn.metadata.fixed_responses import JSON

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.control.routing import Route


_JSON = JSON.partition(";")[0]
_PROBLEMS = {
    400: "The request is invalid.",
    401: "The token is missing or not valid.",
    403: "The role of the token does not allow this.",
    404: "The resource does not exist.",
    409: "The request conflicts with the current state.",
    421: "The Host header has a name that is not a name of this service.",
    503: "The service cannot do this now. Try again later.",
}
_OTHER_PROBLEMS = {
    408: "The body is too slow.",
    413: "The body is too large.",
    429: "The client sent too many such requests. Retry-After says when to try again.",
    431: "The query and the headers are too long.",
}
_PARAMETERS = re.compile(r"{(\w+)}").findall
_DESCRIPTION = """Everything that the command line can do, for programs. Errors are problem details (RFC 9457). Lists
have pages: pass `next` of a page as `cursor` to get the next one. Every POST that creates a resource, except a run, and
each change of a part of the fleet, supports `Idempotency-Key`; a key is valid for a day. Unknown members and query
parameters are rejected."""


def describe(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    known = list(routes)
    schemas = Schemas(list(dict.fromkeys([ProblemShape, *(kind for route in known for kind in _kinds(route))])))
    for route in known:
        operation = paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
        if route.links:
            operation["responses"][str(route.status)]["links"] = dict(_links(route, known))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Forewarn's control API", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _kinds(route: Route) -> Iterable[Any]:
    """The request and response types of a route."""
    responses = route.response if isinstance(route.response, tuple) else (route.response,)
    yield from (kind for kind in responses if not isinstance(kind, dict))
    if route.body is not None and route.body_type == JSON:
        yield route.body


def _response_schema(route: Route, schemas: Schemas) -> Schema:
    if isinstance(route.response, dict):
        return route.response
    if isinstance(route.response, tuple):
        return {"anyOf": [schemas[kind] for kind in route.response]}
    return schemas[route.response]


def _operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _name(route),
        "summary": route.summary,
        "description": f"For {route.allowed_roles()}.",
        "parameters": _parameters(route),
        "responses": _responses(route, schemas),
    }
    if route.role is None:
        operation["security"] = []
    if route.body is not None:
        media, is_json = route.body_type.partition(";")[0], route.body_type == JSON
        schema = schemas[route.body] if is_json else {"type": "string", "maxLength": route.body_limit.max_bytes}
        required = is_json and bool(schemas.components[route.body.__name__].get("required"))
        operation["requestBody"] = {"content": {media: {"schema": schema}}, "required": required}
    return operation


def _name(route: Route) -> str:
    words = [word for word in re.split(r"[^a-z]+", route.path.removeprefix("/v1")) if word]
    return "_".join([route.method.lower(), *words])


def _parameters(route: Route) -> list[dict[str, Any]]:
    name_schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
    found = [{"name": name, "in": "path", "required": True, "schema": name_schema} for name in _PARAMETERS(route.path)]
    for place, kind in (("query", route.query), ("header", route.headers)):
        found += [_parameter(name, place, schema) for name, schema in properties_of(kind).items()]
    if route.creates:
        found.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "Repeating the request with the same key within a day returns the same response.",
                "schema": {
                    "type": "string",
                    "maxLength": MAX_KEY_LENGTH,
                    "pattern": f"^[ -~]{{1,{MAX_KEY_LENGTH}}}$",
                },
            }
        )
    return found


def _parameter(name: str, place: str, schema: Schema) -> dict[str, Any]:
    """A parameter is present or absent, never null."""
    given = next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), schema)
    given = {key: value for key, value in given.items() if key not in ("description", "default")}
    return {"name": name, "in": place, "description": schema["description"], "required": False, "schema": given}


def _responses(route: Route, schemas: Schemas) -> dict[str, Any]:
    media, schema = route.response_type.partition(";")[0], _response_schema(route, schemas)
    found = {route.status: _response("Success.", media, schema)}
    if route.text_type:
        found[route.status]["content"][route.text_type] = {"schema": {"type": "string"}}
    if route.other_status is not None:
        text = "The service is not ready." if route.role is None else "Dry run: what would happen. Nothing was changed."
        found[route.other_status] = _response(text, media, schema)
    if route.creates:
        found[route.status]["headers"] = {
            "Idempotency-Replayed": {
                "description": "true: this is the stored response to an earlier request with the same key.",
                "schema": {"type": "string", "const": "true"},
            }
        }
    problems = list(_PROBLEMS) if route.role is not None or route.body else [400] if properties_of(route.query) else []
    if properties_of(route.query):
        problems += [431]
    if route.body is not None:
        problems += [408, 413]
    for status in (*problems, *route.problems):
        text = _PROBLEMS.get(status) or _OTHER_PROBLEMS[status]
        found[status] = _response(text, PROBLEM, schemas[ProblemShape])
    return {str(status): response for status, response in sorted(found.items())}


def _links(route: Route, known: Iterable[Route]) -> Iterable[tuple[str, dict[str, Any]]]:
    """OpenAPI links from a created resource to the routes that use it."""
    for start, pointer in route.links:
        for other in known:
            if other.path.startswith(start):
                (parameter,) = _PARAMETERS(other.path)
                values = {parameter: f"$response.body#{pointer}"}
                yield _name(other), {"operationId": _name(other), "parameters": values}


def _response(text: str, media: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {media: {"schema": schema}}}

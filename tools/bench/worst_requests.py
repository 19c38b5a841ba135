"""Requests for every method of every route of the OpenAPI description, with the worst values its schema allows.

For each parameter and each member of a body there is one request for each of its worst values: a list with as many
items as it may have, a string as long as it may be, a name that nearly matches, a pattern of many stars.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from forewarn.core.shell_patterns import MAX_PATTERNS, MAX_STARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_TARGET, MAX_BODY = 8_000, 1_000_000
"""Longer requests are rejected before they reach a route."""
TOO_MANY = 240_000
"""As many items of a list as fit in the largest body, far more than any list may have."""
NAMES = {  # the parameters and members whose values are names of one kind
    "vm": "vms",
    "vms": "vms",
    "seen_by": "vms",
    "group": "groups",
    "groups": "groups",
    "host": "hosts",
    "hosts": "hosts",
    "windows": "windows",
}
WINDOWS = [f"Mon,Wed 0{number % 10}:{number % 60:02}-0{number % 10}:59 Europe/Berlin" for number in range(1000)]
SPARE = "spare"
"""The name of a token and of a webhook that a request may remove."""

Schema = dict[str, Any]


class Request(NamedTuple):
    method: str
    route: str
    target: str
    body: bytes = b""
    content_type: str = "application/json"
    worst: str = "plain"
    """The parameter or member with a worst value, and the kind of value."""


Known = dict[str, list[str]]
"""The names of each part of the API."""


def known_names(call: Callable[[str, str, Any], Any], group: str) -> Known:
    """Return names of a running service. Create a token, a webhook and a rollout first, with calls of an admin."""
    call("POST", "/v1/tokens", {"name": SPARE, "role": "tenant", "group": group})
    call("POST", "/v1/webhooks", {"name": SPARE, "url": "https://127.0.0.1:9/"})
    hosts = [each["name"] for each in call("GET", "/v1/hosts?limit=1000", None)["hosts"]]
    call("POST", "/v1/rollouts", {"hosts": [hosts[-1]], "notice": "7d"})
    known = {"hosts": hosts, "tokens": [SPARE], "webhooks": [SPARE], "windows": WINDOWS}
    of_group = f"&group={quote(group)}"
    for part, key, query in (
        ("vms", "name", of_group),
        ("groups", "name", ""),
        ("operations", "id", ""),
        ("events", "id", of_group),
        ("rollouts", "id", ""),
    ):
        known[part] = [each[key] for each in call("GET", f"/v1/{part}?limit=1000{query}", None)[part]]
    return known


def worst_requests(description: Schema, known: Known) -> list[Request]:
    """Return the requests for all routes."""
    described = Described(description["components"]["schemas"], known)
    return [
        request
        for route, methods in description["paths"].items()
        for method, operation in methods.items()
        for request in described.requests(method.upper(), route, operation)
    ]


class Described:
    def __init__(self, schemas: Schema, known: Known) -> None:
        self._schemas = schemas
        self._known = known

    def requests(self, method: str, route: str, operation: Schema) -> Iterator[Request]:
        part = route.split("/")[2] if route.startswith("/v1/") else ""
        parameters = {each["name"]: each for each in operation.get("parameters", ())}
        path = {name: self._plain(part, each["schema"]) for name, each in parameters.items() if each["in"] == "path"}
        ((content_type, content),) = operation.get("requestBody", {}).get("content", {"": {}}).items()
        members, required = self._members(content.get("schema", {}))
        plain = {name: self._plain(name, members[name]) for name in required}
        if "dry_run" in members:
            plain["dry_run"] = True
        query = {"dry_run": "true"} if "dry_run" in parameters else {}
        made = Request(method, route, _target(route, path, query), _json(plain, content_type), content_type)
        yield made
        for name, parameter in parameters.items():
            place = parameter["in"]
            if place == "header":
                continue
            names = part if place == "path" or name in ("name", "id") else name
            for worst, value in self._worst(names, parameter["schema"]):
                in_path = {name: value} if place == "path" else {}
                in_query = {name: value} if place == "query" else {}
                target = _target(route, path | in_path, query | in_query)
                yield made._replace(target=target, worst=f"{name}: {worst}")
        for name, schema in members.items():
            for worst, value in self._worst(name, schema):
                body = _json(plain | {name: value}, content_type)
                yield made._replace(body=body, worst=f"{name}: {worst}")
            if any(form.get("type") == "array" for form in schema.get("anyOf", [schema])):
                body = _json(plain | {name: [""] * TOO_MANY}, content_type)
                yield made._replace(body=body, worst=f"{name}: too many × {TOO_MANY:,}")

    def _members(self, schema: Schema) -> tuple[Schema, list[str]]:
        """Return the members of a body, and the names of the required ones."""
        if "$ref" not in schema:
            return {}, []
        found = self._schemas[schema["$ref"].rpartition("/")[2]]
        return found["properties"], found.get("required", [])

    def _plain(self, name: str, schema: Schema) -> Any:
        """Return a valid value."""
        if schema.get("type") == "array":
            return [self._plain(name, schema["items"])]
        if "enum" in schema:
            return schema["enum"][0]
        known = self._known.get(NAMES.get(name, name))
        return known[0] if known else "new" if "pattern" in schema else "https://127.0.0.1:9/"

    def _worst(self, name: str, schema: Schema) -> Iterator[tuple[str, Any]]:
        """Return the worst values of a schema, each with the kind of value."""
        for form in schema.get("anyOf", ()):
            yield from self._worst(name, form)
        kind = schema.get("type")
        if kind == "string":
            yield from self._texts(name, schema)
        elif kind == "array":
            yield from self._lists(name, schema)
        elif kind == "object":
            count = schema["maxProperties"]
            vms, hosts = self._known["vms"], self._known["hosts"]
            yield "known", dict(zip(vms[:count], hosts * (count // len(hosts) + 1), strict=False))
            yield "unknown", {f"vm-{number}~": f"host-{number}~" for number in range(count)}
        elif kind in ("integer", "number"):
            yield "maximum", schema.get("maximum", 10**9)
        elif kind == "boolean":
            yield "true", True

    def _texts(self, name: str, schema: Schema) -> Iterator[tuple[str, str]]:
        if "enum" in schema:
            yield from ((value, value) for value in schema["enum"] if value)
        longest = schema.get("maxLength", 100)
        known = self._known.get(NAMES.get(name, name), [])
        if known:
            yield "known", known[-1]
            yield "nearly a name", known[-1][:-1] + "~"
        yield "longest", "a" * min(longest, MAX_BODY)
        yield "pattern", "*a" * MAX_STARS + "X"

    def _lists(self, name: str, schema: Schema) -> Iterator[tuple[str, list[str]]]:
        count, items = schema["maxItems"], schema["items"]
        known = items.get("enum") or self._known.get(NAMES.get(name, name), [])
        if known:
            yield "known", known[:count]
        for worst, text in self._texts(name, items):
            times = min(count, MAX_PATTERNS) if worst == "pattern" else count
            if worst not in items.get("enum", ()):
                yield f"{worst} × {times}", [text] * times


def _target(route: str, path: dict[str, Any], query: dict[str, Any]) -> str:
    """Return the target with these values. A list that does not fit loses its last items."""
    target = route
    for name, value in path.items():
        target = target.replace(f"{{{name}}}", quote(str(value), safe=""))
    pairs = [
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, values in query.items()
        for value in (values if isinstance(values, list) else [values])
    ]
    while len(text := urlencode(pairs)) > MAX_TARGET - len(target):
        pairs = pairs[: len(pairs) * 9 // 10]
    return f"{target}?{text}" if text else target


def _json(body: dict[str, Any], content_type: str) -> bytes:
    return json.dumps(body).encode() if content_type == "application/json" else b""

"""An answer repeats at most 100 characters of what the caller sent: every route, every place of a request, files."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from forewarn.errors import MAX_SHOWN, shortened, shown
from forewarn.files import fleet_file
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PATHS = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
SCHEMAS = json.loads((ROOT / "docs" / "openapi.json").read_text())["components"]["schemas"]
MARK = "Q"
"""No message of the service has this letter."""
LONG = MARK * 5000
FLEET = """
[[group]]
name = "web"
kind = "scale-set"
[[host]]
name = "a"
[[vm]]
name = "web_0"
group = "web"
host = "a"
address = "127.0.0.1"
"""


class Sent(NamedTuple):
    """A request with a long value in one place."""

    place: str
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


def filled(path: str, value: str = "web") -> str:
    return "/".join(value if part.startswith("{") else part for part in path.split("/"))


def long_forms(schema: dict[str, Any]) -> Iterator[Any]:
    """Values with a long string in the place of each string that a schema allows, whatever its bound."""
    for form in schema.get("anyOf", [schema]):
        kind = form.get("type")
        if kind == "string":
            yield LONG
            yield f"http://user:{LONG}@example.com/{LONG}"
        elif kind == "array":
            yield from ([value] for value in long_forms(form["items"]))
        elif kind == "object":
            yield {LONG: "x"}
            yield from ({"x": value} for value in long_forms(form.get("additionalProperties", {})))


def example(schema: dict[str, Any]) -> Any:
    """A short value that a schema allows."""
    form = schema.get("anyOf", [schema])[0]
    if "$ref" in form:
        return {}
    return {"string": (form.get("enum") or ["web"])[0], "array": ["web"], "object": {}}.get(form["type"], 1)


def requests(method: str, path: str, operation: dict[str, Any]) -> Iterator[Sent]:
    short = filled(path)
    if short != path:
        yield Sent("path", method, filled(path, LONG), {})
    for parameter in operation["parameters"]:
        if parameter["in"] == "query":
            yield Sent(parameter["name"], method, f"{short}?{parameter['name']}={LONG}", {})
        elif parameter["in"] == "header":
            yield Sent(parameter["name"], method, short, {}, {parameter["name"]: LONG})
    yield Sent("unknown parameter", method, f"{short}?{LONG}=1", {})
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return
    schema = SCHEMAS[content["schema"]["$ref"].rpartition("/")[2]]
    members = schema["properties"]
    required = {name: example(members[name]) for name in schema.get("required", ())}
    yield Sent("unknown member", method, short, {**required, LONG: 1})
    yield Sent("member of an unknown one", method, short, {**required, "x": {LONG: 1}})
    yield Sent("text instead of an object", method, short, LONG)
    for name, member in members.items():
        for value in long_forms(member):
            yield Sent(name, method, short, {**required, name: value})


ROUTES = [(method, path) for path, item in PATHS.items() for method in item]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET) as running:
        yield running


def assert_short(service: Service, sent: Sent) -> None:
    response = service.control(sent.method.upper(), sent.path, sent.body, headers=sent.headers)
    if response.status < 400:  # what is stored is returned as it is
        return
    assert response.status < 500, response.body
    assert response.headers["content-type"] == "application/problem+json"
    for name, value in response.json().items():
        repeated = json.dumps(value).count(MARK)
        assert repeated <= MAX_SHOWN, f"{sent.place}: {name} repeats {repeated} characters: {str(value)[:400]}"


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=[f"{method} {path}" for method, path in ROUTES])
def test_every_route_repeats_at_most_100_characters(service: Service, method: str, path: str) -> None:
    for sent in requests(method, path, PATHS[path][method]):
        if (path, sent.place) != ("/v1/feed", "unknown member"):
            assert_short(service, sent)


@pytest.mark.parametrize(
    "sent",
    [
        Sent("path", "GET", f"/v1/{LONG}"),
        Sent("method", "DELETE", f"/v1/vms/{LONG}"),
        Sent("host", "GET", "/v1/vms", headers={"Host": f"{LONG}.example.com"}),
        Sent("token", "GET", "/v1/vms", headers={"Authorization": f"Bearer {LONG}"}),
        Sent("origin", "POST", "/v1/session", {"token": "x"}, {"Origin": f"http://{LONG}"}),
        Sent("site", "POST", "/v1/session", {"token": "x"}, {"Sec-Fetch-Site": LONG}),
        Sent("tag", "GET", "/v1/vms/web_1", headers={"If-None-Match": LONG}),
        Sent("last event", "GET", "/v1/feed", headers={"Last-Event-ID": LONG}),
    ],
    ids=lambda sent: sent.place,
)
def test_the_other_places_of_a_request(service: Service, sent: Sent) -> None:
    assert_short(service, sent)


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (f"/metadata/{LONG}", None),
        (f"/metadata/instance/{LONG}?api-version=2021-02-01", None),
        (f"/metadata/instance/compute/{LONG}?api-version=2021-02-01", None),
        (f"/metadata/instance?api-version=2021-02-01&format={LONG}", None),
        (f"/metadata/instance?api-version={LONG}", None),
        (f"/metadata/scheduledevents?api-version={LONG}", None),
        ("/metadata/scheduledevents?api-version=2020-07-01", {"StartRequests": [{"EventId": LONG}]}),
        ("/metadata/scheduledevents?api-version=2020-07-01", {"StartRequests": [{LONG: LONG}]}),
        ("/metadata/scheduledevents?api-version=2020-07-01", {LONG: LONG}),
    ],
)
def test_an_answer_to_a_vm(service: Service, target: str, body: Any) -> None:
    method = "GET" if body is None else "POST"
    response = service.request(method, target, body=None if body is None else json.dumps(body))
    assert (response.status, response.body.decode().count(MARK) <= MAX_SHOWN) in {(400, True), (404, True)}


FILES = {
    "table": f"[[{LONG}]]\n",
    "unclosed": f'[[vm]]\nname = "{LONG}\n',
    "nested key": f"[vm.{LONG}.x]\ny = 1\n",
    "number": f"[[vm]]\nname = 1{LONG}\n",
    "name twice": f'[[vm]]\nname = "{LONG}"\n' * 2,
    "set": f'[[vm]]\nname = "{LONG}{{n}}"\ncount = 3\n',
    **{f"vm {key}": f'[[vm]]\nname = "x"\n{key} = "{LONG}"\n' for key in fleet_file._KEYS if key != "name"},
    **{f"vm list {key}": f'[[vm]]\nname = "{LONG}"\n{key} = ["{LONG}"]\n' for key in fleet_file._KEYS if key != "name"},
    **{f"set {key}": f'[[vm]]\nname = "x{{n}}"\ncount = 2\n{key} = "{LONG}{{n}}"\n' for key in fleet_file._KEYS[1:13]},
    **{f"group {key}": f'[[group]]\nname = "x"\n{key} = "{LONG}"\n' for key in fleet_file._GROUP_KEYS if key != "name"},
    **{f"group list {key}": f'[[group]]\nname = "{LONG}"\n{key} = ["{LONG}"]\n' for key in fleet_file._GROUP_KEYS[1:]},
    "group of a long name": f'[[group]]\nname = "{LONG}"\nkind = "standalone"\n'
    + f'[[vm]]\nname = "{LONG}"\ngroup = "{LONG}"\n' * 2,
    "tags": f'[[vm]]\nname = "x"\ntags = {{ {LONG} = 1 }}\n',
    "unknown key": f'[[vm]]\nname = "x"\n"{LONG}" = 1\n',
}


@pytest.mark.parametrize("name", FILES)
def test_a_mistake_in_a_fleet_file(service: Service, name: str) -> None:
    response = service.control("PUT", "/v1/fleet?dry_run=true", FILES[name].encode())
    mistakes = response.json().get("errors", ())  # a size and a zone can be any text
    assert mistakes or FILES[name].count(LONG) == 1, response.body[:400]
    for mistake in mistakes:
        for place in ("key", "detail"):
            assert mistake[place].count(MARK) <= 2 * MAX_SHOWN, (place, mistake[place][:400])


@pytest.mark.parametrize(
    "value", ["x" * 10_000, "\0" * 10_000, ["x" * 10_000] * 10_000, {"x" * 10_000: 1}, 10**4000, 1.5, None, "x"]
)
def test_a_value_in_a_message_is_short(value: object) -> None:
    assert len(shown(value)) <= MAX_SHOWN
    assert len(repr(value)) > MAX_SHOWN or shown(value) == repr(value)


def test_a_long_text_ends_with_an_ellipsis() -> None:
    assert shortened("x" * 100) == "x" * 100
    assert shortened("x" * 101) == "x" * 99 + "…"


@pytest.mark.parametrize("folder", ["control", "core", "files", "metadata"])
def test_messages_show_values_with_the_function_that_shortens_them(folder: str) -> None:
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted((ROOT / "src" / "forewarn" / folder).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FormattedValue) and node.conversion == ord("r")
    ]
    assert found == [], "write {shown(value)} instead of {value!r}"

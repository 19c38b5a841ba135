"""Paged lists of the control API: each item appears once, also while items are added and removed."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

VMS = [f"vm-{number}" for number in range(25)]
FLEET = '[[group]]\nname = "web"\nkind = "availability-set"\n' + "".join(
    f'[[group]]\nname = "group-{number}"\nkind = "availability-set"\n'
    f'[[host]]\nname = "host-{number}"\n'
    f'[[vm]]\nname = "{name}"\nhost = "host-{number}"\n'
    for number, name in enumerate(VMS)
)
LISTS = ("vms", "hosts", "groups", "operations", "events", "rollouts", "tokens")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET) as service:
        for number, name in enumerate(VMS):
            service.request_operation("restart", name)
            assert service.control("POST", "/v1/tokens", {"name": name, "role": "viewer"}).status == 201
            assert service.control("POST", "/v1/rollouts", {"hosts": [f"host-{number}"]}).status == 201
        yield service


def pages(service: Service, name: str, limit: int, query: str = "") -> Iterator[list[Any]]:
    cursor = ""
    while True:
        page = service.get_json(f"/v1/{name}?limit={limit}{query}{cursor}")
        assert page.keys() == {name, "next"}
        yield page[name]
        if page["next"] is None:
            return
        assert len(page[name]) == limit
        cursor = f"&cursor={page['next']}"


def key(thing: dict[str, Any]) -> str:
    return str(thing.get("name") or thing["id"])


@pytest.mark.parametrize(
    ("name", "query"),
    [*((name, "") for name in LISTS), *((name, "&all=true") for name in ("operations", "events", "rollouts"))],
)
def test_pages_of_any_size_are_the_whole_list_in_its_order(service: Service, name: str, query: str) -> None:
    (whole,) = pages(service, name, 1000, query)
    assert len(whole) >= len(VMS)
    for limit in (1, 7, len(whole) - 1, len(whole), len(whole) + 1):
        assert [thing for page in pages(service, name, limit, query) for thing in page] == whole
    keys = [key(thing) for thing in whole]
    assert len(set(keys)) == len(keys)
    if name in ("vms", "hosts", "groups", "tokens"):
        assert keys == sorted(keys)


@pytest.mark.parametrize("noun", ["events", "operations", "rollouts"])
def test_the_history_of_one_object_has_pages_too(service: Service, noun: str) -> None:
    thing = service.get_json(f"/v1/{noun}?all=true&limit=1")[noun][0]["id"]
    whole = service.get_json(f"/v1/history?{noun[:-1]}={thing}")
    assert (len(whole["history"]) > 0, whole["next"]) == (True, None)
    found, cursor = [], ""
    while True:
        page = service.get_json(f"/v1/history?{noun[:-1]}={thing}&limit=1{cursor}")
        found += page["history"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert found == whole["history"]


@pytest.mark.forewarn(fleet='[[vm]]\nname = "many-{n}"\ncount = 101\n')
@pytest.mark.parametrize(("name", "query"), [("vms", ""), ("events", ""), ("events", "&all=true")])
def test_the_default_page_size_is_a_hundred(forewarn: Service, name: str, query: str) -> None:
    if name == "events":
        forewarn.request_operation("restart", *(vm["name"] for vm in forewarn.get_json("/v1/vms?limit=1000")["vms"]))
    (whole,) = pages(forewarn, name, 1000, query)
    assert len(whole) == 101
    first = forewarn.get_json(f"/v1/{name}?{query.removeprefix('&')}")
    assert first[name] == whole[:100]
    second = forewarn.get_json(f"/v1/{name}?cursor={first['next']}{query}")
    assert (second[name], second["next"]) == (whole[100:], None)


@pytest.mark.parametrize("live", [True, False])
def test_changes_between_pages_do_not_move_other_items(service: Service, live: bool) -> None:
    query = "" if live else "&all=true"
    (before,) = pages(service, "events", 1000, query)
    reading = pages(service, "events", 5, query)
    seen = next(reading)
    found = [event["id"] for event in seen]
    while seen[-1]["source"] != "user":  # to cancel an event of a rollout would end that too, which others count
        seen = next(reading)
        found += [event["id"] for event in seen]
    # What the cursor points at.
    assert service.control("POST", f"/v1/events/{seen[-1]['id']}/cancel").status == 200
    service.request_operation("redeploy", "vm-0" if live else "vm-1")
    found += [event["id"] for page in reading for event in page]
    stayed = [event["id"] for event in before]
    assert [event_id for event_id in found if event_id in stayed] == stayed
    assert len(set(found)) == len(found)


BAD_CURSORS = ("x", "====", "%00", "ü", urlsafe_b64encode(b"\xff").decode(), urlsafe_b64encode(b"-1").decode())


@pytest.mark.parametrize("cursor", BAD_CURSORS)
def test_an_unknown_cursor_is_rejected(service: Service, cursor: str) -> None:
    answer = service.control("GET", f"/v1/events?cursor={quote(cursor)}")
    assert (answer.status, answer.json()["parameter"]) == (400, "cursor")


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "1.5", "x", "", "١", "1" * 30])
def test_an_invalid_limit_is_rejected(service: Service, limit: str) -> None:
    answer = service.control("GET", f"/v1/vms?limit={quote(limit)}")
    assert (answer.status, answer.json()["parameter"]) == (400, "limit")
    assert answer.json()["allowed"] == "a whole number from 1 to 1000"


@pytest.mark.parametrize(
    ("target", "parameter", "words"),
    [
        ("vms?limt=5", "limt", "Did you mean 'limit'?"),
        ("events?all=yes", "all", "neither true nor false"),
        ("events?group=", "group", "is empty"),
        ("events?group=a&group=b", "group", "more than once"),
        ("vms/vm-0?x=1", "x", "is not a known parameter"),
    ],
)
def test_a_parameter_that_does_not_fit_is_named(service: Service, target: str, parameter: str, words: str) -> None:
    answer = service.control("GET", f"/v1/{target}")
    assert (answer.status, answer.json()["parameter"]) == (400, parameter)
    assert words in answer.json()["detail"]
    assert answer.json()["allowed"] is not None


PROBLEMS = [
    ("operations", {"cause": "restart", "vms": ["vm-0", "vm-99"]}, 404, "/vms/1", None),
    ("operations", {"cause": "restrat", "vms": ["vm-0"]}, 400, "/cause", "restart"),
    ("operations", {"cause": "eviction", "vms": ["vm-1"]}, 400, "/vms/0", None),
    ("operations", {"cause": "host-update", "host": "host-99"}, 404, "/host", None),
    ("operations", {"cause": "restart", "vms": "vm-0"}, 400, "/vms", "a list of strings"),
    ("operations", {"cause": "restart", "vms": ["vm-0"], "notice": "soon"}, 400, "/notice", "like 90s"),
    ("operations", {"cause": "host-update", "host": "host-1", "type": "Redeploy"}, 400, "/type", None),
    ("operations", {"cause": 5, "vms": ["vm-0"]}, 400, "/cause", "a string"),
    ("operations", {"cause": "restart", "vms": ["vm-0"], "a/b~c": 1}, 400, "/a~1b~0c", "vms"),
    ("rollouts", {"hosts": ["host-1", "rack-*"]}, 400, "/hosts/1", None),
    ("rollouts", {"hosts": ["host-1"], "max_unavailable": "3"}, 400, "/max_unavailable", "a whole number"),
    ("rollouts", {"hosts": ["host-1"], "max_unavailable": 10**30}, 400, "/max_unavailable", "a whole number"),
    ("groups/web/policy", {"auto_approve": ["reboot", "freze"]}, 400, "/auto_approve/1", "reboot"),
    ("clock/advance", {"by": "later"}, 400, "/by", "like 90s"),
    ("clock/advance", {}, 400, "/by", None),
]


@pytest.mark.parametrize(("path", "body", "status", "pointer", "allowed"), PROBLEMS)
def test_an_error_points_to_the_invalid_member_with_the_allowed_values(
    service: Service, path: str, body: Any, status: int, pointer: str, allowed: str | None
) -> None:
    answer = service.control("POST", f"/v1/{path}", body)
    assert answer.headers["content-type"] == "application/problem+json"
    details = answer.json()
    assert (answer.status, details["status"], details.get("pointer")) == (status, status, pointer)
    assert details["type"].startswith("urn:forewarn:")
    if allowed is not None:
        assert allowed in details["allowed"]


@pytest.mark.parametrize("body", [b"{", b"[]", b"5", b'"x"', b"\xff", b'{"cause": "\\ud800"}', b"[" * 100_000])
def test_a_body_that_is_no_object_is_rejected(service: Service, body: bytes) -> None:
    answer = service.control("POST", "/v1/operations", body)
    assert (answer.status, answer.json()["pointer"]) == (400, "")


def test_a_wrong_method_gets_the_allowed_methods(service: Service) -> None:
    answer = service.control("DELETE", "/v1/operations")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    assert answer.json()["title"] == "Method Not Allowed"
    assert "Use GET or HEAD or POST" in answer.json()["detail"]

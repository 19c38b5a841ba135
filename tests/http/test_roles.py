"""Permissions: every route and every role, as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acceptance.causes import request_one
from acceptance.feed_client import Feed
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
name = "web-0"
group = "web"
address = "127.0.0.1"
[[vm]]
name = "other"
address = "127.0.0.2"
"""
ROLES = ("nobody", "viewer", "operator", "admin", "tenant")
# One letter for each of those: who gets in.
TABLE = """
GET    /healthz                          n v o a t
GET    /readyz                           n v o a t
GET    /v1/proof                         n v o a t
GET    /metrics                          . v o a .
GET    /v1/openapi.json                  . v o a t
GET    /v1/fleet                         . v o a .
PUT    /v1/fleet                         . . . a .
PATCH  /v1/fleet                         . . . a .
POST   /v1/fleet/remove                  . . . a .
GET    /v1/map                           . v o a t
GET    /v1/overview                      . v o a t
GET    /v1/vms                           . v o a t
GET    /v1/vms/{name}                    . v o a t
GET    /v1/vms/{name}/document           . v o a t
POST   /v1/vms/{name}/enable             . . o a .
GET    /v1/causes                        . v o a .
GET    /v1/clock                         . v o a t
POST   /v1/clock/advance                 . . o a .
POST   /v1/clock/accept                  . . o a .
GET    /v1/operations                    . v o a .
POST   /v1/operations                    . . o a .
GET    /v1/operations/{id}               . v o a .
GET    /v1/operations/{id}/explain       . v o a .
POST   /v1/operations/{id}/done          . . o a .
POST   /v1/operations/{id}/failed        . . o a .
POST   /v1/operations/{id}/cancel        . . o a .
GET    /v1/events                        . v o a t
GET    /v1/events/{id}                   . v o a t
GET    /v1/events/{id}/explain           . v o a t
POST   /v1/events/{id}/approve           . . o a t
POST   /v1/events/approve                . . o a t
POST   /v1/events/{id}/cancel            . . o a .
POST   /v1/events/{id}/postpone          . . o a .
GET    /v1/hosts                         . v o a .
GET    /v1/hosts/{name}                  . v o a .
POST   /v1/hosts/{name}/return           . . o a .
GET    /v1/groups                        . v o a t
GET    /v1/groups/{name}                 . v o a t
POST   /v1/groups/{name}/policy          . . o a .
GET    /v1/rollouts                      . v o a .
POST   /v1/rollouts                      . . o a .
GET    /v1/rollouts/{id}                 . v o a .
GET    /v1/rollouts/{id}/plan            . v o a .
GET    /v1/rollouts/{id}/explain         . v o a .
POST   /v1/rollouts/{id}/pause           . . o a .
POST   /v1/rollouts/{id}/resume          . . o a .
POST   /v1/rollouts/{id}/cancel          . . o a .
GET    /v1/tokens                        . . . a .
POST   /v1/tokens                        . . . a .
DELETE /v1/tokens/{name}                 . . . a .
GET    /v1/session                       . v o a t
POST   /v1/session                       n v o a t
DELETE /v1/session                       . v o a t
POST   /v1/session/links                 . v o a t
GET    /v1/settings                      . v o a .
GET    /v1/faults                        . v o a .
POST   /v1/faults                        . . o a .
DELETE /v1/faults                        . . o a .
DELETE /v1/faults/{id}                   . . o a .
GET    /v1/nodes                         . v o a .
POST   /v1/nodes/step-down               . . . a .
GET    /v1/webhooks                      . v o a .
POST   /v1/webhooks                      . . . a .
GET    /v1/webhooks/{name}               . v o a .
DELETE /v1/webhooks/{name}               . . . a .
POST   /v1/webhooks/{name}/test          . . o a .
GET    /v1/webhooks/{name}/failures      . v o a .
POST   /v1/webhooks/{name}/retry         . . o a .
GET    /v1/history                       . v o a t
GET    /v1/feed                          . v o a t
"""
ROWS = {(method, path): may for method, path, *may in (line.split() for line in TABLE.strip().splitlines())}
CELLS = [
    (method, path, role, mark != ".")
    for (method, path), may in ROWS.items()
    for role, mark in zip(ROLES, may, strict=True)
]


class Door:
    """A service, and a token of each role."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.tokens = {"nobody": "", "admin": service.token}
        for role in ("viewer", "operator", "tenant"):
            body = {"name": f"a-{role}", "role": role, "group": "web" if role == "tenant" else ""}
            self.tokens[role] = service.control("POST", "/v1/tokens", body).json()["token"]


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with Service(FLEET) as service:
        yield Door(service)


def test_the_table_has_every_route() -> None:
    described = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    assert {(method.upper(), path) for path, item in described.items() for method in item} == {*ROWS}


@pytest.mark.parametrize(("method", "path", "role", "may"), CELLS)
def test_each_role_has_its_permissions(door: Door, method: str, path: str, role: str, may: bool) -> None:
    """An unknown parameter: a request with permission is rejected because of it, so nothing happens."""
    target = path.replace("{id}", "none").replace("{name}", "none") + "?nonsense=1"
    answer = door.service.control(
        method, target, b"not what it takes" if method in ("POST", "PUT") else None, door.tokens[role]
    )
    if role == "nobody" and not may:
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="forewarn"')
        assert answer.json()["title"] == "Unauthorized"
    elif not may:
        assert (answer.status, answer.json()["title"]) == (403, "Forbidden")
        assert f"The token's role is {role}." in answer.json()["detail"]
    elif path in ("/healthz", "/readyz"):
        assert answer.status == 200
    else:
        assert (answer.status, answer.json()["parameter"]) == (400, "nonsense")


@pytest.mark.parametrize("path", ["/v1", "/v1/nothing", "/nothing", "/v1/events/../tokens", "//healthz"])
def test_without_a_token_all_other_routes_are_rejected(door: Door, path: str) -> None:
    assert door.service.control("GET", path, token="").status == 401
    assert door.service.control("GET", path, token=door.tokens["viewer"][:-1]).status == 401
    assert door.service.control("GET", path, token=door.tokens["viewer"]).status == 404


@pytest.mark.parametrize(
    "sent", ["", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer {}x", "Bearer x{}", "Bearer {} {}"]
)
def test_only_the_whole_token_opens(door: Door, sent: str) -> None:
    secret = door.tokens["admin"]
    answer = door.service.control("GET", "/v1/fleet", headers={"Authorization": sent.format(secret, secret)})
    assert answer.status == 401
    assert secret not in answer.body.decode()


def test_a_tenant_sees_and_approves_the_events_of_its_group_and_no_others(door: Door) -> None:
    service, tenant = door.service, door.tokens["tenant"]
    own, foreign = (request_one(service, "restart", name)["events"][0]["id"] for name in ("web-0", "other"))
    listed = service.control("GET", "/v1/events?all=true", token=tenant).json()["events"]
    assert [event["id"] for event in listed] == [own]
    assert service.control("GET", "/v1/events?group=other", token=tenant).json()["events"] == []
    assert service.control("GET", f"/v1/events/{own}", token=tenant).status == 200
    for path in (f"/v1/events/{foreign}", f"/v1/history?event={foreign}"):
        assert service.control("GET", path, token=tenant).status == 404
    refused = service.control("POST", f"/v1/events/{foreign}/approve", token=tenant)
    assert (refused.status, foreign in refused.json()["detail"].replace(f"'{foreign}'", "", 1)) == (404, False)
    approved = service.control("POST", f"/v1/events/{own}/approve", token=tenant).json()
    assert (approved["status"], approved["approved_by"]) == ("started", "a-tenant")
    rows = service.control("GET", f"/v1/history?event={own}", token=tenant).json()["history"]
    assert [row["kind"] for row in rows] == ["scheduled", "approved", "started"]
    assert {row["group"] for row in rows} == {"web"}
    assert service.get_json(f"/v1/events/{foreign}")["status"] == "scheduled"


def test_history_by_operation_and_rollout_is_not_for_tenants(door: Door) -> None:
    operation = request_one(door.service, "redeploy", "web-0")["id"]
    for path in (f"/v1/history?operation={operation}", "/v1/history?rollout=x"):
        refused = door.service.control("GET", path, token=door.tokens["tenant"])
        assert (refused.status, refused.json()["type"]) == (403, "urn:forewarn:InsufficientRole")
    rows = door.service.get_json(f"/v1/history?operation={operation[:13]}")["history"]
    assert {row["operation"] for row in rows} == {operation}
    both = door.service.control("GET", f"/v1/history?operation={operation}&event=x")
    assert (both.status, both.json()["parameter"]) == (400, "operation")
    for name in ("event", "operation", "rollout"):
        assert door.service.control("GET", f"/v1/history?{name}=zzz").status == 404


def test_a_tenant_sees_neither_hosts_nor_other_groups(door: Door) -> None:
    service, tenant = door.service, door.tokens["tenant"]
    host = service.get_json("/v1/vms/web-0")["host"]
    operation = request_one(service, "host-update", host=host)
    event = operation["events"][0]["id"]
    service.control("POST", f"/v1/operations/{operation['id']}/cancel")
    for path in (f"/v1/history?event={event}", "/v1/history"):
        rows = service.control("GET", path, token=tenant).json()["history"]
        assert {"scheduled", "cancelled"} <= {row["kind"] for row in rows}
        assert {row["host"] for row in rows} == {None}
        assert {row["reason"] for row in rows if row["kind"] == "cancelled"} == {None}
        assert {row["group"] for row in rows} == {"web"}
    assert any(row["host"] == host for row in service.list_all("/v1/history"))
    assert service.control("GET", f"/v1/history?host={host}", token=tenant).status == 403
    found = service.control("GET", "/v1/history?cause=host-update", token=tenant).json()["history"]
    assert {(row["group"], row["cause"], row["snapshot"]["cause"]) for row in found} == {
        ("web", "host-update", "host-update")
    }
    with Feed(service, "?after=0", token=tenant) as feed:
        newest = service.control("GET", "/v1/history?order=newest&limit=1", token=tenant).json()["history"][0]
        feed_rows = feed.until(newest["sequence"])
    assert {row["host"] for row in feed_rows} == {None}
    assert {row["group"] for row in feed_rows} == {"web"}


SHARED = """
[[group]]
name = "shop"
kind = "availability-set"
windows = ["daily 00:00 24h UTC"]
[[host]]
name = "rack-7"
[[vm]]
name = "shop-0"
group = "shop"
host = "rack-7"
address = "127.0.0.1"
[[vm]]
name = "secret-1"
host = "rack-7"
address = "127.0.0.2"
[[vm]]
name = "secret-2"
host = "rack-7"
address = "127.0.0.3"
[[group]]
name = "silent"
kind = "availability-set"
windows = ["daily 00:00 24h UTC"]
[[vm]]
name = "silent-0"
group = "silent"
host = "rack-7"
"""


@pytest.mark.forewarn(fleet=SHARED, enable_groups=False)
def test_a_tenant_learns_that_others_delay_its_event_but_not_who(forewarn: Service) -> None:
    for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
        forewarn.request(source=source)
    made = forewarn.control("POST", "/v1/tokens", {"name": "shop", "role": "tenant", "group": "shop"}).json()
    operation = request_one(forewarn, "host-update", host="rack-7")
    own = next(event["id"] for event in operation["events"] if event["group"] == "shop")
    assert forewarn.control("POST", f"/v1/events/{own}/approve", token=made["token"]).status == 200
    others = [event["id"] for event in operation["events"] if event["id"] != own]
    forewarn.control("POST", f"/v1/events/{others[0]}/postpone", {"by": "1h"})
    for event in others:
        forewarn.control("POST", f"/v1/events/{event}/approve")
    forewarn.advance("2h")
    for path in ("/v1/history", f"/v1/history?event={own}"):
        answer = forewarn.control("GET", path, token=made["token"])
        rows = [row for row in answer.json()["history"] if row["event"]]
        waits = {row["kind"]: row["snapshot"]["waits"] for row in rows}
        assert [row["kind"] for row in rows] == ["scheduled", "approved", "started", "completed"]
        assert [(wait["kind"], wait["group"]) for wait in waits["scheduled"]] == [
            ("approval", "shop"),
            ("window", "shop"),
            ("window", None),  # of the group that gets no notice
            ("approval", None),  # of both others
        ]
        assert [(wait["kind"], wait["group"], wait["text"]) for wait in waits["approved"]] == [
            ("window", None, None),
            ("approval", None, None),
        ]
        assert waits["started"] == waits["completed"] == []
        body = answer.body.decode()
        assert not any(name in body for name in ("secret", "silent", "rack-7"))
    with Feed(forewarn, "?after=0", token=made["token"]) as feed:
        feed_rows = json.dumps(feed.until(rows[-1]["sequence"]))
    assert not any(name in feed_rows for name in ("secret", "silent", "rack-7"))
    # An operator gets the names.
    whole = [row for row in forewarn.list_all("/v1/history?kind=approved") if row["event"] == own]
    assert [wait["group"] for wait in whole[0]["snapshot"]["waits"]] == [None, "secret-1", "secret-2"]

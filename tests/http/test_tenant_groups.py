"""A tenant token belongs to one group in one life: it ends with its group, and a new group of that name has nothing of
the former one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from acceptance.feed_client import Feed
from forewarn.clock import VirtualClock
from forewarn.control.routing import Route
from forewarn.core.access import Role, Token
from forewarn.errors import BadToken

if TYPE_CHECKING:
    from forewarn.testing import Service

DB = """
[[group]]
name = "db"
kind = "availability-set"
[[vm]]
name = "db-0"
group = "db"
address = "127.0.0.2"
"""
SINGLE = '[[vm]]\nname = "single"\n'
SINGLE_IN_DB = SINGLE + 'group = "db"\n'
ANOTHER_IN_DB = DB.replace("db-0", "db-1")
VM_NAMED_DB = SINGLE.replace("single", "db") + 'address = "127.0.0.2"\n'
READS = (
    *("/v1/session", "/v1/vms", "/v1/vms/single", "/v1/vms/single/document", "/v1/groups", "/v1/groups/db"),
    *("/v1/events", "/v1/map", "/v1/overview", "/v1/history", "/v1/history?format=csv", "/v1/feed?after=0"),
)

pytestmark = pytest.mark.forewarn(fleet=DB + SINGLE)


def apply(service: Service, fleet: str, **query: str) -> Any:
    options = "&".join(f"{name}={value}" for name, value in {"force": "true", **query}.items())
    response = service.control("PUT", f"/v1/fleet?{options}", fleet.encode())
    assert response.status == 200, response.json()
    return response.json()


def tenant(service: Service, group: str, name: str = "") -> str:
    body = {"name": name or f"{group}-team", "role": "tenant", "group": group}
    return str(service.control("POST", "/v1/tokens", body).json()["token"])


def sees_nothing(service: Service, token: str) -> None:
    for path in READS:
        response = service.control("GET", path, token=token)
        assert response.status == 401, (path, response.body)
    assert service.control("POST", "/v1/events/approve", {"all": True}, token).status == 401


def restart(service: Service, vm: str) -> None:
    """Restart a VM that sees events."""
    service.document(source="127.0.0.2")
    service.vm(vm).restart()


def only_event(service: Service) -> str:
    (event,) = service.get_json("/v1/events")["events"]
    return str(event["id"])


def test_the_token_of_a_vm_does_not_follow_it_into_a_group(forewarn: Service) -> None:
    token = tenant(forewarn, "single")
    assert forewarn.control("GET", "/v1/vms/single/document", token=token).status == 200
    restart(forewarn, "db-0")
    apply(forewarn, DB + SINGLE_IN_DB)
    sees_nothing(forewarn, token)
    apply(forewarn, DB + SINGLE)
    sees_nothing(forewarn, token)


def test_the_token_of_a_removed_group_is_not_valid_for_a_new_group_of_that_name(forewarn: Service) -> None:
    token = tenant(forewarn, "db")
    apply(forewarn, SINGLE)
    sees_nothing(forewarn, token)
    apply(forewarn, ANOTHER_IN_DB + SINGLE)
    restart(forewarn, "db-1")
    sees_nothing(forewarn, token)
    event = only_event(forewarn)
    assert forewarn.control("POST", f"/v1/events/{event}/approve", {}, token).status == 401
    assert forewarn.get_json(f"/v1/events/{event}")["approved_at"] is None


@pytest.mark.parametrize("at_once", [True, False])
def test_the_token_of_a_removed_group_is_not_valid_for_a_vm_of_that_name(forewarn: Service, at_once: bool) -> None:
    token = tenant(forewarn, "db")
    if not at_once:
        apply(forewarn, SINGLE)
    apply(forewarn, SINGLE + VM_NAMED_DB)
    sees_nothing(forewarn, token)
    assert forewarn.control("GET", "/v1/vms/db/document", token=token).status == 401


def test_the_token_of_a_vm_ends_with_the_vm(forewarn: Service) -> None:
    token = tenant(forewarn, "single")
    forewarn.request_operation("delete", "single")
    forewarn.advance("1h")
    assert not forewarn.has_vm("single")
    sees_nothing(forewarn, token)
    apply(forewarn, DB + SINGLE)
    sees_nothing(forewarn, token)


def test_a_token_of_a_group_stays_valid_while_its_group_exists(forewarn: Service) -> None:
    tokens = [tenant(forewarn, "db"), tenant(forewarn, "single")]
    forewarn.control("POST", "/v1/groups/single/policy", {"auto_approve": ["freeze"]})
    apply(forewarn, DB.replace("[[vm]]", "update_domains = 3\n[[vm]]") + SINGLE + 'size = "large"\n')
    forewarn.control("POST", "/v1/groups/single/policy", {"auto_approve": []})
    apply(forewarn, ANOTHER_IN_DB + SINGLE)
    for token in tokens:
        assert forewarn.control("GET", "/v1/overview", token=token).status == 200


@pytest.mark.parametrize(("taken_by", "at_once"), [(ANOTHER_IN_DB, False), (VM_NAMED_DB, False), (VM_NAMED_DB, True)])
def test_a_tenant_sees_nothing_of_the_former_group_of_its_name(forewarn: Service, taken_by: str, at_once: bool) -> None:
    old = tenant(forewarn, "db", "old-team")
    forewarn.control("POST", "/v1/groups/db/policy", {"auto_approve": ["freeze"]})
    restart(forewarn, "db-0")
    former = only_event(forewarn)
    assert forewarn.control("POST", f"/v1/events/{former}/approve", {}, old).status == 200
    if not at_once:
        apply(forewarn, SINGLE)
    apply(forewarn, taken_by + SINGLE)
    new = tenant(forewarn, "db", "new-team")

    def read(path: str) -> Any:
        return forewarn.control("GET", path, token=new).json()

    assert read("/v1/history")["history"] == read("/v1/history?order=newest")["history"] == []
    assert read("/v1/history?format=json") == read("/v1/events?all=true")["events"] == []
    assert read("/v1/events?all=true&count=true")["total"] == 0
    overview = read("/v1/overview")
    assert (overview["events"], overview["ended_events"]) == ([], [])
    for path in ("/v1/events/{}", "/v1/history?event={}", "/v1/events/{}/explain"):
        for event_id in (former, former[:8]):
            assert forewarn.control("GET", path.format(event_id), token=new).status == 404
    for path in ("/v1/history?by=old-team", "/v1/history?vm=db-0"):
        assert forewarn.control("GET", path, token=new).status == 404
    name = "db-1" if taken_by == ANOTHER_IN_DB else "db"
    with Feed(forewarn, "?after=0", token=new) as feed:
        restart(forewarn, name)
        assert next(row for row in feed.rows() if row["kind"] != "enabled")["vms"] == [name]
    (event,) = read("/v1/events")["events"]
    rows = read("/v1/history")["history"]
    assert {*map(str, (row["event"] for row in rows))} >= {event["id"]}
    assert {former, "old-team"}.isdisjoint(str(row[key]) for row in rows for key in ("event", "by"))
    assert read(f"/v1/history?event={event['id']}")["history"]


def test_the_plan_of_a_fleet_file_lists_the_tokens_that_it_ends(forewarn: Service) -> None:
    tenant(forewarn, "db")
    tenant(forewarn, "single")
    for dry_run in ("true", "false"):
        assert apply(forewarn, SINGLE, dry_run=dry_run)["tokens_revoked"] == ["db-team"]
    assert apply(forewarn, SINGLE + DB)["tokens_revoked"] == []
    ended = [row for row in forewarn.list_all("/v1/history") if row["kind"] == "token-revoked"]
    assert [(row["by"], row["reason"]) for row in ended] == [("admin", "db-team: its group db was removed")]
    assert [token["name"] for token in forewarn.list_all("/v1/tokens")] == ["admin", "single-team"]


async def test_a_response_that_was_made_while_the_group_was_removed_is_not_sent() -> None:
    """A request can wait for its turn, or for the store."""
    valid = [True]

    async def handle(_: Request) -> Response:
        valid.clear()
        return Response("what the next group of that name has")

    request = Request({"type": "http", "method": "GET", "query_string": b"", "headers": [], "path_params": {}})
    request.state.token = Token("db-team", Role.TENANT, "", "admin", VirtualClock().now(), group="db")
    request.state.is_authorized = lambda: bool(valid)
    with pytest.raises(BadToken):
        await Route("GET", "/v1/vms", handle, "List VMs.", {}, tenant=True).handle_request(request)


def test_a_feed_and_a_session_end_with_the_group(forewarn: Service) -> None:
    token = tenant(forewarn, "db")
    origin = {"origin": forewarn.control_url}
    signed_in = forewarn.control("POST", "/v1/session", {"token": token}, "", origin)
    assert signed_in.status == 201
    with Feed(forewarn, token=token) as feed:
        apply(forewarn, SINGLE)
        apply(forewarn, ANOTHER_IN_DB + SINGLE)
        restart(forewarn, "db-1")
        assert list(feed.rows()) == []
    assert [found["name"] for found in forewarn.list_all("/v1/tokens?sessions=true")] == ["admin"]

"""What a tenant can read: its own group, as if there were no others, and no hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forewarn.testing.client import HTTPResponse

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[group]]
name = "secret"
kind = "availability-set"
[[group]]
name = "idle"
kind = "availability-set"
[[host]]
name = "rack-a"
[[vm]]
name = "web-0"
group = "web"
host = "rack-a"
address = "127.0.0.1"
[[vm]]
name = "web-1"
group = "web"
host = "rack-a"
[[vm]]
name = "secret-0"
group = "secret"
host = "rack-a"
address = "127.0.0.2"
[[vm]]
name = "single"
host = "rack-a"
"""
HIDDEN = (b"rack-a", b"secret", b"single")


class Tenant:
    """A client with the token of a tenant."""

    def __init__(self, service: Service, group: str, name: str = "") -> None:
        self.service = service
        body = {"name": name or f"{group}-team", "role": "tenant", "group": group}
        self.token = service.control("POST", "/v1/tokens", body).json()["token"]

    def get(self, path: str) -> HTTPResponse:
        return self.service.control("GET", path, token=self.token)

    def read(self, path: str) -> Any:
        """Return the JSON at a path. It names nothing that the tenant must not see."""
        response = self.get(path)
        assert response.status == 200
        for word in HIDDEN:
            assert word not in response.body, path
        return response.json()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET) as running:
        yield running


@pytest.fixture(scope="module")
def web(service: Service) -> Tenant:
    return Tenant(service, "web")


def test_a_tenant_lists_its_vms(web: Tenant) -> None:
    found = web.read("/v1/vms?count=true")
    assert ([vm["name"] for vm in found["vms"]], found["total"]) == (["web-0", "web-1"], 2)
    assert [vm["host"] for vm in found["vms"]] == [None, None]
    assert [vm["name"] for vm in web.read("/v1/vms?group=web&name=*-1")["vms"]] == ["web-1"]
    assert web.read("/v1/vms?name=s*")["vms"] == []


def test_a_tenant_reads_a_vm_and_its_document(web: Tenant) -> None:
    web.service.document()
    found = web.read("/v1/vms/web-0")
    assert (found["host"], found["configured_host"], found["group"]) == (None, None, "web")
    assert found["polls"]["count"] > 0
    assert web.read("/v1/vms/web-0/document")["Events"] == []


def test_a_tenant_uses_the_command_line(web: Tenant, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(web.token)
    for arguments in (("vm", "list"), ("vm", "show", "web-0"), ("group", "list"), ("group", "show", "web")):
        result = web.service.cli(*arguments, "--token-file", str(file))
        assert (result.returncode, result.stderr) == (0, "")
        assert "web" in result.stdout
        assert "rack-a" not in result.stdout


def test_a_tenant_reads_its_group(web: Tenant) -> None:
    assert [group["name"] for group in web.read("/v1/groups")["groups"]] == ["web"]
    assert web.read("/v1/groups/web")["vms"] == 2


def test_the_group_of_a_single_vm_is_not_a_declared_group(service: Service) -> None:
    tenant = Tenant(service, "single")
    assert tenant.get("/v1/groups").json()["groups"] == []
    assert tenant.get("/v1/groups/single").json()["kind"] == "standalone"
    assert [vm["name"] for vm in tenant.get("/v1/vms").json()["vms"]] == ["single"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/vms/{}",
        "/v1/vms/{}/document",
        "/v1/vms?name={}",
        "/v1/groups/{}",
        "/v1/vms?group={}",
        "/v1/history?group={}",
        "/v1/history?vm={}",
        "/v1/feed?group={}",
    ],
)
@pytest.mark.parametrize("name", ["secret", "secret-0", "single"])
def test_what_belongs_to_others_does_not_exist(web: Tenant, path: str, name: str) -> None:
    """The error is the same as for a name that does not exist, with the name itself as the only difference."""
    foreign, missing = web.get(path.format(name)), web.get(path.format("nothing"))
    assert (foreign.status, missing.status) == (404, 404)
    assert foreign.json()["type"] == missing.json()["type"]
    described = foreign.body.replace(name.encode(), b"")
    for word in HIDDEN:
        assert word not in described


def test_a_tenant_cannot_filter_by_host(web: Tenant) -> None:
    for path in ("/v1/vms", "/v1/events", "/v1/history"):
        assert web.get(f"{path}?host=rack-a").status == web.get(f"{path}?host=none").status == 403


def test_an_explanation_names_neither_hosts_nor_other_groups(web: Tenant) -> None:
    service = web.service
    events = service.request_operation("host-update", host="rack-a")
    for event in service.get_json("/v1/events")["events"]:
        found = web.get(f"/v1/events/{event['id']}/explain")
        if event["group"] != "web":
            assert found.status == 404
            continue
        shown = web.read(f"/v1/events/{event['id']}/explain")
        assert (shown["host"], shown["rollout"]) == (None, None)
        own, *others = shown["waits"]
        assert (own["kind"], own["group"]) == ("approval", "web")
        assert [(wait["kind"], wait["group"]) for wait in others] == [("approval", None)]
    service.control("POST", f"/v1/events/{events[0].id}/cancel", {})
    ended = next(event for event in web.read("/v1/events?all=true")["events"])
    assert web.read(f"/v1/events/{ended['id']}/explain")["next"] == "Nothing. It is cancelled."


# --- Hints --------------------------------------------------------------------------------------------------

FOREIGN = ("secret-1", "singel", "secre", "rack-b", "web-tea")
"""Names that are like those of others."""
WITH_NAMES = (
    *("/v1/vms/{}", "/v1/vms/{}/document", "/v1/vms?name={}", "/v1/vms?group={}", "/v1/groups/{}"),
    *("/v1/history?vm={}", "/v1/history?group={}", "/v1/history?by={}", "/v1/feed?group={}"),
    *("/v1/events?vm={}", "/v1/events?group={}", "/v1/events/{}", "/v1/history?event={}", "/v1/events/{}/explain"),
)


@pytest.mark.parametrize("name", FOREIGN)
def test_no_hint_names_what_the_tenant_of_an_empty_group_cannot_see(service: Service, name: str) -> None:
    tenant = Tenant(service, "idle", f"idle-{name}")
    answers = [tenant.get(path.format(name)) for path in WITH_NAMES]
    answers += [
        service.control("POST", path, body, tenant.token)
        for path, body in (("/v1/events/approve", {"vm": name}), (f"/v1/events/{name}/approve", {}))
    ]
    for answer in answers:
        assert b"Did you mean" not in answer.body


def test_a_hint_for_an_event_never_has_the_id_of_another_group(service: Service) -> None:
    (event,) = service.request_operation("restart", "secret-0")
    tenant = Tenant(service, "idle", "idle-events")
    for near in (event.id[:-1], event.id[:-1] + "x"):
        answer = tenant.get(f"/v1/events/{near}")
        assert answer.status == 404
        assert event.id.encode() not in answer.body


def test_a_hint_names_no_token_to_a_caller_that_may_not_list_tokens(service: Service) -> None:
    for role in ("viewer", "operator"):
        body = {"name": f"hidden-{role}", "role": role}
        token = service.control("POST", "/v1/tokens", body).json()["token"]
        answer = service.control("GET", "/v1/history?by=hidden-viewe", token=token)
        assert answer.status == 404
        assert b"hidden-viewer" not in answer.body
    assert b"hidden-viewer" in service.control("GET", "/v1/history?by=hidden-viewe").body

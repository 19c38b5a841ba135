"""Faults by the command line and the control API, and where an operator sees them."""

from __future__ import annotations

import json
import resource
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from command_line import run_command
from golden.exchange import stop_cleanly

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import HTTPResponse, Service, ServiceProcess
    from forewarn.testing.client import ServiceClient

    MakeService = Callable[..., ServiceProcess]

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
name = "web-0"
group = "web"
address = "127.0.0.1"
[[vm]]
name = "db"
address = "127.0.0.2"
"""


pytestmark = pytest.mark.forewarn(fleet=FLEET, enable_groups=False)


@pytest.fixture
def service(forewarn: Service) -> Service:
    """One to which web-0 listens, and db does not."""
    forewarn.document()
    return forewarn


def run(service: ServiceClient, *arguments: str) -> str:
    result = run_command(service, *arguments)
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


def refused(service: ServiceClient, *arguments: str) -> tuple[int, str]:
    result = run_command(service, *arguments)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.returncode, result.stderr


def metrics(service: ServiceClient) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(service.control("GET", "/metrics").body.decode()):
        for sample in family.samples:
            found[f"{sample.name}{sorted(sample.labels.items())}"] = sample.value
    return found


def history(service: ServiceClient) -> list[tuple[str, str]]:
    rows = service.list_all("/v1/history")
    return [(row["kind"], row["reason"]) for row in rows if row["kind"].startswith("fault")]


# --- The command line -------------------------------------------------------------------------------


def test_add_list_and_clear(service: Service) -> None:
    assert run(service, "fault", "list") == "No active faults.\n"
    assert run(service, "fault", "add", "429") == "f1: 429 for GET requests of all VMs, once.\n"
    added = run(
        service, "fault", "add", "SLOW", "--vm", "web-0", "--method", "any", "--count", "1500", "--delay", "0.5s"
    )
    assert added == "f2: slow for all requests of web-0, 1,500 times.\n"
    assert run(service, "fault", "add", "500", "--method", "post", "--duration", "10m").startswith(
        "f3: 500 for POST requests of all VMs, until "
    )
    lines = [line.split() for line in run(service, "fault", "list").splitlines()]
    assert lines[0] == ["fault", "kind", "VM", "method", "remaining", "delay", "hits", "added", "by"]
    assert lines[2] == ["f1", "429", "all", "GET", "once", "0", "admin"]
    assert lines[3] == ["f2", "slow", "web-0", "any", "1,500", "times", "0.5s", "0", "admin"]
    assert service.request().status == 429
    assert run(service, "fault", "clear", "f2") == "f2 (slow) was cleared. Hits: 0.\n"
    assert service.approve("x").status == 500
    assert run(service, "fault", "clear", "--all") == "f3 (500) was cleared. Hits: 1.\n"
    assert run(service, "fault", "clear", "--all") == "No active faults.\n"
    assert service.request().status == 200
    assert history(service) == [
        ("fault-added", "f1: 429 once"),
        ("fault-added", "f2: slow on any 1,500 times with a delay of 0.5s"),
        ("fault-added", "f3: 500 on POST for 10m"),
        ("fault-expired", "f1: 429 once; hits: 1"),
        ("fault-cleared", "f2: slow on any 1,500 times with a delay of 0.5s; hits: 0"),
        ("fault-cleared", "f3: 500 on POST for 10m; hits: 1"),
    ]


def test_each_verb_as_json(service: Service) -> None:
    added = json.loads(run(service, "fault", "add", "stall", "--duration", "1h", "--vm", "db", "--json"))
    assert added == {
        "id": "f1",
        "kind": "stall",
        "vm": "db",
        "method": "GET",
        "count": None,
        "duration_seconds": 3600,
        "delay_seconds": 30,
        "added_by": "admin",
        "added_at": added["added_at"],
        "expires_at": added["expires_at"],
        "remaining": None,
        "hits": 0,
    }
    assert json.loads(run(service, "fault", "list", "--json")) == {"faults": [added]}
    assert json.loads(run(service, "fault", "clear", "f1", "--json")) == added
    assert json.loads(run(service, "fault", "clear", "--all", "--json")) == {"faults": []}


def test_disabled_prints_its_effect(service: Service) -> None:
    assert run(service, "fault", "add", "disabled") == "f1: disabled, applied immediately to one group.\n"
    assert run(service, "fault", "add", "disabled") == "f2: disabled, applied immediately to 0 groups.\n"
    assert run(service, "fault", "list").startswith("No active faults")


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (("add", "slwo"), 2, "Unknown fault 'slwo'."),
        (("add", "slwo"), 2, "Did you mean 'slow'?"),
        (("add", "empty", "--method", "POST"), 2, "Faults for POST: slow, 410, 429, 500, reset."),
        (("add", "500", "--count", "0"), 2, "write a whole number from 1 to 1,000,000."),
        (("add", "500", "--duration", "0s"), 2, "Invalid --duration '0s': write more than 0s"),
        (("add", "500", "--duration", "soon"), 2, "--duration: 'soon' is not a duration."),
        (("add", "slow", "--delay", "11m"), 2, "at most 10m."),
        (("add", "500", "--vm", "bd"), 3, "Unknown VM 'bd'. Did you mean 'db'?"),
        (("clear", "f9"), 3, "Unknown fault 'f9'. List them with: forewarn fault list"),
        (("clear",), 2, "use the id of a fault, or --all."),
        (("clear", "f1", "--all"), 2, "use the id of a fault, or --all."),
    ],
)
def test_an_invalid_fault_is_rejected_with_the_allowed_values(
    service: Service, typed: tuple[str, ...], code: int, said: str
) -> None:
    found, words = refused(service, "fault", *typed)
    assert (found, said in words) == (code, True), words
    assert history(service) == []


@pytest.mark.parametrize("arguments", [(), ("--allow-faults", "false")])
def test_not_unless_it_is_allowed(make_service: MakeService, arguments: tuple[str, ...]) -> None:
    service = make_service(*arguments, fleet=FLEET)
    code, words = refused(service, "fault", "add", "500")
    assert (code, "forewarn up --allow-faults" in words) == (5, True)
    answer = service.control("POST", "/v1/faults", {"kind": "500"})
    assert (answer.status, answer.json()["title"]) == (403, "Forbidden")
    assert service.list_all("/v1/faults") == []
    assert run(service, "fault", "clear", "--all") == "No active faults.\n"
    assert service.request().status == 200
    assert metrics(service)["forewarn_active_faults[]"] == 0
    assert history(service) == []


@pytest.mark.parametrize("variables", [{"FOREWARN_ALLOW_FAULTS": "true"}, {"FOREWARN_ALLOW_FAULTS": "on"}])
def test_the_environment_can_allow_it(make_service: MakeService, variables: dict[str, str]) -> None:
    service = make_service(fleet=FLEET, **variables)
    run(service, "fault", "add", "500")
    assert service.request().status == 500


# --- The control API --------------------------------------------------------------------------------


def post(service: ServiceClient, body: Any, **options: Any) -> HTTPResponse:
    return service.control("POST", "/v1/faults", body, **options)


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({}, 400, "/kind"),
        ({"kind": "501"}, 400, "/kind"),
        ({"kind": "500", "vm": "wbe-0"}, 404, "/vm"),
        ({"kind": "500", "method": "get"}, 400, "/method"),
        ({"kind": "empty", "method": "POST"}, 400, "/method"),
        ({"kind": "500", "count": 0}, 400, "/count"),
        ({"kind": "500", "count": "many"}, 400, "/count"),
        ({"kind": "500", "duration": "0s"}, 400, "/duration"),
        ({"kind": "500", "duration": "soon"}, 400, "/duration"),
        ({"kind": "500", "delay": "1s"}, 400, "/delay"),
        ({"kind": "slow", "delay": "601s"}, 400, "/delay"),
        ({"kind": "disabled", "count": 1}, 400, "/count"),
        ({"kind": "500", "length": "1h"}, 400, "/length"),
    ],
)
def test_a_rejection_points_to_the_invalid_member(service: Service, body: Any, status: int, pointer: str) -> None:
    answer = post(service, body)
    assert (answer.status, answer.json().get("pointer")) == (status, pointer), answer
    assert service.list_all("/v1/faults") == []


def test_an_unknown_kind_is_rejected_with_the_known_kinds(service: Service) -> None:
    assert "unchanged" in post(service, {"kind": "501"}).json()["allowed"]


def test_a_request_repeated_by_its_key_adds_one_fault(service: Service) -> None:
    key = {"Idempotency-Key": "again"}
    first, second = (post(service, {"kind": "500"}, headers=key) for _ in range(2))
    assert (first.status, second.status, second.headers["idempotency-replayed"]) == (201, 201, "true")
    assert first.json() == second.json()
    assert [fault["id"] for fault in service.list_all("/v1/faults")] == [first.json()["id"]]
    assert [service.request().status for _ in range(2)] == [500, 200]


def test_the_list_has_pages_also_beyond_ten_faults(service: Service) -> None:
    for _ in range(12):
        assert post(service, {"kind": "500", "duration": "1h"}).status == 201
    found, cursor = [], ""
    while True:
        page = service.get_json(f"/v1/faults?limit=5{cursor}")
        found += [fault["id"] for fault in page["faults"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert found == [f"f{number}" for number in range(1, 13)]


def test_hits_are_counted(service: Service) -> None:
    post(service, {"kind": "429", "count": 3, "method": "any"})
    post(service, {"kind": "reset", "duration": "1h", "vm": "db"})
    assert metrics(service)["forewarn_active_faults[]"] == 2
    assert [service.request().status, service.request().status, service.approve("x").status] == [429] * 3
    with pytest.raises(ConnectionResetError):
        service.request(source="127.0.0.2")
    post(service, {"kind": "disabled"})
    found = metrics(service)
    assert found["forewarn_active_faults[]"] == 1
    struck = {kind: found[f"forewarn_fault_hits_total[('kind', '{kind}')]"] for kind in ("429", "reset", "disabled")}
    assert struck == {"429": 3, "reset": 1, "disabled": 1}
    assert found["forewarn_polls_total[('api_version', '2020-07-01'), ('code', '429')]"] == 2
    assert found["forewarn_approval_requests_total[('code', '429')]"] == 1


def test_with_a_full_disk_faults_can_be_neither_added_nor_expired_but_still_apply(make_service: MakeService) -> None:
    service = make_service("--allow-faults", "--clock", "virtual", fleet=FLEET)
    service.document()
    post(service, {"kind": "500", "count": 1})
    post(service, {"kind": "429", "duration": "1h"})
    assert service.process is not None
    _, most = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (0, most))
    assert post(service, {"kind": "410"}).status == 503
    assert service.control("DELETE", "/v1/faults").status == 503
    assert [fault["id"] for fault in service.list_all("/v1/faults")] == ["f1", "f2"]
    assert [service.request().status for _ in range(3)] == [500, 429, 429]
    # Orders are tried one after the other: when this one is refused, the end of f1 has been.
    assert post(service, {"kind": "410"}).status == 503
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (most, most))
    assert service.control("DELETE", "/v1/faults/f2").status == 200
    assert service.request().status == 200
    stop_cleanly(service)
    assert "fault_expiry_not_recorded: Cannot record expired faults in history." in service.output

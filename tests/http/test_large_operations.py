"""Operations on 1,000 VMs: no turn of the event loop is long, so polls go on. Counted in lines of Python, not time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from counted_lines import MAX_LINES, Turns
from forewarn.control.overview import MAX_ENDED_EVENTS
from forewarn.control.paging import MAX_PAGE_NAMES
from forewarn.core.fleet import Visibility
from forewarn.core.requests import MAX_VMS
from forewarn.core.rollout_commands import MAX_HOSTS, MAX_UNAVAILABLE
from forewarn.testing import Service
from golden.exchange import Line, request

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS = [f"host-{number}" for number in range(50)]
VMS = [f"set_{number}" for number in range(MAX_VMS)]


def fleet(hosts: list[str] = HOSTS, visibility: Visibility = Visibility.GROUP) -> str:
    tables = "".join(f'[[host]]\nname = "{name}"\n' for name in {*hosts, *HOSTS})
    return f"""{tables}
[[group]]
name = "set"
kind = "scale-set"
update_domains = 1
visibility = "{visibility}"
os_image_notice = "15m"
terminate_notice = "5m"
[[vm]]
group = "set"
count = {MAX_VMS}
hosts = {json.dumps(hosts)}
"""


class Operator:
    """An operator of a service, whose turns are counted."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.turns = Turns(service._running.loop)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request. No turn of the loop may be long until its response."""
        host, _, port = self.service.control_url.rpartition("/")[2].rpartition(":")
        headers = (("Authorization", f"Bearer {self.service.token}"),)
        content = b"" if body is None else json.dumps(body).encode()
        with Line(self.service, address=(host, int(port))) as line, self.turns:
            response = line.exchange(request(method, path, headers, content))
        assert response.status in (200, 201), response.body
        assert self.turns.longest < MAX_LINES, f"{method} {path}"
        return json.loads(response.body)

    def request_operation(self, **target: Any) -> list[dict[str, Any]]:
        """Request an operation, after a dry run with the same result."""
        planned = self.call("POST", "/v1/operations", {**target, "dry_run": True})["operations"]
        assert self.call("GET", "/v1/operations")["operations"] == [], "the dry run changed nothing"
        operations: list[dict[str, Any]] = self.call("POST", "/v1/operations", target)["operations"]
        assert [each["vms"] for each in planned] == [each["vms"] for each in operations]
        return operations


@pytest.fixture(params=[Visibility.GROUP])
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with Service(fleet(visibility=request.param), max_pending_user_operations=0) as service:
        yield Operator(service)


each_visibility = pytest.mark.parametrize("operator", Visibility, indirect=True)


@pytest.mark.parametrize(
    "target",
    [{"cause": "restart", "vms": VMS}, {"cause": "live-migration", "vms": VMS}, {"cause": "reimage", "group": "set"}],
    ids=["restart", "live-migration", "reimage"],
)
def test_a_request_for_1000_vms_and_lists_after_it(operator: Operator, target: dict[str, Any]) -> None:
    operations = operator.request_operation(**target)
    assert {name for each in operations for name in each["vms"]} == set(VMS)
    assert operator.turns.count > 100, "others had their turn in between"
    for path in ("operations", "events", "history"):
        found = operator.call("GET", f"/v1/{path}?limit=1000")
        assert len(found[path]) >= len(operations)


@pytest.mark.parametrize("cause", ["restart", "live-migration", "redeploy"])
def test_a_request_for_1000_vms_that_get_no_notice(cause: str) -> None:
    with Service(fleet(), enable_groups=False) as service:
        operations = Operator(service).request_operation(cause=cause, vms=VMS)
    assert {each["status"] for each in operations} == {"started"}


@pytest.mark.parametrize(
    ("cause", "visibility"),
    [("degraded-hardware", Visibility.GROUP), ("host-update", Visibility.OWN)],
    ids=["each-vm", "host"],
)
def test_a_request_for_a_host_with_1000_vms(cause: str, visibility: Visibility) -> None:
    with Service(fleet(["host-0"], visibility)) as service:
        operations = Operator(service).request_operation(cause=cause, host="host-0")
    assert sum(len(each["events"]) for each in operations) == MAX_VMS


def start_and_end(operator: Operator) -> None:
    for minutes in (15, 30):
        with operator.turns:
            operator.service.advance(minutes=minutes)
        assert operator.turns.longest < MAX_LINES
    assert operator.service.events == []


@each_visibility
@pytest.mark.parametrize("cause", ["restart", "live-migration", "delete"])
def test_1000_vms_start_and_end_together(operator: Operator, cause: str) -> None:
    operator.call("POST", "/v1/operations", {"cause": cause, "vms": VMS})
    start_and_end(operator)


@pytest.mark.parametrize("cause", ["live-migration", "host-update"])
def test_1000_vms_of_one_host_start_and_end_together(cause: str) -> None:
    target = {"host": "host-0"} if cause == "host-update" else {"vms": VMS}
    with Service(fleet(["host-0"], Visibility.OWN)) as service:
        operator = Operator(service)
        (operation,) = operator.call("POST", "/v1/operations", {"cause": cause, **target})["operations"]
        assert len(operation["events"]) == MAX_VMS
        start_and_end(operator)


@each_visibility
def test_3000_operations_start_and_end_at_the_same_time(operator: Operator) -> None:
    for target in ({"cause": "restart"}, {"cause": "redeploy", "notice": "15m"}, {"cause": "reimage"}):
        operator.call("POST", "/v1/operations", {**target, "vms": VMS})
    assert len({event.not_before for event in operator.service.events}) == 1
    start_and_end(operator)


@each_visibility
def test_1000_events_are_approved_together(operator: Operator) -> None:
    operator.call("POST", "/v1/operations", {"cause": "restart", "vms": VMS})
    approved = operator.call("POST", "/v1/events/approve", {"all": True})["events"]
    assert {event["status"] for event in approved} == {"started"}


@pytest.mark.parametrize("cause", ["host-update", "degraded-hardware"])
def test_what_is_done_with_1000_events_of_a_host(cause: str) -> None:
    with Service(fleet(["host-0"], Visibility.OWN)) as service:
        operator = Operator(service)
        operations = operator.call("POST", "/v1/operations", {"cause": cause, "host": "host-0"})["operations"]
        event = operations[-1]["events"][-1]["id"]
        for path in ("overview", f"operations/{operations[0]['id']}", f"events/{event}/explain", "hosts/host-0"):
            operator.call("GET", f"/v1/{path}")
        assert len(operator.call("GET", "/v1/overview")["events"]) == MAX_VMS
        if cause == "host-update":
            for change in ({"by": "1m", "dry_run": True}, {"by": "1m"}):
                operator.call("POST", f"/v1/events/{event}/postpone", change)
            operator.call("POST", f"/v1/operations/{operations[0]['id']}/cancel", {})
        else:
            for dry_run in (True, False):
                returned = operator.call("POST", "/v1/hosts/host-0/return", {"dry_run": dry_run})
                assert len(returned["cancelled"]) == MAX_VMS
        assert service.events == []
        assert len(operator.call("GET", "/v1/overview")["ended_events"]) == MAX_ENDED_EVENTS


@pytest.mark.parametrize("end", ["done", "failed"])
def test_an_operator_ends_work_with_1000_events(end: str) -> None:
    with Service(fleet(["host-0"], Visibility.OWN), fabric="manual") as service:
        operator = Operator(service)
        target = {"cause": "host-update", "host": "host-0"}
        (operation,) = operator.call("POST", "/v1/operations", target)["operations"]
        service.advance(minutes=20)
        assert operator.call("POST", f"/v1/operations/{operation['id']}/{end}", {})[
            "executed_at" if end == "done" else "ended_at"
        ]


def test_a_page_or_a_part_of_a_download_with_many_names_ends_early() -> None:
    """No turn has much to encode. A client that follows the cursors gets all of it."""
    vms = f'[[vm]]\nname = "vm-{{n}}"\ngroup = "group"\ncount = {MAX_VMS}\nhost = "host-0"\n'
    group = '[[host]]\nname = "host-0"\n[[group]]\nname = "group"\nkind = "availability-set"\n'
    count = MAX_PAGE_NAMES // MAX_VMS + 3
    with Service(group + vms) as service:
        operator = Operator(service)
        for _ in range(count):
            (one,) = operator.call("POST", "/v1/operations", {"cause": "host-update", "host": "host-0"})["operations"]
            operator.call("POST", f"/v1/operations/{one['id']}/cancel", {})
        for path in ("events?all=true", "operations?all=true", "history?kind=cancelled", "history?kind=scheduled"):
            name = path.partition("?")[0]
            page = operator.call("GET", f"/v1/{path}&limit=1000")
            assert sum(len(each["vms"]) for each in page[name]) <= MAX_PAGE_NAMES
            assert page["next"] is not None
            assert len(service.list_all(f"/v1/{path}")) == count
        with operator.turns:
            rows = service.control("GET", "/v1/history?format=json").json()
        assert operator.turns.longest < MAX_LINES
        assert rows == service.list_all("/v1/history")


def test_a_rollout_updates_1000_hosts_at_once() -> None:
    hosts = [f"host-{number}" for number in range(MAX_UNAVAILABLE)]
    with Service(fleet(hosts)) as service:
        operator = Operator(service)
        wanted = {"hosts": ["host-*"], "max_unavailable": MAX_UNAVAILABLE}
        rollout = operator.call("POST", "/v1/rollouts", wanted)
        assert len(rollout["in_progress"]) == MAX_UNAVAILABLE
        start_and_end(operator)


def test_a_rollout_over_all_hosts() -> None:
    hosts = [f"host-{number}" for number in range(MAX_HOSTS)]
    with Service(fleet(hosts)) as service:
        rollout = Operator(service).call("POST", "/v1/rollouts", {"hosts": ["host-*"]})
    assert len(rollout["pending"]) == MAX_HOSTS - len(rollout["in_progress"])

"""History over the API and from the command line, with its filters."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from command_line import run_command
from forewarn.settings import SETTINGS
from forewarn.testing import Service, ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FLEET = """
[[group]]
name = "web"
kind = "availability-set"

[[group]]
name = "wéb"
kind = "availability-set"

[[host]]
name = "rack-1"
[[host]]
name = "rack-2"

[[vm]]
name = "web-0"
group = "web"
host = "rack-1"
address = "127.0.0.2"

[[vm]]
name = "web-01"
group = "web"
host = "rack-1"

[[vm]]
name = "wéb-0"
group = "wéb"
host = "rack-1"

[[vm]]
name = "db"
address = "127.0.0.9"
"""

Row = dict[str, Any]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Some months in virtual time."""
    with Service(FLEET, enable_groups=False, inactivity_timeout=SETTINGS["inactivity_timeout"].default) as service:
        live_through_some_months(service)
        yield service


def live_through_some_months(service: Service) -> None:
    for source in ("127.0.0.2", "127.0.0.9"):
        service.request(source=source)
    for cause, target in (
        ("restart", {"vms": ["web-0"]}),
        ("host-update", {"host": "rack-1"}),
        ("redeploy", {"vms": ["wéb-0"]}),
        ("restart", {"vms": ["db"]}),
        ("redeploy", {"vms": ["web-01", "web-0"]}),
    ):
        answer = service.control("POST", "/v1/operations", {"cause": cause, **target})
        assert answer.status == 201, answer
        for operation in answer.json()["operations"]:
            for event in operation["events"]:
                service.approve(event["id"], source="127.0.0.2")
        service.advance("20d")


def test_nothing_is_left_out(service: Service) -> None:
    history = service.list_all("/v1/history")
    assert [row["sequence"] for row in history] == list(range(1, len(history) + 1))
    assert {"fleet-applied", "requested", "approved", "executed", "completed"} <= {row["kind"] for row in history}


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_page_by_page_it_is_the_same(service: Service, order: str, limit: int) -> None:
    history = [row for row in service.list_all("/v1/history") if "web-0" in row["vms"]]
    found: list[Row] = []
    cursor = ""
    while True:
        page = service.get_json(f"/v1/history?vm=web-0&order={order}&limit={limit}{cursor}")
        assert len(page["history"]) <= limit
        found += page["history"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert found == (history if order == "oldest" else history[::-1])


def operations(service: Service) -> dict[str, Row]:
    return {operation["id"]: operation for operation in service.list_all("/v1/operations?all=true")}


CASES: dict[str, Callable[[Row, Row], bool]] = {
    "vm=web-0": lambda row, _: "web-0" in row["vms"],
    "vm=w%C3%A9b-0": lambda row, _: "wéb-0" in row["vms"],
    "group=web": lambda row, _: row["group"] == "web",
    "group=w%C3%A9b&group=db": lambda row, _: row["group"] in ("wéb", "db"),
    "host=rack-1": lambda row, operation: row["host"] == "rack-1" or "rack-1" in operation.get("moves", {}).values(),
    "host=rack-2": lambda row, operation: row["host"] == "rack-2" or "rack-2" in operation.get("moves", {}).values(),
    "type=reboot": lambda _, operation: operation.get("type") == "Reboot",
    "type=Redeploy": lambda _, operation: operation.get("type") == "Redeploy",
    "cause=host-update": lambda _, operation: operation.get("cause") == "host-update",
    "by=web-0": lambda row, _: row["by"] == "web-0",
    "by=forewarn": lambda row, _: row["by"] == "forewarn",
    "kind=executed": lambda row, _: row["kind"] == "executed",
    "kind=approved&kind=completed": lambda row, _: row["kind"] in ("approved", "completed"),
    "vm=web-0&cause=restart&kind=started": lambda row, operation: (
        "web-0" in row["vms"] and operation.get("cause") == "restart" and row["kind"] == "started"
    ),
}


@pytest.mark.parametrize("query", CASES)
def test_filters(service: Service, query: str) -> None:
    known = operations(service)
    history = service.list_all("/v1/history")
    expected = [row for row in history if CASES[query](row, known.get(row["operation"], {}))]
    assert expected, "a filter that finds nothing shows nothing"
    assert service.list_all(f"/v1/history?{query}") == expected


def test_times(service: Service) -> None:
    history = service.list_all("/v1/history")
    moment = history[len(history) // 2]["time"]
    ago = service.now - timedelta(days=50)
    for query, fits in (
        (f"since={moment}", lambda row: row["time"] >= moment),
        (f"until={moment}", lambda row: row["time"] < moment),
        (f"since={moment}&until={moment}", lambda _: False),
        ("since=50d", lambda row: datetime.fromisoformat(row["time"]) >= ago),
        (f"since={moment[:10]}", lambda row: row["time"][:10] >= moment[:10]),
        (f"during={moment[:7]}", lambda row: row["time"].startswith(moment[:7])),
        (f"during={moment[:10]}", lambda row: row["time"].startswith(moment[:10])),
        (f"during={moment[:10]}&since={moment}", lambda row: row["time"] >= moment and row["time"][:10] == moment[:10]),
        ("during=1999", lambda _: False),
    ):
        assert service.list_all(f"/v1/history?{query}") == [row for row in history if fits(row)], query


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("vm=", "empty"),
        ("vm=a&vm=b", "more than once"),
        ("group=", "empty"),
        ("by=", "empty"),
        ("type=", "empty"),
        ("since=", "empty"),
        ("during=", "empty"),
        ("order=", "empty"),
        ("type=rebot", "Did you mean 'Reboot'"),
        ("cause=restrat", "Did you mean 'restart'"),
        ("kind=aproved", "Did you mean 'approved'"),
        ("since=yesterday", "how long ago"),
        ("until=2026-03", "how long ago"),
        ("since=0001-01-01T00:00%2B10:00", "how long ago"),
        ("during=march", "a month like"),
        ("during=2026-02-30", "a month like"),
        ("order=down", "oldest, newest"),
        ("limit=0", "whole number"),
        ("cursor=nonsense", "cursor"),
        ("vms=web-0", "Did you mean 'vm'"),
    ],
)
def test_invalid_filters_are_rejected(service: Service, query: str, words: str) -> None:
    answer = service.control("GET", f"/v1/history?{query}")
    problem = answer.json()
    assert (answer.status, words in problem["detail"]) == (400, True), problem
    assert problem["parameter"] == query.partition("=")[0]


def test_tenants_see_their_group(service: Service) -> None:
    made = service.control("POST", "/v1/tokens", {"name": "shop", "role": "tenant", "group": "web"}).json()
    kinds_with_reason = ("scheduled", "approved", "started", "enabled", "disabled", "policy-changed")
    own = [
        {**row, "host": None, "reason": row["reason"] if row["kind"] in kinds_with_reason else None}
        for row in service.list_all("/v1/history")
        if row["group"] == "web"
    ]
    for query in ("", "&group=web"):
        answer = service.control("GET", f"/v1/history?limit=1000{query}", token=made["token"])
        assert answer.json() == {"history": own, "next": None}
    for query in ("group=db", "group=web&group=db", "group=nowhere"):
        assert service.control("GET", f"/v1/history?{query}", token=made["token"]).status == 404
    for vm in ("db", "nobody"):  # a tenant must not learn whether the VM exists
        assert service.control("GET", f"/v1/history?vm={vm}", token=made["token"]).status == 404


# --- forewarn history -----------------------------------------------------------------------------------


def test_the_history_of_a_vm_in_a_month(service: Service) -> None:
    history = service.list_all("/v1/history?vm=web-0")
    month = history[0]["time"][:7]
    expected = [row for row in history if row["time"].startswith(month)]
    result = run_command(service, "history", "--vm", "web-0", "--during", month, "--json")
    assert json.loads(result.stdout) == {"history": expected}
    shown = run_command(service, "history", "--vm", "web-0", "--during", month).stdout.splitlines()
    assert [line.split()[:2] for line in shown[2:]] == [[row["time"][:10], row["time"][11:19]] for row in expected], (
        shown
    )
    assert "NotBefore" in "".join(shown)


def test_the_newest_last_and_all_of_it(service: Service) -> None:
    history = service.list_all("/v1/history")
    assert json.loads(run_command(service, "history", "--last", "3", "--json").stdout)["history"] == history[-3:]
    assert json.loads(run_command(service, "history", "--all", "--json").stdout)["history"] == history
    two = run_command(service, "history", "--group", "web", "--group", "db", "--kind", "started", "--all", "--json")
    assert json.loads(two.stdout)["history"] == [
        row for row in history if row["group"] in ("web", "db") and row["kind"] == "started"
    ]


@pytest.mark.forewarn(fleet='[[vm]]\nname = "vm-{n}"\ncount = 60\n', enable_groups=False)
def test_the_command_reports_that_there_are_more_rows(forewarn: Service) -> None:
    names = [f"vm-{number}" for number in range(60)]
    assert forewarn.control("POST", "/v1/operations", {"cause": "restart", "vms": names}).status == 201
    result = run_command(forewarn, "history")
    assert "the newest 100" in result.stderr
    assert len(result.stdout.splitlines()) == 102
    assert run_command(forewarn, "history", "--last", "5").stderr == ""
    assert run_command(forewarn, "history", "--vm", "vm-0", "--kind", "cancelled").stdout == "No entries.\n"


def test_the_command_reports_errors(service: Service) -> None:
    for arguments, words in (
        (("--since", "yesterday"), "how long ago"),
        (("--type", "rebot"), "Did you mean 'Reboot'"),
        (("--last", "0"), "1<=x<=1000"),
        (("--last", "5", "--all"), "Use either --last N or --all."),
        (("--vm", ""), "--vm: is empty"),
    ):
        result = run_command(service, "history", *arguments)
        assert (result.returncode, words in result.stderr) == (2, True), result


def test_history_survives_a_restart_and_is_kept_for_the_retention(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--clock", "virtual", "--history-retention", "30d", fleet=FLEET)
    operation = service.request_operation("restart", "db")
    service.advance("20d")
    before = service.list_all("/v1/history")
    service.kill()
    service.start("--clock", "virtual", "--history-retention", "30d")
    assert service.list_all("/v1/history") == before
    service.advance("20d")
    left = service.list_all("/v1/history")
    assert left == before[-len(left) :]
    assert service.control("GET", f"/v1/operations/{operation['id']}").status == 404
    service.request_operation("restart", "db")
    after = service.list_all("/v1/history")
    assert [row["sequence"] for row in after] == list(range(after[0]["sequence"], after[0]["sequence"] + len(after)))


@pytest.mark.parametrize("length", ["23h", "1s", "soon"])
def test_an_invalid_retention_is_rejected(make_service: Callable[..., ServiceProcess], length: str) -> None:
    with pytest.raises(RuntimeError, match="history_retention"):
        make_service("--history-retention", length)

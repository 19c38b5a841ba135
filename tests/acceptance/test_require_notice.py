"""Groups that would get no notice: the question on a terminal, and requests that are rejected instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from acceptance.causes import document, everything, get
from command_line import run_command
from terminal import on_terminal

if TYPE_CHECKING:
    from forewarn.testing import Service

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[group]]
name = "db"
kind = "availability-set"
[[group]]
name = "gpu"
kind = "scale-set"
visibility = "own"
[[host]]
name = "rack-1"
[[host]]
name = "rack-2"
[[host]]
name = "rack-3"

[[vm]]
name = "web-{n}"
group = "web"
count = 3
hosts = ["rack-1", "rack-2", "rack-3"]
addresses = "127.5.0.1-127.5.0.3"
[[vm]]
name = "db-0"
group = "db"
host = "rack-1"
address = "127.5.0.11"
[[vm]]
group = "gpu"
count = 2
addresses = "127.5.0.21-127.5.0.22"
[[vm]]
name = "silent"
"""
WEB, DB, GPU = "127.5.0.1", "127.5.0.11", "127.5.0.21"

pytestmark = pytest.mark.forewarn(fleet=FLEET, enable_groups=False, inactivity_timeout="24h")


@pytest.fixture
def service(forewarn: Service) -> Service:
    """The group web and one VM of gpu have polled."""
    document(forewarn, WEB)
    document(forewarn, GPU)
    return forewarn


def request(service: Service, what: str, **body: Any) -> tuple[int, Any]:
    found = service.control("POST", f"/v1/{what}", {**body, "require_notice": True})
    return found.status, found.json()


def rejection(service: Service, what: str, **body: Any) -> str:
    """Return the text of the error. Nothing has changed, and a dry run has the same error."""
    before = everything(service)
    status, problem = request(service, what, **body)
    assert (status, problem["title"]) == (409, "Conflict")
    assert request(service, what, **body, dry_run=True) == (status, problem)
    assert everything(service) == before
    return str(problem["detail"])


# --- The request ----------------------------------------------------------------------------------------


def test_a_request_that_requires_notice_is_rejected_if_a_group_never_polled(service: Service) -> None:
    assert rejection(service, "operations", cause="restart", vms=["db-0"]) == (
        "No notice is possible: db has never polled. Nothing was requested. Let a VM of each group poll once, or omit "
        "--require-notice."
    )
    assert "db has never polled" in rejection(service, "operations", cause="host-update", host="rack-1")
    both = rejection(service, "operations", cause="restart", vms=["web-0", "db-0", "silent"])
    assert "db has never polled, silent has never polled." in both
    document(service, DB)
    assert request(service, "operations", cause="host-update", host="rack-1")[0] == 201


def test_a_request_that_requires_notice_is_rejected_if_a_group_has_not_polled_for_a_day(service: Service) -> None:
    assert request(service, "operations", cause="restart", vms=["web-0"])[0] == 201
    service.advance("25h")
    assert "web has not polled for 1d1h." in rejection(service, "operations", cause="restart", vms=["web-1"])


def test_notice_is_required_for_each_scope(service: Service) -> None:
    assert request(service, "operations", cause="restart", vms=["gpu_0"])[0] == 201
    assert "gpu_1 has never polled" in rejection(service, "operations", cause="restart", vms=["gpu_1"])


def test_a_policy_without_a_notice_is_a_reason_too(service: Service) -> None:
    policy = "Set the notice with forewarn group policy. Let a VM of each group poll once, or omit --require-notice."
    deleted = rejection(service, "operations", cause="delete", vms=["gpu_0"])
    assert "gpu has no terminate notice. " in deleted
    assert deleted.endswith(policy)
    assert rejection(service, "operations", cause="reimage", vms=["gpu_0"]).endswith(policy)


@pytest.mark.parametrize(
    "body",
    [
        {"cause": "start", "vms": ["web-0"]},
        {"cause": "rebalance", "vms": ["web-0"]},
        {"cause": "hardware-failure", "host": "rack-1"},
    ],
)
def test_a_cause_without_notice_rejects_the_option(service: Service, body: dict[str, Any]) -> None:
    status, problem = request(service, "operations", **body)
    assert status == 400
    assert problem["detail"] == f"Invalid require_notice 'true': {body['cause']} has no notice. Omit it."


# --- Rollouts -------------------------------------------------------------------------------------------


def test_a_rollout_that_requires_notice_is_rejected_at_its_start(service: Service) -> None:
    assert "db has never polled." in rejection(service, "rollouts", hosts=["rack-*"])
    status, rollout = request(service, "rollouts", hosts=["rack-2", "rack-3"])
    assert (status, rollout["require_notice"]) == (201, True)


def test_a_rollout_that_requires_notice_skips_hosts_whose_groups_stopped_to_poll(service: Service) -> None:
    _, rollout = request(service, "rollouts", hosts=["rack-2", "rack-3"], pause="25h")
    service.advance("30h")
    after = get(service, f"rollouts/{rollout['id']}")
    assert (after["status"], after["done"]) == ("done", ["rack-2"])
    ((host, reason),) = [(found["host"], found["reason"]) for found in after["skipped"]]
    assert host == "rack-3"
    assert "No notice is possible: web has not polled for 1d" in reason


def test_a_plan_says_who_gets_no_notice(service: Service) -> None:
    plan = service.control("POST", "/v1/rollouts", {"hosts": ["rack-*"], "dry_run": True}).json()
    assert plan["not_notified"] == {"db": "db has never polled"}
    shown = run_command(service, "rollout", "start", "--hosts", "rack-*", "--dry-run").stdout
    assert "No notice: db has never polled.\n" in shown


# --- The command line -----------------------------------------------------------------------------------

COMMANDS = [
    ("vm", "restart", "db-0"),
    ("vm", "redeploy", "silent"),
    ("vm", "migrate", "db-0"),
    ("vm", "delete", "silent"),
    ("vm", "reimage", "gpu_0"),
    ("group", "upgrade-image", "gpu"),
    ("host", "update", "rack-1"),
    ("host", "repair", "rack-1"),
    ("host", "degrade", "rack-1"),
    ("rollout", "start", "--hosts", "rack-1"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_can_require_notice(service: Service, command: tuple[str, ...]) -> None:
    before = everything(service)
    found = run_command(service, *command, "--require-notice")
    assert (found.returncode, found.stdout) == (4, "")
    assert "No notice is possible: " in found.stderr
    assert everything(service) == before


@pytest.mark.parametrize(("answer", "started"), [("n", False), ("y", True)])
def test_an_operation_without_notice_asks_on_a_terminal(service: Service, answer: str, started: bool) -> None:
    shown = on_terminal(service, "vm", "restart", "db-0", answer=answer)
    assert "No notice: db has never polled. The restart of db-0 would start now.\nRequest it anyway? [y/N]" in shown
    assert bool(service.list_all("/v1/operations")) is started


def test_nothing_asks_with_notice_with_yes_or_without_a_terminal(service: Service) -> None:
    assert "Reboot scheduled" in on_terminal(service, "vm", "restart", "web-0")
    assert "No notice: db has never polled" in on_terminal(service, "vm", "restart", "db-0", "--yes")
    assert run_command(service, "vm", "restart", "silent").returncode == 0
    assert len(service.list_all("/v1/operations")) == 3


def test_a_command_asks_one_question(service: Service) -> None:
    shown = on_terminal(service, "vm", "delete", "silent", answer="n")
    assert "No notice: silent has no terminate notice. The delete of silent would start now.\nDelete silent?" in shown
    shown = on_terminal(service, "rollout", "start", "--hosts", "rack-1", answer="n")
    assert "No notice: db has never polled.\nUpdate the hosts rack-1?" in shown
    assert service.list_all("/v1/operations") == []


def test_the_list_of_groups_without_notice_is_short(service: Service) -> None:
    fleet = "".join(f'[[vm]]\nname = "new-{number}"\n' for number in range(8))
    assert service.control("PUT", "/v1/fleet", fleet.encode()).status == 200
    shown = on_terminal(service, "vm", "restart", *(f"new-{number}" for number in range(8)), answer="n")
    assert shown.count("No notice: ") == 5
    assert "and 3 more\nRequest it anyway?" in shown

"""Operations from the command line: every noun, dry runs, --wait, and confirmations."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from command_line import run_command
from forewarn.core.durations import from_text
from forewarn.testing.client import COMMAND
from terminal import on_terminal

if TYPE_CHECKING:
    from forewarn.testing import Service

FLEET = """
[[group]]
name = "web"
kind = "availability-set"

[[group]]
name = "pool"
kind = "scale-set"
terminate_notice = "PT10M"

[[host]]
name = "rack-1-a"
[[host]]
name = "rack-1-b"
[[host]]
name = "rack-1-c"

[[vm]]
name = "web-{n}"
group = "web"
count = 2
hosts = ["rack-1-a", "rack-1-b"]
addresses = "127.0.0.1-127.0.0.2"

[[vm]]
group = "pool"
count = 3
hosts = ["rack-1-a", "rack-1-b", "rack-1-c"]
addresses = "127.0.0.11-127.0.0.13"

[[vm]]
name = "quiet"
host = "rack-1-a"

[[vm]]
name = "spot"
host = "rack-1-b"
address = "127.0.0.21"
priority = "spot"
eviction_policy = "delete"
"""
POOL = "127.0.0.11"
SPOT = "127.0.0.21"


pytestmark = pytest.mark.forewarn(fleet=FLEET, enable_groups=False)


@pytest.fixture
def service(forewarn: Service) -> Service:
    """A service with events enabled for all VMs but `quiet`."""
    forewarn.document()
    forewarn.document(source=POOL)
    return forewarn


def run(service: Service, *arguments: str, code: int = 0) -> str:
    result = run_command(service, *arguments)
    assert result.returncode == code, result.stderr
    return result.stdout if code == 0 else result.stderr


def parsed(service: Service, *arguments: str) -> Any:
    return json.loads(run(service, *arguments, "--json"))


def only_event(service: Service) -> str:
    (event,) = parsed(service, "event", "list")["events"]
    return str(event["id"])


def test_group_show_says_whether_the_group_polled(forewarn: Service) -> None:
    never = run(forewarn, "group", "show", "web")
    assert re.search(r"^events enabled +no\nlast seen +never\n", never, re.MULTILINE)
    forewarn.document()
    forewarn.advance("10m")
    polled = run(forewarn, "group", "show", "web")
    assert re.search(r"^events enabled +yes\nlast seen .*\(10m ago\)", polled, re.MULTILINE)


def test_a_dry_run_shows_what_would_happen_and_changes_nothing(service: Service) -> None:
    before = service.control("GET", "/v1/operations?all=true").body
    said = run(service, "host", "update", "rack-1-a", "--impact", "freeze", "--duration", "7s", "--dry-run")
    assert said.startswith("Dry run: nothing was changed.\n")
    assert "quiet has never polled" in said
    assert "Freeze scheduled for web-0: host-update of rack-1-a (web-0, pool_0, quiet), not before " in said
    assert "event " not in said, "a dry run creates no event"
    for arguments in (
        ("vm", "restart", "web-0"),
        ("vm", "redeploy", "web-0"),
        ("vm", "migrate", "web-0", "web-1"),
        ("vm", "evict", "spot"),
        ("vm", "rebalance", "spot"),
        ("vm", "delete", "pool_0", "--as", "scale-in"),
        ("vm", "reimage", "pool_0"),
        ("vm", "upgrade-image", "pool_0", "web-0"),
        ("group", "reimage", "pool"),
        ("group", "upgrade-image", "pool"),
        ("host", "repair", "rack-1-a"),
        ("host", "degrade", "rack-1-a", "--notice", "3d"),
        ("host", "degrade", "rack-1-a", "--as", "redeploy"),
        ("host", "fail", "rack-1-a", "--as", "reboot"),
        ("host", "return", "rack-1-a"),
        ("rollout", "start", "--hosts", "rack-*"),
    ):
        assert run(service, *arguments, "--dry-run")
    assert service.control("GET", "/v1/operations?all=true").body == before
    assert parsed(service, "host", "show", "rack-1-a")["state"] == "in-service"


def test_an_advisory_from_the_command_line(service: Service) -> None:
    service.document(source=SPOT)
    said = run(service, "vm", "rebalance", "spot")
    assert said.startswith("SpotRebalanceRecommendation sent: rebalance of spot.\n  event ")
    (event_id,) = [event["id"] for event in parsed(service, "event", "list", "--status", "advisory")["events"]]
    listed = run(service, "event", "list", "--status", "advisory")
    assert re.search(r"SpotRebalanceRecommendation +advisory +spot +platform *$", listed, re.MULTILINE), listed
    shown = run(service, "event", "show", event_id)
    assert "advisory" in shown
    assert "not before" not in shown
    explained = run(service, "event", "explain", event_id)
    assert "It is a recommendation and never starts." in explained
    assert "approval" not in explained
    assert "No event waits for an approval." in run(service, "event", "approve", "--vm", "spot")
    assert f"Event {event_id} is an advisory. It never starts" in run(service, "event", "approve", event_id, code=4)
    assert "cancelled" in run(service, "event", "cancel", event_id)


@pytest.mark.parametrize("notice", ["0s", "5s"])
def test_an_eviction_with_a_shorter_notice_needs_the_override(service: Service, notice: str) -> None:
    service.document(source=SPOT)
    command = ("vm", "evict", "spot", "--notice", notice)
    assert "the minimum for Preempt is 30s" in run(service, *command, code=2)
    said = run(service, *command, "--override-notice")
    (event,) = parsed(service, "event", "list", "--vm", "spot")["events"]
    if notice == "0s":
        assert "Preempt started: eviction of spot." in said
    else:
        assert "Preempt scheduled: eviction of spot, not before " in said
        assert from_text(event["not_before"]) - from_text(event["created_at"]) <= timedelta(seconds=6)
        service.advance("6s")
    (event,) = parsed(service, "event", "list", "--vm", "spot")["events"]
    assert event["status"] == "started"
    history = run(service, "history", "--event", event["id"])
    assert "override: a notice shorter than the minimum of its type" in history


@pytest.mark.forewarn(fleet=FLEET.replace('"delete"', '"deallocate"'))
def test_a_vm_starts_on_a_host_and_does_not_move_to_it(service: Service) -> None:
    run(service, "vm", "evict", "spot")
    service.advance("2m")
    for options in (["--dry-run"], []):
        assert "spot starts on rack-1-b" in run(service, "vm", "start", "spot", *options)


def test_hosts_from_the_command_line(service: Service) -> None:
    assert "rack-1-c" in run(service, "host", "list")
    run(service, "host", "degrade", "rack-1-a", "--notice", "2d")
    assert "degraded" in run(service, "host", "list")
    assert "degraded-hardware" in run(service, "host", "show", "rack-1-a")
    assert "in-service" in run(service, "host", "return", "rack-1-a")
    assert parsed(service, "event", "list")["events"] == []
    said = run(service, "host", "fail", "rack-1-b", "--as", "redeploy")
    assert "Redeploy started for web-1" in said
    assert "web-1 moves to " in said
    assert "Unknown host 'rack-1-x'. Did you mean 'rack-1-a'?" in run(
        service, "host", "update", "rack-1-x", code=3
    ).replace("rack-1-b", "rack-1-a").replace("rack-1-c", "rack-1-a")
    assert "Invalid --duration '0.5s'" in run(service, "host", "update", "rack-1-a", "--duration", "0.5s", code=2)


def test_a_freeze_without_interruption_of_unknown_length_and_with_another_text(service: Service) -> None:
    for given, shown in (("0s", "0s"), ("unknown", "unknown")):
        run(service, "host", "update", "rack-1-a", "--duration", given, "--description", "Network update.")
        events = parsed(service, "event", "list")["events"]
        assert {event["description"] for event in events} == {"Network update."}
        said = run(service, "event", "show", events[0]["id"])
        assert f"interruption {shown} created" in " ".join(said.split())
        run(service, "operation", "cancel", events[0]["operation"])
    run(service, "rollout", "start", "--hosts", "rack-1-c", "--duration", "unknown", "--description", "")
    (event,) = parsed(service, "event", "list")["events"]
    assert (event["duration_seconds"], event["description"]) == (None, "")
    refused = run(service, "vm", "delete", "web-0", "--description", "x", code=2)
    assert "a user requests a delete, and Azure describes such operations itself. Omit it." in refused


def test_a_second_request_names_the_first_operation(service: Service) -> None:
    first = parsed(service, "vm", "restart", "web-0")["operations"][0]["id"]
    refused = run(service, "vm", "restart", "web-0", code=4)
    assert f"web-0 already has a pending restart (operation {first})" in refused
    run(service, "vm", "redeploy", "web-0")
    assert "Reboot started" in run(service, "host", "fail", "rack-1-a")
    service.advance("0s")
    assert run(service, "host", "fail", "rack-1-a") == "No VM is affected.\n"


def test_the_terminate_notice_and_the_eviction_policy_of_a_single_vm(service: Service) -> None:
    said = run(service, "group", "policy", "quiet", "--terminate-notice", "PT5M")
    assert "terminate notice PT5M" in " ".join(said.split())
    assert "spot is a Spot VM" in run(service, "group", "policy", "spot", "--terminate-notice", "PT5M", code=2)
    assert "eviction policy delete" in " ".join(run(service, "vm", "show", "spot").split())


def test_an_event_is_postponed_and_explained(service: Service) -> None:
    run(service, "vm", "migrate", "web-0")
    event = only_event(service)
    said = run(service, "event", "explain", event)
    assert "live-migration. The platform moves the running VM to another host." in said
    assert "[ ] approval of web, until " in said
    assert "Next: It starts when all conditions are met. Latest time: " in said
    assert "(in 2h15m)" in run(service, "event", "postpone", event, "--by", "2h", "--dry-run")
    assert "(in 15m)" in run(service, "event", "show", event)
    assert "(in 2h15m)" in run(service, "event", "postpone", event, "--by", "2h")
    assert "is after the postpone deadline" in run(service, "event", "postpone", event, "--by", "30d", code=4)
    assert "--by DURATION or --until TIME" in run(service, "event", "postpone", event, code=2)
    service.approve(event)
    assert "Started" in service.request().body.decode()
    service.advance("1s")  # returns when the fabric has done its part
    assert "[x] the fabric to migrate: done " in run(service, "event", "explain", event)


def test_wait_shows_each_change_until_the_operation_ends(service: Service) -> None:
    watching = subprocess.Popen(
        [*COMMAND, "vm", "restart", "web-0", "--wait"],
        env={**os.environ, **service.environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    lines = iter(watching.stdout.readline, "")
    assert next(line for line in lines if "scheduled; not approved by web" in line)
    service.advance("15m")
    assert next(line for line in lines if "settling" in line) == "restart of web-0: executed, settling\n"
    service.advance("10m")
    assert next(lines) == "restart of web-0: done\n"
    assert watching.wait() == 0
    watching.stdout.close()


def test_wait_for_a_cancelled_operation_exits_with_the_code_of_a_conflict(service: Service) -> None:
    watching = subprocess.Popen(
        [*COMMAND, "vm", "restart", "web-0", "--wait"],
        env={**os.environ, **service.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert watching.stdout is not None
    assert next(line for line in iter(watching.stdout.readline, "") if "scheduled" in line and ": " in line)
    assert next(line for line in iter(watching.stdout.readline, "") if "not approved" in line)
    run(service, "event", "cancel", only_event(service))
    assert "forewarn: restart of web-0 was cancelled." in watching.stdout.read()
    assert watching.wait() == 4
    watching.stdout.close()


def test_a_rollout_from_plan_to_end(service: Service) -> None:
    plan = run(service, "rollout", "start", "--hosts", "rack-1-[ab]", "--max-unavailable", "1", "--dry-run")
    assert "2 hosts in 2 waves: Freeze of 9s, one host at a time." in plan
    assert "web UD 0" in plan
    assert "Expected end" in plan
    started = parsed(service, "rollout", "start", "--hosts", "rack-1-[ab]", "--max-unavailable", "1", "--pause", "5m")
    rollout = started["id"]
    assert "rack-1-[ab]" in run(service, "rollout", "list")
    run(service, "rollout", "pause", rollout[:8])
    service.advance("2h")
    assert "paused" in run(service, "rollout", "show", rollout)
    assert "1 host in 1 wave: " in run(service, "rollout", "show", rollout, "--plan")
    run(service, "rollout", "resume", rollout)
    assert "already includes" in run(service, "rollout", "start", "--hosts", "rack-1-b", code=4)
    service.advance("2h")
    assert parsed(service, "rollout", "show", rollout)["status"] == "done"
    assert "No running or paused rollouts." in run(service, "rollout", "list")
    assert "is done. It cannot be cancelled" in run(service, "rollout", "cancel", rollout, code=4)
    assert "No host matches 'rock-*'." in run(service, "rollout", "start", "--hosts", "rock-*", code=2)


def test_policy_is_changed_at_run_time(service: Service) -> None:
    assert "PT10M" in run(service, "group", "list")
    options = ("--window", "sat 02:00 4h", "--auto-approve", "reboot", "--auto-approve", "redeploy")
    said = run(service, "group", "policy", "web", *options)
    assert "sat 02:00 4h UTC" in said
    assert "reboot, redeploy" in said
    assert "off" in run(service, "group", "policy", "pool", "--terminate-notice", "off")
    assert "any time" in run(service, "group", "policy", "web", "--no-windows", "--auto-approve", "none")
    assert "PT5M to PT15M" in run(service, "group", "policy", "pool", "--terminate-notice", "1h", code=2)
    assert "Did you mean 'sat'?" in run(service, "group", "policy", "web", "--window", "saz 02:00 4h", code=2)
    assert "not a scale set" in run(service, "group", "policy", "web", "--terminate-notice", "PT5M", code=2)
    assert "Unknown group 'wbe'. Did you mean 'web'?" in run(service, "group", "show", "wbe", code=3)


@pytest.mark.forewarn(fabric="manual")
def test_an_operator_marks_operations_done_or_failed(service: Service) -> None:
    run(service, "vm", "restart", "web-0")
    service.approve(only_event(service))
    (operation,) = parsed(service, "operation", "list")["operations"]
    service.advance("5h")
    assert service.document()["Events"][0]["EventStatus"] == "Started", "it is not marked done"
    assert "status" in run(service, "operation", "show", operation["id"][:8])
    assert "done" in run(service, "operation", "done", operation["id"][:8])
    assert service.document()["Events"] == []
    run(service, "vm", "redeploy", "web-0")
    service.approve(only_event(service))
    (operation,) = parsed(service, "operation", "list")["operations"]
    assert "failed: no power" in run(service, "operation", "failed", operation["id"], "--reason", "no power")
    assert service.document()["Events"] == []
    assert parsed(service, "vm", "show", "web-0")["host"] == "rack-1-a", "it was not moved"
    run(service, "vm", "restart", "web-0")
    (operation,) = parsed(service, "operation", "list")["operations"]
    assert "is pending" in run(service, "operation", "done", operation["id"], code=4)
    assert "cancelled" in run(service, "operation", "cancel", operation["id"])
    assert "is cancelled. An operation that has ended cannot be changed" in run(
        service, "operation", "done", operation["id"], code=4
    )


@pytest.mark.forewarn(fabric="command", fabric_command="sh -c 'echo the host is busy >&2; exit 75'")
def test_a_failed_attempt_is_shown_with_the_next_one(service: Service) -> None:
    run(service, "vm", "restart", "web-0")
    event = only_event(service)
    (operation,) = parsed(service, "operation", "list")["operations"]
    assert (operation["last_failure"], operation["next_attempt_at"]) == (None, None)
    assert "last failure" not in run(service, "operation", "show", operation["id"])
    service.approve(event)
    service.advance("1s")
    shown = run(service, "operation", "show", operation["id"])
    assert "the host is busy" in shown
    assert "(in 4s)" in shown
    found = parsed(service, "operation", "show", operation["id"])
    assert "the host is busy" in found["last_failure"]
    assert found["next_attempt_at"] > found["started_at"]
    assert "the fabric to reboot; the last attempt failed: " in run(service, "event", "explain", event)
    service.advance("5s")
    explained = run(service, "event", "explain", event)
    assert "the fabric to reboot; 2 attempts failed: " in explained
    assert "the host is busy; the next attempt starts at 2" in explained
    done = json.loads(run(service, "operation", "done", operation["id"], "--json"))
    assert (done["status"], done["last_failure"], done["next_attempt_at"]) == ("done", None, None)


@pytest.mark.parametrize(("answer", "deleted"), [("n", False), ("y", True)])
def test_a_deletion_needs_confirmation_on_a_terminal(service: Service, answer: str, deleted: bool) -> None:
    """Without a terminal there is no question: all other tests of this file have none."""
    shown = on_terminal(service, "vm", "delete", "pool_2", answer=answer)
    assert "Delete pool_2? This cannot be undone. [y/N]" in shown
    assert bool(parsed(service, "event", "list")["events"]) is deleted

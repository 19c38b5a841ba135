"""Reimages and image upgrades from the command line, with and without the notice of the scale set."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.causes import OLDEST, document, events, get
from command_line import run_command

if TYPE_CHECKING:
    from forewarn.testing import Service

POOL, OTHER = "127.0.0.10", "127.0.0.20"
FLEET = """
[[group]]
name = "pool"
kind = "scale-set"
[[vm]]
group = "pool"
count = 3
addresses = "127.0.0.10-127.0.0.12"
priority = "spot"
[[vm]]
name = "other"
address = "127.0.0.20"
"""

pytestmark = pytest.mark.forewarn(fleet=FLEET)


def run(service: Service, *arguments: str) -> str:
    done = run_command(service, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def requested(service: Service, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(service, *arguments, "--json"))["operations"]
    return found


@pytest.mark.parametrize("command", [("vm", "reimage", "pool_0"), ("vm", "upgrade-image", "other")])
def test_without_the_notice_the_work_starts_at_once(forewarn: Service, command: tuple[str, ...]) -> None:
    whose = "pool" if command[-1] == "pool_0" else "other"
    assert f"No notice: {whose} has no OS image notice." in run(forewarn, *command, "--dry-run")
    (operation,) = requested(forewarn, *command)
    assert (operation["status"], operation["events"]) == ("started", [])
    assert operation["not_notified"] == {whose: f"{whose} has no OS image notice"}
    assert (events(forewarn, POOL), events(forewarn, OTHER)) == ([], [])


@pytest.mark.parametrize(("verb", "source"), [("reimage", "User"), ("upgrade-image", "Platform")])
def test_a_set_with_the_notice_is_notified_for_each_running_vm(forewarn: Service, verb: str, source: str) -> None:
    run(forewarn, "group", "policy", "pool", "--os-image-notice", "PT15M")
    assert "OS image notice    PT15M" in run(forewarn, "group", "show", "pool")
    run(forewarn, "vm", "evict", "pool_2")
    forewarn.advance(minutes=2)
    operations = requested(forewarn, "group", verb, "pool")
    assert [operation["vms"] for operation in operations] == [["pool_0"], ["pool_1"]]
    shown = events(forewarn, POOL)
    assert [(event["EventType"], event["EventStatus"], event["Resources"]) for event in shown] == [
        ("Reboot", "Scheduled", ["pool_0"]),
        ("Reboot", "Scheduled", ["pool_1"]),
    ]
    assert {(event["Description"], event["EventSource"], event["DurationInSeconds"]) for event in shown} == {
        ("", source, -1)
    }
    assert [event["Resources"] for event in document(forewarn, POOL, OLDEST)["Events"]] == [["_pool_0"], ["_pool_1"]]
    assert events(forewarn, OTHER) == document(forewarn, OTHER, OLDEST)["Events"] == []
    again = run_command(forewarn, "vm", "reimage", "pool_0")
    assert (again.returncode, operations[0]["id"] in again.stderr) == (4, True), "one change of the image at a time"
    assert forewarn.approve(shown[0]["EventId"], source=POOL).status == 200
    assert [event["EventStatus"] for event in events(forewarn, POOL)] == ["Started", "Scheduled"]
    forewarn.advance(minutes=15)
    assert [event["EventStatus"] for event in events(forewarn, POOL)] == ["Started"]
    forewarn.advance(minutes=10)
    assert events(forewarn, POOL) == []
    assert {get(forewarn, f"operations/{operation['id']}")["status"] for operation in operations} == {"done"}


def test_the_notice_can_be_turned_off_and_needs_a_scale_set(forewarn: Service) -> None:
    run(forewarn, "group", "policy", "pool", "--os-image-notice", "15m")
    assert get(forewarn, "groups/pool")["os_image_notice"] == "PT15M"
    run(forewarn, "group", "policy", "pool", "--auto-approve", "reboot")
    assert get(forewarn, "groups/pool")["os_image_notice"] == "PT15M", "the other parts of a policy stay"
    run(forewarn, "group", "policy", "pool", "--os-image-notice", "off")
    assert get(forewarn, "groups/pool")["os_image_notice"] is None
    wrong = run_command(forewarn, "group", "policy", "pool", "--os-image-notice", "PT10M")
    assert (wrong.returncode, "'PT10M' is 10m. Only 15 minutes are allowed. Write PT15M." in wrong.stderr) == (2, True)


def test_a_group_without_a_running_vm_is_rejected(forewarn: Service) -> None:
    run(forewarn, "vm", "evict", "pool_0", "pool_1", "pool_2")
    forewarn.advance(minutes=2)
    wrong = run_command(forewarn, "group", "reimage", "pool")
    assert (wrong.returncode, "it has no running VM. Start one first." in wrong.stderr) == (2, True)

"""The checker of notices finds what it must find, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from notice_checker import NoticeChecker

START = datetime(2041, 5, 6, 7, 8, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NOTICE = 15 * MINUTE


def vm(name: str = "x", host: str = "A", *, scope: str = "", runs: bool = True) -> dict[str, Any]:
    state = "running" if runs else "deallocated"
    return {"name": name, "group": scope or name, "scope": scope or name, "host": host, "state": state}


def document(*resources: str, event: str = "E", status: str = "Scheduled") -> dict[str, Any]:
    not_before = format_datetime(START + NOTICE, usegmt=True)
    shown = {"EventId": event, "EventStatus": status, "Resources": list(resources), "NotBefore": not_before}
    return {"Events": [shown] if resources else []}


class Watched:
    """A checker with one operation: an update of A, requested at the start, whose event is E."""

    def __init__(self, *vms: dict[str, Any], cause: str = "host-update", **options: Any) -> None:
        self.checker = NoticeChecker()
        self.checker.places(vms or [vm()], START - MINUTE)
        for each in vms or [vm()]:
            self.checker.document(each["name"], document(), START - MINUTE)
        operation: dict[str, Any] = {
            "id": "o",
            "cause": cause,
            "type": "Reboot",
            "host": "A",
            "overrides": [],
            "notice_seconds": None,
        }
        events = [{"id": each, "scope": "x", "vms": ["x"], "created_at": START.isoformat()} for each in "ef"]
        self.checker.operation(
            {**operation, "requested_at": START.isoformat(), "events": events, "rollout": None} | options
        )
        self.cause = cause

    def work(self, at: timedelta, *vms: str) -> list[str]:
        self.checker.work_started("o", self.cause, "A", vms, {}, START + at)
        return [violation.vm for violation in self.checker.violations]


def test_a_notice_of_its_length_is_enough_and_a_shorter_one_is_not() -> None:
    for at, expected in ((NOTICE, []), (NOTICE - timedelta(seconds=1), ["x"])):
        watched = Watched()
        watched.checker.document("x", document("x"), START)
        assert watched.work(at, "x") == expected


def test_an_approval_replaces_the_notice_and_a_rejected_one_does_not() -> None:
    for rejected in (False, True):
        watched = Watched()
        watched.checker.document("x", document("x"), START)
        watched.checker.approved("E")
        if rejected:
            watched.checker.approved("E", rejected=True)
        assert watched.work(MINUTE, "x") == (["x"] if rejected else [])


@pytest.mark.parametrize(
    "shown", [document(), document("y"), document("x", event="G"), document("x", status="Started")]
)
def test_the_event_of_this_work_must_name_the_vm_and_wait(shown: dict[str, Any]) -> None:
    watched = Watched()
    watched.checker.document("x", shown, START)
    assert watched.work(NOTICE, "x") == ["x"]


def test_work_on_a_host_touches_all_that_runs_there_and_other_work_its_vms() -> None:
    there = (vm("x"), vm("y"), vm("z", "B"), vm("off", runs=False))
    assert Watched(*there).work(NOTICE, "x") == ["x", "y"]
    assert Watched(*there, cause="degraded-hardware").work(NOTICE, "x") == ["x"]


def test_a_vm_that_arrives_during_the_work_is_touched_and_after_it_is_not() -> None:
    for ended, expected in ((False, ["z"]), (True, [])):
        watched = Watched(vm("z", "B"))
        watched.work(NOTICE)
        if ended:
            watched.checker.work_ended("o", START + NOTICE)
        watched.checker.places([vm("z", "A")], START + NOTICE + MINUTE)
        assert [violation.vm for violation in watched.checker.violations] == expected


@pytest.mark.parametrize("cause", ["redeploy", "start"])
def test_a_vm_on_its_way_to_the_host_is_touched(cause: str) -> None:
    bound = vm("z", "B") if cause == "redeploy" else vm("z", "A", runs=False)
    watched = Watched(bound)
    watched.checker.operation({"id": "m", "type": "", "overrides": [], "events": [], "requested_at": START.isoformat()})
    watched.checker.work_started("m", "start", "", ("z",), {"z": "A"} if cause == "redeploy" else {}, START)
    assert watched.work(NOTICE) == ["z"]


def test_the_fabric_knows_better_where_a_vm_is() -> None:
    watched = Watched(vm("z", "B"))
    watched.checker.work_started("o", "hardware-failure", "B", ("z",), {"z": "C"}, START)
    watched.checker.work_ended("o", START, {"z": "A"})
    watched.checker.places([vm("z", "C")], START)
    assert watched.checker.host_of("z") == "A"
    watched.checker.places([vm("z", "A")], START)
    watched.checker.places([vm("z", "B")], START)
    assert watched.checker.host_of("z") == "B"
    watched.checker.places([vm("z", "D")], START)
    assert watched.checker.host_of("z") == "D"


def test_a_scope_without_events_is_not_notified_unless_they_are_enabled_when_its_vm_comes() -> None:
    watched = Watched()
    watched.checker.places([vm("x"), vm("z", "B")], START)
    assert watched.work(NOTICE) == ["x"], "z has not come"
    assert watched.checker.violations.pop().vm == "x"
    watched.checker.document("z", document(), START + MINUTE)  # after the request
    watched.checker.places([vm("x"), vm("z", "B")], START + MINUTE)
    assert not watched.checker.violations
    watched.checker.places([vm("x"), vm("z", "A")], START + 2 * MINUTE)
    assert [violation.vm for violation in watched.checker.violations] == ["z"]


def test_a_vm_that_was_there_when_the_work_was_requested_is_excused_if_its_scope_was_enabled_later() -> None:
    watched = Watched(vm("y", "B"))
    watched.checker.places([vm("x")], START - MINUTE)
    watched.checker.document("x", document(), START + MINUTE)
    assert not watched.work(NOTICE)


def test_named_exceptions() -> None:
    assert not Watched(cause="hardware-failure").work(NOTICE, "x")
    assert not Watched(cause="delete", type="Terminate").work(NOTICE, "x")
    assert not Watched(cause="reimage").work(NOTICE, "x")
    faulty = Watched()
    faulty.checker.faulty("x")
    assert not faulty.work(NOTICE, "x")
    automatic = Watched(cause="restart")
    automatic.checker.policies([{"name": "x", "auto_approve": ["reboot"]}])
    assert not automatic.work(NOTICE, "x")
    policies = Watched(cause="delete", type="Terminate")
    policies.checker.policies([{"name": "x", "terminate_notice": "PT5M", "os_image_notice": None}])
    assert policies.work(NOTICE, "x") == ["x"]


def test_a_notice_that_an_override_shortens_is_still_a_notice() -> None:
    for seen_for, expected in ((2, []), (1, ["x"])):
        watched = Watched(overrides=["notice"], notice_seconds=120)
        shown = document("x")
        shown["Events"][0]["NotBefore"] = format_datetime(START, usegmt=True)
        watched.checker.document("x", shown, START)
        assert watched.work(seen_for * MINUTE, "x") == expected


def test_downtime_is_not_notice() -> None:
    watched = Watched()
    watched.checker.document("x", document("x"), START)
    watched.checker.down(START + MINUTE, START + 10 * MINUTE)
    assert watched.work(NOTICE, "x") == ["x"]


def test_a_vm_on_a_host_out_of_service_needs_an_operation_since_it_came() -> None:
    hosts = [{"name": "A", "state": "failed"}, {"name": "B", "state": "in service"}]
    checker = NoticeChecker()
    checker.places([vm("x"), vm("y", "B")], START)
    assert checker.vms_out_of_service(hosts) == {"x": ("failed", START)}
    operation = {"host": "A", "cause": "hardware-failure", "requested_at": START.isoformat()}
    checker.judge_out_of_service("x", "failed", [operation])
    assert not checker.violations
    checker.places([vm("x", "B"), vm("y", "B")], START + MINUTE)
    checker.places([vm("x", "A"), vm("y", "B")], START + 2 * MINUTE)
    checker.judge_out_of_service("x", "failed", [operation])
    checker.judge_out_of_service("x", "failed", [operation])
    assert [violation.vm for violation in checker.violations] == ["x"]


def test_an_approval_is_enough_without_a_poll_but_only_by_the_scope_of_the_vm() -> None:
    watched = Watched(vm(), vm("y"))
    watched.checker.approved("E")
    assert watched.work(MINUTE) == ["y"]


def test_a_downtime_that_the_service_does_not_count_may_hide_a_notice_that_is_not_longer() -> None:
    for speed, expected in ((100, []), (1, ["x"])):
        watched = Watched()
        watched.checker.policies([], speed)
        watched.checker.down(START, START + timedelta(seconds=10))
        assert watched.work(NOTICE / speed, "x") == expected

"""Invalid arguments of the test kit, and the unusual ones that it accepts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from forewarn import errors
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Callable

BAD: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a number without a unit": (lambda f: f.advance(5), errors.BadOption, r"duration 5: .* advance\(minutes=15\)"),
    "an unknown unit": (lambda f: f.advance(minute=15), errors.BadOption, "Did you mean 'minutes'"),
    "a number as text": (lambda f: f.advance(minutes="15"), errors.BadOption, "minutes '15': use a number"),
    "a negative duration": (lambda f: f.advance(minutes=-15), errors.BadOption, "duration '-15m': .* moves forward"),
    "more than the maximum": (lambda f: f.advance(days=10**7), errors.BadOption, "at most 3660 days"),
    "more than a timedelta holds": (lambda f: f.advance(days=10**12), errors.BadOption, "Invalid days 1000000000000"),
    "not a number": (lambda f: f.advance(days=float("nan")), errors.BadOption, "Invalid days nan"),
    "seen by a number": (lambda f: f.advance(seen_by=5), errors.BadOption, "Invalid vm 5: pass the name of a VM"),
    "a timeout without seen_by": (
        lambda f: f.advance(seconds=1, timeout=3),
        errors.BadOption,
        "timeout 3: it needs seen_by",
    ),
    "a timeout of zero": (lambda f: f.advance(seen_by="web-0", timeout=0), errors.BadOption, "more than 0s"),
    "a timeout of 0s": (lambda f: f.advance(seen_by="web-0", timeout="0s"), errors.BadOption, "more than 0s"),
    "a timeout that is no duration": (lambda f: f.advance(seen_by="web-0", timeout="soon"), errors.BadDuration, "soon"),
    "a timeout that is a list": (lambda f: f.advance(seen_by="web-0", timeout=[1]), errors.BadOption, "of seconds"),
    "a fractional count": (lambda f: f.fault("429", count=1.5), errors.BadOption, "count '1.5': write a whole number"),
    "a count that is true": (
        lambda f: f.fault("429", count=True),
        errors.BadOption,
        "count 'True': write a whole number",
    ),
    "a count as text": (lambda f: f.fault("429", count="3"), errors.BadOption, "count '3': write a whole number"),
    "a fault with an empty VM name": (lambda f: f.fault("429", ""), errors.BadOption, "must not be empty"),
    "a fault with a number as VM": (lambda f: f.fault("429", 7), errors.BadOption, "Invalid vm 7"),
    "an unknown fault": (lambda f: f.fault(418), errors.UnknownFault, "Unknown fault '418'"),
    "an unknown option": (
        lambda f: f.request_operation("restart", "web-0", bogus=1),
        errors.BadOption,
        "Options: host, type",
    ),
    "a misspelt option": (
        lambda f: f.request_operation("restart", "web-0", notise="1h"),
        errors.BadOption,
        "Did you mean 'notice'",
    ),
    "a time as text": (
        lambda f: f.request_operation("live-migration", "web-0", postpone_deadline="2030-01-01"),
        errors.BadOption,
        "postpone_deadline '2030-01-01': use a datetime",
    ),
    "a cause that is a number": (lambda f: f.request_operation(5, "web-0"), errors.BadOption, "cause 5: use a string"),
    "a speed of zero": (
        lambda f: f.request_operation("restart", "web-0", speed=0),
        errors.BadOption,
        "greater than 0",
    ),
    "overrides as a number": (
        lambda f: f.request_operation("restart", "web-0", overrides=1),
        errors.BadOption,
        "a list of strings",
    ),
    "a freeze of NaN seconds": (lambda f: f.vm("web-0").freeze(float("nan")), errors.BadOption, "seconds nan"),
    "an approval of None": (lambda f: f.vm("web-0").approve(None), errors.BadOption, "pass an event or an event id"),
    "documents of an unknown VM": (lambda f: f.documents_seen_by("web-1"), errors.UnknownVM, "Did you mean 'web-0'"),
    "polls of an unknown VM": (lambda f: f.poll_count("web-1"), errors.UnknownVM, "Did you mean 'web-0'"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_argument_is_rejected(forewarn: Service, case: str) -> None:
    do, error, text = BAD[case]
    forewarn.vm("web-0")
    before = forewarn.now
    with pytest.raises(error, match=text):
        do(forewarn)
    assert forewarn.events == []
    assert forewarn.now == before
    forewarn.vm("web-0").poll()


def test_unusual_arguments_are_accepted(forewarn: Service) -> None:
    vm = forewarn.vm("web-0", group=None, tags={"role": None})
    assert forewarn.vm(vm) == forewarn.vm("web-0", size=None) == vm
    assert vm.group == "web-0"
    forewarn.advance(seconds=1, seen_by=None)
    for timeout in ("0.05s", timedelta(seconds=0.05), 0.05):
        with pytest.raises(errors.DocumentNotSeen, match=r"within 0.05 s"):
            forewarn.advance(seen_by=vm, timeout=timeout)
    (event,) = forewarn.request_operation(
        "host-update", host=vm.host, type="Freeze", duration=9, notice="20m", postpone_deadline=None
    )
    assert event.duration == timedelta(seconds=9)
    assert event.not_before - forewarn.now >= timedelta(minutes=20)
    assert forewarn.vm("db-0").freeze(timedelta(seconds=8)).duration == timedelta(seconds=8)
    assert vm.migrate("7s").duration == timedelta(seconds=7)
    vm.approve(event.id)
    assert event.was_approved_by(vm)
    restart = vm.restart()
    assert forewarn.advance_to_start(restart.id) == restart.not_before


def test_a_single_override_can_be_a_string(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    (event,) = forewarn.request_operation("restart", vm, notice="1m", overrides="notice")
    assert event.not_before - forewarn.now < timedelta(minutes=2)


def test_a_fault_kind_can_be_a_number_and_its_times_durations(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    for kind in (410, 429, 500):
        vm.fault(kind)
        with pytest.raises(AssertionError, match=f"web-0: expected status 200, got {kind}"):
            vm.poll()
    forewarn.fault(500, None, duration="1m")
    forewarn.advance(minutes=1)
    vm.poll()
    forewarn.fault("slow", delay=timedelta(seconds=0.01), duration=timedelta(minutes=1))
    vm.poll()
    (fault,) = forewarn.list_all("/v1/faults")
    assert (fault["delay_seconds"], fault["duration_seconds"], fault["hits"]) == (0.01, 60, 1)


def test_a_fault_with_an_empty_vm_name_is_rejected(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    response = forewarn.control("POST", "/v1/faults", {"kind": "429", "vm": ""})
    assert (response.status, response.json()["pointer"]) == (400, "/vm")
    done = forewarn.cli("fault", "add", "429", "--vm", "")
    assert done.returncode == 2
    assert "--vm: must be the name of a VM. Leave it out to affect all VMs" in done.stderr
    vm.poll()
    assert forewarn.control("POST", "/v1/faults", {"kind": "429", "vm": None}).status == 201
    with pytest.raises(AssertionError, match="429"):
        vm.poll()


def test_a_timeout_of_zero_is_rejected(forewarn: Service) -> None:
    forewarn.vm("web-0")
    body = {"by": "1s", "seen_by": ["web-0"], "timeout": "0s"}
    response = forewarn.control("POST", "/v1/clock/advance", body)
    assert (response.status, response.json()["pointer"]) == (400, "/timeout")
    done = forewarn.cli("clock", "advance", "1s", "--seen-by", "web-0", "--timeout", "0s")
    assert (done.returncode, "must be more than 0s and at most 1h" in done.stderr) == (2, True)


def test_the_documents_of_a_deleted_vm_are_kept(forewarn: Service) -> None:
    group = forewarn.group("pool", vms=2, kind="scale-set", terminate_notice="5m")
    for vm in group:
        vm.poll()
    group[0].delete()
    forewarn.advance(minutes=10)
    assert not forewarn.has_vm("pool_0")
    assert forewarn.poll_count("pool_0") == len(forewarn.documents_seen_by(group[0])) == 1


def test_every_vm_whose_approval_succeeded_counts_as_approver(forewarn: Service) -> None:
    group, other = forewarn.group("web", vms=4), forewarn.vm("db-0")
    event, untouched = group[0].restart(), group[1].redeploy()
    group[1].approve(event)
    group[2].approve(event)
    group[3].fault(500, method="POST")
    for vm in (group[3], other):  # the first has a fault, the second is in another group
        with pytest.raises(AssertionError, match=r"got (500|400)"):
            vm.approve(event)
    assert [vm.name for vm in (*group, other) if event.was_approved_by(vm)] == ["web-1", "web-2"]
    assert event.approved_by == "web-1", "the first"
    assert not any(untouched.was_approved_by(vm) for vm in group)
    untouched.approve()
    assert untouched.was_approved_by("operator")


def test_an_approver_that_cannot_exist_is_an_error(forewarn: Service) -> None:
    group = forewarn.group("web", vms=2)
    event = group[0].restart()
    for name, near in {"wep-1": "web-1", "operater": "operator", "": ""}.items():
        with pytest.raises(errors.UnknownVM, match=f"{name!r}." + (f" Did you mean {near!r}" if near else "$")):
            event.was_approved_by(name)
    group[1].approve(event)
    with pytest.raises(errors.UnknownVM, match="Did you mean 'web-1'"):
        event.was_approved_by("wep-1")


def test_every_possible_approver_can_be_asked_for(forewarn: Service) -> None:
    assert forewarn.cli("token", "create", "deploy", "--role", "operator").returncode == 0
    pool = forewarn.group("pool", vms=3, kind="scale-set", terminate_notice="5m")
    event = pool[0].restart()
    for vm in pool[1], pool[2]:
        vm.delete()
    pool[1].poll()
    forewarn.advance(minutes=10)
    assert [vm.name for vm in forewarn.vms] == ["pool_0"]
    names = ("operator", "forewarn", "deploy", "pool_0", "pool_1", pool[2])
    assert not any(event.was_approved_by(name) for name in names)
    automatic = forewarn.group("auto", vms=1, auto_approve=["reboot"])[0].restart()
    assert automatic.was_approved_by("forewarn")


def test_a_vm_that_a_fault_has_disabled_gets_no_notice(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    vm.fault("disabled")
    with pytest.raises(errors.NoticeNotPossible, match=r"web-0 was disabled by a fault and has not polled since"):
        vm.restart()
    vm.poll()
    assert vm.restart().status == "Scheduled"


def test_text_with_a_line_break_is_read_as_a_fleet() -> None:
    with pytest.raises(errors.BadFleet, match="fleet:1"), Service(fleet="[vm]\nname='x'\n"):
        pass
    with pytest.raises(errors.UnreadableFile, match=r"none\.toml"), Service(fleet="none.toml"):
        pass

"""The test kit, as the test of an application uses it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from forewarn import errors
from forewarn.core.operations import CAUSES
from forewarn.scenarios import library
from forewarn.testing import AsyncService, ScenarioFailed, Service, ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.testing import VM, Event

MINUTE = timedelta(minutes=1)


def test_advance_moves_fifteen_minutes_at_once(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    event = vm.restart()
    assert (event.type, event.status, event.source, event.vms) == ("Reboot", "Scheduled", "User", ("web-0",))
    assert event.not_before - forewarn.now == 15 * MINUTE
    forewarn.advance(minutes=14, seconds=59)
    assert event.status == "Scheduled"
    forewarn.advance("1s")
    assert event.status == "Started"
    assert event.started_at == forewarn.now
    forewarn.advance(timedelta(minutes=10))
    assert event.status == "Completed"
    assert forewarn.events == []


def test_events_are_enabled_for_a_vm_from_the_start_until_it_is_deleted(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    forewarn.advance(days=30)
    assert vm.events_enabled
    assert vm.restart().status == "Scheduled"


@pytest.mark.forewarn(fleet='[[vm]]\nname = "from-file"\n', enable_groups=False)
def test_without_enable_groups_a_vm_gets_no_notice_before_its_first_poll(forewarn: Service) -> None:
    for name in ("from-file", "made"):
        vm = forewarn.vm(name)
        with pytest.raises(errors.NoticeNotPossible, match="has never polled"):
            vm.restart()
        assert (vm.events_enabled, vm.poll().incarnation, vm.events_enabled) == (False, 0, True)
        assert vm.restart().status == "Scheduled"


WAYS: dict[str, tuple[Callable[[VM], Event], str, timedelta, timedelta | None]] = {
    "restart": (lambda vm: vm.restart(), "Reboot", 15 * MINUTE, None),
    "reboot": (lambda vm: vm.reboot(), "Reboot", 15 * MINUTE, None),
    "redeploy": (lambda vm: vm.redeploy(), "Redeploy", 10 * MINUTE, None),
    "freeze": (lambda vm: vm.freeze(seconds=9), "Freeze", 15 * MINUTE, timedelta(seconds=9)),
    "freeze of no length": (lambda vm: vm.freeze(0), "Freeze", 15 * MINUTE, timedelta(0)),
    "freeze of unknown length": (lambda vm: vm.freeze("unknown"), "Freeze", 15 * MINUTE, None),
    "migrate": (lambda vm: vm.migrate(), "Freeze", 15 * MINUTE, timedelta(seconds=5)),
    "evict": (lambda vm: vm.evict(), "Preempt", timedelta(seconds=30), None),
    "evict with a short notice": (lambda vm: vm.evict(notice="5s"), "Preempt", timedelta(seconds=5), None),
    "evict without notice": (lambda vm: vm.evict(notice=0), "Preempt", timedelta(0), None),
    "evict with a long notice": (lambda vm: vm.evict(notice=120), "Preempt", 2 * MINUTE, None),
    "delete": (lambda vm: vm.delete(), "Terminate", 10 * MINUTE, None),
    "scale in": (lambda vm: vm.scale_in(), "Terminate", 10 * MINUTE, None),
    "replace": (lambda vm: vm.replace(), "Terminate", 10 * MINUTE, None),
    "reimage": (lambda vm: vm.reimage(), "Reboot", 15 * MINUTE, None),
    "upgrade image": (lambda vm: vm.upgrade_image(), "Reboot", 15 * MINUTE, None),
    "repair host": (lambda vm: vm.repair_host(), "Reboot", 15 * MINUTE, None),
    "degrade": (lambda vm: vm.degrade(), "Freeze", timedelta(days=7), timedelta(seconds=5)),
    "fail": (lambda vm: vm.fail(), "Reboot", timedelta(0), None),
}


def notices_for(kind: str) -> dict[str, str]:
    return {"terminate_notice": "PT10M"} if kind == "Terminate" else {"os_image_notice": "PT15M"}


@pytest.mark.parametrize("way", WAYS)
def test_each_method_of_a_vm_makes_its_event(forewarn: Service, way: str) -> None:
    happen, kind, notice, duration = WAYS[way]
    vm = forewarn.group("web", vms=3, kind="scale-set", **notices_for(kind))[0]
    event = happen(vm)
    assert (event.type, event.vms, event.duration) == (kind, ("web_0",), duration)
    assert event.not_before - forewarn.now == notice
    seen = vm.poll().event(event.id)
    assert seen is not None
    assert (seen.type, seen.status, seen.concerns(vm.name)) == (kind, event.status, True)
    forewarn.advance_to_start(event)
    assert event.status == "Started"
    forewarn.advance(minutes=10)
    assert event.status == "Completed"
    assert vm.running == (kind not in ("Preempt", "Terminate"))


def test_an_evicted_vm_can_be_started_without_an_event(forewarn: Service) -> None:
    vm = forewarn.vm("spot-0")
    forewarn.advance_to_start(vm.evict())
    forewarn.advance(minutes=1)
    before = vm.running
    vm.start()
    forewarn.advance("0s")
    assert (before, vm.running) == (False, True)
    assert forewarn.events == []


@pytest.mark.forewarn(preview_versions=True)
def test_every_cause_has_a_method(forewarn: Service) -> None:
    for number, (happen, kind, _, _) in enumerate(WAYS.values()):
        happen(forewarn.group(f"group-{number}", vms=1, kind="scale-set", **notices_for(kind))[0])
    forewarn.vm("advised").rebalance()
    forewarn.vm("evicted").evict(notice=0)
    forewarn.advance(minutes=1)
    forewarn.vm("evicted").start()
    assert {operation["cause"] for operation in forewarn.list_all("/v1/operations?all=true")} == {*CAUSES}


@pytest.mark.forewarn(preview_versions=True)
def test_advice_is_an_advisory_that_never_starts(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    advice = vm.rebalance()
    assert (advice.type, advice.status) == ("SpotRebalanceRecommendation", "Advisory")
    shown = vm.poll("2024-07-09").event(advice.id)
    assert shown is not None
    assert (shown.status, shown.not_before) == ("Advisory", None)
    vm.approve(advice)
    assert not advice.was_approved
    for act in (advice.approve, lambda: forewarn.advance_to_start(advice)):
        with pytest.raises(errors.EventIsAdvisory, match="never starts"):
            act()
    assert forewarn.request_operation("eviction", vm, notice="0s", overrides=["notice"])[0].status == "Started"
    forewarn.advance("0s")
    assert advice.status == "Cancelled"


def test_a_single_vm_has_a_terminate_notice_and_a_spot_vm_an_eviction_policy(forewarn: Service) -> None:
    event = forewarn.vm("web-0", terminate_notice="PT5M").delete()
    assert (event.type, event.not_before - forewarn.now) == ("Terminate", 5 * MINUTE)
    forewarn.vm("spot-0", priority="spot", eviction_policy="delete").evict()
    forewarn.advance(minutes=6)
    assert not forewarn.has_vm("web-0")
    assert not forewarn.has_vm("spot-0")


def test_the_description_of_an_event_is_that_of_the_request_or_the_setting_or_the_cause() -> None:
    with Service(description={"host-update": "Rack work, today.", "eviction": ""}) as forewarn:
        vm = forewarn.vm("web-0")
        vm.freeze()
        forewarn.request_operation("emergency-repair", host=vm.host, description="Fire.")
        vm.migrate()
        assert [event.description for event in vm.poll().events] == [
            "Rack work, today.",
            "Fire.",
            "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
        ]


def test_an_event_knows_its_approvers(forewarn: Service) -> None:
    group = forewarn.group("web", vms=2)
    event = group[0].restart()
    assert event.approved_by is None
    group[1].approve(event)
    assert event.was_approved
    assert event.was_approved_by("web-1")
    assert event.was_approved_by(group[1])
    assert not event.was_approved_by("web-0")
    assert repr(event) == f"<Reboot of web-0: Started, approved by web-1, {event.id.lower()}>"


def test_an_operator_can_cancel_approve_and_postpone_an_event(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    cancelled, approved, postponed = vm.restart(), vm.redeploy(), vm.freeze()
    cancelled.cancel()
    approved.approve()
    postponed.postpone(forewarn.now + timedelta(hours=2))
    assert [event.status for event in (cancelled, approved, postponed)] == ["Cancelled", "Started", "Scheduled"]
    assert postponed.not_before == forewarn.now + timedelta(hours=2)
    assert forewarn.events == [approved, postponed]
    with pytest.raises(errors.EventAlreadyStarted, match="cannot be cancelled"):
        approved.cancel()


def test_documents_seen_by_a_vm_have_no_consecutive_duplicates(forewarn: Service) -> None:
    vm, other = forewarn.vm("web-0"), forewarn.vm("db-0")
    assert forewarn.documents_seen_by(vm) == []
    vm.poll()
    event = vm.restart()
    vm.poll()
    vm.poll()
    forewarn.advance_to_start(event)
    vm.poll()
    seen = forewarn.documents_seen_by("web-0")
    assert [document.incarnation for document in seen] == [0, 1, 2]
    assert [[told.status for told in document.events] for document in seen] == [[], ["Scheduled"], ["Started"]]
    assert forewarn.poll_count(vm) == 4
    assert forewarn.documents_seen_by(other) == []


def test_a_vm_can_have_the_keys_of_a_fleet_file(forewarn: Service) -> None:
    first = forewarn.vm("web-0", host="rack-1", size="Standard_D2s_v3", tags={"role": "web", "a b": "c"})
    second = forewarn.vm("web-1", host="rack-1")
    event = first.freeze()
    assert forewarn.vm("web-0") == first
    assert {event.vms for event in forewarn.events} == {("web-0",), ("web-1",)}
    assert forewarn.get_json("/v1/vms/web-0")["tags"] == {"role": "web", "a b": "c"}
    event.approve()
    assert event.status == "Scheduled", "the other group on the host has not approved"
    second.approve(next(event for event in forewarn.events if event.vms == ("web-1",)))
    assert event.status == "Started"


def test_a_group_can_grow(forewarn: Service) -> None:
    forewarn.group("web", vms=2)
    forewarn.vm("late", group="web")
    assert [vm.name for vm in forewarn.group("web")] == ["web-0", "web-1", "late"]
    assert len(forewarn.vms) == 3


def test_a_deleted_vm_does_not_return_with_the_next_vm(forewarn: Service) -> None:
    group = forewarn.group("pool", vms=2, kind="scale-set", terminate_notice="5m")
    group[0].delete()
    forewarn.advance(minutes=10)
    forewarn.vm("other")
    assert [vm.name for vm in forewarn.vms] == ["pool_1", "other"]
    assert not group[0].running


BAD: dict[str, tuple[Callable[[Service], Any], type[Exception], str]] = {
    "a name that is none": (lambda f: f.vm("x y"), errors.BadFleet, r"vm\('x y'\).*'x y' is not a valid name"),
    "a key that is none": (lambda f: f.vm("x", prio=1), errors.BadFleet, "no such key"),
    "a VM made twice": (lambda f: f.vm("web-0", size="a"), errors.BadFleet, "'web-0' is already in the fleet"),
    "a group that is not there": (lambda f: f.group("wep"), errors.NotFound, "Unknown group 'wep'"),
    "an endpoint of nobody": (lambda f: f.endpoint_of("web-1"), errors.UnknownVM, "Did you mean 'web-0'"),
    "a cause that is none": (lambda f: f.request_operation("reboot", "web-0"), errors.UnknownCause, "Causes"),
    "a length that is none": (lambda f: f.advance("soon"), errors.BadDuration, "soon"),
    "a step back": (lambda f: f.advance(minutes=-2, seconds=30), errors.BadOption, "only moves forward"),
    "a deletion without notice": (lambda f: f.vm("web-0").delete(), errors.NoticeNotPossible, "no terminate notice"),
    "an eviction of a regular VM": (lambda f: f.vm("r", priority="regular").evict(), errors.NotSpot, "spot"),
    "an eviction from a set with a terminate notice": (
        lambda f: f.group("pool", 2, "scale-set", terminate_notice="PT5M")[0].evict(),
        errors.SpotTerminateNotice,
        "pool_0 is a Spot VM",
    ),
    "seen by nobody known": (lambda f: f.advance(seen_by="web-9"), errors.UnknownVM, "web-9"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_mistake_is_an_error_that_says_what_to_do(forewarn: Service, what: str) -> None:
    do, kind, words = BAD[what]
    forewarn.vm("web-0")
    with pytest.raises(kind, match=words):
        do(forewarn)
    assert forewarn.events == []
    assert forewarn.has_vm("web-0")


def test_an_unknown_setting_is_rejected_before_anything_starts() -> None:
    with pytest.raises(errors.UnknownSetting, match="Did you mean 'speed'"):
        Service(speedy=3)
    with pytest.raises(errors.BadSetting, match="rate_limit"):
        Service(rate_limit="many")


def test_a_stopped_service_raises_not_running(tmp_path: Path) -> None:
    service = Service()
    with pytest.raises(errors.Unavailable, match="is not running"):
        service.vm("web-0")
    with pytest.raises(errors.UnreadableFile), Service(fleet=tmp_path / "none.toml"):
        pass
    with service:
        service.vm("web-0")
    with pytest.raises(errors.Unavailable, match="is not running"):
        service.vm("web-1")


FLEET = """
[[group]]
name = "web"
kind = "availability-set"

[[vm]]
name = "web-{n}"
group = "web"
count = 2
listen = "127.0.0.1:8171-8172"
"""


@pytest.mark.forewarn(fleet=FLEET, rate_limit=2)
def test_a_marker_sets_the_fleet_and_settings(forewarn: Service) -> None:
    first, second = forewarn.group("web")
    assert first.poll().events == ()
    first.restart()
    assert second.poll().events[0].type == "Reboot"
    first.poll()
    with pytest.raises(AssertionError, match="429"):
        first.poll()


def test_services_in_one_process_are_independent() -> None:
    def one(number: int) -> list[str]:
        with Service() as forewarn:
            vms = [forewarn.vm("web-0"), forewarn.vm(f"other-{number}")]
            event = vms[0].restart()
            forewarn.advance(minutes=number)
            seen = vms[0].poll().event(event.id)
            assert seen is not None
            assert event.status == "Scheduled"
            return [vm.name for vm in forewarn.vms]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(8))) == [["web-0", f"other-{number}"] for number in range(8)]


def test_a_stopped_service_leaves_nothing_behind() -> None:
    before = threading.active_count()
    with Service() as forewarn:
        token_file = forewarn.environment["FOREWARN_TOKEN_FILE"]
        endpoint = forewarn.vm("web-0").endpoint
    assert threading.active_count() == before
    with pytest.raises(FileNotFoundError), open(token_file):  # noqa: PTH123
        pass
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(endpoint, timeout=5)  # noqa: S310 - it is ours


def test_a_failed_start_leaves_nothing_behind() -> None:
    before = threading.active_count()
    with Service() as forewarn:
        taken = forewarn.control_url.removeprefix("http://")
        running = threading.active_count()
        for _ in range(3):
            with pytest.raises(errors.CannotListen, match="another program or setting uses this port"):
                Service(control=taken).start()
        assert threading.active_count() == running
    assert threading.active_count() == before


def test_the_environment_makes_a_program_act_as_the_vm(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    vm.restart()
    program = """
import json, os, urllib.request
url = os.environ["FOREWARN_ENDPOINT"] + "/metadata/scheduledevents?api-version=2020-07-01"
events = json.load(urllib.request.urlopen(urllib.request.Request(url, headers={"Metadata": "true"})))["Events"]
print([event["EventType"] for event in events if os.environ["FOREWARN_VM_NAME"] in event["Resources"]])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**vm.environment, "http_proxy": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['Reboot']\n"


def test_the_command_line_finds_the_service(forewarn: Service) -> None:
    forewarn.vm("web-0")
    done = forewarn.cli("vm", "restart", "web-0", "--json")
    assert done.returncode == 0, done.stderr
    (event,) = forewarn.events
    assert json.loads(done.stdout)["operations"][0]["events"][0]["id"].upper() == event.id


async def test_asynchronous_tests_await_the_methods_that_wait() -> None:
    async with AsyncService() as forewarn:
        vm = forewarn.vm("web-0")

        async def application() -> None:
            """Polls in the loop of the test: were the clock moved by a call that blocks, it could not."""
            while True:
                document = await asyncio.to_thread(vm.poll)
                for told in document.events:
                    if told.status == "Scheduled":
                        await asyncio.to_thread(vm.approve, forewarn.event(told.id))

        task = asyncio.create_task(application())
        event = vm.restart()
        await forewarn.advance(minutes=15, seen_by=vm)
        assert event.was_approved_by(vm)
        other = vm.redeploy()
        await forewarn.advance_to_start(other, seen_by=vm)
        assert other.was_approved_by(vm)
        task.cancel()
        await asyncio.wait([task])


async def test_there_is_a_fixture_for_asynchronous_tests(forewarn_async: AsyncService) -> None:
    event = forewarn_async.vm("web-0").restart()
    assert await forewarn_async.advance_to_start(event) == event.not_before
    assert event.status == "Started"


def test_advance_to_start_of_a_cancelled_event_is_an_error(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    event = vm.restart()
    event.cancel()
    with pytest.raises(errors.EventDidNotStart, match=r"^Event [0-9a-f-]{36} .*cancelled"):
        forewarn.advance_to_start(event)


def test_a_service_process_continues_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text('[[vm]]\nname = "web-0"\naddress = "127.0.0.1"\n')
    arguments = ("--clock", "virtual", "--fleet", str(tmp_path / "fleet.toml"))
    with ServiceProcess(tmp_path).start(*arguments) as service:
        service.document()
        operation = service.request_operation("restart", "web-0")
        service.kill()
        service.start(*arguments)
        (event,) = service.document()["Events"]
        assert event["EventId"].lower() == operation["events"][0]["id"]
        service.advance("15m")
        assert service.document()["Events"][0]["EventStatus"] == "Started"
        before = service.now
        assert service.advance("30s") == service.now == before + MINUTE / 2
        assert service.advance(minutes=1, seconds=0.5) == service.now == before + timedelta(seconds=90.5)
        with pytest.raises(errors.BadDuration, match="soon"):
            service.advance("soon")
        for nobody in ("web-9", ["web-0", "web-9"]):
            with pytest.raises(RuntimeError, match="Unknown VM 'web-9'"):
                service.advance(seen_by=nobody)
    with ServiceProcess().start() as service, pytest.raises(RuntimeError, match="virtual"):
        service.advance(minutes=1)
    with pytest.raises(RuntimeError, match="forewarn up ended with 2"):
        ServiceProcess(tmp_path).start("--clock", "sundial")


def test_virtual_time_starts_now_and_has_a_time_zone(forewarn: Service) -> None:
    assert abs(forewarn.now - datetime.now(UTC)) < timedelta(hours=1)


def test_faults_make_the_endpoint_fail(forewarn: Service) -> None:
    vm, other = forewarn.vm("web-0"), forewarn.vm("db-0")
    vm.fault("500", count=2)
    for _ in range(2):
        with pytest.raises(AssertionError, match="web-0: expected status 200, got 500"):
            vm.poll()
    vm.poll()
    forewarn.fault("410", duration=60)
    with pytest.raises(AssertionError, match="410"):
        other.poll()
    forewarn.advance(minutes=1)
    other.poll()
    forewarn.fault("reset", count=5)
    with pytest.raises(ConnectionResetError):
        vm.poll()
    forewarn.clear_faults()
    vm.poll()
    with pytest.raises(errors.UnknownFault, match="stall"):
        vm.fault("stal")


def test_a_corrupted_document_does_not_count_as_seen(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    vm.restart()
    vm.fault("empty")
    with pytest.raises(errors.UnreadableDocument, match="it is empty"):
        vm.poll()
    assert forewarn.documents_seen_by(vm) == []


@pytest.mark.parametrize("name", library.names())
def test_every_scenario_runs_in_an_empty_fleet(forewarn: Service, name: str) -> None:
    vms = {"scale-in": "pool_0"}  # of its three VMs, one
    if name in vms:
        forewarn.group("pool", vms=3, kind="scale-set", terminate_notice="5m")
    run = forewarn.run_scenario(name, vms.get(name, ()))
    assert run.status == "passed"
    assert all(step.status == "passed" for step in run.steps)


MINE = """
title = "A restart that nobody sees"

[needs]
vms = 1

[[step]]
do = "restart"
expect = { type = "Freeze" }
"""


def test_a_failed_scenario_raises_an_error_that_names_the_step(forewarn: Service, tmp_path: Path) -> None:
    forewarn.vm("web-0")
    (tmp_path / "mine.toml").write_text(MINE)
    with pytest.raises(ScenarioFailed, match=r"(?s)failed:.*failed  restart: .*Freeze"):
        forewarn.run_scenario(tmp_path / "mine.toml", "web-0")
    with pytest.raises(errors.NotFound, match="Did you mean 'user-reboot'"):
        forewarn.run_scenario("user-rebot")
    with pytest.raises(errors.UnreadableFile):
        forewarn.run_scenario(tmp_path / "yours.toml")


async def test_a_scenario_can_be_awaited_and_wait_for_the_application(forewarn_async: AsyncService) -> None:
    vm = forewarn_async.vm("web-0")

    async def application() -> None:
        while True:
            await asyncio.to_thread(vm.poll)

    task = asyncio.create_task(application())
    run = await forewarn_async.run_scenario("live-migration", vm, seen_by=vm)
    task.cancel()
    await asyncio.wait([task])
    assert run.vms == ("web-0",)
    told = [[event.status for event in document.events] for document in forewarn_async.documents_seen_by(vm)]
    assert told == [[], ["Scheduled"], ["Started"], []]

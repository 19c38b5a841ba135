"""Jumps of the system clock: when they are noticed, what is held, and until when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from engines import FLEET, request_operation, running_engine

from forewarn.clock import StoredClock, SystemClock
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import OperationStatus
from forewarn.engine.engine import Engine
from forewarn.errors import ClockNotJumped, StoreFailed, VirtualClockAccepted
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.ports import HistoryFilter
from forewarn.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from forewarn.core.operations import Operation

START = datetime(2041, 1, 1, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class Machine:
    """The clocks of a machine: time passes on both, and the system clock can be set."""

    def __init__(self) -> None:
        self.system = START
        self.boot_seconds = 5000.0
        self.boot_id = "first"
        self.stop_between_reads = 0.0

    def wait(self, duration: timedelta) -> None:
        self.system += duration
        self.boot_seconds += duration.total_seconds()

    def reboot(self, downtime: timedelta) -> None:
        self.system += downtime
        self.boot_seconds = 10.0
        self.boot_id += "+"

    def read_system(self) -> float:
        found = self.system.timestamp()
        self.wait(timedelta(seconds=self.stop_between_reads))
        self.stop_between_reads = 0
        return found

    def clock(self) -> SystemClock:
        return SystemClock(self.read_system, lambda: self.boot_seconds, self.boot_id)


class Running:
    """An engine on a machine."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.folder, self.machine = folder, machine
        self.clock = machine.clock()
        limits = OperatorLimits(history_retention=7 * DAY)
        self.engine = Engine(self.clock, SqliteStore(folder), SimulatedFabric(self.clock), limits)

    async def kinds(self) -> list[str]:
        return [row.kind for row in await self.engine.records.history(HistoryFilter())]

    def status(self, operation: Operation) -> OperationStatus:
        found = self.engine.draft().operation(operation.id)
        assert found is not None
        return found.status

    async def restart(self) -> Running:
        await self.engine.stop()
        other = Running(self.folder, self.machine)
        await other.engine.start()
        return other


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def running(tmp_path: Path, machine: Machine) -> Running:
    running = Running(tmp_path, machine)
    await running.engine.start()
    await running.engine.apply_fleet(FLEET, by="test")
    await running.engine.enable("web", by="web-0")
    return running


# --- The clock --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [MINUTE + SECOND, -MINUTE - SECOND, 900 * DAY])
def test_after_a_jump_the_time_continues_without_it(machine: Machine, step: timedelta) -> None:
    clock = machine.clock()
    machine.wait(HOUR)
    assert clock.now() == START + HOUR
    machine.system += step
    assert clock.now() == START + HOUR
    machine.wait(MINUTE)
    assert clock.now() == START + HOUR + MINUTE
    assert clock.jump is not None
    assert clock.jump.step == step
    assert clock.jump.until == START + HOUR + 10 * MINUTE
    assert clock.accept() == step
    assert clock.now() == START + HOUR + MINUTE + step
    assert clock.jumps == 1


@pytest.mark.parametrize("step", [MINUTE, -MINUTE])
def test_a_smaller_step_is_followed(machine: Machine, step: timedelta) -> None:
    clock = machine.clock()
    for number in (1, 2, 3):
        machine.system += step
        assert clock.now() == START + number * step
    assert clock.jumps == 0


def test_a_process_that_was_stopped_while_it_read_the_time_sees_no_jump(machine: Machine) -> None:
    clock = machine.clock()
    machine.stop_between_reads = 7200
    assert clock.now() == START + 2 * HOUR
    assert clock.jump is None


def test_a_container_with_another_time_of_boot_sees_no_jump(machine: Machine) -> None:
    stored = machine.clock().stored()
    machine.wait(HOUR)
    machine.boot_seconds = 3.0
    clock = machine.clock()
    clock.resume(StoredClock.parse(str(stored)), START)
    assert clock.now() == START + HOUR
    assert clock.jump is None


# --- The engine -------------------------------------------------------------------------------------


async def test_a_clock_that_is_wrong_for_a_moment_has_no_effect(running: Running, machine: Machine) -> None:
    engine = running.engine
    operation = await request_operation(engine, "restart", "web-0")
    before = await running.kinds()
    machine.system += 900 * DAY
    await engine.tick()
    late = await request_operation(engine, "restart", "web-1")
    machine.wait(3 * SECOND)
    machine.system -= 900 * DAY
    await engine.tick()
    assert engine.measurements.late_seconds() == 0
    for _ in range(2):
        machine.wait(5 * MINUTE)
        await engine.tick()
    assert running.clock.jump is None, "stable for ten minutes"
    after = await running.kinds()
    assert after[: len(before)] == before, "retention removed history"
    assert [kind for kind in after if kind.startswith("clock")] == ["clock-jumped", "clock-jumped", "clock-accepted"]
    assert engine.document("web").enabled
    assert {running.status(each) for each in (operation, late)} == {OperationStatus.PENDING}
    events = {event.operation: event for event in engine.live_events()}
    assert events[late.id].not_before - events[operation.id].not_before < MINUTE
    machine.wait(5 * MINUTE)
    await engine.tick()
    assert running.status(operation) is OperationStatus.STARTED
    await engine.stop()


async def test_a_hold_lasts_until_ten_minutes_without_another_jump(running: Running, machine: Machine) -> None:
    engine = running.engine
    operation = await request_operation(engine, "restart", "web-0")
    machine.system += HOUR
    for _ in range(3):
        machine.wait(9 * MINUTE)
        machine.system += HOUR
        await engine.tick()
        assert running.clock.jump is not None
        assert running.status(operation) is OperationStatus.PENDING
    machine.wait(10 * MINUTE - SECOND)
    await engine.tick()
    assert running.status(operation) is OperationStatus.PENDING
    assert running.clock.now() > engine.live_events()[0].not_before
    assert engine._scheduler._seconds_to_next() == 1, "it must not spin while something is due"
    machine.wait(SECOND)
    await engine.tick()
    assert running.status(operation) is OperationStatus.STARTED
    assert running.clock.now() == machine.system
    await engine.stop()


@pytest.mark.parametrize("step", [30 * HOUR, -900 * DAY])
async def test_a_jump_does_not_change_how_long_ago_a_group_polled(
    running: Running, machine: Machine, step: timedelta
) -> None:
    engine = running.engine
    machine.wait(20 * HOUR)
    machine.system += step
    await engine.tick()
    await engine.accept_clock("admin")
    assert engine.document("web").enabled
    assert running.clock.now() - (engine.last_seen_at("web") or START) == 20 * HOUR
    machine.wait(4 * HOUR)
    await engine.tick()
    assert not engine.document("web").enabled
    with pytest.raises(ClockNotJumped):
        await engine.accept_clock("admin")
    await engine.stop()


async def test_a_jump_is_recorded_when_the_disk_works_again(
    running: Running, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = running.engine

    def fail(_: object) -> None:
        raise StoreFailed(problem="no room")

    with monkeypatch.context() as disk:
        disk.setattr(engine._writer._store, "commit", fail)
        for _ in range(2):
            machine.system += HOUR
            with pytest.raises(StoreFailed):
                await engine.tick()
        with pytest.raises(StoreFailed):
            await engine.accept_clock("admin")
        assert running.clock.jump is not None, "the hold goes on"
        assert "clock-jumped" not in await running.kinds()
    await engine.tick()
    await engine.accept_clock("admin")
    recorded = [kind for kind in await running.kinds() if kind.startswith("clock")]
    assert recorded == ["clock-jumped", "clock-jumped", "clock-accepted"]
    await engine.stop()


async def test_approvals_still_start_events(running: Running, machine: Machine) -> None:
    operation = await request_operation(running.engine, "restart", "web-0")
    machine.system += HOUR
    await running.engine.tick()
    await running.engine.approve(operation.events, "web-0")
    assert running.status(operation) is OperationStatus.STARTED
    await running.engine.stop()


async def test_a_virtual_clock_does_not_jump() -> None:
    async with running_engine() as engine:
        with pytest.raises(VirtualClockAccepted, match="A virtual clock does not jump"):
            await engine.accept_clock("admin")


# --- Restarts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_restart_does_not_end_a_hold(running: Running, machine: Machine, step: timedelta) -> None:
    operation = await request_operation(running.engine, "restart", "web-0")
    machine.wait(MINUTE)
    machine.system += step
    for _ in range(3):
        machine.wait(MINUTE)
        running = await running.restart()
        assert running.clock.jump is not None
    assert running.clock.now() == START + 4 * MINUTE
    await running.engine.accept_clock("admin")
    running = await running.restart()
    assert running.clock.jump is None
    assert running.clock.now() == machine.system
    assert running.engine.document("web").enabled
    assert (running.status(operation) is OperationStatus.PENDING) == (step < timedelta(0))
    await running.engine.stop()


async def test_downtime_before_a_hold_is_no_notice(running: Running, machine: Machine) -> None:
    """The service stops again before the hold ends."""
    await request_operation(running.engine, "restart", "web-0")
    (before,) = running.engine.live_events()
    await running.engine.stop()
    machine.wait(20 * MINUTE)
    machine.system += HOUR
    running = Running(running.folder, machine)
    await running.engine.start()
    assert running.clock.jump is not None
    running = await running.restart()
    (event,) = running.engine.live_events()
    assert event.not_before == before.not_before + 20 * MINUTE
    await running.engine.stop()


async def test_after_a_reboot_only_a_clock_that_went_back_is_suspect(running: Running, machine: Machine) -> None:
    machine.reboot(3 * DAY)
    running = await running.restart()
    assert running.clock.jump is None
    assert running.engine.document("web").enabled, "downtime is not inactivity"
    machine.reboot(-900 * DAY)
    running = await running.restart()
    assert running.clock.jump is not None
    assert running.clock.now() == START + 3 * DAY
    machine.system = START + 4 * DAY  # a time server
    machine.wait(SECOND)
    await running.engine.tick()
    assert running.clock.jumps == 2
    await running.engine.accept_clock("admin")
    assert running.clock.now() == machine.system
    assert running.engine.document("web").enabled
    await running.engine.stop()


async def test_a_node_that_follows_accepts_a_stable_time_unless_only_the_earlier_one_agrees_with_the_database(
    running: Running, machine: Machine
) -> None:
    await running.engine.follow()
    hold, right = running.engine.clock_hold, running.clock.now()
    assert hold.compare(right) is None
    machine.system += HOUR
    assert hold.compare(right) == right + HOUR
    machine.wait(11 * MINUTE)
    assert hold.compare(right + 11 * MINUTE) == right + 11 * MINUTE + HOUR
    assert running.clock.now() == right + 11 * MINUTE, "a wrong time may be stable"
    assert hold.compare(right + 11 * MINUTE + HOUR) is not None, "one wrong time server can set both clocks"
    machine.wait(MINUTE)
    assert hold.compare(machine.system) is None
    assert (running.clock.now(), running.clock.jump) == (machine.system, None)
    assert hold.compare(right - DAY) == machine.system
    assert running.clock.now() == machine.system, "the clock of the database has jumped"
    await running.engine.stop()


async def test_a_node_whose_clock_is_wrong_when_it_starts_uses_the_time_of_the_database(
    running: Running, machine: Machine
) -> None:
    await running.engine.follow()
    hold, right = running.engine.clock_hold, running.clock.now() + 3 * DAY
    assert hold.compare(right) == right - 3 * DAY
    assert running.clock.now() == right
    machine.system += 3 * DAY
    assert hold.compare(right) is None
    assert (running.clock.now(), running.clock.jump) == (machine.system, None)
    await running.engine.stop()


# --- Several nodes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_node_that_begins_to_lead_after_a_jump_starts_nothing_early(
    running: Running, machine: Machine, step: timedelta, noticed: bool
) -> None:
    """The last leader was another machine, so its clock says nothing about this one."""
    operation = await request_operation(running.engine, "restart", "web-0")
    await running.engine.last_seen.write()
    await running.engine.follow()
    running.clock._boot_id = "another machine"
    machine.wait(MINUTE)
    machine.system += step
    if noticed:
        running.clock.now()
    await running.engine.lead()
    assert running.clock.now() == START + MINUTE
    assert running.clock.jump is not None
    machine.wait(9 * MINUTE)
    await running.engine.tick()
    assert running.status(operation) is OperationStatus.PENDING
    await running.engine.stop()


def test_a_node_that_begins_to_lead_after_a_jump_is_not_behind_the_last_leader(machine: Machine) -> None:
    clock = machine.clock()
    machine.system += HOUR
    clock.now()
    clock.resume(StoredClock("another machine", START), START + 30 * SECOND)
    assert clock.now() == START + 30 * SECOND
    assert clock.jump is not None

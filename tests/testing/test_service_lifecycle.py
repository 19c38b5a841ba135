"""The service of the test kit: start, stop, and use after the stop."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from forewarn import errors
from forewarn.testing import AsyncService, Service, ServiceProcess
from forewarn.testing.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from forewarn.testing import VM, Event

TIMEOUT_SECONDS = 20


def threads() -> set[threading.Thread]:
    """Return the threads of the test kit."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("forewarn")}


async def turn() -> None:
    await asyncio.sleep(0)


# --- Starting ---------------------------------------------------------------------------------------


def test_a_running_service_cannot_be_started_again() -> None:
    with Service() as service:
        vm, before = service.vm("web-0"), threads()
        with pytest.raises(errors.AlreadyRunning, match="Stop it before"):
            service.start()
        with pytest.raises(errors.AlreadyRunning), service:
            pass
        assert threads() == before
        vm.poll()
    assert not threads() & before


def test_a_running_process_cannot_be_started_again(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path).start("--clock", "virtual") as service:
        first = service.process
        assert first is not None
        with pytest.raises(errors.AlreadyRunning):
            service.start("--clock", "virtual")
        assert service.process is first
        first.kill()
        first.wait(TIMEOUT_SECONDS)
        service.start("--clock", "virtual")  # its process has ended
        assert service.get_json("/v1/clock")["clock"] == "virtual"
    with pytest.raises(errors.NotRunning):
        service.stop()


def test_a_restarted_service_is_empty() -> None:
    service = Service()
    with service:
        service.vm("web-0", priority="regular").poll()
        token = service.token
    with service:
        vm = service.vm("web-0")
        vm.poll()
        assert service.token != token
        assert vm.evict().type == "Preempt", "the second VM has no priority from the test"


async def test_a_cancelled_start_leaves_nothing_behind() -> None:
    before = threads()
    entering = asyncio.create_task(AsyncService().__aenter__())
    await asyncio.sleep(0)
    entering.cancel()
    await asyncio.sleep(0)
    entering.cancel()  # a second cancellation changes nothing
    with pytest.raises(asyncio.CancelledError):
        await entering
    await asyncio.get_running_loop().shutdown_default_executor()
    assert threads() == before


# --- While it runs ----------------------------------------------------------------------------------


def test_an_interrupted_wait_cancels_its_work() -> None:
    loop, ended = LoopThread(), threading.Event()
    main, interrupts = threading.get_ident(), []

    def interrupt(*_: object) -> None:
        interrupts.append(1)
        if len(interrupts) == 1:
            raise KeyboardInterrupt

    async def work() -> None:
        while sys._current_frames()[main].f_code.co_name != "wait":
            await turn()
        try:
            while not interrupts:  # one that comes before the thread has quite fallen asleep does not wake it
                signal.pthread_kill(main, signal.SIGUSR1)
                await turn()
            await asyncio.Event().wait()
        finally:
            ended.set()

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run(work())
        assert ended.wait(TIMEOUT_SECONDS)
    finally:
        loop.stop()
        signal.signal(signal.SIGUSR1, before)


def test_a_stop_ends_a_wait_in_another_thread() -> None:
    loop, begun, said = LoopThread(), threading.Event(), []

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        with pytest.raises(errors.NotRunning) as caught:
            loop.run(work())
        said.append(caught.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert begun.wait(TIMEOUT_SECONDS)
    loop.stop()
    waiting.join(TIMEOUT_SECONDS)
    assert len(said) == 1


def test_the_delay_of_the_first_poll_can_be_tested() -> None:
    with Service(first_get_delay="0.05s") as service:
        vm = service.vm("web-0")
        assert not service.get_json("/v1/vms/web-0")["events_enabled"]
        with pytest.raises(errors.NoticeNotPossible, match="has never polled"):
            vm.restart()
        vm.poll()
        assert vm.restart().status == "Scheduled"


def test_seen_documents_are_recorded_with_the_system_clock_too() -> None:
    with Service(clock="system") as service:
        vm = service.vm("web-0")
        event = vm.restart()
        assert [shown.type for shown in vm.poll().events] == ["Reboot"]
        vm.approve(event)
        assert service.poll_count(vm) == 1
        assert [document.events[0].type for document in service.documents_seen_by(vm)] == ["Reboot"]
        assert event.was_approved_by(vm)
        with pytest.raises(errors.ClockNotVirtual):
            service.advance(minutes=15, seen_by=vm)


def certificate(folder: Path) -> str:
    """Return a certificate for another name, signed by an unknown authority."""
    path = folder / "both.pem"
    trustme.CA().issue_cert("forewarn.example").private_key_and_cert_chain_pem.write_to_path(str(path))
    return str(path)


def test_the_control_api_of_a_service_can_use_tls(tmp_path: Path) -> None:
    with Service(tls_certificate=certificate(tmp_path)) as service:
        service.vm("web-0")
        assert service.control_url.startswith("https://")
        assert service.get_json("/v1/vms/web-0")["name"] == "web-0"
        done = service.cli("vm", "restart", "web-0")
        assert done.returncode == 0, done.stderr
        assert [event.type for event in service.events] == ["Reboot"]
        word = service.environment["FOREWARN_DATA"]
    assert not Path(word).exists()


def test_the_control_api_of_a_process_can_use_tls(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path).start("--clock", "virtual", "--tls-certificate", certificate(tmp_path)) as service:
        service.advance("15m")
        assert service.get_json("/v1/clock")["clock"] == "virtual"


LOUD = """#!/bin/sh
head -c 3000 /dev/zero | tr '\\0' x >&2
exit 1
"""


def test_a_process_with_much_output_does_not_block(tmp_path: Path) -> None:
    """A pipe holds 64 KiB. The log of failed work is larger than that."""
    program, fleet = tmp_path / "loud", tmp_path / "fleet.toml"
    program.write_text(LOUD)
    program.chmod(0o755)
    fleet.write_text('[[vm]]\nname = "web-{n}"\ncount = 160\n')
    arguments = ("--clock", "virtual", "--fabric", "command", "--fabric-command", str(program), "--fleet", str(fleet))
    with ServiceProcess(tmp_path).start(*arguments) as service:
        service.request_operation("restart", *(f"web-{number}" for number in range(160)))
        service.advance("15m")
        assert service.stop() == 0
        assert service.output.count("operation_failed:") == 160
        assert len(service.output) > 100_000


# --- After its end ----------------------------------------------------------------------------------


def test_the_command_fabric_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Service(fabric="command", fabric_command="/bin/true") as service:
        event = service.vm("web-0").restart()
        service.advance_to_start(event)
        assert [found.name[:9] for found in tmp_path.iterdir()] == ["forewarn-"]
    assert list(tmp_path.iterdir()) == []


AFTER: dict[str, Callable[[Service, VM, Event], Any]] = {
    "a poll": lambda _, vm, __: vm.poll(),
    "an approval": lambda _, vm, event: vm.approve(event),
    "what can happen": lambda _, vm, __: vm.restart(),
    "a state": lambda _, __, event: event.status,
    "an order": lambda _, __, event: event.cancel(),
    "the clock": lambda service, _, __: service.advance(minutes=1),
    "what was seen": lambda service, vm, _: service.documents_seen_by(vm),
    "the token": lambda service, _, __: service.token,
    "the control API": lambda service, _, __: service.get_json("/v1/clock"),
    "the command line": lambda service, _, __: service.cli("clock", "show"),
}


@pytest.mark.parametrize("what", AFTER)
def test_use_after_the_stop_raises_not_running(what: str) -> None:
    with Service() as service:
        vm = service.vm("web-0")
        event = vm.restart()
        assert vm.endpoint
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(errors.NotRunning, match=r"The service is not running. Use it"):
            AFTER[what](service, vm, event)
        gc.collect()
    assert f"{event!r} {vm!r}".startswith(f"<Event {event.id.lower()}: The service is not running.")


async def test_awaiting_after_the_stop_raises_not_running(recwarn: pytest.WarningsRecorder) -> None:
    async with AsyncService() as service:
        event = service.vm("web-0").restart()
    with pytest.raises(errors.NotRunning):
        await service.advance(minutes=1)
    with pytest.raises(errors.NotRunning):
        await service.advance_to_start(event)
    gc.collect()
    assert [str(warning.message) for warning in recwarn if "never awaited" in str(warning.message)] == []


def test_an_unknown_event_has_a_repr(forewarn: Service) -> None:
    assert repr(forewarn.event("nosuch")) == "<Event nosuch: Unknown event 'nosuch'.>"


# --- By a marker ------------------------------------------------------------------------------------


FLEET = '[[vm]]\nname = "worker"\n'


@pytest.mark.forewarn(FLEET, rate_limit=1)
def test_a_marker_takes_a_fleet_as_positional_argument(forewarn: Service) -> None:
    assert [vm.name for vm in forewarn.vms] == ["worker"]
    forewarn.vm("worker").poll()
    with pytest.raises(AssertionError, match="429"):
        forewarn.vm("worker").poll()


@pytest.mark.forewarn(inactivity_timeot="24h")
def test_an_unknown_setting_in_a_marker_is_an_error_with_the_nearest_name(request: pytest.FixtureRequest) -> None:
    with pytest.raises(errors.UnknownSetting, match="Did you mean 'inactivity_timeout'"):
        request.getfixturevalue("forewarn")


@pytest.mark.parametrize("arguments", ['"a.toml", "b.toml"', '"a.toml", fleet="b.toml"'])
def test_a_marker_rejects_a_second_fleet(tmp_path: Path, arguments: str) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(f"import pytest\n@pytest.mark.forewarn({arguments})\ndef test_it(forewarn):\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(test)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "takes one fleet, and settings as keyword arguments: forewarn(FLEET, rate_limit=5)" in done.stdout

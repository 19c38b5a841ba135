"""What is special about the command fabric: the program's words and codes, and that it outlives the service."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shlex
import signal
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from forewarn.core.event_types import Verb
from forewarn.errors import Invalid, Unavailable, WorkFailed
from forewarn.fabrics import command
from forewarn.fabrics.command import CommandFabric
from forewarn.ports import MachineState, WorkOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeProgram = Callable[..., str]

LONGEST_WAIT_SECONDS = 30
OPERATION = "5bb6b3a2-0f2e-4c39-8f2e-0d8f3b1c9a01"
ORDER = WorkOrder(OPERATION, ("web-0",), timedelta(seconds=9), "restart")

# The service, as far as an order needs one.
SERVICE = """\
import asyncio, pathlib, sys
from forewarn.fabrics.command import CommandFabric
from forewarn.ports import WorkOrder
asyncio.run(CommandFabric(sys.argv[1:2], pathlib.Path(sys.argv[2])).reboot(WorkOrder(sys.argv[3], ("web-0",))))
"""


@pytest.fixture(
    scope="module",
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})],
    ids=["plain", "uvloop"],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Forewarn runs on uvloop, and the fabric must not depend on that."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "orders"


@pytest.fixture
def make_program(tmp_path: Path) -> MakeProgram:
    """Writes an operator's program: it notes each order that it is given, then does what the test says."""

    def make(does: str = "", *, name: str = "program") -> str:
        path = tmp_path / name
        noted = shlex.quote(str(tmp_path / "noted"))
        path.write_text(f'#!/bin/sh\nread -r order\nprintf "%s\\n" "$order" >>{noted}\n{does}\n')
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize("verb", [Verb.MIGRATE, Verb.REDEPLOY, Verb.START])
@pytest.mark.parametrize(
    ("output", "placed"),
    [
        ('echo moving; echo \'{"hosts": {"web-0": "rack-2"}}\'', {"web-0": "rack-2"}),
        ("echo done", {}),
        ("", {}),
        ("echo '{\"moved\": true}'", {}),
        ('echo \'{"hosts": ["rack-2"]}\'', None),
        ("echo '{\"hosts'", None),
        ("printf '{\"hosts\":%s' \"$(printf '[%.0s' $(seq 20000))\"", None),
    ],
)
async def test_program_reports_the_hosts_of_vms(
    folder: Path,
    make_program: MakeProgram,
    caplog: pytest.LogCaptureFixture,
    verb: Verb,
    output: str,
    placed: dict[str, str] | None,
) -> None:
    fabric = CommandFabric([make_program(output)], folder)
    method = {Verb.MIGRATE: fabric.migrate, Verb.REDEPLOY: fabric.redeploy, Verb.START: fabric.start}[verb]
    assert await method(ORDER) == placed
    assert ("reported hosts in a wrong form" in caplog.text) == (placed is None)
    assert await CommandFabric([make_program(output)], folder).redeploy(ORDER) == placed  # found after a restart


def noted(tmp_path: Path) -> list[Any]:
    """The orders that the program was given, in their order."""
    path = tmp_path / "noted"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def journals(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Gate:
    """A gate at which a program waits for the test. The program writes its pid and then waits."""

    def __init__(self, folder: Path) -> None:
        self._paths = folder / "here", folder / "go"
        for path in self._paths:
            os.mkfifo(path)
        # Opened for both, so that nobody waits for the other to open it. When it closes all that wait here go on.
        self._here, self._go = (os.open(path, os.O_RDWR) for path in self._paths)
        here, go = (shlex.quote(str(path)) for path in self._paths)
        self.script = f"echo $$ >{here}; read -r word <{go}"

    async def arrival(self) -> int:
        """The process of the program that has come to the gate."""
        ready, _, _ = await asyncio.to_thread(select.select, [self._here], [], [], LONGEST_WAIT_SECONDS)
        assert ready, "the program did not start"
        return int(os.read(self._here, 100))

    def open(self) -> None:
        os.write(self._go, b"go\n")

    def close(self) -> None:
        for path in self._paths:  # first, so that no later program waits for the test to open them
            path.unlink()
        os.close(self._here)
        os.close(self._go)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    yield made
    made.close()


async def has_ended(watched: int) -> None:
    """Wait for the end of a process that need not be a child."""
    ready, _, _ = await asyncio.to_thread(select.select, [watched], [], [], LONGEST_WAIT_SECONDS)
    os.close(watched)
    assert ready, "the process goes on"


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - no file of ours
        return int(stat.read().rpartition(")")[2].split()[1])


async def until_taken_up(fabric: CommandFabric) -> None:
    """One thread reads the journals in the order of the requests, so earlier reads have finished when this one has."""
    await asyncio.sleep(0)
    await fabric._in_thread(lambda: None)


# --- Input and output of the program --------------------------------------------------------------


@pytest.mark.parametrize("verb", [verb.value for verb in Verb])
async def test_the_program_reads_the_order_and_its_last_argument_is_the_verb(
    make_program: MakeProgram, tmp_path: Path, folder: Path, verb: str
) -> None:
    program = make_program(f'for word in "$@"; do echo "$word"; done >{shlex.quote(str(tmp_path / "words"))}')
    fabric = CommandFabric([program, "--zone", "1 a"], folder)
    moves = (("web-0", "rack-1-b"), ("web-1", "rack-1-c"))
    order = WorkOrder(OPERATION, ("web-0", "web-1"), timedelta(seconds=9), "restart", "rack-1-a", moves)
    await getattr(fabric, verb)(order)
    assert (tmp_path / "words").read_text() == f"--zone\n1 a\n{verb}\n"
    assert noted(tmp_path) == [
        {
            "verb": verb,
            "operation": OPERATION,
            "cause": "restart",
            "vms": ["web-0", "web-1"],
            "host": "rack-1-a",
            "moves": {"web-0": "rack-1-b", "web-1": "rack-1-c"},
            "duration_seconds": 9.0,
            "again": False,
        }
    ]


async def test_missing_values_of_an_order_are_null_or_empty(
    make_program: MakeProgram, tmp_path: Path, folder: Path
) -> None:
    await CommandFabric([make_program()], folder).delete(WorkOrder(OPERATION, ("web-0",)))
    [order] = noted(tmp_path)
    assert (order["host"], order["duration_seconds"], order["moves"], order["cause"]) == (None, None, {}, "")


async def test_a_code_that_is_not_zero_is_a_failure_for_good_and_the_program_is_not_run_again(
    make_program: MakeProgram, tmp_path: Path, folder: Path
) -> None:
    program = make_program("echo first >&2; echo 'the disk is gone' >&2; echo >&2; echo shown elsewhere; exit 3")
    for fabric in (CommandFabric([program], folder), CommandFabric([program], folder)):
        with pytest.raises(WorkFailed, match=r"program reboot exited with code 3: the disk is gone$"):
            await fabric.reboot(ORDER)
    assert len(noted(tmp_path)) == 1


async def test_exit_code_75_requests_a_retry_and_the_retry_knows_of_the_first_run(
    make_program: MakeProgram, tmp_path: Path, folder: Path
) -> None:
    tried = shlex.quote(str(tmp_path / "tried"))
    program = make_program(f"if [ ! -e {tried} ]; then >{tried}; echo 'the host is busy' >&2; exit 75; fi")
    fabric = CommandFabric([program], folder)
    with pytest.raises(Unavailable, match=r"requested a retry: the host is busy$"):
        await fabric.reboot(ORDER)
    await fabric.reboot(ORDER)
    await fabric.reboot(ORDER)
    assert [order["again"] for order in noted(tmp_path)] == [False, True]


async def test_a_program_killed_by_a_signal_has_failed(make_program: MakeProgram, folder: Path) -> None:
    program = make_program("echo 'so far so good' >&2; kill -9 $$")
    with pytest.raises(WorkFailed, match=r"exited with code 137 \(signal 9\): so far so good$"):
        await CommandFabric([program], folder).reboot(ORDER)


async def test_a_failure_without_output_is_reported_without_a_line(make_program: MakeProgram, folder: Path) -> None:
    with pytest.raises(WorkFailed, match=r"exited with code 200: no error output$"):
        await CommandFabric([make_program("exit 200")], folder).reboot(ORDER)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("head -c 5000000 /dev/zero | tr '\\0' '\\n' >&2; echo 'the end' >&2; echo >&2", "the end"),
        ("yes 'a line of many' | head -c 5000000 >&2; echo >&2; echo 'the end' >&2", "the end"),
        ("head -c 5000000 /dev/zero | tr '\\0' x >&2", "x" * 500),
        ("printf 'a\\033[2Jb\\377c\\000d\\tx' >&2", "a?[2Jb\ufffdc?d?x"),
    ],
    ids=["empty-lines", "many-lines", "one-line", "control-characters"],
)
async def test_the_message_is_one_short_escaped_line_for_any_output(
    make_program: MakeProgram, folder: Path, written: str, shown: str
) -> None:
    with pytest.raises(WorkFailed) as caught:
        await CommandFabric([make_program(written + "; exit 1")], folder).reboot(ORDER)
    assert str(caught.value).partition("code 1: ")[2] == shown


async def test_spaces_and_quotes_in_names_are_only_characters(
    make_program: MakeProgram, tmp_path: Path, folder: Path
) -> None:
    name = "a 'strange' \"name\" $(exit 9); exit 8"
    program = make_program('[ "$1" = "it\'s; exit 7" ] || exit 5', name=name)
    fabric = CommandFabric([program, "it's; exit 7"], folder / name)
    await fabric.reboot(ORDER._replace(vms=(name,)))
    assert noted(tmp_path)[0]["vms"] == [name]


async def test_the_program_does_not_inherit_that_python_ignores_broken_pipes(
    make_program: MakeProgram, folder: Path
) -> None:
    with pytest.raises(WorkFailed) as caught:
        await CommandFabric([make_program("grep SigIgn /proc/self/status >&2; exit 1")], folder).reboot(ORDER)
    ignored = int(str(caught.value).rpartition("?")[2], 16)
    assert not ignored & 1 << signal.SIGPIPE - 1


async def test_a_bare_name_is_searched_on_the_path(
    make_program: MakeProgram, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program("exit 4", name="true")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(WorkFailed, match="true reboot exited with code 4"):
        await CommandFabric(["true"], folder).reboot(ORDER)


async def test_a_program_that_cannot_start_has_not_begun_and_can_be_repaired(
    make_program: MakeProgram, tmp_path: Path, folder: Path
) -> None:
    path = tmp_path / "program"
    fabric = CommandFabric([str(path)], folder)
    with pytest.raises(
        Unavailable, match=r"the program .*/program does not exist. Install it, or name another program"
    ):
        await fabric.reboot(ORDER)
    make_program()
    path.chmod(0o644)
    with pytest.raises(Unavailable, match=r"is not executable. Run: chmod \+x .*/program"):
        await fabric.reboot(ORDER)
    path.chmod(0o755)
    right = path.read_bytes()
    path.write_bytes(right.replace(b"sh\n", b"sh\r\n", 1))
    with pytest.raises(Unavailable, match=r"begins with #!'/bin/sh\\r', which is not executable"):
        await fabric.reboot(ORDER)
    path.write_bytes(right)
    await fabric.reboot(ORDER)
    assert [order["again"] for order in noted(tmp_path)] == [False]


async def test_a_folder_that_cannot_be_written_is_named(make_program: MakeProgram, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"cannot write orders to .*/file/orders"):
        await CommandFabric([make_program()], tmp_path / "file" / "orders").reboot(ORDER)
    assert noted(tmp_path) == []


@pytest.mark.parametrize("operation", ["", ".", "..", "../up", "a/b", "/etc", "a\0b", "a\n", "-x", "x" * 101])
async def test_no_id_leads_out_of_the_folder(
    make_program: MakeProgram, tmp_path: Path, folder: Path, operation: str
) -> None:
    with pytest.raises(WorkFailed, match="is not a valid operation id"):
        await CommandFabric([make_program()], folder).reboot(ORDER._replace(operation=operation))
    assert noted(tmp_path) == []


async def test_no_program_is_no_fabric(folder: Path) -> None:
    with pytest.raises(Invalid, match="needs a program"):
        CommandFabric([], folder)


# --- The service dies -----------------------------------------------------------------------------


def start_service(program: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SERVICE, program, str(folder), OPERATION])


@pytest.fixture
def killed_service(make_program: MakeProgram, gate: Gate, folder: Path) -> Callable[..., Any]:
    async def kill(does: str = "") -> tuple[str, int]:
        """A service gives the order and is killed while the program is at the gate: the program, and its process."""
        program = make_program(f"{gate.script}; {does}")
        with start_service(program, folder) as service:
            worker = await gate.arrival()
            service.kill()
        assert service.returncode == -signal.SIGKILL
        return program, worker

    return kill


async def test_a_program_that_is_still_at_work_is_waited_for(
    killed_service: Callable[..., Any], gate: Gate, tmp_path: Path, folder: Path
) -> None:
    program, _ = await killed_service("echo 'went wrong' >&2; exit 6")
    fabric = CommandFabric([program], folder)
    await fabric.recover([OPERATION])
    order = asyncio.ensure_future(fabric.reboot(ORDER))
    await until_taken_up(fabric)
    assert not order.done()
    gate.open()
    with pytest.raises(WorkFailed, match="exited with code 6: went wrong"):
        await order
    assert len(noted(tmp_path)) == 1


@pytest.mark.parametrize("code", [0, 6])
async def test_the_result_of_a_program_that_ended_during_downtime_is_used(
    killed_service: Callable[..., Any], gate: Gate, tmp_path: Path, folder: Path, code: int
) -> None:
    program, worker = await killed_service(f"exit {code}")
    shell = os.pidfd_open(parent_of(worker))
    gate.open()
    await has_ended(shell)
    fabric = CommandFabric([program], folder)
    await fabric.recover([OPERATION])
    if code:
        with pytest.raises(WorkFailed, match="exited with code 6"):
            await fabric.reboot(ORDER)
    else:
        await fabric.reboot(ORDER)
    assert len(noted(tmp_path)) == 1


async def test_a_program_that_requested_a_retry_during_downtime_runs_again(
    killed_service: Callable[..., Any], gate: Gate, tmp_path: Path, folder: Path
) -> None:
    program, worker = await killed_service("exit 75")
    shell = os.pidfd_open(parent_of(worker))
    gate.open()
    await has_ended(shell)
    gate.open()
    with pytest.raises(Unavailable, match="requested a retry"):
        await CommandFabric([program], folder).reboot(ORDER)
    assert [order["again"] for order in noted(tmp_path)] == [False, True]


async def test_a_program_that_was_killed_too_runs_again_and_knows_it(
    killed_service: Callable[..., Any], gate: Gate, tmp_path: Path, folder: Path
) -> None:
    program, worker = await killed_service()
    shell = parent_of(worker)
    watched = [os.pidfd_open(process) for process in (shell, worker)]
    for process in watched:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    for process in watched:
        await has_ended(process)
    gate.open()
    await CommandFabric([program], folder).reboot(ORDER)
    assert [order["again"] for order in noted(tmp_path)] == [False, True]


async def test_a_program_whose_shell_was_killed_is_waited_for_and_runs_again(
    killed_service: Callable[..., Any], gate: Gate, tmp_path: Path, folder: Path
) -> None:
    program, worker = await killed_service()
    shell = os.pidfd_open(parent_of(worker))
    os.kill(parent_of(worker), signal.SIGKILL)
    await has_ended(shell)
    fabric = CommandFabric([program], folder)
    order = asyncio.ensure_future(fabric.reboot(ORDER))
    await until_taken_up(fabric)
    assert len(noted(tmp_path)) == 1
    gate.open()
    with pytest.raises(Unavailable, match="left no exit code"):
        await order
    gate.open()
    await fabric.reboot(ORDER)
    assert [order["again"] for order in noted(tmp_path)] == [False, True]


# --- The service stops, and goes on ---------------------------------------------------------------


async def test_an_order_that_is_cancelled_leaves_the_program_at_work_and_finds_it_again(
    make_program: MakeProgram, gate: Gate, tmp_path: Path, folder: Path
) -> None:
    fabric = CommandFabric([make_program(f"{gate.script}; exit 6")], folder)
    cancelled = asyncio.ensure_future(fabric.reboot(ORDER))
    worker = await gate.arrival()
    shell = parent_of(worker)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    os.kill(worker, 0)
    order = asyncio.ensure_future(fabric.reboot(ORDER))
    await until_taken_up(fabric)
    gate.open()
    with pytest.raises(WorkFailed, match="exited with code 6"):
        await order
    await has_no_child_left(fabric, shell)
    assert len(noted(tmp_path)) == 1


async def has_no_child_left(fabric: CommandFabric, shell: int) -> None:
    """The exit code is written shortly before the shell ends. The next call of the fabric reaps the shell."""
    if fabric._children:
        await has_ended(os.pidfd_open(shell))
        await fabric.recover([OPERATION])
    assert not fabric._children
    with pytest.raises(ProcessLookupError):
        os.kill(shell, 0)


async def test_an_end_is_noticed_at_once_and_its_process_reaped(
    make_program: MakeProgram, gate: Gate, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_POLL_SECONDS", 3600)
    monkeypatch.setattr(command, "_CHILD_POLL_SECONDS", 3600)
    fabric = CommandFabric([make_program(gate.script)], folder)
    order = asyncio.ensure_future(fabric.reboot(ORDER))
    shell = parent_of(await gate.arrival())
    assert os.getsid(shell) == shell  # what is typed into the service's terminal does not reach it
    gate.open()
    async with asyncio.timeout(LONGEST_WAIT_SECONDS):
        await order
    assert not fabric._children
    with pytest.raises(ProcessLookupError):
        os.kill(shell, 0)


async def test_a_running_second_run_is_found_like_a_first(
    make_program: MakeProgram, gate: Gate, tmp_path: Path, folder: Path
) -> None:
    fabric = CommandFabric([make_program(f'case "$order" in *false*) exit 75;; esac; {gate.script}')], folder)
    with pytest.raises(Unavailable, match="requested a retry"):
        await fabric.reboot(ORDER)
    cancelled = asyncio.ensure_future(fabric.reboot(ORDER))
    await gate.arrival()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    order = asyncio.ensure_future(fabric.reboot(ORDER))
    await until_taken_up(fabric)
    gate.open()
    gate.open()
    await order
    assert [order["again"] for order in noted(tmp_path)] == [False, True]


async def test_an_order_given_twice_at_once_starts_once(
    make_program: MakeProgram, gate: Gate, tmp_path: Path, folder: Path
) -> None:
    fabric = CommandFabric([make_program(gate.script)], folder)
    both = asyncio.gather(fabric.reboot(ORDER), fabric.reboot(ORDER))
    await gate.arrival()
    await until_taken_up(fabric)
    gate.open()
    await both
    assert len(noted(tmp_path)) == 1


async def test_children_that_a_program_leaves_are_not_waited_for(
    make_program: MakeProgram, gate: Gate, tmp_path: Path, folder: Path
) -> None:
    program = make_program(f"( {gate.script} ) & exit 75")
    fabric = CommandFabric([program], folder)
    for _ in range(2):  # the second run needs a lock although the first one's is still held
        async with asyncio.timeout(LONGEST_WAIT_SECONDS):
            with pytest.raises(Unavailable, match="requested a retry"):
                await fabric.reboot(ORDER)
    assert [order["again"] for order in noted(tmp_path)] == [False, True]
    await fabric.recover([])
    assert journals(folder) == set()


async def test_recover_removes_ended_orders_and_keeps_running_ones(
    make_program: MakeProgram, gate: Gate, folder: Path
) -> None:
    done, unfinished, at_work = "done", "unfinished", "at-work"
    fabric = CommandFabric([make_program(f'case "$order" in *{at_work}*) {gate.script};; esac')], folder)
    await fabric.reboot(ORDER._replace(operation=done))
    (folder / "a-file-of-somebody").touch()
    await fabric.reboot(ORDER._replace(operation=unfinished))
    order = asyncio.ensure_future(fabric.reboot(ORDER._replace(operation=at_work)))
    await gate.arrival()
    await fabric.recover([unfinished])
    assert journals(folder) == {"a-file-of-somebody", unfinished, at_work}
    gate.open()
    await order
    await fabric.recover([])
    assert journals(folder) == {"a-file-of-somebody"}


async def test_only_journals_that_are_no_longer_needed_are_removed(
    make_program: MakeProgram, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_MAX_ENDED_ORDERS", 3)
    fabric = CommandFabric([make_program('case "$order" in *later*) exit 75;; esac')], folder)
    with pytest.raises(Unavailable):
        await fabric.reboot(ORDER._replace(operation="later"))
    for number in range(12):
        await fabric.reboot(ORDER._replace(operation=f"op-{number}"))
    assert journals(folder) == {"later", "op-9", "op-10", "op-11"}
    with pytest.raises(Unavailable):
        await fabric.reboot(ORDER._replace(operation="later"))
    assert noted(tmp_path)[-1]["again"] is True


# --- Looking at a machine -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("does", "machine"),
    [
        ("""echo '{"running": true, "boots": 3}'""", MachineState("web 0", running=True, boots=3)),
        ("""echo '{"running": false, "more": []}'""", MachineState("web 0", running=False, boots=1)),
        ("echo 'usage: ...' >&2; exit 64", MachineState("web 0", running=True, boots=1)),
    ],
    ids=["all", "no-boots", "cannot-tell"],
)
async def test_the_program_decides_the_state_of_a_machine(
    make_program: MakeProgram, tmp_path: Path, folder: Path, does: str, machine: MachineState
) -> None:
    assert (
        await CommandFabric([make_program(f'[ "$1" = inspect ] || exit 9\n{does}')], folder).inspect("web 0") == machine
    )
    assert noted(tmp_path) == [{"verb": "inspect", "vm": "web 0"}]


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("", "wrote ''"),
        ("echo running", "wrote 'running'"),
        ("echo '[true]'", r"wrote '\[true\]'"),
        ("echo '{}'", "wrote '{}'"),
        ("""echo '{"running": 1}'""", "wrote"),
        ("""echo '{"running": true, "boots": "3"}'""", "wrote"),
        ("""echo '{"running": true, "boots": true}'""", "wrote"),
        ("""echo '{"running": true}{"running": true}'""", "wrote"),
        ("head -c 3000000 /dev/urandom", "wrote"),
        ("head -c 3000000 /dev/zero | tr '\\0' '['", "wrote"),
        ("echo 'no such host' >&2; exit 1", "exited with code 1: no such host"),
        ("kill -9 $$", "exited with code -9"),
    ],
)
async def test_invalid_output_is_an_error_with_the_expected_form(
    make_program: MakeProgram, folder: Path, does: str, problem: str
) -> None:
    with pytest.raises(Unavailable, match=f"program inspect {problem}") as caught:
        await CommandFabric([make_program(does)], folder).inspect("web-0")
    assert 'expected exit code 0 and one JSON object on standard output, like {"running": true' in str(caught.value)
    assert len(str(caught.value)) < 3000
    assert str(caught.value).isprintable()


async def test_a_look_that_takes_too_long_is_ended_with_all_that_it_started(
    make_program: MakeProgram, gate: Gate, tmp_path: Path, folder: Path
) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    program = make_program(f"exec 7>{shlex.quote(str(held))}; sh -c {shlex.quote(gate.script)}; true")
    with pytest.raises(Unavailable, match=r"took longer than 0.3 s; expected exit code 0"):
        await CommandFabric([program], folder, inspect_seconds=0.3).inspect("web-0")
    try:
        # While anything that the program started lives, the pipe has a writer.
        assert os.read(reader, 1) == b""
    except BlockingIOError:
        ready, _, _ = await asyncio.to_thread(select.select, [reader], [], [], LONGEST_WAIT_SECONDS)
        assert ready, "something of the program goes on"
    finally:
        os.close(reader)


async def test_a_look_that_is_cancelled_leaves_nothing_behind(
    make_program: MakeProgram, gate: Gate, folder: Path
) -> None:
    look = asyncio.ensure_future(CommandFabric([make_program(gate.script)], folder).inspect("web-0"))
    program = os.pidfd_open(await gate.arrival())
    look.cancel()
    with pytest.raises(asyncio.CancelledError):
        await look
    await has_ended(program)


async def test_an_observation_with_a_missing_program_is_an_error(folder: Path) -> None:
    with pytest.raises(Unavailable, match="the program forewarn-nowhere does not exist"):
        await CommandFabric(["forewarn-nowhere"], folder).inspect("web-0")

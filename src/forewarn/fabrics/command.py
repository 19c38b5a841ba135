"""Fabric that runs an operator's program once for each order, with the order as JSON on standard input.

Each order has a folder on disk, so that the service finds the running program again after a crash.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from forewarn.core.event_types import Verb
from forewarn.errors import Invalid, Unavailable, WorkFailed
from forewarn.ports import MachineState
from forewarn.system.child_process import ChildProcess
from forewarn.system.files import sync_folder, write_atomically
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from forewarn.ports import PlacedVMs, WorkOrder


_log = get_logger(__name__)


class WorkResult(NamedTuple):
    """Result of a program; without an exit code if its shell was killed too."""

    code: int | None
    last_line: str
    """Of its error output."""
    output: bytes = b""
    """The last line of its output."""


class OrderFolder:
    """The folder of one order. Its methods block on disk I/O."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._order = folder / "order.json"
        self._errors = folder / "errors"
        self._output = folder / "output"
        self._child = ChildProcess(folder / "lock", folder / "exit")

    def is_running(self) -> bool:
        """Return whether the program is running. Its children may keep the lock, so an exit code counts."""
        return self._child.is_held() and self._child.exit_code() is None

    def is_final(self) -> bool:
        """Return whether it has ended and must not run again. Call only when it is not running."""
        return self._child.exit_code() not in (None, os.EX_TEMPFAIL)

    def result(self) -> WorkResult:
        """Return the result. Call only when it is not running: the exit code is written before the lock is released."""
        found = []
        for path in (self._errors, self._output):
            try:
                with path.open("rb") as file:
                    found.append(_last_line(file))
            except FileNotFoundError:
                found.append(b"")
        return WorkResult(self._child.exit_code(), _printable(found[0]), found[1])

    def start_program(self, command: Sequence[str], order: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Write the order to disk, start the program, and return its process.

        Does not use asyncio, which kills child processes when its transports are closed.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        again = self._order.exists()
        write_atomically(self._order, json.dumps(order | {"again": again}).encode() + b"\n")
        for folder in (self._folder.parent, self._folder.parent.parent):
            sync_folder(folder)
        for file in (self._output, self._errors):
            file.unlink(missing_ok=True)
            file.touch(0o600)
        with self._output.open("ab") as stream:
            return self._child.start(
                self._child.take_lock({}),
                command,
                input_file=self._order,
                errors_file=self._errors,
                survives_signals=False,  # a shutdown ends both, and the order runs again
                stdout=stream,
                stderr=subprocess.DEVNULL,  # hides "Killed" of the shell from the program's errors
            )

    def remove(self) -> None:
        """Remove the folder. Errors are ignored."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def remove_if_final(self) -> bool:
        """Remove the folder of an ended order; return whether it is gone. A retry needs it to set `again`."""
        if self._order.exists() and not self.is_final():
            return False
        self.remove()
        return True


# --- The program ----------------------------------------------------------------------------------


INSPECT_SECONDS = 60.0
_INSPECTIONS_AT_ONCE = 8
"""Limits the number of programs when a whole fleet is inspected."""
_READ_BACK_BYTES = 64 * 1024
_MAX_LINE_LENGTH = 500
_EXPECTED = (
    'expected exit code 0 and one JSON object on standard output, like {"running": true, "boots": 3}, '
    f"or exit code {os.EX_USAGE} if the program does not support inspect"
)


class OperatorProgram:
    """The operator's program."""

    def __init__(self, command: Sequence[str], inspect_seconds: float) -> None:
        if not command:
            raise Invalid(problem="the command fabric needs a program. Name an executable file.")
        self._command = tuple(command)
        self._inspect_seconds = inspect_seconds
        self._inspections = asyncio.Semaphore(_INSPECTIONS_AT_ONCE)

    def __str__(self) -> str:
        return self._command[0]

    def command_line(self, verb: str) -> list[str]:
        """Return the command line. Raises Unavailable if the program cannot be started, because that can be fixed."""
        path = shutil.which(self._command[0])
        if path is None:
            exists = Path(self._command[0]).exists()
            wrong = f"{self} is not executable" if exists else f"the program {self} does not exist"
            right = f"Run: chmod +x {self}" if exists else "Install it, or name another program"
            raise Unavailable(problem=f"{wrong}. {right}")
        interpreter = _interpreter(path)
        if interpreter and not os.access(interpreter, os.X_OK):
            wrong = f"{self} begins with #!{interpreter!r}, which is not executable"
            raise Unavailable(problem=f"{wrong}. Install the interpreter, or correct the first line of the program")
        # The full path, so that the shell executes the file that was checked.
        return [str(Path(path).absolute()), *self._command[1:], verb]

    async def inspect(self, vm: str) -> MachineState:
        """Return the state that the program reports. Programs without inspect count as running."""
        async with self._inspections:
            try:
                code, stdout, error_line = await self._run_inspect({"verb": "inspect", "vm": vm})
            except OSError as error:
                raise Unavailable(problem=f"cannot run {self} inspect ({error})") from error
        if code == os.EX_USAGE:
            return MachineState(vm, running=True, boots=1)
        machine = _read_machine(vm, stdout) if code == 0 else None
        if machine is None:
            found = (
                f"wrote {_printable(stdout)!r}"
                if code == 0
                else f"exited with code {code}: {error_line or '(no output)'}"
            )
            raise Unavailable(problem=f"{self} inspect {found}; {_EXPECTED}")
        return machine

    async def _run_inspect(self, request: dict[str, str]) -> tuple[int, bytes, str]:
        """Run `inspect`. Uses files instead of pipes, so that the program cannot block the service."""
        command = self.command_line("inspect")
        with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.seek(0)
            process = await asyncio.create_subprocess_exec(
                *command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            )
            try:
                async with asyncio.timeout(self._inspect_seconds):
                    code = await process.wait()
            except TimeoutError:
                problem = f"{self} inspect took longer than {self._inspect_seconds:g} s; {_EXPECTED}"
                raise Unavailable(problem=problem) from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
            stdout.seek(0)
            return code, stdout.read(_READ_BACK_BYTES), last_line(stderr)


def last_line(file: IO[bytes]) -> str:
    """Return the last non-empty line, shortened and without control characters."""
    return _printable(_last_line(file))


def _last_line(file: IO[bytes]) -> bytes:
    """Return the last non-empty line."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BACK_BYTES))
    lines = [line for line in file.read(_READ_BACK_BYTES).splitlines() if line.strip()]
    return lines[-1] if lines else b""


def _printable(text: bytes) -> str:
    """Return printable text, safe for terminals and logs."""
    shown = text.decode("utf-8", "replace").strip()[:_MAX_LINE_LENGTH]
    return "".join(character if character.isprintable() else "?" for character in shown)


def _interpreter(path: str) -> str:
    """Return the interpreter of a script. If it is missing, a shell reports the script itself as not found."""
    try:
        with Path(path).open("rb") as file:
            first = file.readline(256)
    except OSError:  # it may be executable without being readable
        return ""
    # Keep a carriage return: with Windows line ends it is part of the interpreter's name.
    return os.fsdecode(first[2:].strip(b" \t\n").replace(b"\t", b" ").split(b" ")[0]) if first[:2] == b"#!" else ""


def _read_hosts(line: bytes) -> dict[str, str]:
    """Return the hosts in the last line of the output. Other output means nothing. Raises ValueError if it is wrong."""
    if not line.startswith(b"{"):
        return {}
    try:
        found = json.loads(line)
    except RecursionError as error:
        raise ValueError from error
    hosts = found.get("hosts", {})
    if not isinstance(hosts, dict) or not all(isinstance(host, str) for host in hosts.values()):
        raise ValueError
    return hosts


def _read_machine(vm: str, stdout: bytes) -> MachineState | None:
    try:
        found = json.loads(stdout)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    running, boots = found.get("running"), found.get("boots", 1)
    if not isinstance(running, bool) or not isinstance(boots, int) or isinstance(boots, bool):
        return None
    return MachineState(vm, running, boots)


# --- The fabric -----------------------------------------------------------------------------------


T = TypeVar("T")

_POLL_SECONDS = 0.2
_CHILD_POLL_SECONDS = 5.0
"""Polling interval for own children, in case the exit notification is lost."""
_MAX_ENDED_ORDERS = 1000
_CHECKED_FOR_REMOVAL = 8
"""Old folders to check for each new order; some must be kept."""
_SAFE_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")


class CommandFabric:
    """Executes orders with a program. Each order has its own folder below `folder`."""

    makes_hosts = False

    def __init__(self, program: Sequence[str], folder: Path, *, inspect_seconds: float = INSPECT_SECONDS) -> None:
        self._program = OperatorProgram(program, inspect_seconds)
        self._folder = folder.absolute()
        # One thread for all folders: disk I/O blocks, and a repeated order must not start twice.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="command-fabric")
        self._children: set[subprocess.Popen[bytes]] = set()
        self._released: dict[str, None] = {}
        """Orders without a waiting caller, oldest first."""

    async def inspect(self, vm: str) -> MachineState:
        return await self._program.inspect(vm)

    async def freeze(self, order: WorkOrder) -> None:
        await self._execute(Verb.FREEZE, order)

    async def migrate(self, order: WorkOrder) -> PlacedVMs:
        return await self._place(Verb.MIGRATE, order)

    async def reboot(self, order: WorkOrder) -> None:
        await self._execute(Verb.REBOOT, order)

    async def redeploy(self, order: WorkOrder) -> PlacedVMs:
        return await self._place(Verb.REDEPLOY, order)

    async def reimage(self, order: WorkOrder) -> None:
        await self._execute(Verb.REIMAGE, order)

    async def deallocate(self, order: WorkOrder) -> None:
        await self._execute(Verb.DEALLOCATE, order)

    async def start(self, order: WorkOrder) -> PlacedVMs:
        return await self._place(Verb.START, order)

    async def delete(self, order: WorkOrder) -> None:
        await self._execute(Verb.DELETE, order)

    async def recover(self, unfinished: Sequence[str]) -> None:
        """Remove the folders of ended orders. Unfinished orders are given again, and continue from their folders."""
        await self._in_thread(self._remove_ended, frozenset(unfinished))

    async def events(self) -> AsyncIterator[str]:
        await asyncio.Event().wait()  # the program reports only when it is called
        yield ""  # never reached; makes this an async generator

    async def _place(self, verb: Verb, order: WorkOrder) -> PlacedVMs:
        """Execute an order that brings VMs to hosts. Returns the hosts that the program reports."""
        end = await self._execute(verb, order)
        try:
            return _read_hosts(end.output)
        except ValueError:
            _log.warning(
                "reported_hosts_ignored",
                "The program reported hosts in a wrong form. The VMs are listed on the hosts of the order. Expected as "
                'the last line of its output: {"hosts": {"VM": "HOST"}}',
                operation_id=order.operation,
                output=_printable(end.output),
            )
            return None

    async def _execute(self, verb: Verb, order: WorkOrder) -> WorkResult:
        """Execute an order. If it is cancelled, the program keeps running, and the same order finds it again."""
        if not _SAFE_ID.fullmatch(order.operation):
            raise WorkFailed(problem=f"{order.operation!r} is not a valid operation id; expected an id like a UUID")
        folder = OrderFolder(self._folder / order.operation)
        await self._remove_old_folders()
        self._released.pop(order.operation, None)
        try:
            child = await self._in_thread(self._start_or_find, folder, verb, order)
            end = None if child else await self._in_thread(self._check_result, folder)
            while end is None:
                await _wait_for_end(child)
                end = await self._in_thread(self._check_result, folder)
        finally:
            self._released[order.operation] = None
        if end.code != 0:
            raise _failure(f"{self._program} {verb}", end)
        return end

    async def _remove_old_folders(self) -> None:
        """Limit the number of folders of ended orders, which are kept in case an order is repeated."""
        for _ in range(_CHECKED_FOR_REMOVAL):
            if len(self._released) <= _MAX_ENDED_ORDERS:
                return
            oldest = next(iter(self._released))
            del self._released[oldest]
            gone = False
            try:
                gone = await self._in_thread(OrderFolder(self._folder / oldest).remove_if_final)
            finally:
                if not gone:
                    self._released[oldest] = None

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
        except OSError as error:
            problem = f"cannot write orders to {self._folder} ({error}). It must be a writable folder"
            raise Unavailable(problem=problem) from error

    # --- In the thread --------------------------------------------------------------------------------

    def _start_or_find(self, folder: OrderFolder, verb: Verb, order: WorkOrder) -> subprocess.Popen[bytes] | None:
        """Start the program and return its process; None if an earlier run is active or has ended."""
        self._reap()
        if folder.is_running() or folder.is_final():
            return None
        command = self._program.command_line(
            verb
        )  # before anything is written: a program that cannot start has not begun
        child = folder.start_program(command, _order_as_json(verb, order))
        self._children.add(child)
        return child

    def _check_result(self, folder: OrderFolder) -> WorkResult | None:
        self._reap()
        return None if folder.is_running() else folder.result()

    def _reap(self) -> None:
        """Reap ended children, including those of cancelled orders."""
        self._children = {child for child in self._children if child.poll() is None}

    def _remove_ended(self, unfinished: frozenset[str]) -> None:
        self._reap()
        for path in self._folder.glob("*"):
            if path.name in unfinished or not _SAFE_ID.fullmatch(path.name) or not path.is_dir():
                continue
            folder = OrderFolder(path)
            if not folder.is_running():
                folder.remove()


async def _wait_for_end(child: subprocess.Popen[bytes] | None) -> None:
    """Wait until the own child ends, or for a short time if there is none."""
    try:
        watched = os.pidfd_open(child.pid) if child and child.returncode is None else None
    except OSError:  # already reaped while its children are running, or an old kernel
        watched = None
    if watched is None:
        await asyncio.sleep(_POLL_SECONDS)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(watched, ended.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHILD_POLL_SECONDS):
                await ended.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def _order_as_json(verb: Verb, order: WorkOrder) -> dict[str, Any]:
    """Return the order as JSON for the program."""
    return {
        "verb": verb,
        "operation": order.operation,
        "cause": order.cause,
        "vms": list(order.vms),
        "host": order.host or None,
        "moves": dict(order.moves),
        "duration_seconds": order.duration.total_seconds() if order.duration is not None else None,
    }


def _failure(name: str, end: WorkResult) -> Unavailable | WorkFailed:
    if end.code is None:
        return Unavailable(problem=f"{name} was killed and left no exit code; it runs again with 'again' set to true")
    last_line = end.last_line or "no error output"
    if end.code == os.EX_TEMPFAIL:
        return Unavailable(problem=f"{name} requested a retry: {last_line}")
    by_signal = f" (signal {end.code - 128})" if 128 < end.code < 128 + signal.NSIG else ""
    return WorkFailed(problem=f"{name} exited with code {end.code}{by_signal}: {last_line}")

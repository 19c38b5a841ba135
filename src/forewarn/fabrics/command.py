"""The operator's program does the work: it runs once for each order, with the order on standard input.

Enough is on disk of each order to find its program again after the service was killed.
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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from forewarn.ports import WorkOrder


class WorkResult(NamedTuple):
    """How a run ended; without a code where the shell was killed too."""

    code: int | None
    last_line: str


class OrderFolder:
    """One order's folder. It blocks: a disk is waited for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._order = folder / "order.json"
        self._errors = folder / "errors"
        self._child = ChildProcess(folder / "lock", folder / "exit")

    def at_work(self) -> bool:
        """Whether the program runs. What it leaves running may keep the lock: with an exit code it is over."""
        return self._child.is_held() and self._child.exit_code() is None

    def over(self) -> bool:
        """Whether it has ended so that it is not to be run again. Ask when it is no longer at work."""
        return self._child.exit_code() not in (None, os.EX_TEMPFAIL)

    def end(self) -> WorkResult:
        """How it ended. Ask when it is no longer at work: the exit code is there before the lock is let go of."""
        try:
            with self._errors.open("rb") as errors:
                said = last_line(errors)
        except FileNotFoundError:
            said = ""
        return WorkResult(self._child.exit_code(), said)

    def begin(self, command: Sequence[str], order: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Note that it begins, start it, and return its process. What is noted is on disk before it starts.

        Not by asyncio, which kills the processes that it lets go of.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        again = self._order.exists()
        write_atomically(self._order, json.dumps(order | {"again": again}).encode() + b"\n")
        for folder in (self._folder.parent, self._folder.parent.parent):
            sync_folder(folder)
        output = self._folder / "output"
        for file in (output, self._errors):
            file.unlink(missing_ok=True)
            file.touch(0o600)
        with output.open("ab") as stream:
            return self._child.start(
                self._child.take_lock({}),
                command,
                input_file=self._order,
                errors_file=self._errors,
                survives_signals=False,  # a machine that shuts down ends both: then the order is run again
                stdout=stream,
                stderr=subprocess.DEVNULL,  # the shell's own "Killed" must not be taken for the program's last word
            )

    def remove(self) -> None:
        """What cannot be removed is in nobody's way."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def remove_if_over(self) -> bool:
        """Whether nothing is left of it. What may be ordered again must then still know that it had begun."""
        if self._order.exists() and not self.over():
            return False
        self.remove()
        return True


# --- The program ----------------------------------------------------------------------------------


INSPECT_SECONDS = 60.0
_INSPECTIONS_AT_ONCE = 8
"""A whole fleet may be looked at together; its programs need not all run together."""
_READ_BACK_BYTES = 64 * 1024
_LONGEST_LINE = 500
_EXPECTED = (
    'expected exit code 0 and one JSON object on standard output, like {"running": true, "boots": 3}, '
    f"or exit code {os.EX_USAGE} if the program does not support inspect"
)


class OperatorProgram:
    """What the operator has given us to run."""

    def __init__(self, words: Sequence[str], inspect_seconds: float) -> None:
        if not words:
            raise Invalid(problem="the command fabric needs a program. Name an executable file.")
        self._words = tuple(words)
        self._inspect_seconds = inspect_seconds
        self._inspections = asyncio.Semaphore(_INSPECTIONS_AT_ONCE)

    def __str__(self) -> str:
        return self._words[0]

    def command_line(self, verb: str) -> list[str]:
        """Everything that is executed. What keeps it from being started may be mended: Unavailable."""
        path = shutil.which(self._words[0])
        if path is None:
            exists = Path(self._words[0]).exists()
            wrong = f"{self} is not executable" if exists else f"the program {self} does not exist"
            right = f"Run: chmod +x {self}" if exists else "Install it, or name another program"
            raise Unavailable(problem=f"{wrong}. {right}")
        interpreter = _interpreter(path)
        if interpreter and not os.access(interpreter, os.X_OK):
            wrong = f"{self} begins with #!{interpreter!r}, which is not executable"
            raise Unavailable(problem=f"{wrong}. Install the interpreter, or correct the first line of the program")
        # The whole path: what was looked at here is what the shell executes.
        return [str(Path(path).absolute()), *self._words[1:], verb]

    async def inspect(self, vm: str) -> MachineState:
        """What the program says of a machine. Not every program can tell; then it counts as running."""
        async with self._inspections:
            try:
                code, said, complaint = await self._ask({"verb": "inspect", "vm": vm})
            except OSError as error:
                raise Unavailable(problem=f"cannot run {self} inspect ({error})") from error
        if code == os.EX_USAGE:
            return MachineState(vm, running=True, boots=1)
        machine = _read_machine(vm, said) if code == 0 else None
        if machine is None:
            found = (
                f"wrote {_harmless(said)!r}" if code == 0 else f"exited with code {code}: {complaint or '(no output)'}"
            )
            raise Unavailable(problem=f"{self} inspect {found}; {_EXPECTED}")
        return machine

    async def _ask(self, question: dict[str, str]) -> tuple[int, bytes, str]:
        """Files instead of pipes: nothing can block or break, whatever the program does with them."""
        command = self.command_line("inspect")
        with TemporaryFile() as asked, TemporaryFile() as said, TemporaryFile() as complained:
            asked.write(json.dumps(question).encode() + b"\n")
            asked.seek(0)
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asked, stdout=said, stderr=complained, start_new_session=True
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
            said.seek(0)
            return code, said.read(_READ_BACK_BYTES), last_line(complained)


def last_line(file: IO[bytes]) -> str:
    """The last line with something in it, short enough and safe to be shown."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BACK_BYTES))
    lines = [line for line in file.read(_READ_BACK_BYTES).splitlines() if line.strip()]
    return _harmless(lines[-1]) if lines else ""


def _harmless(text: bytes) -> str:
    """Without what would move the cursor of a terminal or break a line of a log."""
    shown = text.decode("utf-8", "replace").strip()[:_LONGEST_LINE]
    return "".join(character if character.isprintable() else "?" for character in shown)


def _interpreter(path: str) -> str:
    """What a script's first line names. A shell would only say that the script itself was not found."""
    try:
        with Path(path).open("rb") as file:
            first = file.readline(256)
    except OSError:  # it may be executed without being readable
        return ""
    # Not any white space: a line that ends as on Windows names an interpreter that ends in a carriage return.
    return os.fsdecode(first[2:].strip(b" \t\n").replace(b"\t", b" ").split(b" ")[0]) if first[:2] == b"#!" else ""


def _read_machine(vm: str, said: bytes) -> MachineState | None:
    try:
        found = json.loads(said)
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

_LOOK_EVERY_SECONDS = 0.2
_LOOK_AT_CHILD_SECONDS = 5.0
"""Our own child tells when it ends. Looking all the same makes a word that was lost cost only this."""
_KEPT_JOURNALS = 1000
_TRIES_TO_MAKE_ROOM = 8
"""For each order: more than one, because a journal that is looked at may have to stay."""
_SAFE_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")


class CommandFabric:
    """Orders carried out by a program; each is noted in a folder of its own below `folder`."""

    makes_hosts = False

    def __init__(self, program: Sequence[str], folder: Path, *, inspect_seconds: float = INSPECT_SECONDS) -> None:
        self._program = OperatorProgram(program, inspect_seconds)
        self._folder = folder.absolute()
        # One thread for all journals: disks block, and one order given twice at once must not begin twice.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="command-fabric")
        self._children: set[subprocess.Popen[bytes]] = set()
        self._let_go: dict[str, None] = {}
        """Orders that nobody waits for, the one that was left longest ago first."""

    async def inspect(self, vm: str) -> MachineState:
        return await self._program.inspect(vm)

    async def freeze(self, order: WorkOrder) -> None:
        await self._carry_out(Verb.FREEZE, order)

    async def migrate(self, order: WorkOrder) -> None:
        await self._carry_out(Verb.MIGRATE, order)

    async def reboot(self, order: WorkOrder) -> None:
        await self._carry_out(Verb.REBOOT, order)

    async def redeploy(self, order: WorkOrder) -> None:
        await self._carry_out(Verb.REDEPLOY, order)

    async def deallocate(self, order: WorkOrder) -> None:
        await self._carry_out(Verb.DEALLOCATE, order)

    async def start(self, order: WorkOrder) -> None:
        await self._carry_out(Verb.START, order)

    async def delete(self, order: WorkOrder) -> None:
        await self._carry_out(Verb.DELETE, order)

    async def recover(self, unfinished: Sequence[str]) -> None:
        """Forget what is over. What goes on is ordered again, and its journal says how far it came."""
        await self._in_thread(self._forget_all_but, frozenset(unfinished))

    async def events(self) -> AsyncIterator[str]:
        await asyncio.Event().wait()  # the program speaks only when it is asked
        yield ""  # is never reached; it makes this an iterator

    async def _carry_out(self, verb: Verb, order: WorkOrder) -> None:
        """Cancelled, it leaves the program at its work; the same order finds it again."""
        if not _SAFE_ID.fullmatch(order.operation):
            raise WorkFailed(problem=f"{order.operation!r} is not a valid operation id; expected an id like a UUID")
        journal = OrderFolder(self._folder / order.operation)
        await self._make_room()
        self._let_go.pop(order.operation, None)
        try:
            child = await self._in_thread(self._take_up, journal, verb, order)
            end = None if child else await self._in_thread(self._look, journal)
            while end is None:
                await _until_it_may_have_ended(child)
                end = await self._in_thread(self._look, journal)
        finally:
            self._let_go[order.operation] = None
        if end.code != 0:
            raise _failure(f"{self._program} {verb}", end)

    async def _make_room(self) -> None:
        """Journals of what is over stay in case the same is ordered again, but not without end."""
        for _ in range(_TRIES_TO_MAKE_ROOM):
            if len(self._let_go) <= _KEPT_JOURNALS:
                return
            oldest = next(iter(self._let_go))
            del self._let_go[oldest]
            gone = False
            try:
                gone = await self._in_thread(OrderFolder(self._folder / oldest).remove_if_over)
            finally:
                if not gone:
                    self._let_go[oldest] = None

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
        except OSError as error:
            problem = f"cannot write orders to {self._folder} ({error}). It must be a writable folder"
            raise Unavailable(problem=problem) from error

    # --- In the thread --------------------------------------------------------------------------------

    def _take_up(self, journal: OrderFolder, verb: Verb, order: WorkOrder) -> subprocess.Popen[bytes] | None:
        """Start the program and return its process; None if an earlier run is at work or has ended for good."""
        self._reap()
        if journal.at_work() or journal.over():
            return None
        command = self._program.command_line(verb)  # before anything is noted: what cannot start has not begun
        child = journal.begin(command, _in_words(verb, order))
        self._children.add(child)
        return child

    def _look(self, journal: OrderFolder) -> WorkResult | None:
        self._reap()
        return None if journal.at_work() else journal.end()

    def _reap(self) -> None:
        """Children that ended, also those whose order was cancelled meanwhile."""
        self._children = {child for child in self._children if child.poll() is None}

    def _forget_all_but(self, unfinished: frozenset[str]) -> None:
        self._reap()
        for folder in self._folder.glob("*"):
            if folder.name in unfinished or not _SAFE_ID.fullmatch(folder.name) or not folder.is_dir():
                continue
            journal = OrderFolder(folder)
            if not journal.at_work():
                journal.remove()


async def _until_it_may_have_ended(child: subprocess.Popen[bytes] | None) -> None:
    """Until our own child ends, which the kernel tells at once; else for a moment."""
    try:
        watched = os.pidfd_open(child.pid) if child and child.returncode is None else None
    except OSError:  # it is reaped already, but not all that it started has ended; or the kernel is an old one
        watched = None
    if watched is None:
        await asyncio.sleep(_LOOK_EVERY_SECONDS)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(watched, ended.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AT_CHILD_SECONDS):
                await ended.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def _in_words(verb: Verb, order: WorkOrder) -> dict[str, Any]:
    """The order as the program reads it."""
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
        return Unavailable(problem=f"{name} asked to be retried later: {last_line}")
    by_signal = f" (signal {end.code - 128})" if 128 < end.code < 128 + signal.NSIG else ""
    return WorkFailed(problem=f"{name} exited with code {end.code}{by_signal}: {last_line}")

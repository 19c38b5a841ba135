"""The operator's program: how it is started, how it is asked about a machine, and how its words are read."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

from forewarn.errors import Invalid, Unavailable
from forewarn.ports import Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

INSPECT_SECONDS = 60.0
_INSPECTIONS_AT_ONCE = 8
"""A whole fleet may be looked at together; its programs need not all run together."""
_READ_BACK_BYTES = 64 * 1024
_LONGEST_LINE = 500
_EXPECTED = (
    'expected exit code 0 and one JSON object on standard output, like {"running": true, "boots": 3}, '
    f"or exit code {os.EX_USAGE} where the program cannot tell"
)


class Program:
    """What the operator has given us to run."""

    def __init__(self, words: Sequence[str], inspect_seconds: float) -> None:
        if not words:
            raise Invalid(problem="the command fabric needs a program. Name one that can be executed.")
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
            wrong = f"{self} is not an executable file" if exists else f"there is no program {self}"
            right = f"Make it one with: chmod +x {self}" if exists else "Install it, or name one that exists"
            raise Unavailable(problem=f"{wrong}. {right}")
        interpreter = _interpreter(path)
        if interpreter and not os.access(interpreter, os.X_OK):
            wrong = f"{self} begins with #!{interpreter!r}, which cannot be executed"
            raise Unavailable(problem=f"{wrong}. Install that, or mend the program's first line")
        # The whole path: what was looked at here is what the shell executes.
        return [str(Path(path).absolute()), *self._words[1:], verb]

    async def inspect(self, vm: str) -> Machine:
        """What the program says of a machine. Not every program can tell; then it counts as running."""
        async with self._inspections:
            try:
                code, said, complaint = await self._ask({"verb": "inspect", "vm": vm})
            except OSError as error:
                raise Unavailable(problem=f"{self} inspect could not be run ({error})") from error
        if code == os.EX_USAGE:
            return Machine(vm, running=True, boots=1)
        machine = _read_machine(vm, said) if code == 0 else None
        if machine is None:
            found = f"wrote {_harmless(said)!r}" if code == 0 else f"ended with code {code}: {complaint or '(no word)'}"
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


def _read_machine(vm: str, said: bytes) -> Machine | None:
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    running, boots = found.get("running"), found.get("boots", 1)
    if not isinstance(running, bool) or not isinstance(boots, int) or isinstance(boots, bool):
        return None
    return Machine(vm, running, boots)

"""A program of the operator's does the work: it is run once for each order, with the order on standard input.

The program outlives the service, and is known by files alone: a service that was killed and started again
finds it as it would have found it anyway. Exit code 0 means done, 75 (EX_TEMPFAIL) not now; any other, failed.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.errors import Unavailable, WorkFailed
from forewarn.fabrics.command.journal import End, Journal
from forewarn.fabrics.command.program import INSPECT_SECONDS, Program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from forewarn.ports import Machine, Order

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
        self._program = Program(program, inspect_seconds)
        self._folder = folder.absolute()
        # One thread for all journals: disks block, and one order given twice at once must not begin twice.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="command-fabric")
        self._children: set[int] = set()
        self._let_go: dict[str, None] = {}
        """Orders that nobody waits for, the one that was left longest ago first."""

    async def inspect(self, vm: str) -> Machine:
        return await self._program.inspect(vm)

    async def freeze(self, order: Order) -> None:
        await self._carry_out("freeze", order)

    async def migrate(self, order: Order) -> None:
        await self._carry_out("migrate", order)

    async def reboot(self, order: Order) -> None:
        await self._carry_out("reboot", order)

    async def redeploy(self, order: Order) -> None:
        await self._carry_out("redeploy", order)

    async def deallocate(self, order: Order) -> None:
        await self._carry_out("deallocate", order)

    async def start(self, order: Order) -> None:
        await self._carry_out("start", order)

    async def delete(self, order: Order) -> None:
        await self._carry_out("delete", order)

    async def recover(self, unfinished: Sequence[str]) -> None:
        """Forget what is over. What goes on is ordered again, and its journal says how far it came."""
        await self._in_thread(self._forget_all_but, frozenset(unfinished))

    async def events(self) -> AsyncIterator[str]:
        await asyncio.Event().wait()  # the program speaks only when it is asked
        yield ""  # is never reached; it makes this an iterator

    async def _carry_out(self, verb: str, order: Order) -> None:
        """Cancelled, it leaves the program at its work; the same order finds it again."""
        if not _SAFE_ID.fullmatch(order.operation):
            raise WorkFailed(problem=f"{order.operation!r} cannot be the name of a folder; expected an id like a UUID")
        journal = Journal(self._folder / order.operation)
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
                gone = await self._in_thread(Journal(self._folder / oldest).remove_if_over)
            finally:
                if not gone:
                    self._let_go[oldest] = None

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
        except OSError as error:
            problem = f"orders cannot be noted in {self._folder} ({error}). It must be a folder that can be written to"
            raise Unavailable(problem=problem) from error

    # --- In the thread --------------------------------------------------------------------------------

    def _take_up(self, journal: Journal, verb: str, order: Order) -> int | None:
        """Start the program and return its process; None if an earlier run is at work or has ended for good."""
        self._reap()
        if journal.at_work() or journal.over():
            return None
        command = self._program.command_line(verb)  # before anything is noted: what cannot start has not begun
        child = journal.begin(command, _in_words(verb, order))
        self._children.add(child)
        return child

    def _look(self, journal: Journal) -> End | None:
        self._reap()
        return None if journal.at_work() else journal.end()

    def _reap(self) -> None:
        """Children that ended, also those whose order was cancelled meanwhile."""
        for child in tuple(self._children):
            with suppress(ChildProcessError):
                if os.waitpid(child, os.WNOHANG) == (0, 0):
                    continue
            self._children.discard(child)

    def _forget_all_but(self, unfinished: frozenset[str]) -> None:
        self._reap()
        for folder in self._folder.glob("*"):
            if folder.name in unfinished or not _SAFE_ID.fullmatch(folder.name) or not folder.is_dir():
                continue
            journal = Journal(folder)
            if not journal.at_work():
                journal.remove()


async def _until_it_may_have_ended(child: int | None) -> None:
    """Until our own child ends, which the kernel tells at once; else for a moment."""
    try:
        watched = os.pidfd_open(child) if child else None
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


def _in_words(verb: str, order: Order) -> dict[str, Any]:
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


def _failure(name: str, end: End) -> Unavailable | WorkFailed:
    if end.code is None:
        return Unavailable(problem=f"{name} was killed and left no exit code; it is run again, and told so by 'again'")
    last_line = end.last_line or "it wrote no line of errors"
    if end.code == os.EX_TEMPFAIL:
        return Unavailable(problem=f"{name} asks for another time: {last_line}")
    by_signal = f" (as after signal {end.code - 128})" if 128 < end.code < 128 + signal.NSIG else ""
    return WorkFailed(problem=f"{name} ended with code {end.code}{by_signal}: {last_line}")

"""The executor: gives started operations to the fabric, retries, and writes what the fabric reports.

In a rollout it then checks whether the VMs are healthy, until they are or their time is over.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

from forewarn.core import progress, rollout_commands
from forewarn.core.durations import backoff_seconds
from forewarn.core.event_types import Verb
from forewarn.core.operations import FailedAttempt, Health
from forewarn.errors import ForewarnError, IncompleteFabric, ServiceStopping, StoreFailed, WorkFailed
from forewarn.ports import WorkOrder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import Operation
    from forewarn.core.state import Draft
    from forewarn.engine.writer import Writer
    from forewarn.ports import Clock, Fabric


T = TypeVar("T")
P = ParamSpec("P")


def with_rollout_steps(
    limits: OperatorLimits,
    decide: Callable[Concatenate[Draft, datetime, OperatorLimits, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Callable[[Draft, datetime], T]:
    """A command as the writer takes it. A rollout of which an operation has gone on goes on with it."""

    def command(draft: Draft, now: datetime) -> T:
        result = decide(draft, now, limits, *args, **kwargs)
        for rollout_id in draft.rollouts_to_step:
            rollout_commands.step(draft, now, limits, rollout_id)
        return result

    return command


class Gate(NamedTuple):
    """The health gate of an operation in a rollout."""

    closes_at: datetime
    vms: tuple[str, ...]
    """Those that are to be well. One that was evicted or deleted meanwhile is not expected back."""


class WorkReports:
    """What the fabric has done. Nobody is answered by that, and after a crash the fabric is asked again."""

    def __init__(self, writer: Writer, limits: OperatorLimits) -> None:
        self._writer = writer
        self._limits = limits

    def carried_out(self, take: Callable[[], list[str]]) -> asyncio.Future[None]:
        """Note that the work of some operations is done: those that there are when the writer comes to it."""

        def note(draft: Draft, now: datetime, limits: OperatorLimits) -> None:
            for operation_id in take():
                progress.carried_out(draft, now, limits, operation_id)

        return self._writer.submit(with_rollout_steps(self._limits, note), can_wait=True)

    def failed(self, operation_id: str, why: str) -> asyncio.Future[None]:
        """Note that the work of an operation cannot be done."""
        return self._writer.submit(
            with_rollout_steps(self._limits, progress.failed_if_live, operation_id, why), can_wait=True
        )

    def checked(self, operation_id: str, bad: Sequence[str]) -> asyncio.Future[None]:
        """Note which VMs are not well after an operation of a rollout."""
        return self._writer.submit(with_rollout_steps(self._limits, progress.checked, operation_id, bad), can_wait=True)

    def gate(self, operation_id: str) -> Gate | None:
        """Who must be well until when after an operation; None: nobody asks any more."""
        state = self._writer.state
        operation = state.operation(operation_id)
        closes_at = rollout_commands.health_deadline(self._limits, operation) if operation is not None else None
        if operation is None or closes_at is None:
            return None
        return Gate(closes_at, operation.concerned(state.fleet))


# --- The executor ---------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 5.0, 300.0
"""How long after a failed attempt the next one begins, by the clock: twice as long each time."""
LOOK_AGAIN = timedelta(seconds=10)
"""How long after a look at VMs that are not well the next one comes, by the clock."""


def verbs_of(fabric: Fabric) -> dict[Verb, Callable[[WorkOrder], Awaitable[None]]]:
    """The fabric's method for each verb. A missing one is an error at the start, not at the first such operation."""
    methods = {verb: getattr(fabric, verb.value, None) for verb in Verb}
    missing = [verb.value for verb, method in methods.items() if not callable(method)]
    if missing:
        raise IncompleteFabric(fabric=type(fabric).__name__, verbs=", ".join(missing))
    return {verb: method for verb, method in methods.items() if method is not None}


def _pause(failures: int) -> timedelta:
    return timedelta(seconds=backoff_seconds(failures, FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS))


class Executor:
    """The operations that the fabric is working on."""

    def __init__(self, clock: Clock, fabric: Fabric, reports: WorkReports) -> None:
        self.changed = asyncio.Event()
        """Set when one is finished."""
        self._clock = clock
        self._fabric = fabric
        self._work_of = verbs_of(fabric)
        self._reports = reports
        self._carried_out: list[str] = []
        self._written: asyncio.Future[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, FailedAttempt] = {}
        """Only in memory: after a restart every operation is tried at once."""

    def __len__(self) -> int:
        return len(self._tasks)

    def take(self, operation: Operation, vms: tuple[str, ...]) -> None:
        """Have this operation carried out on these of its VMs: others have gone since it was asked for."""
        task = asyncio.create_task(self._see_through(operation, vms))
        self._tasks[operation.id] = task
        task.add_done_callback(partial(self._finished, operation.id))

    def failed_attempt(self, operation_id: str) -> FailedAttempt | None:
        """The last attempt at an operation, where it failed and there is to be another."""
        return self._failed.get(operation_id)

    def let_go(self, operation_id: str) -> None:
        """Nobody need wait for the fabric any more: it is said to be over."""
        self._failed.pop(operation_id, None)
        if operation_id in self._tasks:
            self._tasks[operation_id].cancel()

    async def stop(self) -> None:
        """Leave the rest to the next start: it asks the fabric again, by the same ids."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finished(self, operation_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(operation_id) is task:
            del self._tasks[operation_id]
            self._failed.pop(operation_id, None)
        self.changed.set()

    async def _see_through(self, operation: Operation, vms: tuple[str, ...]) -> None:
        try:
            if operation.executed_at is None and not await self._work(operation, vms):
                return
            if operation.request.rollout and operation.health is Health.UNKNOWN:
                await self._look_after(operation)
        except ServiceStopping:
            return

    async def _work(self, operation: Operation, vms: tuple[str, ...]) -> bool:
        """Have it done; False when it cannot be."""
        moves = tuple((name, host) for name, host in operation.moves if name in vms)
        order = WorkOrder(operation.id, vms, operation.request.duration, operation.cause, operation.host, moves)
        failures = 0
        while True:
            try:
                if operation.verb is not None:
                    await self._work_of[operation.verb](order)
                await asyncio.shield(self._report(operation.id))
            except ServiceStopping:
                raise
            except WorkFailed as error:
                logger.warning("Operation %s (%s) has failed: %s", operation.id, operation.cause, error)
                await self._until_written(partial(self._reports.failed, operation.id, str(error)))
                return False
            except Exception as error:  # whatever a driver raises, its work is still to be done
                said = (operation.id, operation.cause, error)
                expected = isinstance(error, ForewarnError)
                logger.warning("Operation %s (%s) was not carried out: %s", *said, exc_info=not expected)
                problem = str(error) if expected else f"{type(error).__name__}: {error}"
                failures += 1
                await self._wait_to_retry(operation.id, failures, problem)
            else:
                self._failed.pop(operation.id, None)
                return True

    async def _wait_to_retry(self, operation_id: str, failures: int, problem: str) -> None:
        next_at = self._clock.now() + _pause(failures)
        self._failed[operation_id] = FailedAttempt(failures, problem, next_at)
        await self._wait_until(next_at)
        self._failed[operation_id] = FailedAttempt(failures, problem, None)

    async def _look_after(self, operation: Operation) -> None:
        """Ask until all VMs are well, or the gate has closed."""
        while (gate := self._reports.gate(operation.id)) is not None:
            well = await asyncio.gather(*map(self._is_well, gate.vms))
            bad = [name for name, is_well in zip(gate.vms, well, strict=True) if not is_well]
            if not bad or self._clock.now() >= gate.closes_at:
                await self._until_written(partial(self._reports.checked, operation.id, bad))
                return
            await self._wait_until(min(self._clock.now() + LOOK_AGAIN, gate.closes_at))

    async def _until_written(self, write: Callable[[], asyncio.Future[None]]) -> None:
        """What the fabric has said is not asked again: it must get on disk."""
        for failures in count(1):
            try:
                await asyncio.shield(write())
            except StoreFailed as error:
                logger.warning("What the fabric said is written again: %s", error)
                await self._wait_until(self._clock.now() + _pause(failures))
            else:
                return

    async def _is_well(self, vm: str) -> bool:
        try:
            return (await self._fabric.inspect(vm)).running
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, the VM cannot be said to be well
            logger.warning("%s could not be looked at: %s", vm, error)
            return False

    async def _wait_until(self, moment: datetime) -> None:
        while self._clock.now() < moment:
            await self._clock.sleep_until(moment)

    def _report(self, operation_id: str) -> asyncio.Future[None]:
        """Those that are carried out until the writer comes to it are written by one command."""
        if self._written is None:
            self._carried_out = []
            self._written = self._reports.carried_out(partial(self._close_report, self._carried_out))
        self._carried_out.append(operation_id)
        return self._written

    def _close_report(self, operation_ids: list[str]) -> list[str]:
        if operation_ids is self._carried_out:
            self._written = None
        return operation_ids

"""The executor: gives started operations to the fabric, retries failed work, and records the results.

For an operation of a rollout it then checks the VMs until they are healthy, or until the health timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar, overload

from forewarn.core import access, arrivals, progress, requests, rollout_commands
from forewarn.core.durations import backoff_seconds
from forewarn.core.event_types import Verb
from forewarn.core.history import ENGINE
from forewarn.core.operations import FailedAttempt, Health
from forewarn.engine.writer import MAX_BATCH_ROWS
from forewarn.errors import ForewarnError, IncompleteFabric, ServiceStopping, StoreFailed, WorkFailed
from forewarn.ports import WorkOrder
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import Operation
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps
    from forewarn.engine.writer import Writer
    from forewarn.ports import Clock, Fabric, PlacedVMs


T = TypeVar("T")
P = ParamSpec("P")


@overload
def with_follow_ups(
    limits: OperatorLimits,
    decide: Callable[Concatenate[Draft, datetime, OperatorLimits, P], Steps[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Callable[[Draft, datetime], Steps[T]]: ...


@overload
def with_follow_ups(
    limits: OperatorLimits,
    decide: Callable[Concatenate[Draft, datetime, OperatorLimits, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Callable[[Draft, datetime], Steps[T]]: ...


def with_follow_ups(
    limits: OperatorLimits,
    decide: Callable[Concatenate[Draft, datetime, OperatorLimits, P], Any],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Callable[[Draft, datetime], Steps[Any]]:
    """Return a command for the writer that also does what follows from it. `decide` can be work in steps.

    It notifies VMs that have arrived at a host with work ahead, and then starts what may start. It replaces live
    migrations that are not possible, steps the rollouts that it affects, and revokes the tokens of groups that have
    left the fleet.
    """

    def command(draft: Draft, now: datetime) -> Steps[Any]:
        result = decide(draft, now, limits, *args, **kwargs)
        if isinstance(result, Generator):
            result = yield from result
        yield from arrivals.follow_up(draft, now, limits)
        for operation_id in draft.to_redeploy:
            requests.redeploy_instead(draft, now, limits, operation_id)
        yield from rollout_commands.step_all(draft, now, limits)
        if not all(change.in_place for change in draft.changes.fleet_changes):
            access.revoke_without_group(draft, now, ENGINE)
        return result

    return command


class HealthCheck(NamedTuple):
    """VMs that must be healthy after an operation of a rollout, and by when."""

    deadline: datetime
    vms: tuple[str, ...]
    """Without VMs that were evicted or deleted in the meantime."""


class WorkReports:
    """Records results of fabric work. No caller waits for them, so they are deferred."""

    def __init__(self, writer: Writer, limits: OperatorLimits) -> None:
        self._writer = writer
        self._limits = limits

    def executed(self, results: Callable[[], list[tuple[str, PlacedVMs]]]) -> asyncio.Future[None]:
        """Record that operations are executed. The function is called when the writer decides the command."""

        def record(draft: Draft, now: datetime, limits: OperatorLimits) -> Steps[None]:
            for operation_id, placed in results():
                progress.record_executed(draft, now, limits, operation_id, placed=placed)
                operation = draft.operation(operation_id)
                yield operation.cost if operation is not None else 1

        return self._writer.submit(with_follow_ups(self._limits, record), defer=True)

    def failed(self, operation_id: str, reason: str) -> asyncio.Future[None]:
        """Record that the work of an operation has failed permanently."""
        return self._writer.submit(
            with_follow_ups(self._limits, progress.failed_if_live, operation_id, reason), defer=True
        )

    def health_checked(self, operation_id: str, unhealthy: Sequence[str]) -> asyncio.Future[None]:
        """Record which VMs are unhealthy after an operation of a rollout."""
        return self._writer.submit(
            with_follow_ups(self._limits, progress.record_health, operation_id, unhealthy), defer=True
        )

    def health_check(self, operation_id: str) -> HealthCheck | None:
        """Return the health check of an operation; None if it is no longer needed."""
        state = self._writer.state
        operation = state.operation(operation_id)
        deadline = rollout_commands.health_deadline(self._limits, operation) if operation is not None else None
        if operation is None or deadline is None:
            return None
        return HealthCheck(deadline, operation.concerned(state.fleet))


# --- The executor ---------------------------------------------------------------------------------


_log = get_logger(__name__)

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 300.0
"""Backoff between attempts, by the service's clock. The delay doubles each time."""
HEALTH_CHECK_INTERVAL = timedelta(seconds=10)
"""Time between two checks of unhealthy VMs, by the service's clock."""


def fabric_methods(fabric: Fabric) -> dict[Verb, Callable[[WorkOrder], Awaitable[PlacedVMs]]]:
    """Return the fabric's method for each verb. A missing method is an error at startup."""
    methods = {verb: getattr(fabric, verb.value, None) for verb in Verb}
    missing = [verb.value for verb, method in methods.items() if not callable(method)]
    if missing:
        raise IncompleteFabric(fabric=type(fabric).__name__, verbs=", ".join(missing))
    return {verb: method for verb, method in methods.items() if method is not None}


def _retry_delay(failures: int) -> timedelta:
    return timedelta(seconds=backoff_seconds(failures, FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS))


class Executor:
    """Runs one task for each operation that the fabric works on."""

    def __init__(self, clock: Clock, fabric: Fabric, reports: WorkReports) -> None:
        self.changed = asyncio.Event()
        """Set when a task has ended."""
        self._clock = clock
        self._fabric = fabric
        self._methods = fabric_methods(fabric)
        self._reports = reports
        self._executed: list[tuple[str, PlacedVMs]] = []
        self._written: asyncio.Future[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        """Held while a task begins: one in each iteration of the event loop, because a commit can start many."""
        self._failed: dict[str, FailedAttempt] = {}
        """Only in memory: after a restart every operation is retried immediately."""

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, operation: Operation, vms: tuple[str, ...]) -> None:
        """Start to execute an operation. `vms` are those of its VMs that still exist."""
        task = asyncio.create_task(self._run(operation, vms))
        self._tasks[operation.id] = task
        task.add_done_callback(partial(self._finished, operation.id))

    def failed_attempt(self, operation_id: str) -> FailedAttempt | None:
        """Return the last attempt of an operation, if it failed and will be retried."""
        return self._failed.get(operation_id)

    def stop_waiting(self, operation_id: str) -> None:
        """Cancel the task of an operation that has ended. The fabric may continue its work."""
        self._failed.pop(operation_id, None)
        if operation_id in self._tasks:
            self._tasks[operation_id].cancel()

    async def stop(self) -> None:
        """Cancel all tasks. The next start gives the fabric the same orders again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._executed, self._written = [], None

    def _finished(self, operation_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(operation_id) is task:
            del self._tasks[operation_id]
            self._failed.pop(operation_id, None)
        self.changed.set()

    async def _run(self, operation: Operation, vms: tuple[str, ...]) -> None:
        async with self._turn:
            await asyncio.sleep(0)
        try:
            if operation.executed_at is None and not await self._execute(operation, vms):
                return
            if operation.request.rollout and operation.health is Health.UNKNOWN:
                await self._check_health(operation)
        except ServiceStopping:
            return

    async def _execute(self, operation: Operation, vms: tuple[str, ...]) -> bool:
        """Execute an operation, with retries. Returns False if it has failed permanently."""
        moves = tuple((name, host) for name, host in operation.moves if name in vms)
        duration = operation.request.known_duration
        order = WorkOrder(operation.id, vms, duration, operation.cause, operation.host, moves)
        failures = 0
        while True:
            try:
                placed = await self._methods[operation.verb](order) if operation.verb is not None else None
                await asyncio.shield(self._report_executed(operation.id, placed))
            except ServiceStopping:
                raise
            except WorkFailed as error:
                _log.warning(
                    "operation_failed",
                    "The fabric reported a permanent failure.",
                    operation_id=operation.id,
                    cause=operation.cause,
                    error=str(error),
                )
                await self._write_with_retries(partial(self._reports.failed, operation.id, str(error)))
                return False
            except Exception as error:  # noqa: BLE001 - any error of a fabric means that the work is not done yet
                expected = isinstance(error, ForewarnError)
                problem = str(error) if expected else f"{type(error).__name__}: {error}"
                _log.warning(
                    "operation_attempt_failed",
                    "The fabric did not execute the operation; retrying.",
                    operation_id=operation.id,
                    cause=operation.cause,
                    error=problem,
                    exc_info=not expected,
                )
                failures += 1
                await self._wait_to_retry(operation.id, failures, problem)
            else:
                self._failed.pop(operation.id, None)
                return True

    async def _wait_to_retry(self, operation_id: str, failures: int, problem: str) -> None:
        next_at = self._clock.now() + _retry_delay(failures)
        self._failed[operation_id] = FailedAttempt(failures, problem, next_at)
        await self._wait_until(next_at)
        self._failed[operation_id] = FailedAttempt(failures, problem, None)

    async def _check_health(self, operation: Operation) -> None:
        """Inspect the VMs until all are healthy, or until the deadline."""
        while (check := self._reports.health_check(operation.id)) is not None:
            results = await asyncio.gather(*map(self._is_healthy, check.vms))
            unhealthy = [name for name, is_healthy in zip(check.vms, results, strict=True) if not is_healthy]
            if not unhealthy or self._clock.now() >= check.deadline:
                await self._write_with_retries(partial(self._reports.health_checked, operation.id, unhealthy))
                return
            await self._wait_until(min(self._clock.now() + HEALTH_CHECK_INTERVAL, check.deadline))

    async def _write_with_retries(self, write: Callable[[], asyncio.Future[None]]) -> None:
        """Record a result of the fabric. Retries without end, because the fabric does not report it again."""
        for failures in count(1):
            try:
                await asyncio.shield(write())
            except StoreFailed as error:
                _log.warning(
                    "fabric_result_not_written", "Cannot write a result of the fabric; retrying.", error=str(error)
                )
                await self._wait_until(self._clock.now() + _retry_delay(failures))
            else:
                return

    async def _is_healthy(self, vm: str) -> bool:
        try:
            return (await self._fabric.inspect(vm)).running
        except Exception as error:  # noqa: BLE001 - any error of a fabric counts as unhealthy
            _log.warning("vm_inspection_failed", "Cannot inspect a VM.", vm=vm, error=str(error))
            return False

    async def _wait_until(self, time: datetime) -> None:
        while self._clock.now() < time:
            await self._clock.sleep_until(time)

    def _report_executed(self, operation_id: str, placed: PlacedVMs) -> asyncio.Future[None]:
        """Record an executed operation. One command records those until the writer decides it, up to a full batch."""
        if self._written is None or len(self._executed) >= MAX_BATCH_ROWS:
            self._executed = []
            self._written = self._reports.executed(partial(self._close_report, self._executed))
        self._executed.append((operation_id, placed))
        return self._written

    def _close_report(self, results: list[tuple[str, PlacedVMs]]) -> list[tuple[str, PlacedVMs]]:
        if results is self._executed:
            self._written = None
        return results

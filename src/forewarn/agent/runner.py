"""Executes instructions: records each on disk, runs the handler in a thread, and records the result."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.agent.config_file import handler_of
from forewarn.agent.decisions import (
    ApproveEvent,
    FinishWork,
    GiveUp,
    RunHandler,
    UpdateWork,
    limit_seconds,
    with_outcome,
)
from forewarn.agent.document_decisions import restored
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.state import CAME_BACK, GAVE_UP, POSTPONED, PREPARING, UNDOING
from forewarn.core.durations import backoff_seconds
from forewarn.errors import ForewarnError, HandlerFailed
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.agent.decisions import Instruction
    from forewarn.agent.handlers.handler import Handler
    from forewarn.agent.policy import Config, NamedHandler
    from forewarn.agent.state import EventWork, WorkStore
    from forewarn.wire.document_reader import ScheduledEvent

_log = get_logger(__name__)


def about(event: ScheduledEvent) -> dict[str, Any]:
    """Return the fields that every log line about an event has."""
    return {"event_id": event.key, "event_type": event.type}


# --- One run of a handler -------------------------------------------------------------------------


GRACE_SECONDS = 30.0
"""Additional time after a handler's timeout, in which it can stop its programs."""


class HandlerOutcome(NamedTuple):
    """The result of a handler's run."""

    event_id: str
    step: int
    handler: str
    action: str
    problem: str
    """Empty: it succeeded."""
    seconds: float


def json_copy(memo: dict[str, Any]) -> dict[str, Any]:
    """Copy a memo through JSON, so that it is what a later read of the state file returns. Reject values that JSON
    lacks."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(memo))
    except (TypeError, ValueError, RecursionError) as error:
        raise HandlerFailed(problem=f"its memo is not valid JSON: {error}.") from error
    return found


class HandlerJob:
    """The job that a handler gets."""

    def __init__(
        self,
        work: EventWork,
        index: int,
        action: str,
        limit_seconds: float,
        folder: Path,
        keep: Callable[[str, int, dict[str, Any]], None],
    ) -> None:
        self.work_id = work.id
        # A handler may store something under the id in prepare, and look for it in undo: show it the first id.
        self.event: ScheduledEvent = work.event._replace(id=work.first_id or work.event.id)
        self.about: dict[str, Any] = about(work.event)
        """The fields of log lines. They have the current id of the event."""
        self.vm = work.me
        self.handler = work.steps[index].handler
        self.action = action
        self.run = work.steps[index].run
        self.folder = folder
        self.memo: dict[str, Any] = json_copy(work.steps[index].memo)
        self.index = index
        self._save_memo = keep
        self._begun_at = real_seconds()
        self.limit_seconds = limit_seconds
        self.is_abandoned = False
        """The handler did not end in time, and its result will be ignored."""
        self._ended_early = threading.Event()

    def remember(self, **facts: Any) -> None:
        memo = json_copy({**self.memo, **facts})
        self._save_memo(self.work_id, self.index, memo)
        self.memo = json_copy(memo)

    def info(self, text: str, **fields: Any) -> None:
        _log.info("handler_reported", text, **{**fields, **self._about()})

    def warning(self, text: str, **fields: Any) -> None:
        _log.warning("handler_warned", text, **{**fields, **self._about()})

    def _about(self) -> dict[str, Any]:
        return {**self.about, "handler": self.handler, "action": self.action}

    def seconds_left(self) -> float:
        return max(self.limit_seconds - self.seconds(), 0.0)

    def seconds(self) -> float:
        """Seconds since the start."""
        return real_seconds() - self._begun_at

    def wait(self, seconds: float) -> bool:
        return self._ended_early.wait(min(seconds, self.seconds_left()))

    def end_early(self) -> None:
        """Ask the handler to stop waiting."""
        self._ended_early.set()


class HandlerThreads:
    """The running handlers: each in a thread, and each at most once."""

    def __init__(self, done: Callable[[HandlerOutcome], None]) -> None:
        self._done = done
        self._jobs: dict[str, HandlerJob | None] = {}
        self._threads: set[threading.Thread] = set()
        self._stuck = False

    @property
    def busy(self) -> frozenset[str]:
        return frozenset(self._jobs)

    def start(self, handler: Handler, job: HandlerJob) -> None:
        """Start the handler's thread. The result is reported through `done`."""
        self._jobs[job.handler] = job
        thread = threading.Thread(target=self._run, args=(handler, job), name=f"handler {job.handler}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def skip(self, outcome: HandlerOutcome) -> None:
        """Report this result without running the handler."""
        self._jobs[outcome.handler] = None
        self._done(outcome)

    def release(self, handler: str) -> None:
        """Allow the handler to run again: its result is on disk."""
        self._jobs.pop(handler, None)
        self._threads = {thread for thread in self._threads if thread.is_alive()}

    def end_early(self, event_id: str) -> None:
        """Ask handlers that prepare for this event to stop waiting."""
        for job in list(self._jobs.values()):
            if job is not None and job.work_id == event_id and job.action == PREPARE:
                job.end_early()

    def fail_overdue(self) -> bool:
        """Fail handlers that are far beyond their timeout. Return True if the process must be restarted to stop a
        thread."""
        for handler, job in list(self._jobs.items()):
            if job is not None and not job.is_abandoned and job.seconds() > job.limit_seconds + GRACE_SECONDS:
                job.is_abandoned = True
                problem = "it is still running long after its timeout"
                _log.critical(
                    "handler_stuck",
                    "The handler is still running long after its timeout.",
                    **job.about,
                    handler=handler,
                    action=job.action,
                )
                self._stuck = True
                self._done(HandlerOutcome(job.work_id, job.index, job.handler, job.action, problem, job.seconds()))
        return self._stuck

    def stop(self, seconds: float) -> None:
        """Wait for the running handlers, for at most this time."""
        for job in list(self._jobs.values()):
            if job is not None:
                job.end_early()
        until = real_seconds() + seconds
        for thread in list(self._threads):
            thread.join(max(until - real_seconds(), 0))

    def _run(self, handler: Handler, job: HandlerJob) -> None:
        problem = ""
        try:
            if job.action == PREPARE:
                handler.prepare(job)
            else:
                handler.undo(job)
        except ForewarnError as error:
            problem = str(error)
        except BaseException as error:  # noqa: BLE001 - a user's handler: any exception is a failure
            problem = f"{type(error).__name__}: {error}{_where(error)}"
        if not job.is_abandoned:
            self._done(HandlerOutcome(job.work_id, job.index, job.handler, job.action, problem, job.seconds()))


def _where(error: BaseException) -> str:
    """Return the last line of code in the trace, for the author of the handler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


# --- Executing instructions -----------------------------------------------------------------------


STOP_SECONDS = 5.0
"""How long a stop waits for handlers. The next start continues their work."""
MAX_PAUSE_SECONDS = 60.0


def retry_pause(tries: int) -> float:
    """Return the pause before a retry. It grows, but stays short: an event waits for its undo or its approval."""
    return backoff_seconds(tries, maximum=MAX_PAUSE_SECONDS)


class Runner:
    """Used under the agent's lock; only the threads of handlers run outside of it."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        store: WorkStore,
        lock: threading.Condition,
        done: Callable[[HandlerOutcome], None],
        *,
        dry_run: bool,
    ) -> None:
        self.config = config
        self._folder = folder
        self._store = store
        self._lock = lock
        self._dry_run = dry_run
        self._handler_threads = HandlerThreads(done)
        self._failures: dict[str, int] = {}
        self._ended: dict[str, str] = {}
        """Finished runs with their events: a retry is a new run."""
        self.begun_at: dict[str, float] = {}
        self.undo_at: dict[str, float] = {}

    @property
    def busy(self) -> frozenset[str]:
        return self._handler_threads.busy

    def execute(self, instructions: list[Instruction], approve: Callable[[list[EventWork]], None]) -> bool:
        """Execute instructions. Return whether more may follow at once.

        All changes that need no handler are one write, however many events there are. It comes first: nothing starts
        that depends on a change that is not on disk.
        """
        changed: list[EventWork] = []
        ended: list[str] = []
        for instruction in instructions:
            if isinstance(instruction, UpdateWork):
                changed.append(self._updated(instruction))
            elif isinstance(instruction, GiveUp):
                _log.warning("work_given_up", "A handler has failed; undoing.", **about(instruction.work.event))
                changed.append(instruction.work)
            elif isinstance(instruction, FinishWork):
                finished = self._finished(instruction.work)
                changed += filter(None, [finished])
                ended += [] if finished is not None else [instruction.work.id]
        is_changed = bool(changed or ended)
        if is_changed and not self._store.keep(*changed, ended=ended):
            return False
        for instruction in instructions:
            if isinstance(instruction, RunHandler):
                self._run(instruction)
        if approved := [instruction.work for instruction in instructions if isinstance(instruction, ApproveEvent)]:
            approve(approved)
        return is_changed

    def _updated(self, instruction: UpdateWork) -> EventWork:
        work, handler, problem = instruction
        facts = {**about(work.event), "handler": handler}
        if problem:
            _log.error("handler_not_run", "The handler was not run.", **facts, error=problem)
        else:
            _log.info("handler_shared", "Another event has prepared this handler.", **facts)
        return work

    def stop(self) -> None:
        self._handler_threads.stop(STOP_SECONDS)

    def end_early(self, event_id: str) -> None:
        self._handler_threads.end_early(event_id)

    def forget(self, event_id: str) -> None:
        for known in (self.begun_at, self.undo_at, self._failures):
            known.pop(event_id, None)
        self._ended = {run: known for run, known in self._ended.items() if known != event_id}

    def fail_overdue(self) -> bool:
        """Fail handlers that are far beyond their timeout. True: only a restart of the process can stop one."""
        return self._handler_threads.fail_overdue()

    # --- Running a handler ------------------------------------------------------------------------

    def _run(self, instruction: RunHandler) -> None:
        work, index, action = instruction
        step = work.steps[index]
        found = self._handler(step.handler, step.table, action)
        if isinstance(found, str):
            self._handler_threads.skip(HandlerOutcome(work.id, index, step.handler, action, found, 0.0))
            return
        begun = self.begun_at.setdefault(work.id, real_seconds())
        state = PREPARING if action == PREPARE else UNDOING
        table = found.table if action == PREPARE else step.table
        run = step.run if step.state == state and step.run not in self._ended else os.urandom(8).hex()
        noted = work.with_step(index, state=state, table=table, run=run, problem="")
        if not self._store.keep(noted):
            self._store.works[work.id] = work  # the handler did not start
            return
        limit = limit_seconds(instruction, found.timeout, begun, real_seconds())
        job = HandlerJob(noted, index, action, limit, self._folder, self._remember)
        if self._dry_run:
            job.info(f"Dry run: would {found.handler.describe(action) or 'do nothing'}.")
            self._handler_threads.skip(HandlerOutcome(work.id, index, step.handler, action, "", 0.0))
            return
        _log.info("handler_started", "Handler started.", **about(work.event), handler=step.handler, action=action)
        self._handler_threads.start(found.handler, job)

    def _handler(self, name: str, table: dict[str, Any], action: str) -> NamedHandler | str:
        """Return the config's handler, so that corrections apply; if there is none, the one in the state file."""
        found = self.config.handlers.get(name)
        if found is not None and (action == PREPARE or not table or _kind(found.table) == _kind(table)):
            return found
        if action == PREPARE:
            return f"the config no longer has a [handler.{name}]"
        try:
            return handler_of(name, table, self._folder)
        except ForewarnError as error:
            return str(error)

    def _remember(self, event_id: str, index: int, memo: dict[str, Any]) -> None:
        """Save a handler's memo. Called from its thread."""
        with self._lock:
            work = self._store.works.get(event_id)
            if work is not None and not self._store.keep(work.with_step(index, memo=memo)):
                raise HandlerFailed(problem=f"its memo cannot be written to {self._folder}")

    # --- Recording a result -----------------------------------------------------------------------

    def record(self, outcome: HandlerOutcome, *, stopping: bool) -> str:
        """Record a result and return the name of its counter; empty: the agent is stopping, and the next start repeats
        it."""
        work = self._store.works.get(outcome.event_id)
        if work is None:
            self._handler_threads.release(outcome.handler)
            return ""
        step = work.steps[outcome.step]
        self._ended[step.run] = work.id
        if outcome.problem and stopping:
            return ""
        result = (outcome.step, outcome.action, outcome.problem, outcome.seconds)
        self._store.keep(*with_outcome(self._store.works, work.id, *result))
        self._handler_threads.release(outcome.handler)
        if outcome.action == UNDO:
            self._schedule_retry(outcome)
        facts: dict[str, Any] = {
            "handler": step.handler,
            "action": outcome.action,
            "seconds": round(outcome.seconds, 3),
        }
        if outcome.problem:
            _log.error("handler_failed", "Handler failed.", **about(work.event), **facts, error=outcome.problem)
        else:
            _log.info("handler_completed", "Handler completed.", **about(work.event), **facts)
        return _COUNTED[outcome.action, bool(outcome.problem)]

    def _schedule_retry(self, outcome: HandlerOutcome) -> None:
        """Retry a failed undo until it succeeds. Keep the order, because later handlers may need this one."""
        if outcome.problem:
            self._failures[outcome.event_id] = self._failures.get(outcome.event_id, 0) + 1
            self.undo_at[outcome.event_id] = real_seconds() + retry_pause(self._failures[outcome.event_id])
        else:
            self._failures.pop(outcome.event_id, None)
            self.undo_at.pop(outcome.event_id, None)

    def _finished(self, work: EventWork) -> EventWork | None:
        """Return the work after its undo; None: nothing is left of it."""
        _log.info("work_undone", "Everything prepared for the event is undone.", **about(work.event))
        if work.ending == POSTPONED:
            self.forget(work.id)
            return restored(work)
        # While the event is still in the document, keep the work, so that it is not prepared again.
        return work._replace(done=True) if work.ending in (CAME_BACK, GAVE_UP) else None


_COUNTED = {
    (PREPARE, False): "prepared",
    (PREPARE, True): "prepare failed",
    (UNDO, False): "undone",
    (UNDO, True): "undo failed",
}


def _kind(table: dict[str, Any]) -> tuple[Any, Any]:
    return table.get("kind"), table.get("file")

"""Carries out instructions: notes each on disk, runs the handler in a thread of its own, and notes the outcome."""

from __future__ import annotations

import json
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.agent.config_file import handler_of
from forewarn.agent.decisions import Approve, Note, Run, limit_seconds, with_outcome
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.state import CAME_BACK, PREPARING, UNDOING
from forewarn.core.durations import backoff_seconds
from forewarn.errors import ForewarnError, HandlerFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.agent.decisions import Instruction
    from forewarn.agent.handlers.handler import Handler
    from forewarn.agent.policy import Config, NamedHandler
    from forewarn.agent.state import Work, WorkStore
    from forewarn.wire.document_reader import ToldEvent

logger = logging.getLogger("forewarn.agent")


# --- One run of a handler -------------------------------------------------------------------------


GRACE_SECONDS = 30.0
"""Beyond its limit, for a handler that has to end programs first."""


class HandlerOutcome(NamedTuple):
    """How a run went."""

    event_id: str
    step: int
    handler: str
    action: str
    problem: str
    """Empty: it was done."""
    seconds: float


def copied(memo: dict[str, Any]) -> dict[str, Any]:
    """As it will be after it was on disk: what cannot be written must not get among what is."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(memo))
    except (TypeError, ValueError, RecursionError) as error:
        raise HandlerFailed(problem=f"what it wants to remember is no JSON: {error}.") from error
    return found


class HandlerJob:
    """What a handler is given."""

    def __init__(
        self,
        work: Work,
        index: int,
        action: str,
        limit_seconds: float,
        folder: Path,
        keep: Callable[[str, int, dict[str, Any]], None],
    ) -> None:
        self.event: ToldEvent = work.event
        self.vm = work.me
        self.handler = work.steps[index].handler
        self.action = action
        self.run = work.steps[index].run
        self.folder = folder
        self.memo: dict[str, Any] = copied(work.steps[index].memo)
        self.index = index
        self._keep = keep
        self._begun_at = real_seconds()
        self.limit_seconds = limit_seconds
        self.given_up = False
        """It has not ended in time, and is not waited for any more."""
        self._end = threading.Event()

    def remember(self, **facts: Any) -> None:
        memo = copied({**self.memo, **facts})
        self._keep(self.event.id, self.index, memo)
        self.memo = copied(memo)

    def say(self, text: str, **fields: Any) -> None:
        logger.info("%s: %s", self.handler, text, extra=self._about(fields))

    def warn(self, text: str, **fields: Any) -> None:
        logger.warning("%s: %s", self.handler, text, extra=self._about(fields))

    def _about(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"event": self.event, "fields": {"handler": self.handler, "action": self.action, **fields}}

    def seconds_left(self) -> float:
        return max(self.limit_seconds - self.seconds(), 0.0)

    def seconds(self) -> float:
        """How long it has run."""
        return real_seconds() - self._begun_at

    def wait(self, seconds: float) -> bool:
        return self._end.wait(min(seconds, self.seconds_left()))

    def end_early(self) -> None:
        """Nobody waits for it any more."""
        self._end.set()


class HandlerThreads:
    """The handlers that run at this moment: each in a thread, each at most once."""

    def __init__(self, done: Callable[[HandlerOutcome], None]) -> None:
        self._done = done
        self._jobs: dict[str, HandlerJob | None] = {}
        self._threads: set[threading.Thread] = set()
        self._stuck = False

    @property
    def busy(self) -> frozenset[str]:
        return frozenset(self._jobs)

    def begin(self, handler: Handler, job: HandlerJob) -> None:
        """Return at once; the outcome comes by itself."""
        self._jobs[job.handler] = job
        thread = threading.Thread(target=self._run, args=(handler, job), name=f"handler {job.handler}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def pass_over(self, outcome: HandlerOutcome) -> None:
        """Nothing is run, and this is said to have come of it."""
        self._jobs[outcome.handler] = None
        self._done(outcome)

    def release(self, handler: str) -> None:
        """Its outcome is on disk: it may run again."""
        self._jobs.pop(handler, None)
        self._threads = {thread for thread in self._threads if thread.is_alive()}

    def end_early(self, event_id: str) -> None:
        """What prepares for this event need not wait any longer."""
        for job in list(self._jobs.values()):
            if job is not None and job.event.id == event_id and job.action == PREPARE:
                job.end_early()

    def give_up(self) -> bool:
        """Fail whoever is far over its limit. A thread cannot be ended: True says that the process should be."""
        for handler, job in list(self._jobs.items()):
            if job is not None and not job.given_up and job.seconds() > job.limit_seconds + GRACE_SECONDS:
                job.given_up = True
                problem = "has not ended, long after its time limit"
                logger.critical("%s: %s", handler, problem, extra={"event": job.event})
                self._stuck = True
                self._done(HandlerOutcome(job.event.id, job.index, job.handler, job.action, problem, job.seconds()))
        return self._stuck

    def stop(self, seconds: float) -> None:
        """Let what runs end, for so long at most."""
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
        except BaseException as error:  # noqa: BLE001 - a handler of anybody's: whatever it raises, it has failed
            problem = f"{type(error).__name__}: {error}{_where(error)}"
        if not job.given_up:
            self._done(HandlerOutcome(job.event.id, job.index, job.handler, job.action, problem, job.seconds()))


def _where(error: BaseException) -> str:
    """The last line of code that it came from: for who has written the handler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


# --- Carrying out instructions --------------------------------------------------------------------


STOP_SECONDS = 5.0
"""How long a stop waits for handlers. What they were at is taken up by the next start."""
LONGEST_PAUSE_SECONDS = 60.0


def pause_after(tries: int) -> float:
    """Longer each time, but never for long: something waits to be undone, or an event to be approved."""
    return backoff_seconds(tries, longest=LONGEST_PAUSE_SECONDS)


class Runner:
    """Used under the agent's lock; only the threads of handlers are outside of it."""

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
        self._config = config
        self._folder = folder
        self._store = store
        self._lock = lock
        self._dry_run = dry_run
        self._handler_threads = HandlerThreads(done)
        self._tries: dict[str, int] = {}
        self._ended: dict[str, str] = {}
        """Runs that this agent has seen the end of, with their events: another try is another run."""
        self.begun_at: dict[str, float] = {}
        self.undo_at: dict[str, float] = {}

    @property
    def busy(self) -> frozenset[str]:
        return self._handler_threads.busy

    def carry_out(self, instruction: Instruction, approve: Callable[[Work], None]) -> bool:
        """Whether there may be more to do at once."""
        if isinstance(instruction, Run):
            self._run(instruction)
            return False
        if isinstance(instruction, Approve):
            approve(instruction.work)
            return False
        if isinstance(instruction, Note):
            logger.info("%s", instruction.text, extra={"event": instruction.work.event})
            return self._store.keep(instruction.work)
        return self._finish(instruction.work)

    def stop(self) -> None:
        self._handler_threads.stop(STOP_SECONDS)

    def end_early(self, event_id: str) -> None:
        self._handler_threads.end_early(event_id)

    def forget(self, event_id: str) -> None:
        for known in (self.begun_at, self.undo_at, self._tries):
            known.pop(event_id, None)
        self._ended = {run: known for run, known in self._ended.items() if known != event_id}

    def give_up(self) -> bool:
        """Fail what is far over its limit. True: it cannot be ended but with the process."""
        return self._handler_threads.give_up()

    # --- A handler's turn -------------------------------------------------------------------------

    def _run(self, instruction: Run) -> None:
        work, index, action = instruction
        step = work.steps[index]
        found = self._handler(step.handler, step.table, action)
        if isinstance(found, str):
            self._handler_threads.pass_over(HandlerOutcome(work.id, index, step.handler, action, found, 0.0))
            return
        begun = self.begun_at.setdefault(work.id, real_seconds())
        state = PREPARING if action == PREPARE else UNDOING
        table = found.table if action == PREPARE else step.table
        run = step.run if step.state == state and step.run not in self._ended else os.urandom(8).hex()
        noted = work.with_step(index, state=state, table=table, run=run, problem="")
        if not self._store.keep(noted):
            self._store.works[work.id] = work  # it was not begun
            return
        limit = limit_seconds(instruction, found.timeout, begun, real_seconds())
        job = HandlerJob(noted, index, action, limit, self._folder, self._remember)
        if self._dry_run:
            job.say(f"would {found.handler.describe(action) or 'do nothing'}")
            self._handler_threads.pass_over(HandlerOutcome(work.id, index, step.handler, action, "", 0.0))
            return
        logger.info("%s: %s", step.handler, _BEGINS[action], extra=_about(work, step.handler))
        self._handler_threads.begin(found.handler, job)

    def _handler(self, name: str, table: dict[str, Any], action: str) -> NamedHandler | str:
        """The config's, so that what was mended in it counts; if it has none of the name and kind, as it was then."""
        found = self._config.handlers.get(name)
        if found is not None and (action == PREPARE or not table or _kind(found.table) == _kind(table)):
            return found
        if action == PREPARE:
            return f"there is no [handler.{name}] in the config any more"
        try:
            return handler_of(name, table, self._folder)
        except ForewarnError as error:
            return str(error)

    def _remember(self, event_id: str, index: int, memo: dict[str, Any]) -> None:
        """Called from a handler's thread."""
        with self._lock:
            work = self._store.works.get(event_id)
            if work is not None and not self._store.keep(work.with_step(index, memo=memo)):
                raise HandlerFailed(problem=f"what it must remember cannot be written to {self._folder}")

    # --- What came of it --------------------------------------------------------------------------

    def settle(self, outcome: HandlerOutcome, *, stopping: bool) -> str:
        """Note it, and return the word by which it is counted; empty: the agent stops, and it is begun again."""
        work = self._store.works.get(outcome.event_id)
        if work is None:
            self._handler_threads.release(outcome.handler)
            return ""
        step = work.steps[outcome.step]
        self._ended[step.run] = work.id
        if outcome.problem and stopping:
            return ""
        facts = (outcome.step, outcome.action, outcome.problem, outcome.seconds)
        self._store.keep(*with_outcome(self._store.works, work.id, *facts))
        self._handler_threads.release(outcome.handler)
        if outcome.action == UNDO:
            self._count_tries(outcome)
        about = _about(work, step.handler, seconds=round(outcome.seconds, 3))
        if outcome.problem:
            logger.error("%s: could not %s: %s", step.handler, outcome.action, outcome.problem, extra=about)
        else:
            logger.info("%s: %s", step.handler, _DONE[outcome.action], extra=about)
        return _COUNTED[outcome.action, bool(outcome.problem)]

    def _count_tries(self, outcome: HandlerOutcome) -> None:
        """What cannot be undone is tried for as long as it takes, in its order: what comes after it may need it."""
        if outcome.problem:
            self._tries[outcome.event_id] = self._tries.get(outcome.event_id, 0) + 1
            self.undo_at[outcome.event_id] = real_seconds() + pause_after(self._tries[outcome.event_id])
        else:
            self._tries.pop(outcome.event_id, None)
            self.undo_at.pop(outcome.event_id, None)

    def _finish(self, work: Work) -> bool:
        logger.info("everything is undone", extra={"event": work.event})
        if work.ending == CAME_BACK:  # it is still told: without this note it would be prepared anew
            return self._store.keep(work._replace(done=True))
        self._store.drop(work.id)
        return True


_BEGINS = {PREPARE: "prepares", UNDO: "undoes"}
_DONE = {PREPARE: "is prepared", UNDO: "is undone"}
_COUNTED = {
    (PREPARE, False): "prepared",
    (PREPARE, True): "prepare failed",
    (UNDO, False): "undone",
    (UNDO, True): "undo failed",
}


def _kind(table: dict[str, Any]) -> tuple[Any, Any]:
    return table.get("kind"), table.get("file")


def _about(work: Work, handler: str, **fields: Any) -> dict[str, Any]:
    return {"event": work.event, "fields": {"handler": handler, **fields}}

"""One run of a handler, in a thread of its own."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.agent.handlers.handler import PREPARE
from forewarn.errors import ForewarnError, HandlerFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.agent.handlers.handler import Handler
    from forewarn.agent.work.work import Work
    from forewarn.wire.document_reader import ToldEvent

logger = logging.getLogger("forewarn.agent")


GRACE_SECONDS = 30.0
"""Beyond its limit, for a handler that has to end programs first."""


class Outcome(NamedTuple):
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


class Crew:
    """The handlers that run at this moment: each in a thread, each at most once."""

    def __init__(self, done: Callable[[Outcome], None]) -> None:
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

    def pass_over(self, outcome: Outcome) -> None:
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
                self._done(Outcome(job.event.id, job.index, job.handler, job.action, problem, job.seconds()))
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
            self._done(Outcome(job.event.id, job.index, job.handler, job.action, problem, job.seconds()))


def _where(error: BaseException) -> str:
    """The last line of code that it came from: for who has written the handler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"

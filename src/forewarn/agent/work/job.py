"""One run of a handler, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.agent.handlers.handler import PREPARE
from forewarn.errors import ForewarnError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.agent.handlers.handler import Handler
    from forewarn.agent.work.work import Work
    from forewarn.wire.reading import ToldEvent

logger = logging.getLogger("forewarn.agent")


class Outcome(NamedTuple):
    """How a run went."""

    event_id: str
    step: int
    action: str
    problem: str
    """Empty: it was done."""
    seconds: float


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
        self.memo: dict[str, Any] = dict(work.steps[index].memo)
        self.index = index
        self._keep = keep
        self._begun_at = real_seconds()
        self._limit_seconds = limit_seconds
        self._end = threading.Event()

    def remember(self, **facts: Any) -> None:
        self.memo = {**self.memo, **facts}
        self._keep(self.event.id, self.index, self.memo)

    def say(self, text: str, **fields: Any) -> None:
        logger.info("%s: %s", self.handler, text, extra=self._about(fields))

    def warn(self, text: str, **fields: Any) -> None:
        logger.warning("%s: %s", self.handler, text, extra=self._about(fields))

    def _about(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"event": self.event, "fields": {"handler": self.handler, "action": self.action, **fields}}

    def seconds_left(self) -> float:
        return max(self._limit_seconds - self.seconds(), 0.0)

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

    @property
    def busy(self) -> frozenset[str]:
        return frozenset(self._jobs)

    def begin(self, handler: Handler, job: HandlerJob) -> None:
        """Return at once; the outcome comes by itself."""
        self._jobs[job.handler] = job
        thread = threading.Thread(target=self._run, args=(handler, job), name=f"handler {job.handler}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def pass_over(self, handler: str, outcome: Outcome) -> None:
        """Nothing is run, and this is said to have come of it."""
        self._jobs[handler] = None
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
        except Exception as error:  # a handler of anybody's: whatever it raises, it has failed
            problem = f"{type(error).__name__}: {error}"
            logger.debug("%s failed.", job.handler, exc_info=True)
        self._done(Outcome(job.event.id, job.index, job.action, problem, job.seconds()))

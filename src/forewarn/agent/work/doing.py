"""Orders, carried out: noted on disk first, then done in a thread, then noted again."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from forewarn.agent.clock import real_seconds
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy.reading import handler_of
from forewarn.agent.work.deciding import Approve, Note, Run, seconds_left, undone
from forewarn.agent.work.job import Crew, HandlerJob, Outcome
from forewarn.agent.work.work import CAME_BACK, FAILED, PREPARED, PREPARING, SKIPPED, TO_DO, UNDOING
from forewarn.errors import ForewarnError, HandlerFailed

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.agent.policy.config import Config, NamedHandler
    from forewarn.agent.work.deciding import Order
    from forewarn.agent.work.ledger import Ledger
    from forewarn.agent.work.work import Work

logger = logging.getLogger("forewarn.agent")

STOP_SECONDS = 5.0
"""How long a stop waits for handlers. What they were at is taken up by the next start."""
LONGEST_PAUSE_SECONDS = 60.0


def pause_after(tries: int) -> float:
    """Longer each time, but never for long: something waits to be undone, or an event to be approved."""
    return min(2.0 ** (min(tries, 10) - 1), LONGEST_PAUSE_SECONDS)


class Doing:
    """Used under the agent's lock; only the crew's threads are outside of it."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        ledger: Ledger,
        lock: threading.Condition,
        done: Callable[[Outcome], None],
        *,
        dry_run: bool,
    ) -> None:
        self._config = config
        self._folder = folder
        self._ledger = ledger
        self._lock = lock
        self._dry_run = dry_run
        self._crew = Crew(done)
        self._tries: dict[str, int] = {}
        self._ended: dict[str, str] = {}
        """Runs that this agent has seen the end of, with their events: another try is another run."""
        self.begun_at: dict[str, float] = {}
        self.undo_at: dict[str, float] = {}

    @property
    def busy(self) -> frozenset[str]:
        return self._crew.busy

    def carry_out(self, order: Order, approve: Callable[[Work], None]) -> bool:
        """Whether there may be more to do at once."""
        if isinstance(order, Run):
            self._run(order)
            return False
        if isinstance(order, Approve):
            approve(order.work)
            return False
        if isinstance(order, Note):
            logger.info("%s", order.text, extra={"event": order.work.event})
            return self._ledger.keep(order.work)
        return self._finish(order.work)

    def stop(self) -> None:
        self._crew.stop(STOP_SECONDS)

    def end_early(self, event_id: str) -> None:
        self._crew.end_early(event_id)

    def forget(self, event_id: str) -> None:
        for known in (self.begun_at, self.undo_at, self._tries):
            known.pop(event_id, None)
        self._ended = {run: known for run, known in self._ended.items() if known != event_id}

    def give_up(self) -> bool:
        """Fail what is far over its limit. True: it cannot be ended but with the process."""
        return self._crew.give_up()

    # --- A handler's turn -----------------------------------------------------------------------------

    def _run(self, order: Run) -> None:
        work, index, action = order
        step = work.steps[index]
        found = self._handler(step.handler, step.table, action)
        if isinstance(found, str):
            self._crew.pass_over(Outcome(work.id, index, step.handler, action, found, 0.0))
            return
        begun = self.begun_at.setdefault(work.id, real_seconds())
        state = PREPARING if action == PREPARE else UNDOING
        table = found.table if action == PREPARE else step.table
        run = step.run if step.state == state and step.run not in self._ended else os.urandom(8).hex()
        noted = work.with_step(index, state=state, table=table, run=run, problem="")
        if not self._ledger.keep(noted):
            self._ledger.works[work.id] = work  # it was not begun
            return
        limit = found.timeout.total_seconds()
        if action == PREPARE:
            limit = min(limit, seconds_left(work, begun, real_seconds()))
        job = HandlerJob(noted, index, action, limit, self._folder, self._remember)
        if self._dry_run:
            job.say(f"would {found.handler.describe(action) or 'do nothing'}")
            self._crew.pass_over(Outcome(work.id, index, step.handler, action, "", 0.0))
            return
        logger.info("%s: %s", step.handler, _BEGINS[action], extra=_about(work, step.handler))
        self._crew.begin(found.handler, job)

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
            work = self._ledger.works.get(event_id)
            if work is not None and not self._ledger.keep(work.with_step(index, memo=memo)):
                raise HandlerFailed(problem=f"what it must remember cannot be written to {self._folder}")

    # --- What came of it ------------------------------------------------------------------------------

    def settle(self, outcome: Outcome, *, stopping: bool) -> str:
        """Note it, and return the word by which it is counted; empty: the agent stops, and it is begun again."""
        work = self._ledger.works.get(outcome.event_id)
        if work is None:
            self._crew.release(outcome.handler)
            return ""
        step = work.steps[outcome.step]
        self._ended[step.run] = work.id
        if outcome.problem and stopping:
            return ""
        changes: dict[str, Any] = {"problem": outcome.problem, "seconds": outcome.seconds}
        changed: dict[str, Work] = {}
        if outcome.action == PREPARE:
            not_done = SKIPPED if step.state == TO_DO else FAILED
            changes["state"] = not_done if outcome.problem else PREPARED
        elif not outcome.problem:
            changed = {other.id: other for other in undone(self._ledger.works, work.id, outcome.step)}
        changed[work.id] = changed.get(work.id, work).with_step(outcome.step, **changes)
        self._ledger.keep(*changed.values())
        self._crew.release(outcome.handler)
        if outcome.action == UNDO:
            self._count_tries(outcome)
        about = _about(work, step.handler, seconds=round(outcome.seconds, 3))
        if outcome.problem:
            logger.error("%s: could not %s: %s", step.handler, outcome.action, outcome.problem, extra=about)
        else:
            logger.info("%s: %s", step.handler, _DONE[outcome.action], extra=about)
        return _COUNTED[outcome.action, bool(outcome.problem)]

    def _count_tries(self, outcome: Outcome) -> None:
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
            return self._ledger.keep(work._replace(done=True))
        self._ledger.drop(work.id)
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

"""The writer: decides commands in batches, commits each batch, publishes it and answers.

A batch is decided on a draft and committed in the store's thread. Then the state absorbs it, subscribers publish it,
and the callers get their answers. So whoever is answered can rely on the disk, and a crash takes nothing back that was
published.

The writer uses callbacks, not a task: an approval should not wait for three turns of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections import deque
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from forewarn.clock import real_seconds
from forewarn.core.durations import to_text
from forewarn.core.state import Changes, Draft, ServiceState
from forewarn.engine.measurements import Measurements
from forewarn.errors import ServiceStopping, StoreFailed

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from forewarn.core.operations import Operation
    from forewarn.ports import Clock, RetentionCutoff, Store

    Done = Callable[[Any, BaseException | None], None]


T = TypeVar("T")


class StoreThread:
    """Runs what it is given, one after the other."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Done, asyncio.AbstractEventLoop] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any], done: Done) -> None:
        """Run the call there; `done` is called here with what it returned or raised."""
        self._calls.put((call, done, asyncio.get_running_loop()))

    async def call(self, call: Callable[[], T]) -> T:
        """What the call returned or raised, there."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T, error: BaseException | None) -> None:
            if future.done():  # whoever waited has gone away
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(call, done)
        return await future

    def stop(self) -> None:
        """When all that was given before is done."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (given := self._calls.get()) is not None:
            call, done, loop = given
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                loop.call_soon_threadsafe(done, None, error)
            else:
                loop.call_soon_threadsafe(done, result, None)


# --- The writer -----------------------------------------------------------------------------------


logger = logging.getLogger(__name__)


LONGEST_WAIT_SECONDS = 0.2
"""How long a command that can wait does."""


def new_id() -> str:
    """The id of a new event, operation or rollout."""
    return str(uuid.uuid4())


class PendingCommand(NamedTuple):
    """A command, and the callback that gets its result or its error."""

    command: Callable[[Draft, datetime], Any]
    done: Done


class Writer:
    """Executes commands one batch at a time.

    After a commit `publish` takes it over into the state, then come the answers, then `carry_out` gets what was
    published and what `publish` has returned.
    """

    def __init__(
        self,
        clock: Clock,
        store: Store,
        publish: Callable[[Changes], list[Operation]],
        carry_out: Callable[[Changes, list[Operation]], None],
    ) -> None:
        self.state = ServiceState()
        self._clock = clock
        self._store = store
        self._publish = publish
        self._carry_out = carry_out
        self._queue: list[PendingCommand] = []
        self._patient: list[PendingCommand] = []
        self._singly: deque[PendingCommand] = deque()
        """Commands of a batch that could not be written: each gets a chance of its own."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._writing = False
        self._begin_handle: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._hurried = 0
        self._thread = StoreThread()
        self._stopping = False
        self.measurements = Measurements()
        self._began_seconds = 0.0

    async def load(self) -> ServiceState:
        """Begin with what is in the store."""
        saved = await self.in_store(self._store.load)
        self.state = ServiceState(saved.fleet)
        # Rows of history are only counted here, so absorbing them afresh must not add to the sequence.
        self.state.absorb(saved.as_changes())
        self.state.sequence = saved.sequence
        return self.state

    async def stop(self) -> None:
        """Write the commands that were submitted, refuse new ones, and let go of the store."""
        self._stopping = True
        await self.until_idle()
        await self.in_store(self._store.close)
        self._thread.stop()

    def submit(self, command: Callable[[Draft, datetime], T], *, can_wait: bool = False) -> asyncio.Future[T]:
        """Gets what the command returned, once it is on disk; or what it raised, and then nothing has changed.

        Commands that can wait are written together, a moment later: what nobody waits for should not
        make a commit that somebody waits for any larger.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit_with_callback(command, partial(_settle, future), can_wait=can_wait)
        return future

    def submit_with_callback(
        self, command: Callable[[Draft, datetime], Any], done: Done, *, can_wait: bool = False
    ) -> None:
        """The same, with a callback instead of a future: called once it is so, not a turn of the loop later.

        Never from within this call.
        """
        if self._stopping:
            asyncio.get_running_loop().call_soon(done, None, ServiceStopping())
            return
        self._idle.clear()
        if can_wait and not self._hurried:
            self._patient.append(PendingCommand(command, done))
            if self._later is None:
                self._later = asyncio.get_running_loop().call_later(LONGEST_WAIT_SECONDS, self._take_patient)
        else:
            self._queue.append(PendingCommand(command, done))
            self._begin_soon()

    async def execute(self, command: Callable[[Draft, datetime], T]) -> T:
        """The same, for whoever has the time to wait here."""
        return await self.submit(command)

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Meanwhile no command waits: somebody waits for everything to be done."""
        self._hurried += 1
        self._take_patient()
        try:
            yield
        finally:
            self._hurried -= 1

    async def until_idle(self) -> None:
        """Until nothing is left to write."""
        with self.hurry():
            await self._idle.wait()

    async def in_store(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call the store in its own thread."""
        return await self._thread.call(partial(call, *arguments))

    # --- What is in memory before it is on disk, or only there -------------------------------------

    def record_seen(self, moments: Mapping[str, datetime]) -> None:
        """When groups last polled: too often for a commit each."""
        self.state.record_seen(moments)

    def count_dropped(self, webhook: str, count: int) -> None:
        """Rows that a webhook will never deliver, since the service was started."""
        self.state.webhook_deliveries.count_dropped(webhook, count)

    def forget_answers(self, before: datetime) -> None:
        """Answers to idempotency keys. They go from memory first: what memory knows must be in the store."""
        self.state.forget_answers(before)

    async def remove(self, expired: RetentionCutoff, most: int) -> bool:
        """Remove what is too old from the store, a part at a time. Whether there may be more."""
        return await self.in_store(self._store.remove, expired, most)

    def forget_history(self, oldest: int) -> Counter[str]:
        """History begins with this row now. Returns how many rows each webhook has lost by it."""
        return self.state.webhook_deliveries.forget_before(oldest)

    # --- From command to answer -------------------------------------------------------------------

    def _take_patient(self) -> None:
        """What could wait has waited long enough."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._queue += self._patient
        self._patient = []
        self._begin_soon()

    def _begin_soon(self) -> None:
        # Not at once: what arrives in this turn of the loop goes into the same batch.
        if not self._writing and self._begin_handle is None:
            self._begin_handle = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Decide the next batch and hand it to the store."""
        self._begin_handle = None
        if self._writing:  # a callback of the last batch may have submitted more before this one began
            return
        while self._singly or self._queue:
            if self._singly:
                batch = [self._singly.popleft()]
            else:
                batch, self._queue = self._queue, []
            changes, results = self._decide(batch)
            if changes:
                self._writing = True
                self._began_seconds = real_seconds()
                commit = partial(self._store.commit, changes)
                self._thread.submit(commit, partial(self._finish, batch, changes, results))
                return
            _answer(results)
        if not self._patient:
            self._idle.set()

    def _decide(self, batch: list[PendingCommand]) -> tuple[Changes, list[CommandResult]]:
        now = self._clock.now()
        whole: Draft | None = None
        results = []
        for pending in batch:
            # On a draft of its own, so that a command that fails leaves nothing in the others' way.
            draft = Draft(whole or self.state, new_id)
            try:
                result = pending.command(draft, now)
            except Exception as error:  # noqa: BLE001 - it belongs to the caller, not to the writer
                results.append(CommandResult(pending.done, None, error))
            else:
                if whole is None:
                    whole = draft
                else:
                    whole.absorb(draft)
                results.append(CommandResult(pending.done, result, None))
        changes = whole.changes if whole is not None else Changes()
        if changes:
            first = self.state.sequence + 1
            changes.history = [entry._replace(sequence=first + i) for i, entry in enumerate(changes.history)]
            if self._clock.virtual:
                changes.facts["virtual_now"] = to_text(now)
        return changes, results

    def _finish(
        self,
        batch: list[PendingCommand],
        changes: Changes,
        results: list[CommandResult],
        _: None,
        error: BaseException | None,
    ) -> None:
        """The batch is on disk, or could not be written."""
        self._writing = False
        self.measurements.commit_ended(real_seconds() - self._began_seconds, error)
        try:
            if error is None:
                try:
                    started = self._publish(changes)
                finally:
                    _answer(results)
                self._carry_out(changes, started)
            elif isinstance(error, StoreFailed) and len(batch) > 1:
                # One command may be what the disk has no room for: the others get their own chance.
                self._singly.extend(batch)
            else:
                _answer([one._replace(error=error) for one in results])
        finally:
            self._begin()


class CommandResult(NamedTuple):
    """What the callback of a command gets."""

    done: Done
    result: Any
    error: BaseException | None


def _answer(results: list[CommandResult]) -> None:
    for done, result, error in results:
        try:
            done(result, error)
        except Exception:  # its own affair: the state and the others must not suffer
            logger.exception("Whoever gave an order could not be told.")


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # the caller has gone away
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

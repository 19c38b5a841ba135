"""The writer: decides commands in batches, commits each batch, publishes it, and returns the results.

A batch is decided on a draft and committed in the store's thread. Then the state absorbs it, subscribers publish it,
and the callers get their results. So every result is on disk, and a crash never reverts what was published.

A command can be work in steps (core/steps.py). A batch is decided in slices, one in each iteration of the event loop,
so that polls go on. Nothing else is decided meanwhile, and readers see the state of before.

The writer uses callbacks instead of a task, because a task would delay an approval by three iterations of the loop.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from forewarn.clock import seconds_since_boot
from forewarn.core.durations import to_text
from forewarn.core.state import Changes, Draft, ServiceState
from forewarn.core.steps import COMMAND_COST, take_slice
from forewarn.engine.measurements import Measurements
from forewarn.errors import NotLeading, ServiceStopping, StoreFailed, StoreOutcomeUnknown
from forewarn.system.futures import resolve
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from forewarn.core.events import Event
    from forewarn.core.operations import Operation
    from forewarn.core.steps import Steps
    from forewarn.ports import Clock, RetentionCutoff, Store, StoredState

    Callback = Callable[[Any, BaseException | None], None]
    """Called with a result, or with an error."""


T = TypeVar("T")


class StoreThread:
    """A thread that runs calls one after the other."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Callback, asyncio.AbstractEventLoop] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any], done: Callback) -> None:
        """Run the call in the thread. `done` is called in the event loop with its result or error."""
        self._calls.put((call, done, asyncio.get_running_loop()))

    async def call(self, call: Callable[[], T]) -> T:
        """Run the call in the thread; return its result or raise its error."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # A call for which nobody waits any longer must not delay others.
        self.submit(lambda: None if future.cancelled() else call(), partial(resolve, future))
        return await future

    def stop(self) -> None:
        """Finish the submitted calls, and end the thread."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (submitted := self._calls.get()) is not None:
            call, done, loop = submitted
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                loop.call_soon_threadsafe(done, None, error)
            else:
                loop.call_soon_threadsafe(done, result, None)


# --- The writer -----------------------------------------------------------------------------------


_log = get_logger(__name__)


MAX_DEFER_SECONDS = 0.2
"""Maximum delay of a deferred command."""
MAX_BATCH_ROWS = 500
"""A batch with this many rows of history gets no more commands, because it is published at once. What is due at the
same time, or executed, is several commands with about so many rows."""


def _nothing() -> None:
    pass


def no_change(_draft: Draft, _now: datetime) -> None:
    """A command that changes nothing."""


class CommittedChanges:
    """What a request has committed. May contain changes of the same commit by others."""

    def __init__(self) -> None:
        self.found: list[Changes] = []
        self.is_over = False
        """Whether the request has ended. A task that it has started goes on with the context of the request."""


_committed: ContextVar[CommittedChanges | None] = ContextVar("committed", default=None)


@contextmanager
def collect_changes() -> Iterator[list[Changes]]:
    """Collect what is committed in the current context while this one is open."""
    committed = CommittedChanges()
    before = _committed.set(committed)
    try:
        yield committed.found
    finally:
        committed.is_over = True
        _committed.reset(before)


def committed_changes() -> list[Changes] | None:
    """Return what the current request has committed; None if nobody collects it."""
    committed = _committed.get()
    return committed.found if committed is not None and not committed.is_over else None


def new_id() -> str:
    """Return an id for a new event, operation or rollout."""
    return str(uuid.uuid4())


class PendingCommand(NamedTuple):
    """A command, and the callback that gets its result or its error."""

    command: Callable[[Draft, datetime], Any]
    done: Callback


class Writer:
    """Executes commands one batch at a time.

    After a commit: `publish` applies the changes to the state and returns the operations that have started, then the
    callers get their results. In the next iteration of the loop, `after_publish` gets the changes and these operations,
    and then the next batch begins.
    """

    def __init__(
        self,
        clock: Clock,
        store: Store,
        publish: Callable[[Changes], list[Operation]],
        after_publish: Callable[[Changes, list[Operation]], None],
    ) -> None:
        self.state = ServiceState()
        self._clock = clock
        self._store = store
        self._publish = publish
        self._after_publish = after_publish
        self._published: tuple[Changes, list[Operation]] | None = None
        """The arguments of `after_publish`, until it is called."""
        self.first_of_batch: Callable[[], PendingCommand | None] = _nothing
        """Called before each batch. Returns a command that must be decided before the others."""
        self._queue: list[PendingCommand] = []
        self._deferred: list[PendingCommand] = []
        self._single: deque[PendingCommand] = deque()
        """Commands of a failed batch. Each is retried in a batch of its own."""
        self._deciding: Decision | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_committing = False
        """Whether a commit has begun whose outcome is not known yet."""
        self._begin_handle: asyncio.Handle | None = None
        self._defer_timer: asyncio.TimerHandle | None = None
        self._deferral_disabled = 0
        self._thread = StoreThread()
        self._stopping = False
        self.leads = False
        """Whether this writer commits. Otherwise it follows: it applies what another node has committed."""
        self.position = 0
        """Number of the last commit in the journal that the state has. 0 without a journal."""
        self._earliest: datetime | None = None
        """The time of the last commit of another node: later commits have no earlier time, whatever the clock says."""
        self.on_deposed: Callable[[], None] = _nothing
        """Called when a commit was rejected because another node leads, or when its outcome is not known."""
        self.measurements = Measurements()
        self._commit_started_seconds = 0.0
        """In seconds since boot: other nodes may have a commit that began before a suspend of this machine."""

    def use(self, saved: StoredState, ended: Iterable[Event]) -> ServiceState:
        """Replace the state with a stored one, and with what clients may still approve: events that have ended."""
        state = ServiceState(saved.fleet)
        # History rows are not loaded, so absorbing the changes does not set the sequence.
        state.absorb(saved.as_changes())
        state.sequence = saved.sequence
        # They were read later. One that has ended since is active until the commit is applied that ends it.
        state.absorb(Changes(events={event.id: event for event in ended if event.id not in state.events}))
        state.keep_from(self.state)
        self.state, self.position = state, saved.position
        self._earliest = saved.decided_at or self._earliest
        return state

    # --- Leading and following ----------------------------------------------------------------------

    def lead(self) -> None:
        """Commit from now on."""
        self.leads = True

    def stop_leading(self) -> None:
        """Commit nothing from now on. Commands that are not being written are rejected."""
        self.leads = False
        deciding = self._deciding.batch if self._deciding is not None else []
        rejected = [*deciding, *self._single, *self._queue, *self._deferred]
        self._deciding = None
        self._single.clear()
        self._queue, self._deferred = [], []
        _call_back([CommandResult(pending.done, None, NotLeading()) for pending in rejected])

    def now(self) -> datetime:
        """Return the time of a commit that is decided now."""
        now = self._clock.now()
        return now if self._earliest is None else max(now, self._earliest)

    def apply(self, changes: Changes, position: int) -> None:
        """Apply a commit of the leader. No own commit may be in progress: it would be applied twice."""
        self.position = position
        self._earliest = changes.decided_at or self._earliest
        self._publish(changes)

    async def stop(self) -> None:
        """Write the submitted commands, reject new ones, and close the store."""
        self._stopping = True
        await self.wait_until_idle()
        await self.run_in_store_thread(self._store.close)
        self._thread.stop()

    def submit(self, command: Callable[[Draft, datetime], T | Steps[T]], *, defer: bool = False) -> asyncio.Future[T]:
        """Submit a command. The future gets its result when it is on disk, or its error if nothing has changed.

        Deferred commands are written together a little later. They have no waiting caller, so they should not make
        the commits of others larger.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit_with_callback(command, partial(resolve, future), defer=defer)
        return future

    def submit_with_callback(
        self, command: Callable[[Draft, datetime], Any], done: Callback, *, defer: bool = False
    ) -> None:
        """Submit a command with a callback, which is called one iteration of the loop earlier than a future.

        The callback is never called before this method returns.
        """
        if self._stopping or not self.leads:
            rejection = ServiceStopping() if self._stopping else NotLeading()
            asyncio.get_running_loop().call_soon(done, None, rejection)
            return
        self._idle.clear()
        if defer and not self._deferral_disabled:
            self._deferred.append(PendingCommand(command, done))
            if self._defer_timer is None:
                self._defer_timer = asyncio.get_running_loop().call_later(MAX_DEFER_SECONDS, self._submit_deferred)
        else:
            self._queue.append(PendingCommand(command, done))
            self._begin_soon()

    async def execute(self, command: Callable[[Draft, datetime], T | Steps[T]]) -> T:
        """Submit a command, which can be work in steps, and wait for its result."""
        committed = committed_changes()
        if committed is None:
            return await self.submit(command)
        drafts: list[Draft] = []

        def decide(draft: Draft, now: datetime) -> T | Steps[T]:
            drafts[:] = [draft]  # a command can be decided again
            return command(draft, now)

        result = await self.submit(decide)
        committed += [draft.changes for draft in drafts if draft.changes]
        return result

    @contextmanager
    def without_deferral(self) -> Iterator[None]:
        """Write deferred commands at once while this context is open, because a caller waits for all of them."""
        self._deferral_disabled += 1
        self._submit_deferred()
        try:
            yield
        finally:
            self._deferral_disabled -= 1

    async def wait_until_idle(self) -> None:
        """Wait until all commands are written."""
        with self.without_deferral():
            await self._idle.wait()

    def is_committing_since(self, seconds: float) -> bool:
        """Whether a commit is in progress that began before this time, in seconds since boot."""
        return self.is_committing and self._commit_started_seconds <= seconds

    async def run_in_store_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call the store in its thread."""
        return await self._thread.call(partial(call, *arguments))

    # --- Changes of memory that are not commands ---------------------------------------------------

    def record_seen(self, times: Mapping[str, datetime]) -> None:
        """Set when groups last polled. Polls are too frequent for a commit each."""
        self.state.record_seen(times)

    def set_polls_known_from(self, time: datetime | None) -> None:
        """Set since when the state has every poll; None: it has all."""
        self.state.polls_known_from = time

    def count_dropped(self, webhook: str, count: int) -> None:
        """Count rows that a webhook will never deliver. The count starts at zero with the service."""
        self.state.webhook_deliveries.count_dropped(webhook, count)

    def forget_responses(self, before: datetime) -> None:
        """Forget responses of idempotency keys, before the store removes them: a key in memory needs its row."""
        self.state.forget_responses(before)

    def forget_ended_events(self, before: datetime) -> None:
        """Forget events that ended before this time."""
        self.state.forget_ended_events(before)

    async def remove_expired(self, cutoff: RetentionCutoff, limit: int) -> bool:
        """Remove at most `limit` expired items of each kind. Returns whether there may be more."""
        return await self.run_in_store_thread(self._store.remove_expired, cutoff, limit)

    def forget_history(self, oldest: int) -> Counter[str]:
        """Forget undelivered rows before the oldest history row. Returns their number for each webhook."""
        return self.state.webhook_deliveries.forget_before(oldest)

    # --- From command to result -------------------------------------------------------------------

    def _submit_deferred(self) -> None:
        """Move the deferred commands to the queue."""
        if self._defer_timer is not None:
            self._defer_timer.cancel()
            self._defer_timer = None
        self._queue += self._deferred
        self._deferred = []
        self._begin_soon()

    def _begin_soon(self) -> None:
        # Not at once, so that all commands of this loop iteration are in one batch.
        if not self.is_committing and self._begin_handle is None:
            self._begin_handle = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Do what remains of the last batch, decide the next one, and start its commit."""
        self._begin_handle = None
        published, self._published = self._published, None
        try:
            if published is not None:
                self._after_publish(*published)
        finally:
            self._begin_next()

    def _begin_next(self) -> None:
        while self._deciding is not None or self._single or self._queue:
            if self._deciding is None:
                if self._single:
                    batch = [self._single.popleft()]
                else:
                    batch, self._queue = self._queue, []
                    if (first := self.first_of_batch()) is not None:
                        batch.insert(0, first)
                self._deciding = Decision(batch, self._decide(batch))
            batch, steps = self._deciding
            decided = take_slice(steps)
            if decided is None:  # the rest follows when others have had their turn
                self._begin_soon()
                return
            self._deciding = None
            changes, results = decided.value
            if changes:
                self.is_committing = True
                self._commit_started_seconds = seconds_since_boot()
                commit = partial(self._store.commit, changes)
                self._thread.submit(commit, partial(self._finish, batch, changes, results))
                return
            _call_back(results)
        if not self._deferred:
            self._idle.set()

    def _decide(self, batch: list[PendingCommand]) -> Steps[tuple[Changes, list[CommandResult]]]:
        """Decide the commands of a batch. Those that are too many for it return to the queue."""
        now = self.now()
        whole: Draft | None = None
        results = []
        for number, pending in enumerate(batch, 1):
            # Each command gets its own draft, so that a failed one leaves no changes.
            draft = Draft(whole or self.state, new_id)
            try:
                result = pending.command(draft, now)
                if isinstance(result, Generator):
                    result = yield from result
            except Exception as error:  # noqa: BLE001 - the caller gets it
                results.append(CommandResult(pending.done, None, error))
            else:
                if whole is None:
                    whole = draft
                else:
                    whole.absorb(draft)
                results.append(CommandResult(pending.done, result, None))
            if whole is not None and len(whole.changes.history) >= MAX_BATCH_ROWS:
                self._queue[:0] = batch[number:]
                del batch[number:]
            yield COMMAND_COST
        changes = whole.changes if whole is not None else Changes()
        if changes:
            changes.decided_at = now
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
        position: int,
        error: BaseException | None,
    ) -> None:
        """Publish a committed batch, or handle a failed commit."""
        self.is_committing = False
        self.measurements.commit_ended(seconds_since_boot() - self._commit_started_seconds, error)
        try:
            if error is None:
                self.position = position
                try:
                    self._published = changes, self._publish(changes)
                finally:
                    _call_back(results)
            elif isinstance(error, NotLeading):
                _call_back([one._replace(error=error) for one in results])
                self.on_deposed()
            elif isinstance(error, StoreOutcomeUnknown):
                # Not each one alone: if a retry failed too, its error would say that nothing has changed.
                self.on_deposed()
                _call_back([one._replace(error=error) for one in results])
            elif isinstance(error, StoreFailed) and len(batch) > 1:
                # One large command may have filled the disk, so retry each one alone.
                self._single.extend(batch)
            else:
                _call_back([one._replace(error=error) for one in results])
        finally:
            self._begin_soon()


class Decision(NamedTuple):
    """A batch that is being decided."""

    batch: list[PendingCommand]
    steps: Steps[tuple[Changes, list[CommandResult]]]


class CommandResult(NamedTuple):
    """A callback with the result or the error of its command."""

    done: Callback
    result: Any
    error: BaseException | None


def _call_back(results: list[CommandResult]) -> None:
    for done, result, error in results:
        try:
            done(result, error)
        except Exception:  # noqa: BLE001 - must not affect the state and the other callers
            _log.exception("command_callback_failed", "The callback of a command raised an error.")

"""The engine: executes commands and processes what is due. Nothing else changes the state.

Every command goes through one writer (engine/writer.py). `tick` processes what is due. Reading never changes anything.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from forewarn.clock import VirtualClock
from forewarn.core import access, approvals, enabling, fleet_commands, progress, requests, rollout_commands, webhooks
from forewarn.core.fleet import apply_declared
from forewarn.core.operations import OperationStatus
from forewarn.core.restore import UsedNumbers, restore
from forewarn.core.state import FORGOTTEN_ENABLING, Changes, Draft
from forewarn.core.steps import SLICE_COST, finish
from forewarn.engine.clock_hold import ClockHold
from forewarn.engine.executor import Executor, WorkReports, with_follow_ups
from forewarn.engine.history import Retention, StoredRecords
from forewarn.engine.last_seen import LastSeen
from forewarn.engine.scheduler import Scheduler, Timers
from forewarn.engine.writer import MAX_BATCH_ROWS, PendingCommand, Writer, new_id, no_change
from forewarn.errors import ClockNotVirtual, NothingDue, StoreFailed
from forewarn.ports import HistoryFilter
from forewarn.system.logs import get_logger
from forewarn.system.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set
    from datetime import datetime, timedelta

    from forewarn.core.access import Token
    from forewarn.core.events import Document, Event
    from forewarn.core.fleet import Fleet, FleetChange, FleetPlan, Group
    from forewarn.core.fleet_commands import PolicyUpdate
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import CauseRequest, FailedAttempt, Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.steps import Steps
    from forewarn.core.webhooks import Undelivered, Webhook
    from forewarn.engine.measurements import Measurements
    from forewarn.ports import Clock, ClockBarrier, DatabaseChange, Fabric, Forwarder, Store, StoredState

    FleetPlanner = Callable[[Fleet, Set[str], int], FleetPlan]
    """Plans a change of a fleet. Also gets the hosts that VMs are moving to, and the newest sequence of history."""


T = TypeVar("T")
P = ParamSpec("P")
_log = get_logger(__name__)


CHECK_SECONDS = 10.0
"""A store that does not answer for so long has a problem."""
SKIP_BATCH = 5000
"""Scopes that get new numbers in one turn of the event loop, so that polls are served in between."""
MAX_MISSED_ROWS = 1000
"""History rows that subscribers get after a reload. Readers that need more read them from the store."""


class Published(NamedTuple):
    """What a commit has changed for the metadata service."""

    scopes: frozenset[str]
    """Scopes whose document may have changed."""
    fleet: bool
    """Whether VMs or groups were added, removed or renamed."""


class AppliedFleet(NamedTuple):
    """What applying a fleet has changed, or would change."""

    change: FleetChange
    tokens_revoked: list[str]
    """Names of tokens whose groups were removed."""


class DueItem(NamedTuple):
    """Something that happens because of the time."""

    time: datetime
    kind: str
    """operation, rollout or fabric."""
    id: str
    description: str


class Engine:
    """Operations and events of one fleet, from request to removal."""

    def __init__(self, clock: Clock, store: Store, fabric: Fabric, limits: OperatorLimits) -> None:
        self.clock = clock
        self.limits = limits
        self._fabric = fabric
        self._store = store
        self._writer = Writer(clock, store, self._publish, self._after_publish)
        self._timers = Timers()
        self.last_seen = LastSeen(clock, self._writer, self._timers, limits)
        self.clock_hold = ClockHold(clock, self._writer, self.last_seen)
        self.records = StoredRecords(self._writer, store)
        self._executor = Executor(clock, fabric, WorkReports(self._writer, limits))
        self._retention = Retention(clock, self._writer, self.records, limits)
        self._scheduler = Scheduler(
            clock,
            self._timers,
            self.last_seen,
            self._writer,
            self._executor,
            self._retention,
            self.clock_hold,
            self.tick,
        )
        self.worker = Worker()
        self.forwarder: Forwarder | None = None
        """Sends changes to the leader while this node follows."""
        self.fleet_problem = ""
        """Why the fleet file of the service is not in force; empty: it is, or there is none."""
        self._is_excluding = False
        """Whether a batch in progress moves events by a downtime."""
        self._exclusion_error: BaseException | None = None
        """Why this has failed the last time."""
        self._writer.first_of_batch = self._first_of_batch
        self._store_check: asyncio.Task[list[str]] | None = None
        self._subscribers: list[Callable[[Published], None]] = []
        self._commit_subscribers: list[Callable[[Changes], None]] = []

    # --- Start and stop ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Continue from the stored state, as the only node."""
        await self.load()
        await self.lead()

    async def load(self) -> None:
        """Load the stored state, and publish it: the service answers from it, and changes nothing."""
        before = self._writer.state
        # First everything is read, because the database can be lost in between. Then everything is replaced.
        saved = await self.run_in_store_thread(self._store.load)
        if isinstance(self.clock, VirtualClock):
            self._scheduler.resume(saved.facts)
        since = self.clock.now() - approvals.ENDED_EVENT_RETENTION
        ended = await self.run_in_store_thread(self._load_ended_events, saved, since)
        missed = Changes()
        if before.sequence:  # it was too far behind: what its subscribers have missed
            newest = HistoryFilter(after=before.sequence, before=saved.sequence + 1, newest=True, limit=MAX_MISSED_ROWS)
            missed.history = (await self.run_in_store_thread(self._store.history, newest))[::-1]
        state = self._writer.use(saved, ended)
        missed.tokens = dict(state.tokens)
        scopes = frozenset((*before.deliveries, *state.deliveries))
        for subscriber in self._subscribers:
            subscriber(Published(scopes, fleet=True))
        for commit_subscriber in self._commit_subscribers:
            commit_subscriber(missed)

    def _load_ended_events(self, saved: StoredState, since: datetime) -> list[Event]:
        """Return the events that ended after this time, or whose operation is active."""
        found = {event.id: event for event in self._store.events_ended_since(since)}
        active = {event.id for event in saved.events}
        for event_id in (event_id for operation in saved.operations for event_id in operation.events):
            if event_id not in found and event_id not in active and (event := self._store.event(event_id)) is not None:
                found[event_id] = event
        return list(found.values())

    async def lead(self) -> None:
        """Make changes from now on, and process what is due. The state must have all commits."""
        state = self._writer.state
        unfinished = [operation for operation in state.operations.values() if operation.needs_fabric]
        # Before any commit, which could start another operation: the fabric removes what it does not know.
        await self._fabric.recover([operation.id for operation in unfinished])
        self._scheduler.resume(state.facts)
        self._timers.clear()
        self.last_seen.start_watching()
        self.last_seen.measure_downtime()
        self.last_seen.exclude_downtime()
        self._writer.lead()
        for operation in state.operations.values():
            self._schedule(operation)
        for rollout in state.rollouts.values():
            self._timers.add(rollout_commands.when_due(rollout) or self.clock.now(), "rollout", rollout.id)
        for operation in unfinished:
            self._executor.start(operation, operation.concerned(self.fleet))
        try:
            await self.tick()
        except StoreFailed as error:  # polls must work, and the scheduler tries again
            _log.warning("due_items_not_processed", "Cannot process due events; retrying.", error=str(error))
        self._scheduler.start()

    def used_numbers(self) -> UsedNumbers:
        """Return numbers that clients of this node may know, as far as that takes no time: not those of each scope."""
        state = self._writer.state
        return UsedNumbers(state.sequence, {}, int(state.fact(FORGOTTEN_ENABLING) or 0))

    async def skip_numbers(self, used: UsedNumbers, change: DatabaseChange, commit: Callable[[Changes], int]) -> None:
        """Commit what follows lost commits, so that no client sees a number twice. The first commit of a leader."""
        now = self._writer.now()
        decide = partial(restore, self._writer.state, now, used, kind=change.kind, cause=change.reason)
        changes = await self.worker.run(decide)
        changes.decided_at = now
        position = await self.run_in_store_thread(commit, changes)
        deliveries = iter(changes.deliveries.items())
        while part := dict(islice(deliveries, SKIP_BATCH)):
            self._publish(Changes(deliveries=part))
            await asyncio.sleep(0)
        self.apply(replace(changes, deliveries={}), position)

    async def follow(self) -> None:
        """Change nothing from now on: another node leads. Returns when no commit is in progress."""
        self._writer.stop_leading()
        await self._scheduler.stop()
        await self._executor.stop()
        self._timers.clear()
        await self._writer.wait_until_idle()

    def tidy_follower(self) -> None:
        """Do what a node must do from time to time while it follows. The leader does it with its other work."""
        self._retention.forget_expired()

    @property
    def on_deposed(self) -> Callable[[], None]:
        """Called when a commit was rejected because another node leads, or when its outcome is not known."""
        return self._writer.on_deposed

    @on_deposed.setter
    def on_deposed(self, callback: Callable[[], None]) -> None:
        self._writer.on_deposed = callback

    async def run_in_store_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call the store in its thread."""
        return await self._writer.run_in_store_thread(call, *arguments)

    def apply(self, changes: Changes, position: int) -> None:
        """Apply and publish a commit of the leader."""
        self._writer.apply(changes, position)

    async def stop(self) -> None:
        """Finish the submitted commands, write the last-seen times, and close the store."""
        if self.leads:
            try:
                await self._exclude_downtime()
                await self.last_seen.write_all_shifted()
            except StoreFailed as error:
                _log.warning("last_seen_not_written", "Cannot write last-seen times; stopping.", error=str(error))
        await self._scheduler.stop()
        await self._executor.stop()
        self.records.stop()
        await self._writer.stop()

    def subscribe(self, subscriber: Callable[[Published], None]) -> None:
        """Call the subscriber after each commit that changes a document or the fleet."""
        self._subscribers.append(subscriber)

    def subscribe_to_commits(self, subscriber: Callable[[Changes], None]) -> None:
        """Call the subscriber with the changes of every commit, in order, when the state has them."""
        self._commit_subscribers.append(subscriber)

    # --- Commands: on disk when they return; if they raise, nothing has changed ---------------------

    async def execute(
        self, command: Callable[Concatenate[Draft, datetime, OperatorLimits, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Decide a command on a draft, and commit it. Frequent commands have their own methods below."""
        return await self._writer.execute(with_follow_ups(self.limits, command, *args, **kwargs))

    async def execute_in_steps(
        self,
        command: Callable[Concatenate[Draft, datetime, OperatorLimits, P], Steps[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Like `execute`, for a command in steps. Others have their turn between its slices, but see no part of it."""
        return await self._writer.execute(with_follow_ups(self.limits, command, *args, **kwargs))

    async def preview_in_steps(
        self,
        command: Callable[Concatenate[Draft, datetime, OperatorLimits, P], Steps[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Like `execute_in_steps`, but drop the changes. No other command changes the state meanwhile."""
        decide = with_follow_ups(self.limits, command, *args, **kwargs)

        def decide_only(draft: Draft, now: datetime) -> Steps[T]:
            result = yield from decide(draft, now)
            draft.changes = Changes()
            return result

        return await self._writer.execute(decide_only)

    def preview(
        self, command: Callable[Concatenate[Draft, datetime, OperatorLimits, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[T, Changes]:
        """Return the result of a command and its changes, without committing them."""
        draft = self.draft()
        decide = with_follow_ups(self.limits, command, *args, **kwargs)
        return finish(decide(draft, self.clock.now())), draft.changes

    def draft(self) -> Draft:
        """Return a draft of the current state, for reading."""
        return Draft(self._writer.state, new_id)

    async def request(self, request: CauseRequest, by: str) -> list[Operation]:
        """Request an operation, or one for each VM."""
        return await self.execute_in_steps(requests.request_in_steps, request, by)

    async def approve(self, ids: Sequence[str], by: str, tenant: Token | None = None) -> None:
        """Approve events, which may then start before their NotBefore. With a token, only those that it sees are
        known."""
        await self.execute_in_steps(approvals.approve_in_steps, ids, by, tenant=tenant)

    def approve_with_callback(
        self, ids: Sequence[str], by: str, scope: str, done: Callable[[None, BaseException | None], None]
    ) -> None:
        """Approve events of a scope. Calls `done` when that is on disk or has failed: a poll uses no tasks."""
        if self.forwarder is not None and not self.forwarder.is_certain:
            self.forwarder.approve(ids, by, scope, done)
            return
        command = with_follow_ups(self.limits, approvals.approve_in_steps, ids, by, scope=scope)
        self._writer.submit_with_callback(command, done)

    async def cancel(self, event_id: str, by: str, reason: str = "") -> Event:
        """Cancel the operation of an event that has not started."""
        return await self.execute_in_steps(approvals.cancel_in_steps, event_id, by, reason)

    async def cancel_operation(self, operation_id: str, by: str, reason: str = "") -> Operation:
        """Cancel an operation that has not started."""
        return await self.execute_in_steps(approvals.cancel_operation_in_steps, operation_id, by, reason)

    async def postpone(self, event_id: str, by: str, until: datetime) -> Event:
        """Postpone an event: set a later NotBefore."""
        return await self.execute_in_steps(approvals.postpone_in_steps, event_id, by, until)

    async def mark_done(self, operation_id: str, by: str, placed: Mapping[str, str] | None = None) -> Operation:
        """Mark an operation as done, and stop waiting for the fabric. `placed`: where its VMs are now."""
        operation = await self.execute(progress.mark_done, operation_id, by, placed)
        self._executor.stop_waiting(operation_id)
        return operation

    async def mark_failed(self, operation_id: str, by: str, reason: str = "") -> Operation:
        """Mark an operation as failed, and stop waiting for the fabric."""
        operation = await self.execute_in_steps(progress.failed_in_steps, operation_id, by, reason)
        self._executor.stop_waiting(operation_id)
        return operation

    async def enable(self, scope: str, by: str) -> None:
        """Enable scheduled events for a scope."""
        if self.forwarder is not None and not self.forwarder.is_certain:
            await self.forwarder.enable(scope, by)
            return
        await self.execute(enabling.enable, scope, by)

    async def set_policy(self, group: str, policy: PolicyUpdate, by: str) -> Group:
        """Change the policy of a group."""
        return await self.execute(fleet_commands.set_policy, group, policy, by)

    async def revoke_token(self, name: str, by: str) -> Token:
        return await self.execute(access.revoke_token, name, by)

    async def remove_webhook(self, name: str, by: str) -> Webhook:
        return await self.execute(webhooks.remove_webhook, name, by)

    async def record_deliveries(
        self, before: Webhook, after: Webhook, undelivered: Mapping[int, Undelivered | None]
    ) -> int | None:
        """Record the results of deliveries (core.webhooks.record_deliveries)."""
        return await self.execute(webhooks.record_deliveries, before, after, undelivered)

    async def retry_webhook(self, name: str, sequence: int | None = None) -> list[Undelivered]:
        """Give failed rows one more attempt. Returns the rows to send now."""
        return await self.execute(webhooks.retry, name, sequence)

    def count_dropped(self, webhook: str, count: int) -> None:
        """Count rows that a webhook will never deliver."""
        self._writer.count_dropped(webhook, count)

    async def apply_fleet(
        self,
        fleet: Fleet,
        by: str,
        *,
        force: bool = False,
        reason: str = "",
        facts: dict[str, str] | None = None,
        dry_run: bool = False,
    ) -> AppliedFleet:
        """Replace the fleet, except in a dry run."""
        planner = partial(apply_declared, fleet)
        plan = await self.plan_fleet(planner)
        command = self.fleet_change(planner, plan, by, force=force, reason=reason, facts=facts)
        applied = await (self.preview_in_steps(command) if dry_run else self.execute_in_steps(command))
        if not dry_run:
            self.fleet_problem = ""
        return applied

    async def plan_fleet(self, planner: FleetPlanner) -> FleetPlan:
        """Plan a change of the fleet in another thread: that takes long for a large fleet."""
        state = self._writer.state
        return await self.worker.run(planner, state.fleet, state.destinations(), state.sequence)

    def fleet_change(
        self,
        planner: FleetPlanner,
        plan: FleetPlan | None,
        by: str,
        *,
        force: bool,
        reason: str,
        facts: dict[str, str] | None = None,
    ) -> Callable[[Draft, datetime, OperatorLimits], Steps[AppliedFleet]]:
        """Return the command that changes the fleet as planned. If there is no plan, or the fleet has changed since, it
        plans while the writer waits. So a third plan is never needed."""

        def change(draft: Draft, now: datetime, limits: OperatorLimits) -> Steps[AppliedFleet]:
            found, fleet, destinations = plan, draft.fleet, draft.destinations()
            # Spare hosts that VMs are moving to must stay.
            lost = destinations & fleet.hosts.keys() - found.after.hosts.keys() if found is not None else ()
            if found is None or fleet is not found.before or lost:
                planning = asyncio.create_task(self.worker.run(planner, fleet, destinations, draft.sequence))
                try:
                    while not planning.done():
                        yield SLICE_COST
                finally:
                    planning.cancel()
                found = planning.result()
            draft.changes.facts.update(facts or {})
            if not found.change:
                return AppliedFleet(found.change, [])
            revoked = yield from fleet_commands.apply_fleet(
                *(draft, now, limits, found.after, found.change, by), force=force, reason=reason
            )
            return AppliedFleet(found.change, revoked)

        return change

    async def tick(self) -> None:
        """Process what is due now. After a jump of the system clock, nothing is processed until the hold ends."""
        self.last_seen.record_polls()
        self.last_seen.watch_next()
        await self._exclude_downtime()
        if await self.clock_hold.update():
            return
        now = self.clock.now()
        first_due_at = self._timers.next_time()
        if first_due_at is not None and first_due_at <= now and not self.clock.virtual:
            self._writer.measurements.scheduler_delay.observe((now - first_due_at).total_seconds())
        due = self._timers.pop_due(now)
        inactive = self.last_seen.find_inactive([key for kind, key in due if kind == "inactivity"], now)
        due = [item for kind in ("operation", "rollout") for item in due if item[0] == kind]
        due += [("inactivity", scope) for scope in inactive]

        def process_due(draft: Draft, now: datetime, limits: OperatorLimits) -> Steps[int]:
            """Process what is due until the commit is large. Returns how many items are done."""
            for done, (kind, key) in enumerate(due):
                if len(draft.changes.history) >= MAX_BATCH_ROWS:
                    return done
                if kind == "operation":
                    yield from progress.advance_in_steps(draft, now, limits, key)
                elif kind == "rollout":
                    draft.rollouts_to_step[key] = None
                else:
                    enabling.disable_if_inactive(draft, now, limits, key)
                yield 1
            return len(due)

        try:
            while due:
                due = due[await self.execute_in_steps(process_due) :]
        except Exception:
            for kind, key in due:
                if kind != "inactivity":
                    self._timers.add(now, kind, key)
            self.last_seen.reschedule([key for kind, key in due if kind == "inactivity"], now)
            raise

    async def _exclude_downtime(self) -> None:
        """Move events by the time in which nobody could poll."""
        if self.last_seen.downtime:
            await self._writer.execute(no_change)  # every batch begins with it
            if self._exclusion_error is not None:
                raise self._exclusion_error

    def _first_of_batch(self) -> PendingCommand | None:
        """Return the command that moves events by the time in which nobody could poll, once."""
        self._scheduler.notice_pause()
        downtime = self.last_seen.downtime
        if not downtime or self._is_excluding:
            return None

        def done(_result: None, error: BaseException | None) -> None:
            self._is_excluding, self._exclusion_error = False, error
            if error is None:
                self.last_seen.downtime -= downtime

        self._is_excluding = True
        return PendingCommand(with_follow_ups(self.limits, progress.exclude_downtime, downtime), done)

    async def accept_clock(self, by: str) -> None:
        """Accept the system time after a jump, and process what is due by it."""
        await self.clock_hold.accept(by)
        await self.tick()

    async def advance(self, duration: timedelta, barrier: ClockBarrier | None = None) -> datetime:
        """Advance a virtual clock. Returns when everything due is done, and the VMs of the barrier have seen it."""
        return await self._scheduler.advance(duration, barrier)

    def next_due(self) -> DueItem | None:
        """Return what happens next because of the time, after now. Inactivity does not count: VMs may poll again."""
        state, now = self._writer.state, self.clock.now()
        items = [
            DueItem(time, "operation", operation.id, progress.describe_due(operation))
            for operation in state.operations.values()
            if (time := progress.when_due(state, operation)) is not None and time > now
        ]
        items += [
            DueItem(time, "rollout", rollout.id, f"The next wave of rollout {rollout.id} is scheduled.")
            for rollout in state.rollouts.values()
            if (time := rollout_commands.when_due(rollout)) is not None and time > now
        ]
        if isinstance(self.clock, VirtualClock) and (time := self.clock.next_wake_up()) is not None and time > now:
            items.append(DueItem(time, "fabric", "", "The fabric continues its work."))
        return min(items, key=lambda item: item.time, default=None)

    def time_to_next(self) -> timedelta:
        """Return the time until something is due. Raises an error if nothing is."""
        if not self.clock.virtual:
            raise ClockNotVirtual
        due = self.next_due()
        if due is None:
            raise NothingDue
        return due.time - self.clock.now()

    # --- Reading: from memory ---------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this node makes the changes. The only node of a service always does."""
        return self._writer.leads

    async def store_problems(self) -> list[str]:
        """Return why changes or reads of the store fail now. Requests at the same time share one check."""
        check = self._store_check
        if check is None or check.done():
            check = self._store_check = asyncio.create_task(self._check_store())
        await asyncio.wait([check], timeout=CHECK_SECONDS)
        if not check.done():
            return [f"The store has not answered for {CHECK_SECONDS:.0f} seconds."]
        return check.result().copy()

    async def _check_store(self) -> list[str]:
        """Try again what failed last: the store may work again."""
        problems = [await self.records.check()]
        if self.leads:
            if self.measurements.problem:  # nothing may have been written since
                with suppress(StoreFailed):
                    await self.last_seen.write()
            problems += [self._store.problem() or self.measurements.problem]
        return [problem for problem in problems if problem]

    def is_committing_since(self, seconds: float) -> bool:
        """Whether a commit that began before this time, in seconds since boot, has no known outcome yet."""
        return self._writer.is_committing_since(seconds)

    @property
    def position(self) -> int:
        """Number of the last commit in the journal that this node has applied; 0 without a journal."""
        return self._writer.position

    @property
    def fleet(self) -> Fleet:
        return self._writer.state.fleet

    @property
    def polled(self) -> set[str]:
        """Scopes that polled recently. The metadata server adds to it."""
        return self.last_seen.polled

    @property
    def measurements(self) -> Measurements:
        return self._writer.measurements

    @property
    def facts(self) -> dict[str, str]:
        return self._writer.state.facts

    def document(self, scope: str) -> Document:
        """Return the current document of a scope."""
        return self._writer.state.document(scope)

    def live_operations(self) -> list[Operation]:
        return list(self._writer.state.operations.values())

    def failed_attempt(self, operation_id: str) -> FailedAttempt | None:
        """Return the fabric's last attempt of an operation, if it failed and will be retried."""
        return self._executor.failed_attempt(operation_id)

    def live_rollouts(self) -> list[Rollout]:
        return self._writer.state.live_rollouts()

    def live_events(self) -> list[Event]:
        return self._writer.state.live_events()

    @property
    def event_count(self) -> int:
        """Number of active events."""
        return len(self._writer.state.events)

    def last_seen_at(self, scope: str) -> datetime | None:
        """Return when the scope last polled."""
        return self.last_seen.last_seen_at(scope)

    # --- After a commit ---------------------------------------------------------------------------

    def _publish(self, changes: Changes) -> list[Operation]:
        """Apply committed changes to the state, and publish them. Returns the operations to execute."""
        state = self._writer.state
        started = [
            operation
            for operation in changes.operations.values()
            if operation.needs_fabric
            and ((before := state.operation(operation.id)) is None or before.status is OperationStatus.PENDING)
        ]
        state.absorb(changes)
        scopes = frozenset(changes.deliveries) | {event.scope for event in changes.events.values()}
        fleet_changed = not all(change.in_place for change in changes.fleet_changes)
        if scopes or fleet_changed:
            published = Published(scopes, fleet_changed)
            for subscriber in self._subscribers:
                subscriber(published)
        for commit_subscriber in self._commit_subscribers:
            commit_subscriber(changes)
        return started

    def _set_timers(self, changes: Changes) -> None:
        state = self._writer.state
        # An event can change its due time although its operation is unchanged.
        touched = dict.fromkeys((*changes.operations, *(event.operation for event in changes.events.values())))
        for operation_id in touched:
            if (operation := state.operation(operation_id)) is not None:
                self._schedule(operation)
        for rollout in changes.rollouts.values():
            if (due_at := rollout_commands.when_due(rollout)) is not None:
                self._timers.add(due_at, "rollout", rollout.id)
        for scope, delivery in changes.deliveries.items():
            if delivery is not None and delivery.enabled and scope in changes.last_seen:
                self.last_seen.watch(scope)

    def _after_publish(self, changes: Changes, started: list[Operation]) -> None:
        """Set timers, execute the started operations, and stop waiting for those that have ended."""
        if not self.leads:  # the commit was the last one of this leader
            return
        self._set_timers(changes)
        for operation in changes.operations.values():
            if not operation.status.live:
                self._executor.stop_waiting(operation.id)
        for operation in started:
            self._executor.start(operation, operation.concerned(self.fleet))

    # --- Timers -----------------------------------------------------------------------------------

    def _schedule(self, operation: Operation) -> None:
        due_at = progress.when_due(self._writer.state, operation)
        if due_at is not None:
            self._timers.add(due_at, "operation", operation.id)
        if (
            operation.request.rollout
            and (overdue_at := rollout_commands.overdue_at(self.limits, operation)) is not None
        ):
            self._timers.add(overdue_at, "rollout", operation.request.rollout)

"""The engine: executes commands, does what is due, and is the only writer.

Every command goes through the one writer (engine/writer.py). The engine is stepped: `tick` does what is due;
reading never changes anything.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

from forewarn.core import access, approvals, enabling, fleet_commands, progress, requests, rollout_commands, webhooks
from forewarn.core.fleet import apply_declared
from forewarn.core.operations import OperationStatus
from forewarn.core.state import Draft
from forewarn.engine.executor import Executor, WorkReports, with_rollout_steps
from forewarn.engine.history import Retention, StoredRecords
from forewarn.engine.last_seen import LastSeen
from forewarn.engine.scheduler import Scheduler, Timers
from forewarn.engine.writer import Writer, new_id
from forewarn.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime, timedelta

    from forewarn.core.access import Token
    from forewarn.core.events import Document, Event
    from forewarn.core.fleet import Fleet, FleetChange, Group
    from forewarn.core.fleet_commands import PolicyUpdate
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import CauseRequest, FailedAttempt, Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Changes
    from forewarn.core.webhooks import Undelivered, Webhook
    from forewarn.engine.measurements import Measurements
    from forewarn.ports import Clock, ClockBarrier, Fabric, Store


T = TypeVar("T")
P = ParamSpec("P")
logger = logging.getLogger(__name__)


class Published(NamedTuple):
    """What has just become true."""

    groups: frozenset[str]
    fleet: bool
    """Whether VMs or groups have come, gone, or are called otherwise."""


class Engine:
    """One fleet's events, from request to removal."""

    def __init__(self, clock: Clock, store: Store, fabric: Fabric, limits: OperatorLimits) -> None:
        self.clock = clock
        self.limits = limits
        self._fabric = fabric
        self._writer = Writer(clock, store, self._publish, self._carry_out)
        self._timers = Timers()
        self.last_seen = LastSeen(clock, self._writer, self._timers, limits)
        self.records = StoredRecords(self._writer, store)
        self._executor = Executor(clock, fabric, WorkReports(self._writer, limits))
        retention = Retention(clock, self._writer, self.records, limits)
        self._scheduler = Scheduler(
            clock, self._timers, self.last_seen, self._writer, self._executor, retention, self.tick
        )
        self._subscribers: list[Callable[[Published], None]] = []
        self._followers: list[Callable[[Changes], None]] = []

    # --- Life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up where the store left off: what fell due meanwhile is done now, each once."""
        state = await self._writer.load()
        self._scheduler.resume()
        self.last_seen.forgive_downtime()
        for operation in state.operations.values():
            self._schedule(operation)
        for rollout in state.rollouts.values():
            self._timers.add(rollout_commands.when_due(rollout) or self.clock.now(), "rollout", rollout.id)
        for delivery in state.deliveries.values():
            if delivery.enabled:
                self.last_seen.watch(delivery.group)
        unfinished = [operation for operation in state.operations.values() if operation.needs_fabric]
        await self._fabric.recover([operation.id for operation in unfinished])
        for operation in unfinished:
            self._executor.take(operation, operation.concerned(self.fleet))
        self._scheduler.start()
        await self.tick()

    async def stop(self) -> None:
        """Finish the commands that were given, write what is known, and let go."""
        try:
            await self.last_seen.write()
        except StoreFailed as error:
            logger.warning("Stopping without writing when groups were last heard: %s", error)
        await self._scheduler.stop()
        await self._executor.stop()
        self.records.stop()
        await self._writer.stop()

    def subscribe(self, subscriber: Callable[[Published], None]) -> None:
        """Be told of every change of a document or of the fleet, after it is on disk."""
        self._subscribers.append(subscriber)

    def follow(self, follower: Callable[[Changes], None]) -> None:
        """Be given every commit whole, after it is taken over: rows of history come in their sequence."""
        self._followers.append(follower)

    # --- Commands: on disk when they return; if they raise, nothing has changed ---------------------

    async def execute(
        self, command: Callable[Concatenate[Draft, datetime, OperatorLimits, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Decide any command on a draft, and commit it. What is frequent has a method of its own below."""
        return await self._writer.execute(with_rollout_steps(self.limits, command, *args, **kwargs))

    def preview(
        self, command: Callable[Concatenate[Draft, datetime, OperatorLimits, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[T, Changes]:
        """What the same command would do now, and what would be written. Nothing changes."""
        draft = self.draft()
        return with_rollout_steps(self.limits, command, *args, **kwargs)(draft, self.clock.now()), draft.changes

    def draft(self) -> Draft:
        """The state now, to be asked like a draft."""
        return Draft(self._writer.state, new_id)

    async def request(self, asked: CauseRequest, by: str) -> list[Operation]:
        """Begin an operation, or one for each VM."""
        return await self.execute(requests.request, asked, by)

    async def approve(self, ids: Sequence[str], by: str, group: str | None = None) -> None:
        """Let events start before their NotBefore."""
        await self.execute(approvals.approve, ids, by, group)

    def approve_with_callback(
        self, ids: Sequence[str], by: str, group: str, tell: Callable[[None, BaseException | None], None]
    ) -> None:
        """The same with a callback, called when it is on disk or has failed: the metadata service has no task."""
        self._writer.submit_with_callback(with_rollout_steps(self.limits, approvals.approve, ids, by, group), tell)

    async def cancel(self, event_id: str, by: str, why: str = "") -> Event:
        """Withdraw the operation behind an event that has not started."""
        return await self.execute(approvals.cancel, event_id, by, why)

    async def cancel_operation(self, operation_id: str, by: str, why: str = "") -> Operation:
        """Withdraw an operation that has not started."""
        return await self.execute(approvals.cancel_operation, operation_id, by, why)

    async def postpone(self, event_id: str, by: str, until: datetime) -> Event:
        """Let an event start later."""
        return await self.execute(approvals.postpone, event_id, by, until)

    async def mark_done(self, operation_id: str, by: str) -> Operation:
        """Somebody says that the work of an operation is done: nobody waits for the fabric then."""
        operation = await self.execute(progress.mark_done, operation_id, by)
        self._executor.let_go(operation_id)
        return operation

    async def mark_failed(self, operation_id: str, by: str, why: str = "") -> Operation:
        """Somebody says that the work of an operation has failed."""
        operation = await self.execute(progress.failed, operation_id, by, why)
        self._executor.let_go(operation_id)
        return operation

    async def enable(self, group: str, by: str) -> None:
        """Begin to notify a group."""
        await self.execute(enabling.enable, group, by, secrets.token_hex(4))

    async def return_host(self, name: str, by: str) -> list[Operation]:
        """Take a host back into use. Returns the operations that are withdrawn by it."""
        return await self.execute(fleet_commands.return_host, name, by)

    async def set_policy(self, group: str, policy: PolicyUpdate, by: str) -> Group:
        """Change what a group's owner has chosen."""
        return await self.execute(fleet_commands.set_policy, group, policy, by)

    async def revoke_token(self, name: str, by: str) -> Token:
        return await self.execute(access.revoke_token, name, by)

    async def remove_webhook(self, name: str, by: str) -> Webhook:
        return await self.execute(webhooks.remove_webhook, name, by)

    async def settle_webhook(
        self, before: Webhook, after: Webhook, undelivered: Mapping[int, Undelivered | None]
    ) -> int | None:
        """Record what came of deliveries. (core.webhooks.settle)"""
        return await self.execute(webhooks.record_deliveries, before, after, undelivered)

    async def retry_webhook(self, name: str, sequence: int | None = None) -> list[Undelivered]:
        """Have undelivered rows sent now."""
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
        why: str = "",
        facts: dict[str, str] | None = None,
    ) -> FleetChange:
        """Replace the fleet by this one. Says what is added, changed and removed."""
        while True:
            before = self.fleet
            after, change = await asyncio.to_thread(apply_declared, before, fleet, self._writer.state.destinations())

            def apply(draft: Draft, now: datetime, limits: OperatorLimits) -> bool:
                # What has set out for a spare host meanwhile must find it. (B023: runs before the loop goes on.)
                if draft.fleet is not before or draft.destinations() - after.hosts.keys():  # noqa: B023
                    return False
                draft.changes.facts.update(facts or {})
                if change:  # noqa: B023
                    fleet_commands.apply_fleet(draft, now, limits, after, change, by, force=force, why=why)  # noqa: B023
                return True

            if await self.execute(apply):
                return change

    async def tick(self) -> None:
        """Do what is due now."""
        self.last_seen.take()
        now = self.clock.now()
        due = self._timers.take(now)
        operations = [key for kind, key in due if kind == "operation"]
        rollouts = [key for kind, key in due if kind == "rollout"]
        groups = [key for kind, key in due if kind == "inactivity"]
        silent = self.last_seen.silent_among(groups, now)
        if not operations and not rollouts and not silent:
            return

        def do_what_is_due(draft: Draft, now: datetime, limits: OperatorLimits) -> None:
            for operation_id in operations:
                progress.advance(draft, now, limits, operation_id)
            draft.rollouts_to_step.update(dict.fromkeys(rollouts))
            for group in silent:
                enabling.disable_if_silent(draft, now, limits, group)

        try:
            await self.execute(do_what_is_due)
        except Exception:
            for kind, keys in (("operation", operations), ("rollout", rollouts)):
                for key in keys:
                    self._timers.add(now, kind, key)
            self.last_seen.look_again(silent, now)
            raise

    async def advance(self, length: timedelta, audience: ClockBarrier | None = None) -> datetime:
        """Move a virtual clock on; returns when everything due by then is done, and the audience has seen it."""
        return await self._scheduler.advance(length, audience)

    # --- Reading: memory only ---------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        return self._writer.state.fleet

    @property
    def polled(self) -> set[str]:
        """Where the server notes each group that asks."""
        return self.last_seen.polled

    @property
    def measurements(self) -> Measurements:
        """How it fares."""
        return self._writer.measurements

    @property
    def facts(self) -> dict[str, str]:
        return self._writer.state.facts

    def document(self, group: str) -> Document:
        """What the group would be told now."""
        return self._writer.state.document(group)

    def live_operations(self) -> list[Operation]:
        return list(self._writer.state.operations.values())

    def failed_attempt(self, operation_id: str) -> FailedAttempt | None:
        """The fabric's last attempt at an operation, where it failed and is to be repeated."""
        return self._executor.failed_attempt(operation_id)

    def live_rollouts(self) -> list[Rollout]:
        return self._writer.state.live_rollouts()

    def live_events(self) -> list[Event]:
        return self._writer.state.live_events()

    def last_seen_at(self, group: str) -> datetime | None:
        """When the group last asked."""
        return self.last_seen.last_seen_at(group)

    # --- After a commit ---------------------------------------------------------------------------

    def _publish(self, changes: Changes) -> list[Operation]:
        """Take over what is on disk, note when it is due, and publish it. Returns what the fabric is to begin."""
        state = self._writer.state
        started = [
            operation
            for operation in changes.operations.values()
            if operation.needs_fabric
            and ((before := state.operation(operation.id)) is None or before.status is OperationStatus.PENDING)
        ]
        state.absorb(changes)
        # An event may be due at another time than before although its operation is as it was.
        touched = dict.fromkeys((*changes.operations, *(event.operation for event in changes.events.values())))
        for operation_id in touched:
            if (operation := state.operation(operation_id)) is not None:
                self._schedule(operation)
        for rollout in changes.rollouts.values():
            if (moment := rollout_commands.when_due(rollout)) is not None:
                self._timers.add(moment, "rollout", rollout.id)
        for group, delivery in changes.deliveries.items():
            if delivery is not None and delivery.enabled and group in changes.last_seen:
                self.last_seen.watch(group)
        groups = frozenset(changes.deliveries) | {event.group for event in changes.events.values()}
        renewed = not all(change.in_place for change in changes.fleet_changes)
        if groups or renewed:
            published = Published(groups, renewed)
            for subscriber in self._subscribers:
                subscriber(published)
        for follower in self._followers:
            follower(changes)
        return started

    def _carry_out(self, changes: Changes, started: list[Operation]) -> None:
        """Set the fabric to work on what has started, and let go of what is over."""
        for operation in changes.operations.values():
            if not operation.status.live:
                self._executor.let_go(operation.id)
        for operation in started:
            self._executor.take(operation, operation.concerned(self.fleet))

    # --- Time -------------------------------------------------------------------------------------

    def _schedule(self, operation: Operation) -> None:
        moment = progress.when_due(self._writer.state, operation)
        if moment is not None:
            self._timers.add(moment, "operation", operation.id)
        if (
            operation.request.rollout
            and (overdue_at := rollout_commands.overdue_at(self.limits, operation)) is not None
        ):
            self._timers.add(overdue_at, "rollout", operation.request.rollout)

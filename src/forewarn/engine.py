"""The engine: takes orders, does what is due, and is the only writer.

Every order goes through the one writer (writer.py). The engine is stepped: `tick` does what is due;
reading never changes anything.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agenda import Agenda
from forewarn.carrier import Carrier
from forewarn.core import orders
from forewarn.core.fleet import difference
from forewarn.core.ledger import Changes, Ledger
from forewarn.core.operations import Progress
from forewarn.errors import StoreFailed
from forewarn.hearing import Hearing
from forewarn.timekeeper import Timekeeper
from forewarn.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

    from forewarn.core.event import Document, Event
    from forewarn.core.fleet import Fleet, FleetChange
    from forewarn.core.ledger import Draft, Entry
    from forewarn.core.operations import Operation
    from forewarn.ports import Clock, Fabric, HistoryFilter, Store

logger = logging.getLogger(__name__)


class Published(NamedTuple):
    """What has just become true."""

    groups: frozenset[str]
    fleet: bool


class Engine:
    """One fleet's events, from request to removal."""

    def __init__(self, clock: Clock, store: Store, fabric: Fabric, pace: orders.Pace) -> None:
        self.clock = clock
        self.pace = pace
        self._store = store
        self._fabric = fabric
        self._writer = Writer(clock, store, self._committed)
        self._hearing = Hearing(clock, self._writer)
        self._carrier = Carrier(clock, fabric, self._carried_out)
        self._agenda = Agenda()
        self._timekeeper = Timekeeper(clock, self._agenda, self._hearing, self._writer, self._carrier, self.tick)
        self._watched: set[str] = set()
        """Groups with an entry for their silence in the agenda: one each."""
        self._subscribers: list[Callable[[Published], None]] = []

    # --- Life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up where the store left off: what fell due meanwhile is done now, each once."""
        saved = await self._writer.in_store(self._store.load)
        ledger = self._writer.ledger = Ledger(saved.fleet)
        # Rows of history are only counted here, so absorbing them afresh must not add to the sequence.
        ledger.absorb(
            Changes(
                operations={operation.id: operation for operation in saved.operations},
                events={event.id: event for event in saved.events},
                deliveries={delivery.group: delivery for delivery in saved.deliveries},
                heard=saved.heard,
                facts=saved.facts,
            )
        )
        ledger.sequence = saved.sequence
        self._timekeeper.resume()
        self._hearing.forgive_downtime()
        for operation in ledger.operations.values():
            self._schedule(operation)
        for delivery in ledger.deliveries.values():
            if delivery.enabled:
                self._watch_silence(delivery.group)
        unfinished = [o for o in ledger.operations.values() if o.progress is Progress.STARTED and not o.carried_out_at]
        await self._fabric.recover([operation.id for operation in unfinished])
        for operation in unfinished:
            self._carrier.take(operation)
        self._timekeeper.start()
        await self.tick()

    async def stop(self) -> None:
        """Finish what was ordered, write what is known, and let go."""
        try:
            await self._hearing.write()
        except StoreFailed as error:
            logger.warning("Stopping without writing when groups were last heard: %s", error)
        await self._timekeeper.stop()
        await self._carrier.stop()
        await self._writer.stop()

    def subscribe(self, subscriber: Callable[[Published], None]) -> None:
        """Be told of every change, after it is on disk."""
        self._subscribers.append(subscriber)

    # --- Orders -----------------------------------------------------------------------------------

    async def request(self, cause: str, vms: Sequence[str], by: str) -> Operation:
        """Begin an operation on these VMs."""
        return await self._writer.order(
            lambda draft, now: orders.request(draft, now, self.pace, cause, vms, by, lambda: str(uuid.uuid4()))
        )

    async def approve(self, ids: Sequence[str], by: str, group: str | None = None) -> None:
        """Let events start early; with a group, only events of that group are known."""
        await self._writer.order(lambda draft, now: orders.approve(draft, now, self.pace, ids, by, group))

    def approve_and_tell(
        self, ids: Sequence[str], by: str, group: str, tell: Callable[[None, BaseException | None], None]
    ) -> None:
        """The same for who cannot wait: `tell` is called when it is on disk, or with what was wrong."""
        self._writer.submit_and_tell(lambda draft, now: orders.approve(draft, now, self.pace, ids, by, group), tell)

    async def cancel(self, event_id: str, by: str) -> Event:
        """Withdraw an event that has not started."""
        return await self._writer.order(lambda draft, now: orders.cancel(draft, now, event_id, by))

    async def enable(self, group: str, by: str) -> None:
        """Begin to tell a group. On disk when this returns."""
        enabling = secrets.token_hex(4)
        await self._writer.order(lambda draft, now: orders.enable(draft, now, group, by, enabling))

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
            change = await asyncio.to_thread(difference, before, fleet)

            def order(draft: Draft, now: datetime) -> bool:
                if draft.fleet is not before:  # noqa: B023 - runs before the loop goes on
                    return False
                draft.changes.facts.update(facts or {})
                if change:  # noqa: B023
                    orders.apply_fleet(draft, now, fleet, change, by, force=force, why=why)  # noqa: B023
                return True

            if await self._writer.order(order):
                return change

    async def tick(self) -> None:
        """Do what is due now."""
        self._hearing.take()
        now = self.clock.now()
        due = self._agenda.take(now)
        operations = [key for kind, key in due if kind == "operation"]
        groups = [key for kind, key in due if kind == "silence"]
        self._watched.difference_update(groups)
        silent = [group for group in groups if not self._watch_silence(group, after=now)]
        if not operations and not silent:
            return

        def order(draft: Draft, now: datetime) -> None:
            for operation_id in operations:
                orders.move(draft, now, self.pace, operation_id)
            for group in silent:
                orders.disable_if_silent(draft, now, self.pace, group)

        try:
            await self._writer.order(order)
        except Exception:
            for key in operations:
                self._agenda.add(now, "operation", key)
            for group in silent:  # the others are watched again already
                self._agenda.add(now, "silence", group)
            self._watched.update(silent)
            raise

    async def advance(self, length: timedelta) -> datetime:
        """Move a virtual clock on; returns when everything due by then is done."""
        return await self._timekeeper.advance(length)

    def _carried_out(self, take: Callable[[], list[str]]) -> asyncio.Future[None]:
        """Note what the fabric has done. Nobody is answered by that, and after a crash the fabric is asked again."""

        def order(draft: Draft, now: datetime) -> None:
            for operation_id in take():
                orders.carried_out(draft, now, self.pace, operation_id)

        return self._writer.submit(order, can_wait=True)

    # --- Reading: memory only ---------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        return self._writer.ledger.fleet

    @property
    def asked(self) -> set[str]:
        """Where the server notes each group that asks."""
        return self._hearing.asked

    @property
    def facts(self) -> dict[str, str]:
        return self._writer.ledger.facts

    def document(self, group: str) -> Document:
        """What the group would be told now."""
        return self._writer.ledger.document(group)

    def live_events(self) -> list[Event]:
        return self._writer.ledger.live_events()

    def last_heard(self, group: str) -> datetime | None:
        """When the group last asked."""
        self._hearing.take()
        return self._writer.ledger.heard_at(group)

    # --- Reading: the store -----------------------------------------------------------------------

    async def event(self, event_id: str) -> Event | None:
        """An event, live or long over."""
        return self._writer.ledger.event(event_id) or await self._writer.in_store(self._store.event, event_id)

    async def events_beginning(self, start: str) -> list[Event]:
        """The event of that id, live or over; or two of those whose ids begin so, if it is not clear which."""
        return await self._writer.in_store(self._store.events_beginning, start)

    async def operation(self, operation_id: str) -> Operation | None:
        """An operation, live or long over."""
        return self._writer.ledger.operation(operation_id) or await self._writer.in_store(
            self._store.operation, operation_id
        )

    async def past_events(self, limit: int) -> list[Event]:
        """The newest events, live or over."""
        return await self._writer.in_store(self._store.events, limit)

    async def history(self, wanted: HistoryFilter) -> list[Entry]:
        return await self._writer.in_store(self._store.history, wanted)

    # --- After a commit ---------------------------------------------------------------------------

    def _committed(self, changes: Changes, ledger: Ledger) -> None:
        """Take over what is on disk, note when it is due, publish it, and set the fabric to work."""
        started = [
            operation
            for operation in changes.operations.values()
            if operation.progress is Progress.STARTED
            and ((before := ledger.operation(operation.id)) is None or before.progress is Progress.PENDING)
        ]
        ledger.absorb(changes)
        for operation in changes.operations.values():
            self._schedule(operation)
        for group, delivery in changes.deliveries.items():
            if delivery is not None and delivery.enabled and group in changes.heard:
                self._watch_silence(group)
        groups = frozenset(changes.deliveries) | {event.group for event in changes.events.values()}
        if groups or changes.fleet is not None:
            published = Published(groups, changes.fleet is not None)
            for subscriber in self._subscribers:
                subscriber(published)
        for operation in started:
            self._carrier.take(operation)

    # --- Time -------------------------------------------------------------------------------------

    def _schedule(self, operation: Operation) -> None:
        moment = orders.when_due(self._writer.ledger, operation)
        if moment is not None:
            self._agenda.add(moment, "operation", operation.id)

    def _watch_silence(self, group: str, after: datetime | None = None) -> bool:
        """Note when the group will have been silent for too long; False when that has come already."""
        if group in self._watched:  # what is noted for it comes no later, and is looked at again then
            return True
        heard_at = self._writer.ledger.heard_at(group)
        if heard_at is None:
            return False
        moment = heard_at + self.pace.quicken(self.pace.silence)
        if after is not None and moment <= after:
            return False
        self._agenda.add(moment, "silence", group)
        self._watched.add(group)
        return True

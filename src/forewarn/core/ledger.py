"""All that is known at one moment, and the changes about to be made to it.

A `Ledger` holds what is true and on disk. Orders (orders.py) are carried out on a `Draft` laid over
it; only when the draft's `Changes` have been committed does the ledger take them over. So nothing
is ever published that a crash could take back, and an order that fails leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.event import Document
from forewarn.core.fleet import Fleet

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.event import Event
    from forewarn.core.fleet import FleetChange
    from forewarn.core.operations import Operation


class Delivery(NamedTuple):
    """Whether a group is being told, and how far its document has come."""

    group: str
    enabled: bool
    enabling: str
    incarnation: int


class Entry(NamedTuple):
    """One row of history: who, what, when, why."""

    at: datetime
    what: str
    by: str
    sequence: int = 0
    group: str = ""
    event: str = ""
    operation: str = ""
    vms: tuple[str, ...] = ()
    why: str = ""


@dataclass(slots=True)
class Changes:
    """What one commit writes: all of it, or nothing."""

    operations: dict[str, Operation] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    deliveries: dict[str, Delivery | None] = field(default_factory=dict)
    heard: dict[str, datetime] = field(default_factory=dict)
    fleet: Fleet | None = None
    fleet_change: FleetChange | None = None
    facts: dict[str, str] = field(default_factory=dict)
    history: list[Entry] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.operations
            or self.events
            or self.deliveries
            or self.heard
            or self.fleet is not None
            or self.facts
            or self.history
        )

    def absorb(self, later: Changes) -> Changes:
        """Both together; `later` were made on top of these."""
        if not self:
            return later
        self.operations.update(later.operations)
        self.events.update(later.events)
        self.deliveries.update(later.deliveries)
        self.heard.update(later.heard)
        if later.fleet is not None:
            self.fleet, self.fleet_change = later.fleet, later.fleet_change
        self.facts.update(later.facts)
        self.history.extend(later.history)
        return self


class Ledger:
    """What is true now and on disk. Only live operations and events; the store keeps the rest."""

    def __init__(self, fleet: Fleet | None = None) -> None:
        self.fleet = fleet or Fleet()
        self.operations: dict[str, Operation] = {}
        self.events: dict[str, Event] = {}
        self.deliveries: dict[str, Delivery] = {}
        self.heard: dict[str, datetime] = {}
        self.facts: dict[str, str] = {}
        self.sequence = 0
        self._of_group: dict[str, dict[str, None]] = {}

    def operation(self, operation_id: str) -> Operation | None:
        return self.operations.get(operation_id)

    def event(self, event_id: str) -> Event | None:
        return self.events.get(event_id)

    def delivery(self, group: str) -> Delivery | None:
        return self.deliveries.get(group)

    def deliveries_among(self, groups: frozenset[str]) -> set[str]:
        """Which of these groups have ever been told."""
        return self.deliveries.keys() & groups

    def heard_at(self, group: str) -> datetime | None:
        return self.heard.get(group)

    def events_of(self, group: str) -> list[Event]:
        """The group's live events in the order they came about."""
        return [self.events[event_id] for event_id in self._of_group.get(group, ())]

    def live_events(self) -> list[Event]:
        return list(self.events.values())

    def document(self, group: str) -> Document:
        """What the group would be told now."""
        delivery = self.deliveries.get(group)
        events = tuple(self.events_of(group))
        if delivery is None or not delivery.enabled:
            # The answer that an enabling now would begin with: see orders.enable.
            return Document(group, "", len(events), events, enabled=False)
        return Document(group, delivery.enabling, delivery.incarnation, events, enabled=True)

    def absorb(self, changes: Changes) -> None:
        """Take over what has been committed."""
        for operation in changes.operations.values():
            if operation.progress.live:
                self.operations[operation.id] = operation
            else:
                self.operations.pop(operation.id, None)
        for event in changes.events.values():
            if event.status.live:
                self.events[event.id] = event
                self._of_group.setdefault(event.group, {})[event.id] = None
            elif self.events.pop(event.id, None) is not None:
                of_group = self._of_group[event.group]
                del of_group[event.id]
                if not of_group:
                    del self._of_group[event.group]
        for group, delivery in changes.deliveries.items():
            if delivery is None:
                self.deliveries.pop(group, None)
                self.heard.pop(group, None)
            else:
                self.deliveries[group] = delivery
        for group, moment in changes.heard.items():
            self.heard[group] = max(moment, self.heard.get(group, moment))  # it may have asked since
        if changes.fleet is not None:
            self.fleet = changes.fleet
        self.facts.update(changes.facts)
        self.sequence += len(changes.history)


class Draft:
    """A ledger, or another draft, with changes laid over it."""

    def __init__(self, base: Ledger | Draft) -> None:
        self._base = base
        self.changes = Changes()

    @property
    def fleet(self) -> Fleet:
        return self.changes.fleet if self.changes.fleet is not None else self._base.fleet

    def operation(self, operation_id: str) -> Operation | None:
        return self.changes.operations.get(operation_id) or self._base.operation(operation_id)

    def event(self, event_id: str) -> Event | None:
        """The event, if it is live."""
        event = self.changes.events.get(event_id) or self._base.event(event_id)
        return event if event is not None and event.status.live else None

    def delivery(self, group: str) -> Delivery | None:
        if group in self.changes.deliveries:
            return self.changes.deliveries[group]
        return self._base.delivery(group)

    def deliveries_among(self, groups: frozenset[str]) -> set[str]:
        among = self._base.deliveries_among(groups) | (self.changes.deliveries.keys() & groups)
        return {group for group in among if self.delivery(group) is not None}

    def heard_at(self, group: str) -> datetime | None:
        return self.changes.heard.get(group) or self._base.heard_at(group)

    def live_events(self) -> list[Event]:
        found = {event.id: event for event in self._base.live_events()} | self.changes.events
        return [event for event in found.values() if event.status.live]

    def events_of(self, group: str) -> list[Event]:
        found = {event.id: event for event in self._base.events_of(group)}
        found.update((event.id, event) for event in self.changes.events.values() if event.group == group)
        return [event for event in found.values() if event.status.live]

    def put_operation(self, operation: Operation) -> None:
        self.changes.operations[operation.id] = operation

    def put_event(self, event: Event) -> None:
        """Keep the event; the group's incarnation goes up once when its document changes by it."""
        before = self._base.event(event.id)
        already = self.changes.events.get(event.id)
        self.changes.events[event.id] = event
        changed = before.status is not event.status if before else event.status.live
        counted = already is not None and (before is None or already.status is not before.status)
        if changed and not counted:
            self.count_change(event.group)

    def count_change(self, group: str) -> None:
        """The group's document is another one now."""
        delivery = self.delivery(group)
        if delivery is not None:
            self.changes.deliveries[group] = delivery._replace(incarnation=delivery.incarnation + 1)

    def put_delivery(self, delivery: Delivery, heard_at: datetime) -> None:
        self.changes.deliveries[delivery.group] = delivery
        self.changes.heard[delivery.group] = heard_at

    def forget_delivery(self, group: str) -> None:
        self.changes.deliveries[group] = None

    def put_fleet(self, fleet: Fleet, change: FleetChange) -> None:
        self.changes.fleet, self.changes.fleet_change = fleet, change

    def note(self, entry: Entry) -> None:
        self.changes.history.append(entry)

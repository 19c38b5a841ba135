"""Changes that are about to be made: what orders are decided on.

A draft reads like the ledger with the changes made. An order writes its whole outcome to it, or
raises and leaves it to be dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.core.ledger import Changes, Delivery, destinations, is_bringing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from forewarn.core.access import Token
    from forewarn.core.event import Event
    from forewarn.core.fleet import Fleet
    from forewarn.core.fleet_change import FleetChange
    from forewarn.core.ledger import Entry, Ledger
    from forewarn.core.once import Kept
    from forewarn.core.operations import Operation
    from forewarn.core.placement import Places
    from forewarn.core.rollout import Rollout
    from forewarn.core.told import Told
    from forewarn.core.webhooks import Undelivered, Webhook


class Draft:
    """A ledger, or another draft, with changes laid over it."""

    def __init__(self, base: Ledger | Draft, new_id: Callable[[], str]) -> None:
        self._base = base
        self.new_id = new_id
        """Where the ids of new things come from: the core draws no lots."""
        self.changes = Changes()
        self._own_fleet: Fleet | None = None
        self.places: Places | None = None
        """Hosts by how full they are, remembered by who chooses among them."""
        # What of the changes is about which VM, host or group: with many changes, looking at all is too slow.
        self._on_vm: dict[str, dict[str, None]] = {}
        self._at_host: dict[str, dict[str, None]] = {}
        self._bound_for: dict[str, dict[str, None]] = {}
        self._events_of: dict[str, dict[str, None]] = {}
        self.stirred: dict[str, None] = {}
        """Rollouts of which an operation has gone on, so that they may have to."""

    @property
    def fleet(self) -> Fleet:
        return self.changes.fleet if self.changes.fleet is not None else self._base.fleet

    def operation(self, operation_id: str) -> Operation | None:
        return self.changes.operations.get(operation_id) or self._base.operation(operation_id)

    def rollout(self, rollout_id: str) -> Rollout | None:
        """The rollout, if it is live."""
        rollout = self.changes.rollouts.get(rollout_id) or self._base.rollout(rollout_id)
        return rollout if rollout is not None and rollout.stage.live else None

    def live_rollouts(self) -> list[Rollout]:
        found = {rollout.id: rollout for rollout in self._base.live_rollouts()} | self.changes.rollouts
        return [rollout for rollout in found.values() if rollout.stage.live]

    def token(self, name: str) -> Token | None:
        return self.changes.tokens[name] if name in self.changes.tokens else self._base.token(name)

    def all_tokens(self) -> list[Token]:
        found = {token.name: token for token in self._base.all_tokens()} | self.changes.tokens
        return [token for token in found.values() if token is not None]

    def kept(self, key: str) -> Kept | None:
        """The answer that was given to a request with this key."""
        return self.changes.kept.get(key) or self._base.kept(key)

    def vms_with_work(self) -> set[str]:
        """The VMs that live operations name; some may be over by now."""
        return self._base.vms_with_work().union(*(operation.vms for operation in self.changes.operations.values()))

    def operations_on(self, vm: str) -> list[Operation]:
        """The live operations that name this VM."""
        found = self._changed(self._base.operations_on(vm), self._on_vm.get(vm, ()))
        return [operation for operation in found if operation.progress.live and vm in operation.vms]

    def operations_at(self, host: str) -> list[Operation]:
        """The live operations that are about this host."""
        found = self._changed(self._base.operations_at(host), self._at_host.get(host, ()))
        return [operation for operation in found if operation.progress.live]

    def destinations(self) -> set[str]:
        """The hosts to which VMs are on their way; some may have arrived."""
        return self._base.destinations().union(*map(destinations, self.changes.operations.values()))

    def operations_bound_for(self, host: str) -> list[Operation]:
        """The operations under way that bring VMs to this host."""
        found = self._changed(self._base.operations_bound_for(host), self._bound_for.get(host, ()))
        return [operation for operation in found if is_bringing(operation)]

    def _changed(self, before: Iterable[Operation], changed: Iterable[str]) -> list[Operation]:
        # Also those from before that have changed, and are not about the same any more.
        found = {operation.id: self.changes.operations.get(operation.id, operation) for operation in before}
        found.update((operation_id, self.changes.operations[operation_id]) for operation_id in changed)
        return list(found.values())

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
        found.update((event_id, self.changes.events[event_id]) for event_id in self._events_of.get(group, ()))
        return [event for event in found.values() if event.status.live]

    @property
    def sequence(self) -> int:
        """The number of the latest row of history, those of this draft included."""
        return self._base.sequence + len(self.changes.history)

    @property
    def told(self) -> Told:
        """How webhooks fare, without what this draft changes."""
        return self._base.told

    def webhook(self, name: str) -> Webhook | None:
        if name in self.changes.webhooks:
            return self.changes.webhooks[name]
        return self._base.webhook(name)

    def webhooks(self) -> dict[str, Webhook]:
        found = self._base.webhooks() | self.changes.webhooks
        return {name: webhook for name, webhook in found.items() if webhook is not None}

    def undelivered(self, webhook: str) -> dict[int, Undelivered]:
        """What a webhook could not be told yet, by sequence."""
        changed = {sequence: row for (name, sequence), row in self.changes.undelivered.items() if name == webhook}
        found = self._base.undelivered(webhook) | changed
        return {sequence: row for sequence, row in found.items() if row is not None}

    def put_operation(self, operation: Operation) -> None:
        self.changes.operations[operation.id] = operation
        self._note_operation(operation)

    def _note_operation(self, operation: Operation) -> None:
        for vm in operation.vms:
            self._on_vm.setdefault(vm, {})[operation.id] = None
        if operation.host:
            self._at_host.setdefault(operation.host, {})[operation.id] = None
        for host in destinations(operation):
            self._bound_for.setdefault(host, {})[operation.id] = None

    def absorb(self, later: Draft) -> None:
        """Take over what was decided on a draft of this one."""
        for operation in later.changes.operations.values():
            self._note_operation(operation)
        for event in later.changes.events.values():
            self._events_of.setdefault(event.group, {})[event.id] = None
        self.changes = self.changes.absorb(later.changes)
        self.places = None

    def put_rollout(self, rollout: Rollout) -> None:
        self.changes.rollouts[rollout.id] = rollout

    def put_event(self, event: Event) -> None:
        """Keep the event; the group's incarnation goes up once when its document changes by it."""
        before = self._base.event(event.id)
        already = self.changes.events.get(event.id)
        self.changes.events[event.id] = event
        self._events_of.setdefault(event.group, {})[event.id] = None
        if _shows_otherwise(before, event) and not (already is not None and _shows_otherwise(before, already)):
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
        self.changes.fleet = fleet
        self.changes.fleet_changes.append(change)
        self.places = None

    def change_fleet(self, change: FleetChange) -> None:
        """The same for a change of a few. A draft has a fleet of its own after the first: no other is copied."""
        if self._own_fleet is not None and self._own_fleet is self.changes.fleet:
            self._own_fleet.alter(change)
        else:
            self._own_fleet = self.fleet.changed_by(change)
        self.put_fleet(self._own_fleet, change)

    def note(self, entry: Entry) -> None:
        self.changes.history.append(entry)


def _shows_otherwise(before: Event | None, after: Event) -> bool:
    """Whether a document with the one is another than with the other."""
    if before is None:
        return after.status.live
    return before.status is not after.status or before.not_before != after.not_before

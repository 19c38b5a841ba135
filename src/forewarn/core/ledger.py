"""All that is known at one moment.

A `Ledger` holds what is true and on disk. Orders are decided on a `Draft` (draft.py) laid over it;
only when the draft's `Changes` have been committed does the ledger take them over. So nothing is ever
published that a crash could take back, and an order that fails leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.event import Document
from forewarn.core.fleet import Fleet
from forewarn.core.told import Told

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.access import Token
    from forewarn.core.event import Event
    from forewarn.core.fleet_change import FleetChange
    from forewarn.core.once import Kept
    from forewarn.core.operations import Operation
    from forewarn.core.rollout import Rollout
    from forewarn.core.webhooks import Undelivered, Webhook


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
    host: str = ""
    """The host that it is about, where it is about one."""


@dataclass(slots=True)
class Changes:
    """What one commit writes: all of it, or nothing."""

    operations: dict[str, Operation] = field(default_factory=dict)
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    deliveries: dict[str, Delivery | None] = field(default_factory=dict)
    heard: dict[str, datetime] = field(default_factory=dict)
    fleet: Fleet | None = None
    fleet_changes: list[FleetChange] = field(default_factory=list)
    """What made this fleet of the last one, in its order."""
    facts: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, Token | None] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    webhooks: dict[str, Webhook | None] = field(default_factory=dict)
    undelivered: dict[tuple[str, int], Undelivered | None] = field(default_factory=dict)
    """By webhook and sequence; None: it is delivered, or its webhook is gone."""
    history: list[Entry] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.operations
            or self.rollouts
            or self.events
            or self.deliveries
            or self.heard
            or self.fleet is not None
            or self.facts
            or self.tokens
            or self.kept
            or self.webhooks
            or self.undelivered
            or self.history
        )

    def absorb(self, later: Changes) -> Changes:
        """Both together; `later` were made on top of these."""
        if not self:
            return later
        self.operations.update(later.operations)
        self.rollouts.update(later.rollouts)
        self.events.update(later.events)
        self.deliveries.update(later.deliveries)
        self.heard.update(later.heard)
        if later.fleet is not None:
            self.fleet = later.fleet
            self.fleet_changes += later.fleet_changes
        self.facts.update(later.facts)
        self.tokens.update(later.tokens)
        self.kept.update(later.kept)
        self.webhooks.update(later.webhooks)
        self.undelivered.update(later.undelivered)
        self.history.extend(later.history)
        return self


class Ledger:
    """What is true now and on disk. Only live operations and events; the store keeps the rest."""

    def __init__(self, fleet: Fleet | None = None) -> None:
        self.fleet = fleet or Fleet()
        self.operations: dict[str, Operation] = {}
        self.rollouts: dict[str, Rollout] = {}
        self.events: dict[str, Event] = {}
        self.deliveries: dict[str, Delivery] = {}
        self.heard: dict[str, datetime] = {}
        self.facts: dict[str, str] = {}
        self.tokens: dict[str, Token] = {}
        self.answers: dict[str, Kept] = {}
        self.told = Told()
        self.sequence = 0
        self._of_group: dict[str, dict[str, None]] = {}
        self._on_vm: dict[str, dict[str, None]] = {}
        self._at_host: dict[str, dict[str, None]] = {}
        self._bound_for: dict[str, dict[str, None]] = {}

    def operation(self, operation_id: str) -> Operation | None:
        return self.operations.get(operation_id)

    def token(self, name: str) -> Token | None:
        return self.tokens.get(name)

    def all_tokens(self) -> list[Token]:
        return list(self.tokens.values())

    def kept(self, key: str) -> Kept | None:
        return self.answers.get(key)

    def rollout(self, rollout_id: str) -> Rollout | None:
        return self.rollouts.get(rollout_id)

    def live_rollouts(self) -> list[Rollout]:
        return list(self.rollouts.values())

    def vms_with_work(self) -> set[str]:
        """The VMs that live operations name."""
        return set(self._on_vm)

    def operations_on(self, vm: str) -> list[Operation]:
        """The live operations that name this VM."""
        return [self.operations[operation_id] for operation_id in self._on_vm.get(vm, ())]

    def operations_at(self, host: str) -> list[Operation]:
        """The live operations that are about this host."""
        return [self.operations[operation_id] for operation_id in self._at_host.get(host, ())]

    def destinations(self) -> set[str]:
        """The hosts to which VMs are on their way."""
        return set(self._bound_for)

    def operations_bound_for(self, host: str) -> list[Operation]:
        """The operations under way that bring VMs to this host."""
        return [self.operations[operation_id] for operation_id in self._bound_for.get(host, ())]

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

    def webhook(self, name: str) -> Webhook | None:
        return self.told.webhooks.get(name)

    def webhooks(self) -> dict[str, Webhook]:
        return dict(self.told.webhooks)

    def undelivered(self, webhook: str) -> dict[int, Undelivered]:
        """What a webhook could not be told yet, by sequence."""
        return self.told.undelivered(webhook)

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
            known = self.operations.get(operation.id)
            for vm in known.vms if known is not None and known.vms != operation.vms else ():
                _list(self._on_vm, vm, operation.id, wanted=False)  # some may not be concerned any more
            if operation.progress.live:
                self.operations[operation.id] = operation
            else:
                self.operations.pop(operation.id, None)
            for vm in operation.vms:
                _list(self._on_vm, vm, operation.id, operation.progress.live)
            if operation.host:
                _list(self._at_host, operation.host, operation.id, operation.progress.live)
            for host in destinations(operation):
                _list(self._bound_for, host, operation.id, is_bringing(operation))
        for rollout in changes.rollouts.values():
            if rollout.stage.live:
                self.rollouts[rollout.id] = rollout
            else:
                self.rollouts.pop(rollout.id, None)
        for event in changes.events.values():
            if event.status.live:
                self.events[event.id] = event
            else:
                self.events.pop(event.id, None)
            _list(self._of_group, event.group, event.id, event.status.live)
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
        for name, token in changes.tokens.items():
            if token is None:
                self.tokens.pop(name, None)
            else:
                self.tokens[name] = token
        for kept in changes.kept.values():
            self.answers[kept.key] = kept._replace(body="")
        if changes.webhooks or changes.undelivered:
            self.told.absorb(changes)
        self.sequence += len(changes.history)


def destinations(operation: Operation) -> set[str]:
    """The hosts to which an operation brings VMs."""
    return {host for _, host in operation.moves}


def is_bringing(operation: Operation) -> bool:
    """Whether its VMs are still on their way, or about to set out."""
    return operation.progress.live and operation.carried_out_at is None


def _list(lists: dict[str, dict[str, None]], key: str, member: str, wanted: bool) -> None:
    """Put something on a list or take it off; a list with nothing on it is let go."""
    if wanted:
        lists.setdefault(key, {})[member] = None
    elif key in lists:
        lists[key].pop(member, None)
        if not lists[key]:
            del lists[key]

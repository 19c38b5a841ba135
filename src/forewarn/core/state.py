"""The committed state of the service, and drafts: a state with uncommitted changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.events import Document, Event, EventStatus, Source
from forewarn.core.fleet import Fleet
from forewarn.core.waits import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forewarn.core.access import StoredResponse, Token
    from forewarn.core.fleet import FleetChange
    from forewarn.core.operations import Operation
    from forewarn.core.placement import HostSelector
    from forewarn.core.rollouts import Rollout
    from forewarn.core.webhooks import Undelivered, Webhook


class Delivery(NamedTuple):
    """Delivery state of a scope: whether it is enabled, and the incarnation of its document."""

    scope: str
    enabled: bool
    enabling: int
    """Counts how often the scope was enabled. Incarnations count within one enabling."""
    incarnation: int


FORGOTTEN_ENABLING = "forgotten_enabling"
"""The fact with the highest enabling of all scopes that have left the fleet. One that returns counts from there."""


UP_AT = "up_at"
"""The fact with the last known time at which the service was up while an event waited for its NotBefore."""


class EndedEvent(NamedTuple):
    """What remains in memory of an event for a day after its end, because clients repeat their approvals."""

    scope: str
    ended_at: datetime


class HistorySnapshot(NamedTuple):
    """An event as it was when a history row was written: the fields that the row does not have itself."""

    scope: str
    status: EventStatus
    not_before: datetime
    description: str
    source: Source
    duration: timedelta | None
    created_at: datetime
    approved_at: datetime | None = None
    approved_by: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @classmethod
    def of(cls, event: Event) -> HistorySnapshot:
        return cls._make(_SNAPSHOT_FIELDS(event))


_SNAPSHOT_FIELDS = attrgetter(*HistorySnapshot._fields)


class HistoryEntry(NamedTuple):
    """A row of history: what happened, when, to whom, by whom, and the reason."""

    time: datetime
    kind: str
    by: str
    sequence: int = 0
    group: str = ""
    event: str = ""
    operation: str = ""
    vms: tuple[str, ...] = ()
    reason: str = ""
    host: str = ""
    """The host that the row is about, if there is one."""
    type: str = ""
    """The event type of its operation."""
    cause: str = ""
    """The cause of its operation."""
    snapshot: HistorySnapshot | None = None
    """None: the row is about no event."""
    waits: tuple[Wait, ...] = ()
    """What the start of the event waited for when the row was written."""

    @property
    def event_then(self) -> Event | None:
        """The event as it was when the row was written."""
        if self.snapshot is None:
            return None
        return Event(
            id=self.event,
            operation=self.operation,
            group=self.group,
            type=self.type,
            resources=self.vms,
            **self.snapshot._asdict(),
        )


@dataclass(slots=True)
class Changes:
    """The changes of one commit."""

    operations: dict[str, Operation] = field(default_factory=dict)
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    deliveries: dict[str, Delivery | None] = field(default_factory=dict)
    last_seen: dict[str, datetime] = field(default_factory=dict)
    fleet: Fleet | None = None
    fleet_changes: list[FleetChange] = field(default_factory=list)
    """The changes from the last fleet to this one, in order."""
    facts: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, Token | None] = field(default_factory=dict)
    responses: dict[str, StoredResponse] = field(default_factory=dict)
    webhooks: dict[str, Webhook | None] = field(default_factory=dict)
    undelivered: dict[tuple[str, int], Undelivered | None] = field(default_factory=dict)
    """By webhook and sequence; None: delivered, or the webhook was removed."""
    history: list[HistoryEntry] = field(default_factory=list)
    decided_at: datetime | None = None
    """The service's time when they were decided."""

    def __bool__(self) -> bool:
        return bool(
            self.operations
            or self.rollouts
            or self.events
            or self.deliveries
            or self.last_seen
            or self.fleet is not None
            or self.facts
            or self.tokens
            or self.responses
            or self.webhooks
            or self.undelivered
            or self.history
        )

    def absorb(self, later: Changes) -> Changes:
        """Merge later changes into these."""
        if not self:
            return later
        self.operations.update(later.operations)
        self.rollouts.update(later.rollouts)
        self.events.update(later.events)
        self.deliveries.update(later.deliveries)
        self.last_seen.update(later.last_seen)
        if later.fleet is not None:
            self.fleet = later.fleet
            self.fleet_changes += later.fleet_changes
        self.facts.update(later.facts)
        self.tokens.update(later.tokens)
        self.responses.update(later.responses)
        self.webhooks.update(later.webhooks)
        self.undelivered.update(later.undelivered)
        self.history.extend(later.history)
        return self


class ServiceState:
    """The committed state. Contains only active operations with their events, and what clients may still approve of
    events that ended lately. The store has the others."""

    def __init__(self, fleet: Fleet | None = None) -> None:
        self.fleet = fleet or Fleet()
        self.operations: dict[str, Operation] = {}
        self.rollouts: dict[str, Rollout] = {}
        self.events: dict[str, Event] = {}
        self.ended_events: dict[str, EndedEvent] = {}
        self.ended_of_active: dict[str, Event] = {}
        """Ended events of active operations, which are shown with them."""
        self.deliveries: dict[str, Delivery] = {}
        self.last_seen: dict[str, datetime] = {}
        self.polls_known_from: datetime | None = None
        """Of earlier polls it has the times of the store, which can be old; None: they are not."""
        self.facts: dict[str, str] = {}
        self.tokens: dict[str, Token] = {}
        self.responses: dict[str, StoredResponse] = {}
        self.webhook_deliveries = WebhookDeliveries()
        self.sequence = 0
        self._of_scope: dict[str, dict[str, None]] = {}
        self._on_vm: dict[str, dict[str, None]] = {}
        self._at_host: dict[str, dict[str, None]] = {}
        self._bound_for: dict[str, dict[str, None]] = {}
        self._of_rollout: dict[str, dict[str, None]] = {}

    def operation(self, operation_id: str) -> Operation | None:
        return self.operations.get(operation_id)

    def token(self, name: str) -> Token | None:
        return self.tokens.get(name)

    def all_tokens(self) -> list[Token]:
        return list(self.tokens.values())

    def stored_response(self, key: str) -> StoredResponse | None:
        return self.responses.get(key)

    def rollout(self, rollout_id: str) -> Rollout | None:
        return self.rollouts.get(rollout_id)

    def live_rollouts(self) -> list[Rollout]:
        return list(self.rollouts.values())

    def vms_with_work(self) -> set[str]:
        """VMs of active operations."""
        return set(self._on_vm)

    def operations_on(self, vm: str) -> list[Operation]:
        """Active operations on this VM."""
        return [self.operations[operation_id] for operation_id in self._on_vm.get(vm, ())]

    def operations_at(self, host: str) -> list[Operation]:
        """Active operations on this host."""
        return [self.operations[operation_id] for operation_id in self._at_host.get(host, ())]

    def destinations(self) -> set[str]:
        """Hosts that VMs are being moved to."""
        return set(self._bound_for)

    def operations_bound_for(self, host: str) -> list[Operation]:
        """Active operations that move VMs to this host, or start VMs on it."""
        return [self.operations[operation_id] for operation_id in self._bound_for.get(host, ())]

    def rollout_operations(self) -> list[Operation]:
        """Active operations of rollouts, also of rollouts that have ended."""
        return [self.operations[operation_id] for ids in self._of_rollout.values() for operation_id in ids]

    def event(self, event_id: str) -> Event | None:
        return self.events.get(event_id)

    def ended_event(self, event_id: str) -> EndedEvent | None:
        return self.ended_events.get(event_id)

    def fact(self, name: str) -> str | None:
        return self.facts.get(name)

    def delivery(self, scope: str) -> Delivery | None:
        return self.deliveries.get(scope)

    def deliveries_among(self, scopes: frozenset[str]) -> set[str]:
        """Return which of these scopes have ever been enabled."""
        return self.deliveries.keys() & scopes

    def last_seen_at(self, scope: str) -> datetime | None:
        return self.last_seen.get(scope)

    def events_of(self, scope: str) -> list[Event]:
        """Active events of a scope in the order of their creation."""
        return [self.events[event_id] for event_id in self._of_scope.get(scope, ())]

    def live_events(self) -> list[Event]:
        return list(self.events.values())

    def webhook(self, name: str) -> Webhook | None:
        return self.webhook_deliveries.webhooks.get(name)

    def webhooks(self) -> dict[str, Webhook]:
        return dict(self.webhook_deliveries.webhooks)

    def undelivered(self, webhook: str) -> dict[int, Undelivered]:
        """Undelivered rows of a webhook by sequence."""
        return self.webhook_deliveries.undelivered(webhook)

    def document(self, scope: str) -> Document:
        """Return the current document of a scope."""
        delivery = self.deliveries.get(scope)
        events = tuple(self.events_of(scope))
        if delivery is None or not delivery.enabled:
            # The incarnation that enabling would start with: see enabling.enable.
            return Document(scope, 0, len(events), events, enabled=False)
        return Document(scope, delivery.enabling, delivery.incarnation, events, enabled=True)

    def record_seen(self, times: Mapping[str, datetime]) -> None:
        """Record polls in memory. They are written to the store later."""
        self.last_seen.update(times)

    def forget_responses(self, before: datetime) -> None:
        """Forget responses to idempotency keys that have expired."""
        self.responses = {key: response for key, response in self.responses.items() if response.at > before}

    def forget_ended_events(self, before: datetime) -> None:
        """Forget events that ended before this time."""
        self.ended_events = {id_: event for id_, event in self.ended_events.items() if event.ended_at > before}

    def keep_from(self, earlier: ServiceState) -> None:
        """Keep what the store does not have: polls that are not written yet, and counts since the start."""
        for scope, time in earlier.last_seen.items():
            if scope in self.deliveries:
                self.last_seen[scope] = max(time, self.last_seen.get(scope, time))
        self.webhook_deliveries.dropped = earlier.webhook_deliveries.dropped

    def absorb(self, changes: Changes) -> None:
        """Apply committed changes."""
        for operation in changes.operations.values():
            known = self.operations.get(operation.id)
            for vm in known.vms if known is not None and known.vms != operation.vms else ():
                _list(self._on_vm, vm, operation.id, listed=False)  # it may no longer apply to some
            if operation.status.live:
                self.operations[operation.id] = operation
            else:
                self.operations.pop(operation.id, None)
                for event_id in operation.events:
                    self.ended_of_active.pop(event_id, None)
            for vm in operation.vms:
                _list(self._on_vm, vm, operation.id, operation.status.live)
            if operation.host:
                _list(self._at_host, operation.host, operation.id, operation.status.live)
            if operation.request.rollout:
                _list(self._of_rollout, operation.request.rollout, operation.id, operation.status.live)
            for host in destinations(known) if known is not None else ():
                _list(self._bound_for, host, operation.id, listed=False)  # its fabric may have chosen another host
            for host in destinations(operation):
                _list(self._bound_for, host, operation.id, is_moving_vms(operation))
        for rollout in changes.rollouts.values():
            if rollout.status.live:
                self.rollouts[rollout.id] = rollout
            else:
                self.rollouts.pop(rollout.id, None)
        for event in changes.events.values():
            if event.status.live:
                self.events[event.id] = event
            else:
                self.events.pop(event.id, None)
                if event.ended_at is not None:
                    self.ended_events[event.id] = EndedEvent(event.scope, event.ended_at)
                if event.operation in self.operations:
                    self.ended_of_active[event.id] = event
            _list(self._of_scope, event.scope, event.id, event.status.live)
        for scope, delivery in changes.deliveries.items():
            if delivery is None:
                self.deliveries.pop(scope, None)
                self.last_seen.pop(scope, None)
            else:
                self.deliveries[scope] = delivery
        for scope, time in changes.last_seen.items():
            self.last_seen[scope] = max(time, self.last_seen.get(scope, time))  # it may have polled since
        if changes.fleet is not None:
            self.fleet = changes.fleet
        self.facts.update(changes.facts)
        for name, token in changes.tokens.items():
            if token is None:
                self.tokens.pop(name, None)
            else:
                self.tokens[name] = token
        for response in changes.responses.values():
            self.responses[response.key] = response._replace(body="")
        if changes.webhooks or changes.undelivered:
            self.webhook_deliveries.absorb(changes)
        self.sequence += len(changes.history)
        if changes.history:
            self.sequence = max(self.sequence, changes.history[-1].sequence)  # numbers are skipped after lost commits


def destinations(operation: Operation) -> set[str]:
    """Return the hosts that an operation moves VMs to, or starts VMs on."""
    return {host for _, host in operation.moves}


def is_moving_vms(operation: Operation) -> bool:
    """Return whether its VMs have not been moved yet."""
    return operation.status.live and operation.executed_at is None


def _list(lists: dict[str, dict[str, None]], key: str, member: str, listed: bool) -> None:
    """Add a member to an index or remove it. Empty lists are deleted."""
    if listed:
        lists.setdefault(key, {})[member] = None
    elif key in lists:
        lists[key].pop(member, None)
        if not lists[key]:
            del lists[key]


# --- Delivery to webhooks -------------------------------------------------------------------------


class DeliveryStats(NamedTuple):
    """Delivery counts of a webhook."""

    pending: int = 0
    """Undelivered rows that have attempts left."""
    failed: int = 0
    last_error: str = ""
    """The error of the latest failure, while any row is undelivered."""
    dropped: int = 0
    """Rows since the start of the service that will never be delivered."""


class WebhookDeliveries:
    """Webhooks and their undelivered rows."""

    def __init__(self) -> None:
        self.webhooks: dict[str, Webhook] = {}
        self._undelivered: dict[str, dict[int, Undelivered]] = {}
        self._failed: Counter[str] = Counter()
        self._errors: dict[str, str] = {}
        self.dropped: Counter[str] = Counter()
        """How many rows of each webhook will never be delivered."""

    def undelivered(self, webhook: str) -> dict[int, Undelivered]:
        """Return a copy of the undelivered rows of a webhook by sequence."""
        return dict(self._undelivered.get(webhook, ()))

    def is_undelivered(self, webhook: str, sequence: int) -> bool:
        return sequence in self._undelivered.get(webhook, ())

    def stats(self, webhook: str) -> DeliveryStats:
        count, failed = len(self._undelivered.get(webhook, ())), self._failed[webhook]
        return DeliveryStats(count - failed, failed, self._errors.get(webhook, ""), self.dropped[webhook])

    def absorb(self, changes: Changes) -> None:
        """Apply committed changes."""
        for name, webhook in changes.webhooks.items():
            known = self.webhooks.pop(name, None)
            if webhook is not None:
                self.webhooks[name] = webhook
            if known is not None and (webhook is None or webhook.created_at != known.created_at):
                del self.dropped[name]  # a new webhook of the same name starts at zero
        for (name, sequence), row in changes.undelivered.items():
            self._put(name, sequence, row)

    def count_dropped(self, webhook: str, count: int) -> None:
        self.dropped[webhook] += count

    def forget_before(self, oldest: int) -> Counter[str]:
        """Drop undelivered rows that history has removed. Returns their number by webhook."""
        dropped: Counter[str] = Counter()
        for name, rows in list(self._undelivered.items()):
            for sequence in [sequence for sequence in rows if sequence < oldest]:
                self._put(name, sequence, None)
                dropped[name] += 1
        self.dropped.update(dropped)
        return dropped

    def _put(self, name: str, sequence: int, row: Undelivered | None) -> None:
        rows = self._undelivered.setdefault(name, {})
        before = rows.pop(sequence, None)
        if before is not None and before.failed:
            self._failed[name] -= 1
        if row is not None:
            rows[sequence] = row
            self._failed[name] += row.failed
            if row.attempts > (before.attempts if before is not None else 0):
                self._errors[name] = row.error
        if not rows:
            del self._undelivered[name]
            self._failed.pop(name, None)
            self._errors.pop(name, None)


# --- Drafts ---------------------------------------------------------------------------------------


class Draft:
    """A state or another draft, with uncommitted changes on top."""

    def __init__(self, base: ServiceState | Draft, new_id: Callable[[], str]) -> None:
        self._base = base
        self.new_id = new_id
        """Id factory, injected so that the core stays deterministic."""
        self.changes = Changes()
        self._own_fleet: Fleet | None = None
        self.host_selector: HostSelector | None = None
        """Cache of `placement.choose_host`."""
        # Indexes of the changes by VM, host and group: a scan is too slow for many changes.
        self._on_vm: dict[str, dict[str, None]] = {}
        self._at_host: dict[str, dict[str, None]] = {}
        self._bound_for: dict[str, dict[str, None]] = {}
        self._events_of: dict[str, dict[str, None]] = {}
        self._pending_by_users: dict[str, int] = {}
        self.rollouts_to_step: dict[str, None] = {}
        """Rollouts with a changed operation, which must be stepped."""
        self.to_redeploy: dict[str, None] = {}
        """Cancelled live migrations, which a redeploy must replace (requests.redeploy_instead)."""
        self.to_advance: dict[str, None] = {}
        """Operations that may be able to start now. None does before all newcomers are named (arrivals.follow_up)."""

    @property
    def fleet(self) -> Fleet:
        return self.changes.fleet if self.changes.fleet is not None else self._base.fleet

    @property
    def fleet_before(self) -> Fleet:
        """The fleet without the changes of this draft."""
        return self._base.fleet

    def operation_before(self, operation_id: str) -> Operation | None:
        """The operation without the changes of this draft."""
        return self._base.operation(operation_id)

    def operation(self, operation_id: str) -> Operation | None:
        return self.changes.operations.get(operation_id) or self._base.operation(operation_id)

    def rollout(self, rollout_id: str) -> Rollout | None:
        """Return the rollout, if it is active."""
        rollout = self.changes.rollouts.get(rollout_id) or self._base.rollout(rollout_id)
        return rollout if rollout is not None and rollout.status.live else None

    def live_rollouts(self) -> list[Rollout]:
        found = {rollout.id: rollout for rollout in self._base.live_rollouts()} | self.changes.rollouts
        return [rollout for rollout in found.values() if rollout.status.live]

    def token(self, name: str) -> Token | None:
        return self.changes.tokens[name] if name in self.changes.tokens else self._base.token(name)

    def all_tokens(self) -> list[Token]:
        found = {token.name: token for token in self._base.all_tokens()} | self.changes.tokens
        return [token for token in found.values() if token is not None]

    def stored_response(self, key: str) -> StoredResponse | None:
        """Return the stored response to a request with this key."""
        return self.changes.responses.get(key) or self._base.stored_response(key)

    def vms_with_work(self) -> set[str]:
        """VMs of active operations, including some that ended in this draft."""
        return self._base.vms_with_work().union(*(operation.vms for operation in self.changes.operations.values()))

    def operations_on(self, vm: str) -> list[Operation]:
        """Active operations on this VM."""
        found = self._changed(self._base.operations_on(vm), self._on_vm.get(vm, ()))
        return [operation for operation in found if operation.status.live and vm in operation.vms]

    def operations_at(self, host: str) -> list[Operation]:
        """Active operations on this host."""
        found = self._changed(self._base.operations_at(host), self._at_host.get(host, ()))
        return [operation for operation in found if operation.status.live]

    def destinations(self) -> set[str]:
        """Hosts that VMs are being moved to, including some finished moves of this draft."""
        return self._base.destinations().union(*map(destinations, self.changes.operations.values()))

    def operations_bound_for(self, host: str) -> list[Operation]:
        """Active operations that move VMs to this host, or start VMs on it."""
        found = self._changed(self._base.operations_bound_for(host), self._bound_for.get(host, ()))
        return [operation for operation in found if is_moving_vms(operation) and host in destinations(operation)]

    def rollout_operations(self) -> list[Operation]:
        """Active operations of rollouts, also of rollouts that have ended."""
        changed = (operation.id for operation in self.changes.operations.values() if operation.request.rollout)
        found = self._changed(self._base.rollout_operations(), changed)
        return [operation for operation in found if operation.status.live]

    def _changed(self, before: Iterable[Operation], changed: Iterable[str]) -> list[Operation]:
        # Changed operations may no longer match, so the callers filter the result.
        found = {operation.id: self.changes.operations.get(operation.id, operation) for operation in before}
        found.update((operation_id, self.changes.operations[operation_id]) for operation_id in changed)
        return list(found.values())

    def event(self, event_id: str) -> Event | None:
        """Return the event, if it is active."""
        event = self.changes.events.get(event_id) or self._base.event(event_id)
        return event if event is not None and event.status.live else None

    def ended_event(self, event_id: str) -> EndedEvent | None:
        """Return what is known of an event that ended lately."""
        event = self.changes.events.get(event_id)
        if event is not None and event.ended_at is not None:
            return EndedEvent(event.scope, event.ended_at)
        return self._base.ended_event(event_id)

    def fact(self, name: str) -> str | None:
        return self.changes.facts[name] if name in self.changes.facts else self._base.fact(name)

    def delivery(self, scope: str) -> Delivery | None:
        if scope in self.changes.deliveries:
            return self.changes.deliveries[scope]
        return self._base.delivery(scope)

    def deliveries_among(self, scopes: frozenset[str]) -> set[str]:
        among = self._base.deliveries_among(scopes) | (self.changes.deliveries.keys() & scopes)
        return {scope for scope in among if self.delivery(scope) is not None}

    def last_seen_at(self, scope: str) -> datetime | None:
        return self.changes.last_seen.get(scope) or self._base.last_seen_at(scope)

    @property
    def polls_known_from(self) -> datetime | None:
        return self._base.polls_known_from

    def live_events(self) -> list[Event]:
        found = {event.id: event for event in self._base.live_events()} | self.changes.events
        return [event for event in found.values() if event.status.live]

    def events_of(self, scope: str) -> list[Event]:
        found = {event.id: event for event in self._base.events_of(scope)}
        found.update((event_id, self.changes.events[event_id]) for event_id in self._events_of.get(scope, ()))
        return [event for event in found.values() if event.status.live]

    @property
    def sequence(self) -> int:
        """Sequence of the latest history row, including this draft."""
        return self._base.sequence + len(self.changes.history)

    @property
    def webhook_deliveries(self) -> WebhookDeliveries:
        """Webhook deliveries without the changes of this draft."""
        return self._base.webhook_deliveries

    def webhook(self, name: str) -> Webhook | None:
        if name in self.changes.webhooks:
            return self.changes.webhooks[name]
        return self._base.webhook(name)

    def webhooks(self) -> dict[str, Webhook]:
        found = self._base.webhooks() | self.changes.webhooks
        return {name: webhook for name, webhook in found.items() if webhook is not None}

    def undelivered(self, webhook: str) -> dict[int, Undelivered]:
        """Undelivered rows of a webhook by sequence."""
        changed = {sequence: row for (name, sequence), row in self.changes.undelivered.items() if name == webhook}
        found = self._base.undelivered(webhook) | changed
        return {sequence: row for sequence, row in found.items() if row is not None}

    def pending_by_users(self, group: str) -> int:
        """Number of scheduled events of a group that users requested. Counted once, and then with each change."""
        if group not in self._pending_by_users:
            events = (event for scope in self.fleet.scopes(group) for event in self.events_of(scope))
            self._pending_by_users[group] = sum(map(_is_pending_by_user, events))
        return self._pending_by_users[group]

    def put_operation(self, operation: Operation) -> None:
        if self.host_selector is not None and not is_moving_vms(operation):
            known = self.operation(operation.id)
            if known is not None and known.moves and is_moving_vms(known):  # they have landed, or do not come
                self.host_selector = None
        self.changes.operations[operation.id] = operation
        self._index_operation(operation)

    def _index_operation(self, operation: Operation) -> None:
        for vm in operation.vms:
            self._on_vm.setdefault(vm, {})[operation.id] = None
        if operation.host:
            self._at_host.setdefault(operation.host, {})[operation.id] = None
        for host in destinations(operation):
            self._bound_for.setdefault(host, {})[operation.id] = None

    def absorb(self, later: Draft) -> None:
        """Apply the changes of a draft that is based on this one."""
        for operation in later.changes.operations.values():
            self._index_operation(operation)
        for event in later.changes.events.values():
            self._events_of.setdefault(event.scope, {})[event.id] = None
        self.changes = self.changes.absorb(later.changes)
        self.host_selector = None
        self._pending_by_users.clear()

    def put_rollout(self, rollout: Rollout) -> None:
        self.changes.rollouts[rollout.id] = rollout

    def put_event(self, event: Event) -> None:
        """Store an event. Increments the incarnation once if the document of its scope changes."""
        before = self._base.event(event.id)
        already = self.changes.events.get(event.id)
        self.changes.events[event.id] = event
        self._events_of.setdefault(event.scope, {})[event.id] = None
        if event.group in self._pending_by_users:
            known = before if already is None else already
            self._pending_by_users[event.group] += _is_pending_by_user(event) - _is_pending_by_user(known)
        if _shows_otherwise(before, event) and not (already is not None and _shows_otherwise(before, already)):
            self.count_change(event.scope)

    def count_change(self, scope: str) -> None:
        """Increment the incarnation of the scope's document."""
        delivery = self.delivery(scope)
        if delivery is not None:
            self.changes.deliveries[scope] = delivery._replace(incarnation=delivery.incarnation + 1)

    def put_delivery(self, delivery: Delivery, last_seen_at: datetime) -> None:
        self.changes.deliveries[delivery.scope] = delivery
        self.changes.last_seen[delivery.scope] = last_seen_at

    def forget_delivery(self, scope: str) -> None:
        delivery = self.delivery(scope)
        if delivery is not None:
            self.changes.deliveries[scope] = None
            self.changes.facts[FORGOTTEN_ENABLING] = str(max(delivery.enabling, self.forgotten_enabling))

    @property
    def forgotten_enabling(self) -> int:
        """The highest enabling of all scopes that have left the fleet."""
        return int(self.fact(FORGOTTEN_ENABLING) or 0)

    def put_fleet(self, fleet: Fleet, change: FleetChange) -> None:
        self.changes.fleet = fleet
        self.changes.fleet_changes.append(change)
        self.host_selector = None

    def change_fleet(self, change: FleetChange) -> None:
        """Change some items of the fleet. Only the first change of a draft copies the fleet."""
        if self._own_fleet is not None and self._own_fleet is self.changes.fleet:
            self._own_fleet.alter(change)
        else:
            self._own_fleet = self.fleet.changed_by(change)
        self.put_fleet(self._own_fleet, change)

    def record(self, entry: HistoryEntry) -> None:
        self.changes.history.append(entry)


def _is_pending_by_user(event: Event | None) -> bool:
    return event is not None and event.status is EventStatus.SCHEDULED and event.source is Source.USER


def _shows_otherwise(before: Event | None, after: Event) -> bool:
    """Return whether the event looks different in the document."""
    if before is None:
        return after.status.live
    return before.status is not after.status or before.not_before != after.not_before

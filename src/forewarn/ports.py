"""Interfaces with more than one implementation: Clock, Store, Fabric."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from forewarn.core.state import Changes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from datetime import datetime, timedelta

    from forewarn.core.access import StoredResponse, Token
    from forewarn.core.events import Event
    from forewarn.core.fleet import Fleet
    from forewarn.core.operations import Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Delivery, HistoryEntry
    from forewarn.core.webhooks import Undelivered, Webhook


class Clock(Protocol):
    """The time, and waiting for it."""

    @property
    def virtual(self) -> bool:
        """Whether the clock only moves when it is advanced."""

    def now(self) -> datetime:
        """Return the current time as an aware datetime in UTC."""

    async def sleep_until(self, wake_at: datetime) -> None:
        """Wait until this time. May return earlier, so check `now` again."""


class ClockBarrier(Protocol):
    """VMs that must see every step of a virtual clock before it moves on."""

    @property
    def scopes(self) -> set[str]:
        """Scopes of the VMs."""

    def missing(self) -> list[str]:
        """Return the VMs that have not seen the current document."""

    async def wait(self) -> None:
        """Wait until no VM is missing. Raises an error after a timeout."""


@dataclass(slots=True)
class StoredState:
    """The stored state that a service loads at startup."""

    fleet: Fleet
    operations: list[Operation] = field(default_factory=list)
    rollouts: list[Rollout] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    last_seen: dict[str, datetime] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    tokens: list[Token] = field(default_factory=list)
    responses: list[StoredResponse] = field(default_factory=list)
    """Without bodies."""
    sequence: int = 0
    webhooks: list[Webhook] = field(default_factory=list)
    undelivered: list[Undelivered] = field(default_factory=list)
    position: int = 0
    """Number of the last commit in the journal; 0 in a store without a journal."""
    decided_at: datetime | None = None
    """The service's time of that commit."""

    def as_changes(self) -> Changes:
        """Return changes that restore this state, except the fleet and the history sequence."""
        return Changes(
            operations={operation.id: operation for operation in self.operations},
            rollouts={rollout.id: rollout for rollout in self.rollouts},
            events={event.id: event for event in self.events},
            deliveries={delivery.scope: delivery for delivery in self.deliveries},
            last_seen=self.last_seen,
            facts=self.facts,
            tokens={token.name: token for token in self.tokens},
            responses={response.key: response for response in self.responses},
            webhooks={webhook.name: webhook for webhook in self.webhooks},
            undelivered={(row.webhook, row.sequence): row for row in self.undelivered},
        )


class HistoryFilter(NamedTuple):
    """Filter for history rows. All given fields must match."""

    operation: str = ""
    """Rows of this operation or rollout."""
    event: str = ""
    """Rows of this event and of its operation. Requires `operation`."""
    groups: tuple[str, ...] = ()
    vm: str = ""
    host: str = ""
    """Rows about this host, or of an operation that moved VMs to it."""
    type: str = ""
    """Rows of operations with this event type."""
    cause: str = ""
    by: str = ""
    kinds: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    """Rows before this time."""
    after: int = 0
    """Rows with a greater sequence."""
    before: int = 0
    """Rows with a smaller sequence; 0: no limit."""
    newest: bool = False
    """Newest rows first."""
    limit: int = 1000


class ListFilter(NamedTuple):
    """Filter for lists: active items, oldest first; or all items, newest first."""

    live: bool = True
    after: int = 0
    """Position of the last item of the previous page; 0: first page."""
    after_id: str = ""
    """Of active items: id of the last item of the previous page, which may have ended since; empty: first page."""
    limit: int = 1000
    group: str = ""
    """Only events of this group, or operations with such an event."""
    generation: int = 0
    """Only events of this generation of their group, or of a later one."""
    vm: str = ""
    """Only items about a VM that matches this shell pattern."""
    host: str = ""
    """Only operations on this host, or events of them."""
    type: str = ""
    cause: str = ""
    status: str = ""
    unexecuted: bool = False
    """Only operations that have started, and whose work is not done."""


class RetentionCutoff(NamedTuple):
    """Positions in the store below which items have expired."""

    before: datetime
    """Items that ended before this time have expired."""
    history: int
    """History rows with a smaller sequence have expired."""
    operations: int
    rollouts: int
    responses: int


class Records(Protocol):
    """Read access to active and ended items. Blocks; used by one thread."""

    def event(self, event_id: str) -> Event | None:
        """Return an event, active or ended."""

    def events_by_prefix(self, start: str, group: str = "", generation: int = 0) -> list[Event]:
        """Return at most two events whose ids start with this prefix, to detect ambiguous prefixes."""

    def events(self, filters: ListFilter) -> list[tuple[int, Event]]:
        """Return events, each with its position."""

    def count_events(self, filters: ListFilter) -> int:
        """Return the number of events that match."""

    def operation(self, operation_id: str) -> Operation | None:
        """Return an operation, active or ended."""

    def operations_by_prefix(self, start: str) -> list[Operation]:
        """Return at most two operations whose ids start with this prefix."""

    def operations(self, filters: ListFilter) -> list[tuple[int, Operation]]:
        """Return operations, each with its position."""

    def count_operations(self, filters: ListFilter) -> int:
        """Return the number of operations that match."""

    def rollouts_by_prefix(self, start: str) -> list[Rollout]:
        """Return at most two rollouts whose ids start with this prefix."""

    def rollouts(self, filters: ListFilter) -> list[tuple[int, Rollout]]:
        """Return rollouts, each with its position."""

    def history(self, filters: HistoryFilter) -> list[HistoryEntry]:
        """Return history rows in order, or newest first."""

    def stored_response(self, key: str) -> StoredResponse | None:
        """Return the stored response of an idempotency key, with its body."""

    def oldest(self) -> int:
        """Return the sequence of the oldest stored history row; without rows, of the first one to come."""

    def check(self) -> None:
        """Read a little, and not from memory. Raises StoreFailed."""

    def retention_cutoff(self, before: datetime, responses_before: datetime) -> RetentionCutoff:
        """Return the cutoff for items before these times. The newest history row never expires."""


class Store(Records, Protocol):
    """Storage for committed changes. Never reads the time."""

    def load(self) -> StoredState:
        """Load all active items."""

    def events_ended_since(self, since: datetime) -> list[Event]:
        """Return the events that ended after this time."""

    def commit(self, changes: Changes) -> int:
        """Write all changes or none. They are durable when this returns. Returns the number of the commit in the
        journal, or 0 without a journal.

        Raises StoreFailed if nothing has changed, now and after a crash. Raises StoreOutcomeUnknown if that is not
        certain: then the next commit first makes sure that nothing has changed.
        """

    def remove_expired(self, cutoff: RetentionCutoff, limit: int) -> bool:
        """Delete expired items, at most `limit` of each kind. Returns whether there were any."""

    def problem(self) -> str:
        """Return why the next commit may fail; empty: nothing is known. Does not block."""

    def reader(self) -> Records | None:
        """Return a reader for another thread, which does not wait for commits; None if that is not possible.

        A read sees everything that was committed before. The store closes its readers.
        """

    def close(self) -> None:
        """Close the store."""


class LeaderStore(Store, Protocol):
    """A store that several nodes share. Only the leader writes, and every commit has a row in the journal."""

    def lead(self, epoch: int, position: int) -> None:
        """Write from now on: as the leader of this epoch, after this row of the journal.

        A commit raises NotLeading if another node leads.
        """

    def commit_after_loss(self, changes: Changes) -> int:
        """Commit what core/restore.py has decided. All other nodes load the state, because a number is missing before
        this commit. Raises StoreFailed; the outcome is then not known, and to repeat it does no harm."""

    def follow(self) -> None:
        """Close the connection that it needs to load the state and to write, but not to follow."""

    def abandon(self) -> None:
        """Let a commit end that waits for the database: its outcome is not known. Called from any thread."""

    @property
    def last_row(self) -> JournalRow | None:
        """The row of the last commit in the journal, without its data if it has several rows."""


class JournalRow(NamedTuple):
    """The changes of one commit, or a part of them."""

    number: int
    """Counts all commits. There are gaps only where numbers were skipped, because the database has lost commits. The
    rows of a large commit have one number, and follow each other."""
    data: bytes
    epoch: int = 0
    """Of the leader that has made it; 0: not known."""


class JournalPosition(NamedTuple):
    """A row of the journal that a node has applied. Two commits with one number have two epochs."""

    number: int = 0
    epoch: int = 0
    """0: not known."""

    def is_lost(self, found: Sequence[JournalPosition | JournalRow]) -> bool:
        """Return whether the database has lost this row. `found` begins with the first row that is not before it."""
        if not self.number:
            return False
        if not found:
            return True
        first = found[0]
        return first.epoch != self.epoch > 0 if first.number == self.number else first.epoch < self.epoch


class Journal(Protocol):
    """The commits of the leader, in order. Blocks; used by one thread."""

    def read(self, after: int, limit: int) -> list[JournalRow]:
        """Return the row `after`, without its data, and at least so many of the next rows: of each commit all, or none.

        If the row `after` is missing, it has expired or is lost.
        """

    def newest(self) -> int:
        """Return the number of the last row; 0 if there is none."""

    def decode(self, parts: Sequence[bytes], fleet: Fleet) -> Changes:
        """Return the changes of a commit from all its rows. `fleet` is the fleet before it."""

    def wait(self, seconds: float) -> int | None:
        """Wait for a new row, at most this long. Returns its number; None: look whether there is one."""

    def close(self) -> None:
        """Close the connection."""


class LeaseState(NamedTuple):
    """Who leads, as the database knows it."""

    holder: str
    """The id of the node; empty: nobody has ever led."""
    epoch: int
    """Counts the leaders."""
    remaining_seconds: float
    """Not positive: the lease has expired."""
    now: datetime
    """The time of the database."""


class LeaseRenewal(NamedTuple):
    """What a leader learns when it renews its lease."""

    epoch: int | None
    """None: another node has taken the lease."""
    nodes: list[NodeRow]
    found: list[JournalPosition]
    """The row of the journal that the node has reported as its position, or the next one."""
    is_replaced: bool
    """Whether this is another database than the one in which the node has begun to lead."""


class DatabaseChange(NamedTuple):
    """Why clients may know numbers that the database does not have."""

    kind: str
    """The kind of the row of history about it."""
    reason: str


class NodeRow(NamedTuple):
    """A node, as the database knows it."""

    id: str
    name: str
    address: str
    """HOST:PORT for other nodes."""
    control: str
    """The URL of its control API."""
    certificate: str
    """Its TLS certificate as PEM; empty: it has none."""
    version: str
    started_at: str
    position: int
    """The last row of the journal that it has applied."""
    age_seconds: float = 0.0
    """Time since its last report."""


class Membership(Protocol):
    """What nodes share besides the store. Blocks; used by one thread. Raises StoreFailed without the database."""

    def take_lease(self, seconds: float) -> int | None:
        """Take the lease if it has expired. Returns the new epoch."""

    def renew_lease(self, node: NodeRow, seconds: float) -> LeaseRenewal:
        """Renew the lease if this node has it, and report that the node is alive."""

    def find_change(self) -> DatabaseChange | None:
        """Return how the database may have lost commits since a node led last; None: nothing is known of that."""

    def save_mark(self) -> None:
        """Confirm that the change was dealt with that `find_change` has found, if no other one was reported since."""

    def report_loss(self, reason: str) -> None:
        """Let the leader know that the database has lost commits."""

    def skip_epochs(self, epoch: int, skipped: int) -> int | None:
        """Skip epochs, if this node has the lease with this one. Returns the new epoch."""

    def release_lease(self) -> None:
        """Let another node lead."""

    def look(self, node: NodeRow) -> tuple[LeaseState, list[NodeRow]]:
        """Report that this node is alive. Returns who leads, and all nodes."""

    def report(self, node: NodeRow) -> None:
        """Report that this node is alive."""

    def nodes(self) -> list[NodeRow]:
        """Return all nodes that have reported lately."""

    def remove_node(self, node: str) -> None:
        """Remove a node that stops."""

    def trim(self, journal_seconds: float, node_seconds: float) -> bool:
        """Remove rows of the journal, and nodes that have not reported, that are older than this.

        Removes a limited number of rows. Returns whether there may be more.
        """

    def join(self, node: NodeRow, settings: dict[str, str], gone: set[str], lost_seconds: float) -> dict[str, str]:
        """Return the settings that all nodes must have. Report a node that has them, and no other.

        `gone` are the ids of nodes that did not answer. Such a node only counts if it has reported within
        `lost_seconds`: the network may be cut. Without another node, the settings are those of this one. Raises
        NodeNameTaken. Of nodes that start at the same time, one does this after the other.
        """

    def close(self) -> None:
        """Close the connection."""


class Forwarder(Protocol):
    """Sends changes to the node that leads. They are applied here when the caller is answered."""

    def approve(
        self, ids: Sequence[str], by: str, scope: str, done: Callable[[None, BaseException | None], None]
    ) -> None:
        """Approve events of a scope. Calls `done` when the approval is committed or has failed."""

    async def enable(self, scope: str, by: str) -> None:
        """Enable scheduled events for a scope."""

    @property
    def is_certain(self) -> bool:
        """Whether this node leads, and its lease has not ended."""

    @property
    def has_leader(self) -> bool:
        """Whether this node leads, or knows who does."""

    async def catch_up(self, is_behind: Callable[[], bool]) -> bool:
        """Wait for what a client knows from another node, for a second at most.

        Returns whether this node certainly has every commit that another node had when the wait began.
        """


class WorkOrder(NamedTuple):
    """Work for the fabric. Orders are idempotent by operation id."""

    operation: str
    vms: tuple[str, ...]
    duration: timedelta | None = None
    cause: str = ""
    host: str = ""
    """The host of the operation; empty if it only affects VMs."""
    moves: tuple[tuple[str, str], ...] = ()
    """VMs to move or to start, each with its destination. A fabric chooses the host of a VM that is not here."""


PlacedVMs: TypeAlias = "Mapping[str, str] | None"
"""VMs that a fabric has put on another host than the order says, each with its host."""


class MachineState(NamedTuple):
    """State of a VM, as the fabric reports it."""

    vm: str
    running: bool
    boots: int


class Fabric(Protocol):
    """Executes operations. "Already done" is success.

    Each verb returns when the work is done. It raises WorkFailed for a permanent failure. Any other error is retried
    with backoff.
    """

    makes_hosts: bool
    """Whether the fabric can add a spare host if no host can take a VM."""

    async def inspect(self, vm: str) -> MachineState:
        """Return the current state of a VM."""

    async def freeze(self, order: WorkOrder) -> None:
        """Pause for a few seconds. Nothing is lost."""

    async def migrate(self, order: WorkOrder) -> PlacedVMs:
        """Move a running VM to another host. Nothing is lost."""

    async def reboot(self, order: WorkOrder) -> None:
        """Stop and start. Memory is lost."""

    async def redeploy(self, order: WorkOrder) -> PlacedVMs:
        """Move to another host and start there. Memory and ephemeral disks are lost."""

    async def reimage(self, order: WorkOrder) -> None:
        """Replace the OS disk and start. The cause is reimage (the same image) or image-upgrade (the newest image).

        Memory and the OS disk are lost.
        """

    async def deallocate(self, order: WorkOrder) -> None:
        """Stop, and release the capacity."""

    async def start(self, order: WorkOrder) -> PlacedVMs:
        """Start a deallocated VM."""

    async def delete(self, order: WorkOrder) -> None:
        """Delete permanently."""

    async def recover(self, unfinished: Sequence[str]) -> None:
        """Clean up after a crash. Runs first at startup, with the ids of unfinished operations."""

    def events(self) -> AsyncIterator[str]:
        """Yield names of changed VMs, which wake the engine."""

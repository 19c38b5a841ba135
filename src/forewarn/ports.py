"""Clock, Store, Fabric: every contract that has more than one implementation, in one file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from forewarn.core.state import Changes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
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
        """Whether time stands still until it is moved."""

    def now(self) -> datetime:
        """This moment, aware, in UTC."""

    async def sleep_until(self, moment: datetime) -> None:
        """Return when the moment has come, or a little earlier: ask `now` again."""


class ClockBarrier(Protocol):
    """VMs that are to take in every step of a moved clock."""

    @property
    def groups(self) -> set[str]:
        """Whose documents they are given."""

    def missing(self) -> list[str]:
        """Who has not taken in what is true now."""

    async def wait(self) -> None:
        """Until nobody is missing; an error when that takes too long."""


@dataclass(slots=True)
class StoredState:
    """Everything that is needed to go on after a stop."""

    fleet: Fleet
    operations: list[Operation] = field(default_factory=list)
    rollouts: list[Rollout] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    last_seen: dict[str, datetime] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    tokens: list[Token] = field(default_factory=list)
    kept: list[StoredResponse] = field(default_factory=list)
    """Without their bodies."""
    sequence: int = 0
    webhooks: list[Webhook] = field(default_factory=list)
    undelivered: list[Undelivered] = field(default_factory=list)

    def as_changes(self) -> Changes:
        """What makes this of nothing, but for the fleet and the count of history."""
        return Changes(
            operations={operation.id: operation for operation in self.operations},
            rollouts={rollout.id: rollout for rollout in self.rollouts},
            events={event.id: event for event in self.events},
            deliveries={delivery.group: delivery for delivery in self.deliveries},
            last_seen=self.last_seen,
            facts=self.facts,
            tokens={token.name: token for token in self.tokens},
            kept={kept.key: kept for kept in self.kept},
            webhooks={webhook.name: webhook for webhook in self.webhooks},
            undelivered={(row.webhook, row.sequence): row for row in self.undelivered},
        )


class HistoryFilter(NamedTuple):
    """Which rows of history are asked for: those that fit every field that is given."""

    operation: str = ""
    """Of this operation or rollout."""
    event: str = ""
    """Of this event, and those about its operation as a whole; only together with the operation."""
    groups: tuple[str, ...] = ()
    vm: str = ""
    host: str = ""
    """About this host, or of an operation that brought VMs to it."""
    type: str = ""
    """Of an operation whose events are of this type."""
    cause: str = ""
    by: str = ""
    kinds: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    """Earlier than this moment."""
    after: int = 0
    """With a greater sequence than this."""
    before: int = 0
    """With a lesser sequence than this; 0: any."""
    newest: bool = False
    """The newest first."""
    limit: int = 1000


class ListFilter(NamedTuple):
    """Which of the things of a kind are asked for: those that live, oldest first; or all, newest first."""

    live: bool = True
    after: int = 0
    """The place of the last one of the page before; 0: from the beginning."""
    limit: int = 1000
    group: str = ""
    """Of events: only those of this group."""


class RetentionCutoff(NamedTuple):
    """Up to where things are older than they are to be kept: numbers of the store's own."""

    before: datetime
    """What was over by then is too old."""
    history: int
    """Rows of history with a lesser sequence."""
    operations: int
    rollouts: int
    answers: int


class Records(Protocol):
    """What is known of what is over, and of what is not. Blocks: called from one thread."""

    def event(self, event_id: str) -> Event | None:
        """An event, live or long over."""

    def events_beginning(self, start: str, group: str = "") -> list[Event]:
        """At most two events whose ids begin so: enough to know whether it is clear which is meant."""

    def events(self, wanted: ListFilter) -> list[tuple[int, Event]]:
        """Events, each with its place."""

    def operation(self, operation_id: str) -> Operation | None:
        """An operation, live or long over."""

    def operations_beginning(self, start: str) -> list[Operation]:
        """At most two operations whose ids begin so."""

    def operations(self, wanted: ListFilter) -> list[tuple[int, Operation]]:
        """Operations, each with its place."""

    def rollouts_beginning(self, start: str) -> list[Rollout]:
        """At most two rollouts whose ids begin so."""

    def rollouts(self, wanted: ListFilter) -> list[tuple[int, Rollout]]:
        """Rollouts, each with its place."""

    def history(self, wanted: HistoryFilter) -> list[HistoryEntry]:
        """Rows of history in their order, or the newest first."""

    def kept_answer(self, key: str) -> StoredResponse | None:
        """The answer kept for a key, whole."""

    def oldest(self) -> int:
        """The sequence of the oldest row of history that is kept; of the first to come where there is none."""

    def expired(self, before: datetime, answers_before: datetime) -> RetentionCutoff:
        """What came about before those moments: all of history but its newest row; answers kept by the other moment."""


class Store(Records, Protocol):
    """Keeps what is committed. Decides nothing; never reads the time."""

    def load(self) -> StoredState:
        """All that is live."""

    def commit(self, changes: Changes) -> None:
        """Write all of it or nothing; when this returns it survives a crash. Else: StoreFailed."""

    def remove(self, expired: RetentionCutoff, most: int) -> bool:
        """Forget what is too old and not live, at most so much of each; whether there was any. All of it or nothing."""

    def reader(self) -> Records | None:
        """The same records for another thread, which waits for no commit; None: this thread alone can have them.

        What was committed before a call is seen by it. It is closed with the store.
        """

    def close(self) -> None:
        """Let go of the files."""


class WorkOrder(NamedTuple):
    """What the fabric is to do. The same id means the same order: to get it twice is to get it once."""

    operation: str
    vms: tuple[str, ...]
    duration: timedelta | None = None
    cause: str = ""
    host: str = ""
    """The host that it is about; empty where it is about VMs alone."""
    moves: tuple[tuple[str, str], ...] = ()
    """VMs that are to be on another host afterwards, each with that host."""


class MachineState(NamedTuple):
    """What the fabric sees of a VM."""

    vm: str
    running: bool
    boots: int


class Fabric(Protocol):
    """Carries operations out. "Already so" is success.

    Each verb returns when the work is done. It raises WorkFailed when it cannot be done at all; whatever
    else it raises means that it has not been done yet, and it is ordered again a little later.
    """

    makes_hosts: bool
    """Whether a host can be had by asking for it: where no host fits, the fabric is given a new one."""

    async def inspect(self, vm: str) -> MachineState:
        """The machine as it is now."""

    async def freeze(self, order: WorkOrder) -> None:
        """Pause for a moment; nothing is lost."""

    async def migrate(self, order: WorkOrder) -> None:
        """Move to another host while it runs; nothing is lost."""

    async def reboot(self, order: WorkOrder) -> None:
        """Stop and start; memory is lost."""

    async def redeploy(self, order: WorkOrder) -> None:
        """Move to another host and start there; memory and ephemeral disks are lost."""

    async def deallocate(self, order: WorkOrder) -> None:
        """Stop, and give its place to others."""

    async def start(self, order: WorkOrder) -> None:
        """Run again what was deallocated."""

    async def delete(self, order: WorkOrder) -> None:
        """Remove for good."""

    async def recover(self, unfinished: Sequence[str]) -> None:
        """Put right what a service that died left half done; runs first at start, with the ids of what goes on."""

    def events(self) -> AsyncIterator[str]:
        """Names of VMs that something happened to. They wake the engine; state decides."""

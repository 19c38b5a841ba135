"""A node of a service: takes the lease and leads, or follows the journal of the node that leads."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from forewarn.clock import seconds_since_boot
from forewarn.core.durations import to_text
from forewarn.core.history import SKIPPED_NUMBERS
from forewarn.core.restore import UsedNumbers
from forewarn.engine.writer import StoreThread
from forewarn.errors import BadChangeSet, DatabaseFailed, DatabaseUnreachable, NotLeading, StoreFailed
from forewarn.ports import JournalPosition
from forewarn.system.logs import get_logger
from forewarn.system.memory import without_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from forewarn.core.state import Changes
    from forewarn.engine.engine import Engine
    from forewarn.ports import (
        DatabaseChange,
        Journal,
        JournalRow,
        LeaderStore,
        LeaseRenewal,
        LeaseState,
        Membership,
        NodeRow,
    )
    from forewarn.system.number_file import NumberFile

_log = get_logger(__name__)

READ_ROWS = 500
RECENT_ROWS, RECENT_BYTES = 64, 262_144
"""Commits that the leader sends with an answer. Other nodes read more from the journal."""
APPLY_BATCH = 50
"""Commits, or kilobytes of them, that are applied in one turn of the event loop, so that polls are served in between. A
commit that is larger is decoded in a thread."""
WAIT_SECONDS = 0.1
"""Longest wait for a notification. Databases may lack them, and some poolers lose them."""
RETRY_SECONDS = 0.5
START_RETRY_SECONDS = 1.0
"""How often a node that starts tries to reach the database."""
JOURNAL_SECONDS = 600.0
"""How long rows of the journal are kept."""
LOST_NODE_SECONDS = 600.0
TRIM_SECONDS = 60.0
ABSTAIN_SECONDS, ABSTAIN_ALONE_SECONDS = 4.0, 1.0
"""A node that steps down, or could not lead, does not take the lease for this long: another node should. The second
value applies if no other node reports any more."""
PROMOTION_SECONDS = 30.0
"""A node that has the lease and does not lead after this long leaves it to another one."""
SKIP_SECONDS = 300.0
"""How much longer that may take if it skips numbers: all scopes get new ones."""
RELOAD_SECONDS = 1.0
"""Shortest time between two loads of the state, if the journal cannot be applied."""
KEPT_NUMBERS = 4
"""How many numbers are kept in the data folder."""
STALE_SECONDS = 10.0
"""A node that has heard nothing from the database for this long is not ready."""


class NodeRole(NamedTuple):
    """What a node is at the moment."""

    name: str
    """`leader`, `follower` or `candidate`: it has the lease, and does not lead yet."""
    epoch: int


def _ignore(_: None, __: BaseException | None) -> None:
    pass


class Node:
    """Keeps the role of this node. `on_lead` and `on_follow` are called at each change."""

    def __init__(
        self,
        engine: Engine,
        store: LeaderStore,
        membership: Membership,
        journal: Journal,
        row: NodeRow,
        lease_seconds: float,
        position_file: NumberFile | None = None,
    ) -> None:
        """`position_file` keeps the last commit that the node knows."""
        self.row = row
        self.engine = engine
        self.on_lead: list[Callable[[], Awaitable[None]]] = []
        self.on_follow: list[Callable[[], Awaitable[None]]] = []
        self.on_new_leader: list[Callable[[], None]] = []
        """Called when another node leads than before, or none."""
        self.leader: NodeRow | None = None
        """The node that leads, as far as this node knows."""
        self.nodes: list[NodeRow] = []
        """All nodes, as this node last read them."""
        self._reported_at = 0.0
        self.role_changes = 0
        self.problem = ""
        """Why the database cannot be used; empty if it can."""
        self.has_state = False
        """Whether it has loaded the state. Until then it answers no polls."""
        self.clock_problem = ""
        """How its clock differs from the database's; empty if both agree."""
        self.loss = ""
        """That the database has lost commits, until numbers are skipped; empty: not as far as this node knows."""
        self._store = store
        self._membership = membership
        self._journal = journal
        self._lease_seconds = lease_seconds
        self._membership_thread = StoreThread()
        self._journal_thread = StoreThread()
        self._epoch = 0
        """The epoch of its own lease; 0 while it has none."""
        self._last_epoch = 0
        self._leased_at = 0.0
        """When it took its lease, in seconds since boot."""
        self._lease_ends_at = 0.0
        """When its lease ends, in seconds since boot, unless it is renewed."""
        self._known = JournalPosition()
        """The newest row of the journal that this node has, and whose epoch it knows. After a load: without."""
        self._has_only_loaded = False
        """Whether its state is what it has loaded, and no commit since."""
        self._used = UsedNumbers(0, {})
        """The highest numbers that clients of this node know, if the database has lost them."""
        self._position_file = position_file
        self._kept: tuple[int, ...] = ()
        """What was written to it last: the last commit, its epoch, and the highest numbers."""
        self._deposed_by = ""
        """Why this leader must read the journal."""
        self._must_read_journal = False
        """Whether the journal may have a commit that this leader does not have. It must not lead without it."""
        self.caught_up_at = seconds_since_boot()
        """While it follows, it has every commit that was visible at this time, in seconds since boot."""
        self._reloaded_at = 0.0
        self._trimmed_at = seconds_since_boot()
        self._gave_up_at = -ABSTAIN_SECONDS
        """When it stepped down or could not lead, in seconds since boot."""
        self._applying = asyncio.Lock()
        self._promotion: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._woken = asyncio.Event()
        self._changed = asyncio.Event()
        """Set and replaced when this node has applied rows, or when the leader has changed."""
        self._reads_journal = asyncio.Event()
        """Set while this node reads the journal: it neither leads nor loads the state. The number of its connections
        is fixed, so the journal has none while the store has one."""
        self._stopping = False
        self._recent: deque[JournalRow] = deque(maxlen=RECENT_ROWS)
        """The last commits of this node while it leads. Other nodes get them with the answers to their changes."""
        engine.on_deposed = self._on_deposed
        engine.subscribe_to_commits(self._keep_row)

    # --- Start and stop ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the state, and lead if no other node does. Returns when this node leads, or knows who does."""
        await self._membership_thread.call(lambda: self._membership.report(self.row))
        self.caught_up_at = seconds_since_boot()
        await self._compare_with_last_run()
        await self._load()
        self.has_state = True
        await self._step()
        promotion = self._promotion
        self._tasks = [asyncio.create_task(self._keep_role())]  # also during the promotion, which may take long
        if promotion is not None:
            await asyncio.wait([promotion])
        self._tasks.append(asyncio.create_task(self._follow_journal()))

    async def _compare_with_last_run(self) -> None:
        """Report what the database has lost since the last run of this node."""
        kept = self._position_file.read() if self._position_file is not None else []
        if len(kept) != KEPT_NUMBERS:
            return
        number, epoch, sequence, enabling = kept
        self._known = JournalPosition(number, epoch)
        try:
            found = await self._journal_thread.call(lambda: self._journal.read(number, 1))
            if self._known.is_lost(found):
                await self._report_loss(UsedNumbers(sequence, {}, enabling))
        finally:
            await self._close_journal()

    async def suspend(self) -> None:
        """Keep the current role until `stop`."""
        self._stopping = True
        for task in (*self._tasks, *([self._promotion] if self._promotion is not None else [])):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def stop(self) -> None:
        """Give the lease to another node. Call it when the engine has stopped."""
        with suppress(StoreFailed):
            # Always: it may just have taken the lease, without having read the response.
            await self._membership_thread.call(self._membership.release_lease)
            await self._membership_thread.call(lambda: self._membership.remove_node(self.row.id))
        for thread, close in (
            (self._membership_thread, self._membership.close),
            (self._journal_thread, self._journal.close),
        ):
            await thread.call(close)
            thread.stop()
        if self._position_file is not None:
            self._position_file.close()

    # --- What it knows ----------------------------------------------------------------------------

    @property
    def role(self) -> NodeRole:
        if self.engine.leads:
            return NodeRole("leader", self._epoch)
        return NodeRole("candidate" if self._epoch else "follower", self._epoch or self._last_epoch)

    @property
    def age_seconds(self) -> float:
        """How old its knowledge may be: the time since it last knew that it had all commits."""
        if self.engine.leads:
            return max(seconds_since_boot() - (self._lease_ends_at - self._lease_seconds), 0.0)
        return seconds_since_boot() - self.caught_up_at

    def is_cut_off(self, seconds: float) -> bool:
        """Whether it has heard nothing from the database for this long, and so does not learn who leads."""
        is_candidate = self._epoch and not self.engine.leads
        return not is_candidate and self.age_seconds > seconds

    @property
    def seconds_since_report(self) -> float:
        """Time since it last reported, and read the list of nodes."""
        return seconds_since_boot() - self._reported_at

    @property
    def lease_remaining_seconds(self) -> float:
        """Time until its own lease ends; 0 if it has none."""
        if not self._epoch or self._must_read_journal:
            return 0.0
        return max(self._lease_ends_at - seconds_since_boot(), 0.0)

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until rows were applied or the leader has changed, at most this long."""
        changed = self._changed
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()

    async def wait_until_applied(self, position: int, seconds: float) -> bool:
        """Wait until this node has applied a commit. Returns whether it has."""
        ends_at = seconds_since_boot() + seconds
        while self.engine.position < position and (left := ends_at - seconds_since_boot()) > 0:
            await self.wait_for_change(left)
        return self.engine.position >= position

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def step_down(self) -> None:
        """Let another node lead."""
        self._gave_up_at = seconds_since_boot()
        await self._lose_lease("it was told to step down")
        await self._membership_thread.call(self._membership.release_lease)

    def _on_deposed(self) -> None:
        """A commit was rejected, or its outcome is not known.

        It may still have its lease: it raises the epoch itself after a lost connection, and may not get the response.
        """
        self._read_journal("a commit was rejected, or its outcome is not known")

    def _read_journal(self, reason: str) -> None:
        """Stop to lead, and read the journal before it leads again."""
        self._deposed_by = reason
        self._must_read_journal = True
        self._woken.set()

    # --- The lease --------------------------------------------------------------------------------

    async def _keep_role(self) -> None:
        while True:
            seconds = min(self._lease_seconds / 6, RETRY_SECONDS)
            if self._epoch:  # a third of the lease after the last renewal began: that may have taken long
                seconds = max(self._lease_ends_at - self._lease_seconds * 2 / 3 - seconds_since_boot(), 0.1)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._step()
            except Exception:  # noqa: BLE001 - a node must always have a role
                _log.exception("node_role_failed", "Unexpected error while keeping the role; retrying.")

    async def _step(self) -> None:
        """Renew the lease, or take it if nobody has it."""
        if self._epoch and self._must_read_journal:
            await self._lose_lease(self._deposed_by)
            with suppress(StoreFailed):
                await self._membership_thread.call(self._membership.release_lease)
        started = seconds_since_boot()
        if self._epoch and not self.engine.leads and started - self._leased_at > PROMOTION_SECONDS:
            await self._give_up()
        try:
            # A leader must not wait longer than its lease.
            limit = self._lease_ends_at if self._epoch else started + 60
            async with asyncio.timeout(max(limit - started, 0.05)):
                keeps = await (self._renew(started) if self._epoch else self._look(started))
        except (StoreFailed, TimeoutError) as error:
            self._set_problem(str(error) or "no response from the database", answered=isinstance(error, DatabaseFailed))
            if self._epoch and seconds_since_boot() >= self._lease_ends_at:
                self._store.abandon()
                await self._lose_lease("it could not renew its lease")
        else:
            self._set_problem("")
            if not keeps:
                await self._lose_lease("another node has taken its lease")

    async def wait_for_database(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do a step of the start. If the database cannot be reached, try it again, for ever."""
        while True:
            try:
                await step()
            except DatabaseUnreachable as error:
                if error.is_mistake:
                    raise
                self._set_problem(str(error))
                await asyncio.sleep(START_RETRY_SECONDS)
            else:
                self._set_problem("")
                return

    def _set_problem(self, problem: str, *, answered: bool = False) -> None:
        if problem and not self.problem and answered:
            _log.warning("database_failed", "The database rejected a statement of this node; retrying.", error=problem)
        elif problem and not self.problem:
            _log.warning("database_unreachable", "Cannot reach the database; retrying.", error=problem)
        elif self.problem and not problem:
            _log.info("database_reached", "The database responds again.")
        self.problem = problem

    async def _renew(self, started: float) -> bool:
        """Renew the lease. Returns False if another node has taken it."""
        held = self._epoch
        row = self._own_row()
        renew = self._membership.renew_lease
        renewal = await self._membership_thread.call(lambda: renew(row, self._lease_seconds))
        self._use_nodes(renewal.nodes)
        if self._epoch != held:  # this node has stopped leading in the meantime
            return True
        if renewal.epoch is None:
            return False
        self._compare_database(renewal, row.position)
        self._epoch = self._last_epoch = renewal.epoch
        self._lease_ends_at = started + self._lease_seconds
        if started - self._trimmed_at > TRIM_SECONDS:
            trim = self._membership.trim
            if not await self._membership_thread.call(lambda: trim(JOURNAL_SECONDS, LOST_NODE_SECONDS)):
                self._trimmed_at = started  # otherwise it continues after the next renewal
        return True

    def _compare_database(self, renewal: LeaseRenewal, position: int) -> None:
        """Stop to lead if the database has lost commits, or was replaced."""
        known = self._known if self._known.number == position else JournalPosition(position)
        if self.engine.leads and (renewal.is_replaced or known.is_lost(renewal.found)):
            self._read_journal("the database was replaced, or has lost commits")

    async def _look(self, started: float) -> bool:
        """See who leads, and take an expired lease."""
        lease = await self.report()
        if started - self._trimmed_at > TRIM_SECONDS:
            self._trimmed_at = started
            self.engine.tidy_follower()
        self._last_epoch = lease.epoch
        self._compare_clock(lease.now)
        holder = next((node for node in self.nodes if node.id == lease.holder), None)
        if lease.remaining_seconds <= 0:
            holder = None
            if not (self._abstains or self._stopping or self.clock_problem):
                taken_at = seconds_since_boot()
                epoch = await self._membership_thread.call(lambda: self._membership.take_lease(self._lease_seconds))
                if epoch is not None:
                    self._epoch = self._last_epoch = epoch
                    self._leased_at = taken_at
                    self._lease_ends_at = taken_at + self._lease_seconds
                    self._promotion = asyncio.create_task(self._promote(epoch))
        self._set_leader(holder)
        return True

    @property
    def _abstains(self) -> bool:
        others = any(node.id != self.row.id and node.age_seconds < self._lease_seconds for node in self.nodes)
        return seconds_since_boot() - self._gave_up_at < (ABSTAIN_SECONDS if others else ABSTAIN_ALONE_SECONDS)

    def _compare_clock(self, database_time: datetime) -> None:
        """A node with a wrong clock must not lead: events would start early or late. It answers with the right time."""
        wrong = self.engine.clock_hold.compare(database_time)
        if wrong is None:
            if self.clock_problem:
                _log.info("clock_agrees", "The clock of this node agrees with the database's again.")
            self.clock_problem = ""
            return
        node_time, there = to_text(wrong, "seconds"), to_text(database_time, "seconds")
        if not self.clock_problem:
            text = "The clock of this node differs from the database's. This node does not lead until they agree."
            _log.warning("clock_differs", text, node_time=node_time, database_time=there)
        self.clock_problem = (
            f"The clock of this node is at {node_time}, and the database's at {there}. This node does not lead until "
            "they agree."
        )

    async def report(self) -> LeaseState:
        """Report that this node is alive, and read the list of nodes. Returns who leads."""
        row = self._own_row()
        lease, nodes = await self._membership_thread.call(lambda: self._membership.look(row))
        self._use_nodes(nodes)
        return lease

    def _own_row(self) -> NodeRow:
        return self.row._replace(position=self.engine.position)

    def _use_nodes(self, nodes: list[NodeRow]) -> None:
        self.nodes = nodes
        self._reported_at = seconds_since_boot()

    def _set_leader(self, leader: NodeRow | None) -> None:
        before, self.leader = self.leader, leader
        if (before and before.id) != (leader and leader.id):
            if leader is not None and leader is not self.row:
                _log.info("leader_found", "Another node leads.", leader=leader.name, epoch=self._last_epoch)
            for callback in self.on_new_leader:
                callback()
            self._notify()

    async def _promote(self, epoch: int) -> None:
        """Apply what is left in the journal, and lead. No other node can commit: the epoch is new."""
        try:
            async with self._applying:
                while await self._apply(*await self._read()):
                    pass
                change = await self._membership_thread.call(self._membership.find_change)
                if change is not None:
                    epoch = await self._use_other_database(epoch, change)
                position = self.engine.position + (SKIPPED_NUMBERS if change is not None else 0)
                self._must_read_journal = False
                await self._close_journal()
                self._recent.clear()  # they may be from an earlier time as the leader, with a gap to the next ones
                await self.engine.run_in_store_thread(self._store.lead, epoch, position)
                if change is not None:
                    await self.engine.skip_numbers(self._used, change, self._store.commit_after_loss)
                    position = self.engine.position
                    self._known, self._used, self.loss = JournalPosition(position, epoch), UsedNumbers(0, {}), ""
                await self._membership_thread.call(self._membership.save_mark)
                await self.engine.lead()
            self._set_leader(self.row)
            self.role_changes += 1
            _log.info("node_leads", "This node leads now.", node=self.row.name, epoch=epoch, position=position)
            for callback in self.on_lead:
                await callback()
        except (StoreFailed, OSError) as error:
            _log.warning("node_cannot_lead", "This node took the lease, and cannot lead.", error=str(error))
            await self._give_up()
        except Exception:  # noqa: BLE001 - another node may be able to
            _log.exception("node_cannot_lead", "This node took the lease, and cannot lead.")
            await self._give_up()

    async def _use_other_database(self, epoch: int, change: DatabaseChange) -> int:
        """Load the state of a database that may have lost commits. Returns the next epoch that nobody knows."""
        self.loss = f"The database may have lost commits: {change.reason}. Numbers that clients may know are skipped."
        _log.warning(
            "database_replaced",
            "The database may have lost commits. Numbers that clients may know are skipped.",
            kind=change.kind,
            reason=change.reason,
        )
        self._remember_used(self.engine.used_numbers())
        if not self._has_only_loaded:  # it may have commits that the database has replaced by others
            await self._load()
        self._leased_at = seconds_since_boot() + SKIP_SECONDS
        skip = self._membership.skip_epochs
        skipped = await self._membership_thread.call(lambda: skip(epoch, SKIPPED_NUMBERS))
        if skipped is None:
            raise NotLeading
        self._epoch = self._last_epoch = skipped
        return skipped

    async def _give_up(self) -> None:
        self._gave_up_at = seconds_since_boot()
        await self._lose_lease("it could not lead")
        with suppress(StoreFailed):
            await self._membership_thread.call(self._membership.release_lease)

    async def _lose_lease(self, reason: str) -> None:
        """Follow from now on."""
        if not self._epoch:
            return
        epoch, self._epoch = self._epoch, 0
        self._set_leader(None)
        promotion, self._promotion = self._promotion, None
        if promotion is not None and not promotion.done() and promotion is not asyncio.current_task():
            promotion.cancel()
            with suppress(asyncio.CancelledError):
                await promotion
        was_leader = self.engine.leads
        async with self._applying:  # the journal may already have the commit that is in progress
            await self.engine.follow()
        # Its knowledge is as old as its last valid lease.
        self.caught_up_at = self._lease_ends_at - self._lease_seconds
        if was_leader:
            self.role_changes += 1
            _log.warning("node_follows", f"This node no longer leads: {reason}.", node=self.row.name, epoch=epoch)
            for callback in self.on_follow:
                await callback()
        self._notify()
        await self._open_journal()

    # --- The journal ------------------------------------------------------------------------------

    async def _close_journal(self) -> None:
        self._reads_journal.clear()
        await self._journal_thread.call(self._journal.close)

    async def _open_journal(self) -> None:
        await self.engine.run_in_store_thread(self._store.follow)
        self._reads_journal.set()

    async def _load(self) -> None:
        await self._close_journal()
        try:
            await self.engine.load()
            if self.engine.position > self._known.number + SKIPPED_NUMBERS // 2:
                self.loss = ""  # numbers were skipped
            self._known, self._has_only_loaded = JournalPosition(self.engine.position), True
        finally:
            await self._open_journal()

    def _keep_row(self, _: Changes) -> None:
        if self.engine.leads and (row := self._store.last_row) is not None:
            self._known, self._has_only_loaded = JournalPosition(row.number, row.epoch), False
            self._keep_position()
            if 0 < len(row.data) < RECENT_BYTES:
                self._recent.append(row)
            else:  # not sent with an answer, and neither is any row before it
                self._recent.clear()
            self._notify()

    def rows_after(self, position: int) -> list[JournalRow]:
        """Return the commits of this node after a position; nothing if they are too many, or too large."""
        rows = [row for row in self._recent if row.number > position] if self.engine.leads else []
        complete = bool(rows) and [row.number for row in rows] == [*range(position + 1, self.engine.position + 1)]
        return rows if complete and sum(len(row.data) for row in rows) < RECENT_BYTES else []

    async def apply(self, rows: list[JournalRow]) -> None:
        """Apply commits that another node has sent. The journal has them too."""
        async with self._applying:
            if rows and not self.engine.leads and rows[0].number <= self.engine.position + 1:
                await self._apply(rows)

    async def _follow_journal(self) -> None:
        while True:
            try:
                while not self._reads_journal.is_set():
                    await self._reads_journal.wait()
                read = await self._read()
                async with self._applying:  # this node may lead meanwhile
                    found = not self.engine.leads and await self._apply(*read)
                if not found and self._reads_journal.is_set():
                    await self._wait_for_rows()
            except StoreFailed:
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # noqa: BLE001 - a node must always follow
                _log.exception("journal_failed", "Cannot read the journal; retrying.")
                await asyncio.sleep(RETRY_SECONDS)

    async def _wait_for_rows(self) -> None:
        """Wait until the journal may have rows that this node does not have, or until it is time to look."""
        ends_at = self.caught_up_at + WAIT_SECONDS
        while True:
            number = await self._journal_thread.call(lambda: self._journal.wait(WAIT_SECONDS))
            if number is None or number > self.engine.position or seconds_since_boot() > ends_at:
                return
            if not self._reads_journal.is_set():
                return

    async def _read(self) -> tuple[list[JournalRow], float, JournalPosition]:
        """Return the next rows of the journal, when they were read, and after which row."""
        known, started = self._known, seconds_since_boot()
        return await self._journal_thread.call(lambda: self._journal.read(known.number, READ_ROWS)), started, known

    async def _apply(
        self, read: list[JournalRow], started: float | None = None, known: JournalPosition | None = None
    ) -> bool:
        """Apply rows. Returns whether there may be more. `started` is when they were read from the journal, after
        `known`."""
        if known is not None and known != self._known:  # this node has led since
            return True
        if known is not None and known.is_lost(read):
            await self._report_loss(self.engine.used_numbers())
            await self._reload("the database has lost commits")
            return True
        after = self.engine.position
        rows = [row for row in read if row.number > after]  # it may have got the others from the leader
        if rows:
            await self._apply_new(rows, after)
        if known == self._known:  # it has not loaded the state
            applied = (row for row in reversed(read) if row.number <= self.engine.position)
            self._known = next((JournalPosition(row.number, row.epoch) for row in applied), known)
            self._keep_position()
        if started is not None and len(read) < READ_ROWS:
            self.caught_up_at = max(started, self.caught_up_at)  # not before it has applied them
        return bool(rows)

    # --- Lost commits -----------------------------------------------------------------------------------

    async def _report_loss(self, used: UsedNumbers) -> None:
        """Let the leader know that the database does not have the last commit of this node."""
        known = self._known
        self.loss = f"The database has lost commit {known.number} of epoch {known.epoch}, which this node has."
        _log.error(
            "database_behind",
            "The database has lost commits that this node has, as after the restore of a backup.",
            position=known.number,
            epoch=known.epoch,
        )
        self._remember_used(used)
        report = self._membership.report_loss
        reason = f"{self.row.name} had commit {known.number} of epoch {known.epoch}, and the database does not have it"
        await self._membership_thread.call(lambda: report(reason))

    def _remember_used(self, used: UsedNumbers) -> None:
        known = self._used
        self._used = UsedNumbers(max(known.sequence, used.sequence), {}, max(known.enabling, used.enabling))

    def _keep_position(self) -> None:
        """Write the last commit to the data folder: after the next start, the database may not have it."""
        used = self.engine.used_numbers()
        kept = (*self._known, used.sequence, used.enabling)
        if self._position_file is not None and kept != self._kept:
            self._kept = kept
            self._journal_thread.submit(partial(self._position_file.write, *kept), _ignore)

    async def _apply_new(self, rows: list[JournalRow], after: int) -> None:
        if rows[0].number != after + 1:  # the others have expired, or numbers were skipped
            await self._reload(f"the journal continues at row {rows[0].number}, and this node is at {after}")
            return
        applied = 0
        for number, found in groupby(rows, attrgetter("number")):
            parts = [row.data for row in found]
            if number != self.engine.position + 1:
                await self._reload(f"row {self.engine.position + 1} of the journal is missing")
                return
            try:
                changes = await self._decode(parts)
            except BadChangeSet as error:  # another release wrote it
                await self._reload(str(error))
                return
            try:
                self._has_only_loaded = False
                self.engine.apply(changes, number)
            except Exception:  # noqa: BLE001 - a part of the row may have been applied
                _log.exception("row_not_applied", "Cannot apply a row of the journal; loading the state again.")
                await self._reload(f"row {number} of the journal could not be applied")
                return
            applied += 1 + sum(map(len, parts)) // 1000
            if applied >= APPLY_BATCH or changes.fleet is not None:  # which is a copy: that may have taken long
                await asyncio.sleep(0)
                applied = 0
        self._notify()

    async def _decode(self, parts: list[bytes]) -> Changes:
        """Return the changes of a commit. Nothing else changes the fleet meanwhile: this node follows."""
        if sum(map(len, parts)) <= APPLY_BATCH * 1000:
            return self._journal.decode(parts, self.engine.fleet)
        with without_garbage_collection():
            return await self.engine.worker.run(self._journal.decode, parts, self.engine.fleet)

    async def _reload(self, reason: str) -> None:
        await asyncio.sleep(max(self._reloaded_at + RELOAD_SECONDS - seconds_since_boot(), 0.0))
        _log.info("state_reloaded", f"Loading the state from the database: {reason}.")
        started = self._reloaded_at = seconds_since_boot()
        await self._load()
        self.caught_up_at = started
        self._notify()

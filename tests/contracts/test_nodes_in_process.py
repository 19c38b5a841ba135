"""Nodes in this process, on a real database: interleavings that a test with processes cannot choose."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from counted_turns import CountedLoop, longest_turn
from starlette.applications import Starlette
from starlette.responses import Response

from cluster import Relay
from forewarn.clock import SystemClock, seconds_since_boot
from forewarn.control.auth import SIGN_IN, KnownTokens
from forewarn.control.input import MAX_BODY_BYTES_WITHOUT_TOKEN
from forewarn.control.leader_requests import LeaderRequests
from forewarn.control.nodes import ensure_node_token, serve_node_tokens
from forewarn.control.problems import HANDLERS
from forewarn.control.routing import Route, starlette_routes
from forewarn.control.schema import NoMembers
from forewarn.control.slices import Slices
from forewarn.core.fleet import VM, Fleet, FleetChange
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import CauseRequest
from forewarn.core.requests import request as request_operation
from forewarn.engine.engine import Engine
from forewarn.errors import (
    DatabaseFailed,
    LeaderLost,
    NoLeader,
    NotLeading,
    StoreOutcomeUnknown,
    TokenNotKnownHere,
    UnknownToken,
)
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.nodes import forwarding as forwarding_module
from forewarn.nodes import link as link_module
from forewarn.nodes import node as node_module
from forewarn.nodes.forwarding import NodeForwarder
from forewarn.nodes.node import Node
from forewarn.ports import NodeRow
from forewarn.stores import postgresql_server
from forewarn.stores.postgresql import PostgresqlJournal, PostgresqlMembership, PostgresqlStore
from forewarn.stores.postgresql_server import PostgresqlServer
from forewarn.system.sockets import address_of, open_socket
from postgresql import open_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.core.events import Event
    from forewarn.core.state import Changes, Draft
    from forewarn.engine.engine import Published
    from forewarn.ports import LeaseRenewal, LeaseState
    from postgresql import PostgresServer

pytestmark = pytest.mark.anyio
LONGEST_WAIT_SECONDS = 30
NOWHERE = "host=127.0.0.1 port=1 user=x dbname=x"


class SlowMembership(PostgresqlMembership):
    """Renews the lease only when the test allows it."""

    def __init__(self, server: PostgresqlServer, node: str) -> None:
        super().__init__(server, node)
        self.may_renew = threading.Event()
        self.may_renew.set()
        self.renewing = threading.Event()
        self.looked = threading.Event()

    def look(self, node: NodeRow) -> tuple[LeaseState, list[NodeRow]]:
        found = super().look(node)
        self.looked.set()
        return found

    def renew_lease(self, node: NodeRow, seconds: float) -> LeaseRenewal:
        found = super().renew_lease(node, seconds)
        self.renewing.set()
        self.may_renew.wait(LONGEST_WAIT_SECONDS)
        return found


class CutStore(PostgresqlStore):
    """Loses the connection after the next commit, and cannot connect again until the test allows it."""

    cut_off = False

    def _write(self, work: Callable[[], object]) -> None:
        super()._write(work)
        if self.cut_off:
            self.cut_off = False
            self._writing.close()
            self._writing._server = PostgresqlServer(NOWHERE, "x")
            raise psycopg.OperationalError("the connection was lost")

    def mend(self) -> None:
        self._writing._server = self._server


class Member:
    """A node without its servers."""

    def __init__(self, server: PostgresqlServer, name: str, lease_seconds: float, boot_id: str | None = None) -> None:
        """`boot_id`: a node on another machine."""
        self.clock_shift = 0.0
        self.clock = clock = SystemClock(lambda: time.time() + self.clock_shift, boot_id=boot_id)
        self.store = CutStore(server, name)
        self.membership = SlowMembership(server, name)
        self.engine = Engine(clock, self.store, SimulatedFabric(clock), OperatorLimits())
        row = NodeRow(name, name, "127.0.0.1:1", "", "", "1", clock.now().isoformat(), 0)
        journal = PostgresqlJournal(server, name)
        self.node = Node(self.engine, self.store, self.membership, journal, row, lease_seconds)

    def set_clock(self, seconds: float) -> None:
        """Let its clock differ by this from the right time, as if it had always done that: it sees no jump."""
        self.clock_shift = seconds
        self.clock.now()
        self.clock.accept()

    async def set_fact(self, name: str) -> None:
        def command(draft: Draft, _: datetime, __: OperatorLimits) -> None:
            draft.changes.facts[name] = "set"

        await self.engine.execute(command)

    @property
    def facts(self) -> set[str]:
        return {name for name, value in self.engine.facts.items() if value == "set"}


@asynccontextmanager
async def running(server: PostgresqlServer, *names: str, lease_seconds: float = 1.0) -> AsyncIterator[list[Member]]:
    """Run nodes. The first one leads."""
    members = [Member(server, name, lease_seconds) for name in names]
    for member in members:
        await member.node.start()
    try:
        yield members
    finally:
        for member in members:
            await member.node.suspend()
            await member.engine.stop()
            await member.node.stop()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(LONGEST_WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - other parts of the program have no event for it
            await asyncio.sleep(0.01)


async def test_a_leader_that_does_not_know_the_outcome_of_a_commit_reads_the_journal_and_leads_again(
    server: PostgresqlServer,
) -> None:
    async with running(server, "one", lease_seconds=60) as (one,):
        await one.set_fact("first")
        one.store.cut_off = True
        with pytest.raises(StoreOutcomeUnknown):
            await one.set_fact("second")
        assert not one.node.lease_remaining_seconds, "another node may already show the change"
        one.store.mend()
        await until(lambda: one.node.role.epoch > 1 and one.engine.leads)
        assert one.facts == {"first", "second"}
        await one.set_fact("third")
        assert one.facts == {"first", "second", "third"}


async def test_a_commit_after_one_with_an_unknown_outcome_is_not_taken_for_it(server: PostgresqlServer) -> None:
    async with running(server, "one", lease_seconds=60) as (one,):
        await until(lambda: "alive_at" in one.engine.facts)  # its own first commit
        one.store.cut_off = True
        with pytest.raises(StoreOutcomeUnknown):
            await one.set_fact("first")
        await one.node.suspend()  # so that it does not lead again
        one.store.mend()
        with open_session(server) as connection:
            row = connection.execute("SELECT max(number) FROM journal").fetchone()
        with pytest.raises(NotLeading):
            await one.engine.run_in_store_thread(
                one.store._find_outcome,
                row[0],  # type: ignore[index]
                psycopg.OperationalError("lost"),
            )


async def test_a_leader_whose_epoch_was_raised_without_its_knowledge_leads_again(
    server: PostgresqlServer, postgresql: PostgresServer
) -> None:
    """It raises the epoch itself to find the outcome of a commit, and can lose the connection before the response."""
    async with running(server, "one", lease_seconds=60) as (one,):
        postgresql.execute(f"UPDATE {server.schema}.lease SET epoch = epoch + 1")
        with pytest.raises(NotLeading):
            await one.set_fact("first")
        await until(lambda: one.node.role.epoch > 2 and one.engine.leads)
        await one.set_fact("second")
        assert one.facts == {"second"}


async def test_a_leader_that_steps_down_during_a_renewal_does_not_keep_the_lease(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "ABSTAIN_SECONDS", 0.1)
    async with running(server, "one") as (one,):
        one.membership.renewing.clear()
        one.membership.may_renew.clear()
        await until(one.membership.renewing.is_set)
        stepping = asyncio.create_task(one.node.step_down())
        await until(lambda: not one.engine.leads)
        one.membership.may_renew.set()
        await stepping
        await until(lambda: one.engine.leads)
        assert one.node.role.epoch == 2


async def test_a_leader_does_not_send_commits_with_a_gap(server: PostgresqlServer) -> None:
    async with running(server, "one", "two") as (one, two):
        await one.set_fact("by one")
        behind = one.engine.position - 1
        assert [row.number for row in one.node.rows_after(behind)] == [behind + 1]
        await one.node.step_down()
        await until(lambda: two.engine.leads)
        await two.set_fact("by two")
        one.node._gave_up_at = -node_module.ABSTAIN_SECONDS
        await two.node.step_down()
        await until(lambda: one.engine.leads)
        await one.set_fact("by one again")
        assert one.node.rows_after(behind) == [], "a node that has only these would lack the commits of the other"
        await until(lambda: two.engine.position == one.engine.position)
        assert two.facts == {"by one", "by two", "by one again"}


async def test_a_node_that_has_only_loaded_the_state_continues_after_the_time_of_the_last_commit(
    server: PostgresqlServer,
) -> None:
    """Its own clock may be behind that of the last leader."""
    later = SystemClock().now() + timedelta(seconds=50)  # less than a jump, which is noticed otherwise
    async with running(server, "one") as (one,):
        one.engine.clock.now = lambda: later  # type: ignore[method-assign]
        await one.set_fact("first")
    async with running(server, "two") as (two,):
        found = await two.engine.execute(lambda _, now, __: now)
    assert found >= later


async def test_an_event_that_ends_while_the_state_is_loaded_does_not_leave_the_document_early(
    server: PostgresqlServer,
) -> None:
    async with running(server, "one", "two") as (one, two):
        await one.engine.apply_fleet(Fleet([VM("web-0", "web-0", "a")]), "test")
        await one.engine.enable("web-0", "test")
        (operation,) = await one.engine.request(CauseRequest("restart", ("web-0",)), "test")
        await until(lambda: two.engine.position == one.engine.position)
        before = two.engine.document("web-0")
        loaded = two.store.load()
        await one.engine.cancel_operation(operation.id, "test")
        after = one.engine.document("web-0")
        ended = await asyncio.to_thread(two.store.events_ended_since, operation.requested_at)
        assert [event.id for event in ended] == [before.events[0].id]
        two.engine._writer.use(loaded, ended)
        assert two.engine.document("web-0") in (before, after)


async def test_a_node_that_loses_the_database_while_it_loads_the_state_keeps_the_old_one(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(server, "one") as (one,):
        await one.set_fact("first")
        await until(lambda: "alive_at" in one.engine.facts)
        published: list[Published] = []
        one.engine.subscribe(published.append)
        before, position = one.engine._writer.state, one.engine.position
        with open_session(server) as connection:
            connection.execute(
                "UPDATE journal SET number = number + 1 WHERE number = (SELECT max(number) FROM journal)"
            )

        def fail(_: object) -> list[Event]:
            raise DatabaseFailed(problem="lost")

        monkeypatch.setattr(one.store, "events_ended_since", fail)
        with pytest.raises(DatabaseFailed):
            await one.engine.load()
        assert (one.engine._writer.state, one.engine.position, published) == (before, position, [])
        monkeypatch.undo()
        await one.engine.load()
        assert (one.engine.position, len(published)) == (position + 1, 1)


async def test_the_fabric_recovers_before_the_first_commit_of_a_leader(server: PostgresqlServer) -> None:
    member = Member(server, "one", 60)
    leads = []

    async def recover(_: object) -> None:
        leads.append(member.engine.leads)

    member.engine._fabric.recover = recover  # type: ignore[method-assign,assignment]
    await member.node.start()
    assert (leads, member.engine.leads) == ([False], True)
    await member.node.suspend()
    await member.engine.stop()
    await member.node.stop()


async def test_a_node_that_takes_the_lease_and_hangs_leaves_it_to_another(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "PROMOTION_SECONDS", 0.5)
    monkeypatch.setattr(node_module, "ABSTAIN_SECONDS", 1.0)
    async with running(server, "one", "two") as (one, two):
        two.engine._fabric.recover = never  # type: ignore[method-assign,assignment]
        await one.node.step_down()
        await until(lambda: two.node.role.name == "candidate")
        await until(lambda: one.engine.leads)
        assert one.node.role.epoch == 3


@pytest.mark.parametrize("reason", ["step down", "cannot lead"])
async def test_a_node_leads_again_if_no_other_node_is_left(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(node_module, "ABSTAIN_SECONDS", 1000.0)
    async with running(server, "one", "two") as (one, two):
        if reason == "step down":
            await one.node.step_down()
        else:
            await one.node._give_up()
        await until(lambda: two.engine.leads)
        for task in two.node._tasks:  # as a machine that is gone: it does not give its lease away
            task.cancel()
        await until(lambda: one.engine.leads)


async def test_a_change_on_a_node_without_the_database_does_not_wait_for_a_leader(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding_module, "WRITE_SECONDS", 1000.0)
    monkeypatch.setattr(forwarding_module, "CUT_OFF_SECONDS", 1.0)
    async with running_with_links(server, "one", "two") as (_, (two, follower)):
        monkeypatch.setattr(two.node, "_set_leader", lambda _: None)
        monkeypatch.setattr(two.node, "leader", None)
        changing = asyncio.create_task(follower.request("approve", [], repeatable=True))
        for database in (two.membership._db, two.node._journal._db):  # type: ignore[attr-defined]
            database._server = PostgresqlServer(NOWHERE, server.schema)
            database.close()
        with pytest.raises(NoLeader, match="cannot reach the database"):
            async with asyncio.timeout(LONGEST_WAIT_SECONDS):
                await changing


async def test_a_leader_that_is_cut_off_follows_though_a_commit_waits(
    postgresql: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgresql_server, "SILENCE_SECONDS", 15.0)
    relay = Relay(postgresql.port)
    server = PostgresqlServer(postgresql.url_at(relay.port), schema)
    server.prepare()
    async with running(server, "one") as (one,):
        relay.cut()
        changing = asyncio.create_task(one.set_fact("late"))
        async with asyncio.timeout(10):
            with pytest.raises((StoreOutcomeUnknown, NotLeading)):
                await changing
            await until(lambda: "no longer leads" in caplog.text)
        relay.mend()
        await until(lambda: one.engine.leads)
        await one.set_fact("next")
        assert "next" in one.facts
    relay.close()


async def test_a_new_leader_writes_few_of_many_last_seen_times(server: PostgresqlServer) -> None:
    names = [f"v{number}" for number in range(1000)]
    async with running(server, "one", "two") as (one, two):
        await one.engine.apply_fleet(Fleet(VM(name, name, "a") for name in names), "test")
        await asyncio.gather(*(one.engine.enable(name, "test") for name in names))
        await until(lambda: two.engine.position == one.engine.position)
        commits: list[Changes] = []
        await one.node.step_down()
        two.engine.subscribe_to_commits(commits.append)
        await until(lambda: two.engine.leads and any("alive_at" in changes.facts for changes in commits))
        await two.set_fact("first")
        assert sum(len(changes.last_seen) for changes in commits) < 500


async def test_a_row_that_cannot_be_applied_makes_the_node_load_the_state(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(server, "one", "two") as (one, two):

        def fail(changes: Changes, _: int) -> None:
            two.engine._writer.position += 1  # it fails in the middle
            monkeypatch.undo()
            raise RuntimeError(changes)

        monkeypatch.setattr(two.engine, "apply", fail)
        await one.set_fact("first")
        await until(lambda: two.facts == {"first"})
        await one.set_fact("second")
        await until(lambda: two.facts == {"first", "second"})


# --- Large commits --------------------------------------------------------------------------------

LARGE_FLEET = Fleet(VM(f"v{number}", f"v{number}", "a", user_data=f"{number} " * 40) for number in range(5000))


async def caught_up(one: Member, two: Member) -> None:
    await until(lambda: two.engine.position == one.engine.position)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": CountedLoop})], ids=["counted"])
async def test_a_follower_applies_a_large_fleet_in_short_turns(server: PostgresqlServer) -> None:
    async with running(server, "one", "two", lease_seconds=60) as (one, two):
        await until(lambda: "alive_at" in one.engine.facts)  # its own first commit
        await caught_up(one, two)
        async with two.node._applying:
            await one.engine.apply_fleet(LARGE_FLEET, "test")
        with longest_turn() as turns:
            await caught_up(one, two)
        assert two.engine.fleet.vms == LARGE_FLEET.vms
        assert turns.longest < len(LARGE_FLEET.vms), "less than a call for each VM"


async def test_a_follower_has_turns_for_polls_between_changes_of_its_fleet(server: PostgresqlServer) -> None:
    """Each change copies the fleet, which takes long if it is large."""

    def move(draft: Draft, _: datetime, __: OperatorLimits, host: str) -> None:
        vm = draft.fleet.vms["x"]
        draft.change_fleet(FleetChange(changed=(vm._replace(host=host),), in_place=True))

    async with running(server, "one", "two", lease_seconds=60) as (one, two):
        await one.engine.apply_fleet(Fleet([VM("x", "x", "a")]), "test")
        await caught_up(one, two)
        async with two.node._applying:
            first = two.engine.position
            for number in range(8):
                await one.engine.execute(move, f"host-{number}")
            last = one.engine.position
        seen = set()
        while two.engine.position < last:
            seen.add(two.engine.position)
            await asyncio.sleep(0)
        assert {*range(first, last)} <= seen


async def test_a_large_commit_is_not_sent_with_an_answer(server: PostgresqlServer) -> None:
    """The other node reads it from the journal, with all its rows."""
    async with running(server, "one", "two", lease_seconds=60) as (one, two):
        before = one.engine.position
        await one.engine.apply_fleet(LARGE_FLEET, "test")
        assert one.node.rows_after(before) == []
        await one.set_fact("next")
        assert [row.number for row in one.node.rows_after(one.engine.position - 1)] == [one.engine.position]
        await caught_up(one, two)
        assert (two.facts, len(two.engine.fleet.vms)) == ({"next"}, len(LARGE_FLEET.vms))


async def test_a_node_that_starts_between_large_commits_has_the_fleet_of_the_leader(server: PostgresqlServer) -> None:
    async with running(server, "one", lease_seconds=60) as (one,):
        await one.engine.apply_fleet(LARGE_FLEET, "test")
        async with running(server, "two", lease_seconds=60) as (two,):
            assert two.engine.fleet.vms == LARGE_FLEET.vms
            changed = Fleet(vm._replace(size="large") for vm in list(LARGE_FLEET.vms.values())[10:])
            await one.engine.apply_fleet(changed, "test")
            await caught_up(one, two)
            assert two.engine.fleet.vms == changed.vms


async def test_a_new_leader_does_not_keep_what_the_database_has_lost(
    server: PostgresqlServer, postgresql: PostgresServer
) -> None:
    """The database was replaced by a standby or a backup that has not everything."""
    async with running(server, "one", "two") as (one, two):
        await one.set_fact("first")
        await one.set_fact("second")
        await until(lambda: two.facts == {"first", "second"})
        postgresql.execute(f"DELETE FROM {server.schema}.journal WHERE number = {two.engine.position}")
        postgresql.execute(f"DELETE FROM {server.schema}.fact WHERE name = 'second'")
        await one.node.step_down()
        await until(lambda: two.engine.leads)
        assert two.facts == {"first"}


# --- Clocks ---------------------------------------------------------------------------------------


async def test_the_log_tells_a_failed_statement_from_a_lost_connection(
    server: PostgresqlServer, postgresql: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    def logged(text: str) -> bool:
        return text in caplog.text

    async with running(server, "one") as (one,):
        postgresql.execute(f"ALTER TABLE {server.schema}.node RENAME TO other")
        await until(lambda: one.node.problem)
        assert (logged("rejected a statement"), logged("Cannot reach")) == (True, False)
        postgresql.execute(f"ALTER TABLE {server.schema}.other RENAME TO node")
        await until(lambda: not one.node.problem)
        one.membership._db._server = PostgresqlServer(NOWHERE, server.schema)
        one.membership._db.close()
        await until(lambda: one.node.problem)
        assert logged("Cannot reach")
        one.membership._db._server = server
        await until(lambda: one.engine.leads)


async def test_a_node_without_a_leader_says_that_it_may_not_know_a_token(server: PostgresqlServer) -> None:
    async with running_with_links(server, "one", "two") as (_, (two, follower)):
        two.engine.forwarder = follower
        tokens = KnownTokens(two.engine)
        with pytest.raises(UnknownToken):
            tokens.find("unknown")
        two.node._set_leader(None)
        with pytest.raises(TokenNotKnownHere, match="It has no connection to a leader"):
            tokens.find("unknown")


async def test_a_node_that_starts_without_a_leader_creates_its_token_later(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding_module, "WRITE_SECONDS", 0.1)
    async with running_with_links(server, "one", "two") as ((one, leader), (two, follower)):
        serve_node_tokens(one.engine, leader)
        secrets: list[str] = []
        with monkeypatch.context() as without_leader:
            without_leader.setattr(two.node, "_set_leader", lambda _: None)
            two.node.leader = None
            trying = await ensure_node_token(two.engine, follower, "two", "", secrets.append)
        assert trying is not None
        await trying
        assert KnownTokens(two.engine).find(secrets[0]).name == "admin-two"


def clock_warnings(caplog: pytest.LogCaptureFixture) -> int:
    return len([record for record in caplog.records if getattr(record, "event_name", "") == "clock_differs"])


async def look_again(member: Member) -> None:
    """Wait until a node that does not lead has seen who does, by all that it knew at this moment."""
    for _ in range(2):
        member.membership.looked.clear()
        await until(member.membership.looked.is_set)


@pytest.mark.parametrize("seconds", [70, -70])
async def test_a_node_whose_clock_differs_from_the_databases_does_not_lead(
    server: PostgresqlServer, caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    async with running(server, "one", "two") as (one, two):
        assert two.node.clock_problem == ""
        two.set_clock(seconds)
        await until(lambda: two.node.clock_problem)
        await one.node.step_down()
        await until(lambda: two.node.leader is None)
        await look_again(two)
        assert two.node.role.name == "follower"
        assert clock_warnings(caplog) == 1
        two.set_clock(0)
        await until(lambda: two.engine.leads)
        assert (two.node.clock_problem, clock_warnings(caplog)) == ("", 1)


async def test_a_node_whose_clock_has_jumped_to_a_wrong_time_does_not_lead(server: PostgresqlServer) -> None:
    """Its time is still right. But it would use the other one after ten minutes."""
    async with running(server, "one", "two") as (one, two):
        two.clock_shift = 3600
        await until(lambda: two.node.clock_problem)
        assert abs(two.engine.clock.now() - one.engine.clock.now()) < timedelta(minutes=1)
        await one.node.step_down()
        await until(lambda: two.node.leader is None)
        await look_again(two)
        assert two.node.role.name == "follower"


async def test_a_node_whose_clock_jumps_while_it_leads_keeps_leading_and_holds(server: PostgresqlServer) -> None:
    async with running(server, "one") as (one,):
        one.clock_shift = 3600
        await until(lambda: one.engine.clock_hold.jump)
        for _ in range(2):
            one.membership.renewing.clear()
            await until(one.membership.renewing.is_set)
        await one.set_fact("during the hold")
        assert one.engine.leads


async def test_a_leader_does_not_trust_its_lease_after_a_suspend_of_the_machine(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(server, "one", lease_seconds=60) as (one,):
        assert one.node.lease_remaining_seconds > 0
        await one.node.suspend()  # so that it does not renew its lease
        read = time.clock_gettime

        def read_after_suspend(clock: int) -> float:
            return read(clock) + (61 if clock == time.CLOCK_BOOTTIME else 0)

        monkeypatch.setattr(time, "clock_gettime", read_after_suspend)
        assert one.node.lease_remaining_seconds == 0
        assert one.node.age_seconds > 60


# --- Forwarding -----------------------------------------------------------------------------------


@asynccontextmanager
async def forwarding(*members: Member) -> AsyncIterator[list[NodeForwarder]]:
    """Let nodes send changes to each other."""
    forwarders = []
    for member in members:
        listener = open_socket("127.0.0.1:0")
        member.node.row = member.node.row._replace(address=address_of(listener))
        forwarders.append(NodeForwarder(member.node, "secret", None))
        await forwarders[-1].start(listener)
    try:
        yield forwarders
    finally:
        for forwarder in forwarders:
            await forwarder.stop()


@asynccontextmanager
async def running_with_links(
    server: PostgresqlServer, *names: str
) -> AsyncIterator[list[tuple[Member, NodeForwarder]]]:
    members = [Member(server, name, 60) for name in names]
    async with forwarding(*members) as forwarders:
        for member in members:
            await member.node.start()
        try:
            yield list(zip(members, forwarders, strict=True))
        finally:
            for member in members:
                await member.node.suspend()
                await member.engine.stop()
                await member.node.stop()


async def test_a_leader_has_all_earlier_commits_when_the_running_one_has_ended(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load there is no moment without a commit."""
    async with running_with_links(server, "one") as ((one, forwarder),):
        await until(lambda: "alive_at" in one.engine.facts)  # its own first commit
        may_commit, commit = threading.Semaphore(0), one.store.commit

        def slow_commit(changes: Changes) -> int:
            may_commit.acquire(timeout=LONGEST_WAIT_SECONDS)
            return commit(changes)

        monkeypatch.setattr(one.store, "commit", slow_commit)
        first = asyncio.create_task(one.set_fact("first"))
        await until(lambda: one.engine._writer.is_committing)
        began_at = seconds_since_boot()
        second = asyncio.create_task(one.set_fact("second"))
        await asyncio.sleep(0)
        assert not forwarder.has_commits_until(began_at), "another node may already have the first one"
        may_commit.release()
        await first
        assert one.engine._writer.is_committing
        assert forwarder.has_commits_until(began_at)
        may_commit.release(5)
        await second


async def never(_: object) -> None:
    await asyncio.Event().wait()


async def test_a_leader_that_does_not_respond_may_have_made_the_change(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding_module, "WRITE_SECONDS", 1.0)
    async with running_with_links(server, "one", "two") as ((_, leader), (_, follower)):
        leader.handlers["approve"] = never
        with pytest.raises(LeaderLost, match="not known whether the change was made"):
            await follower.request("approve", [], repeatable=True)
        assert follower._link is not None
        assert not follower._link.is_open, "the connection may be lost without a word"


async def test_a_change_does_not_wait_for_a_leader_that_is_gone_when_another_leads(server: PostgresqlServer) -> None:
    async with running_with_links(server, "one", "two", "three") as ((one, leader), (two, next_one), (_, follower)):
        done = asyncio.Event()
        leader.handlers["approve"] = never

        async def approve(_: object) -> None:
            done.set()

        next_one.handlers["approve"] = approve
        change = asyncio.create_task(follower.request("approve", [], repeatable=True))
        await until(lambda: follower.forwarded)
        await one.node.step_down()
        await until(lambda: two.engine.leads or follower.engine.leads)
        if follower.engine.leads:
            follower.handlers["approve"] = approve
        async with asyncio.timeout(forwarding_module.WRITE_SECONDS / 2):
            await change
        assert done.is_set()


async def test_changes_share_the_attempt_to_connect_to_a_leader_and_wait_for_a_bounded_time(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding_module, "WRITE_SECONDS", 1.0)
    monkeypatch.setattr(link_module, "PROOF_SECONDS", 0.7)
    silent = open_socket("127.0.0.1:0")
    silent.listen()
    async with running_with_links(server, "one", "two") as (_, (two, follower)):
        leader = two.node.leader
        assert leader is not None
        two.node.nodes = []
        monkeypatch.setattr(two.node, "leader", leader._replace(address=address_of(silent)))
        monkeypatch.setattr(two.node, "_set_leader", lambda _: None)
        async with asyncio.timeout(3):
            changes = [follower.request("approve", [], repeatable=True) for _ in range(10)]
            found = await asyncio.gather(*changes, return_exceptions=True)
        assert [type(error) for error in found] == [NoLeader] * 10
    silent.close()


async def test_a_request_that_cannot_be_repeated_may_take_longer_than_the_search_for_a_leader(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding_module, "WRITE_SECONDS", 0.5)

    async def slow(_: object) -> str:
        await asyncio.sleep(1)
        return "done"

    async with running_with_links(server, "one", "two") as ((_, leader), (_, follower)):
        leader.handlers["control"] = slow
        assert await follower.request("control", {}, repeatable=False) == "done"


def control_of(member: Member, forwarder: NodeForwarder, *steps: Callable[[], Awaitable[None]]) -> LeaderRequests:
    """Return a control API with one path, which needs no token. It executes these steps, and then a command."""

    async def change(request: Request) -> Response:
        for step in steps:
            await step()
        await member.set_fact((await request.body()).decode())
        return Response(b"changed")

    method, path = SIGN_IN
    routes = starlette_routes([Route(method, path, change, "Set facts.", {}, role=None, body=NoMembers)])
    return LeaderRequests(Starlette(routes=routes, exception_handlers=HANDLERS), forwarder, Slices())


async def post(app: LeaderRequests, *body: bytes) -> tuple[int, dict[bytes, bytes], str]:
    sent: list[Any] = []
    parts = [*body, b""]

    async def receive() -> Any:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    method, path = SIGN_IN
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [],
        "client": None,
    }
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"].decode()


async def test_a_request_whose_commit_is_rejected_is_made_by_the_next_leader(
    server: PostgresqlServer, postgresql: PostgresServer
) -> None:
    async with running_with_links(server, "one", "two") as ((one, leader), (two, follower)):
        apps = [control_of(one, leader), control_of(two, follower)]
        for name, app in zip(("on the leader", "on a follower"), apps, strict=True):
            await until(lambda: one.engine.leads or two.engine.leads)
            postgresql.execute(f"UPDATE {server.schema}.lease SET epoch = epoch + 1")
            status, _, body = await post(app, name.encode())
            assert (status, body) == (200, "changed")
        await until(lambda: one.engine.position == two.engine.position)
        assert one.facts == two.facts == {"on the leader", "on a follower"}


async def test_a_request_that_has_changed_something_is_not_repeated(
    server: PostgresqlServer, postgresql: PostgresServer
) -> None:
    async with running_with_links(server, "one", "two") as ((one, leader), (two, follower)):
        calls = []

        async def begin() -> None:
            calls.append("begin")
            await one.set_fact("first")
            postgresql.execute(f"UPDATE {server.schema}.lease SET epoch = epoch + 1")

        control_of(one, leader, begin)
        status, headers, body = await post(control_of(two, follower), b"second")
        assert (status, headers.get(b"retry-after"), calls) == (503, None, ["begin"])
        assert "A part of the request was done. The rest was not done (the service stops, or another node" in body


async def test_one_address_cannot_keep_other_nodes_out(server: PostgresqlServer) -> None:
    async with running_with_links(server, "one") as ((one, _),):
        host, port = one.node.row.address.split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
        greetings = await asyncio.gather(*(reader.read(1) for reader, _ in idle))
        assert sum(map(bool, greetings)) == link_module.MAX_UNPROVED_OF_ADDRESS
        for _, writer in idle:
            writer.close()


async def test_a_node_reads_no_more_of_a_request_than_the_leader_accepts(server: PostgresqlServer) -> None:
    """Signing in needs no token, so everyone could fill the memory of a node."""
    async with running_with_links(server, "one", "two") as (_, (two, follower)):
        parts = [b"x" * 1000] * 100
        status, _, body = await post(control_of(two, follower), *parts)
        assert (status, follower.forwarded) == (413, 0)
        assert f"maximum is {MAX_BODY_BYTES_WITHOUT_TOKEN:,} bytes" in body


# --- Downtime -------------------------------------------------------------------------------------------


async def test_time_without_any_node_is_not_notice(server: PostgresqlServer) -> None:
    """The first leader worked twenty minutes ago: its clock says so while it leads."""
    one = Member(server, "one", 60, boot_id="another machine")
    await one.node.start()
    one.set_clock(-1200)
    await one.engine.apply_fleet(Fleet([VM("x", "x", "host-a")]), by="test")
    await one.engine.enable("x", by="test")
    (operation,) = await one.engine.execute(request_operation, CauseRequest("restart", ("x",)), "test")
    await one.node.suspend()
    await one.engine.stop()
    await one.node.stop()
    async with running(server, "two", lease_seconds=60) as (two,):
        (event,) = two.engine.document("x").events
        assert (event.id,) == operation.events
        assert event.started_at is None
        assert event.not_before > two.clock.now(), "nobody could see it meanwhile"

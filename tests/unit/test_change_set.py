"""What a commit changes survives being sent: a second state that gets only the bytes equals the first."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from engines import FLEET, START, make_engine
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from depth import amount
from forewarn.core import access, approvals, enabling, fleet_commands, rollout_commands, webhooks
from forewarn.core.access import Role, Token
from forewarn.core.fleet import Fleet, Group, Host
from forewarn.core.fleet_commands import PolicyUpdate
from forewarn.core.operations import CauseRequest
from forewarn.core.requests import request, request_in_steps
from forewarn.core.rollouts import RolloutSettings
from forewarn.core.state import Changes, ServiceState
from forewarn.core.webhooks import Undelivered, Webhook
from forewarn.core.windows import parse_window
from forewarn.errors import BadChangeSet, ForewarnError
from forewarn.stores import change_set
from forewarn.stores.change_set import PART_BYTES, ChangeSet, decode, encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forewarn.core.steps import Steps
    from forewarn.engine.engine import Engine

VMS, GROUPS, HOSTS = sorted(FLEET.vms), sorted({vm.group for vm in FLEET.vms.values()}), sorted(FLEET.hosts)
NUMBERS = st.integers(0, 59)
SENT = {field.name for field in dataclasses.fields(Changes)} - {"fleet"}


def content(value: Any) -> Any:
    """All that an object holds, to be compared. The order of the VMs in a fleet is not the same after a restart."""
    if isinstance(value, Fleet):
        lists = (value._members, value._on_host)
        listed = ({name: sorted(names) for name, names in found.items() if names} for found in lists)
        return value.vms, value.groups, value.hosts, value._by_address, value._by_listen, *listed
    if dataclasses.is_dataclass(value):
        return {field.name: content(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return {name: content(held) for name, held in vars(value).items()} if hasattr(value, "__dict__") else value


class Replica:
    """One state that gets the changes, and one that gets the bytes."""

    def __init__(self) -> None:
        self.first, self.second = ServiceState(), ServiceState()
        self.seen: set[str] = set()

    def take(self, changes: Changes) -> None:
        received = decode(encode(changes), self.second.fleet)
        assert content(received) == content(changes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(change_set, "PART_ITEMS", 1)
            in_parts = decode(encode(changes), self.second.fleet)
        assert content(in_parts) == content(changes)
        assert [type(entry) for entry in received.history] == [type(entry) for entry in changes.history]
        self.first.absorb(changes)
        self.second.absorb(received)
        assert content(self.second) == content(self.first)
        self.seen |= {name for name in SENT if getattr(changes, name)}


class ChangeSetMachine(RuleBasedStateMachine):
    """Drives an engine at random, with every kind of command."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.engine: Engine
        self.replica = Replica()
        self.failures: list[BaseException] = []

    def do(self, work: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await work

        try:
            return self.runner.run(wait())
        except ForewarnError:
            return None

    def command(self, command: Callable[..., Any], *arguments: Any) -> Any:
        return self.do(self.engine.execute(command, *arguments))

    @initialize()
    def begin(self) -> None:
        self.engine, self.fabric = make_engine()
        self.engine.subscribe_to_commits(self.follow)
        self.do(self.engine.start())
        self.do(self.engine.apply_fleet(FLEET, by="test", facts={"fleet_file": "fleet.toml"}))
        for group in GROUPS:
            self.do(self.engine.enable(group, by=group))

    def follow(self, changes: Changes) -> None:
        try:
            self.replica.take(changes)
        except BaseException as error:  # noqa: BLE001 - the engine must not swallow it
            self.failures.append(error)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.do(self.engine.stop())
        self.runner.close()

    @invariant()
    def the_bytes_say_it_all(self) -> None:
        for error in self.failures:
            raise error
        if hasattr(self, "engine"):
            ours, theirs = self.engine._writer.state, self.replica.second
            assert theirs.sequence == ours.sequence
            # Not in commits: when groups last polled, until that is written, and what retention removes.
            for name in ("operations", "rollouts", "events", "deliveries", "facts", "tokens", "fleet"):
                assert content(getattr(theirs, name)) == content(getattr(ours, name))
            assert theirs.webhook_deliveries.webhooks == ours.webhook_deliveries.webhooks

    def event(self, which: int) -> str:
        live = self.engine.live_events()
        return live[which % len(live)].id if live else ""

    @rule(
        cause=st.sampled_from(["restart", "redeploy", "live-migration", "delete", "start", "eviction"]),
        vm=st.sampled_from(VMS),
        notice=st.none() | st.timedeltas(timedelta(minutes=1), timedelta(days=2)),
    )
    def somebody_requests(self, cause: str, vm: str, notice: timedelta | None) -> None:
        self.command(request, CauseRequest(cause, (vm,), notice=notice, overrides=("notice",)), "somebody")

    @rule(cause=st.sampled_from(["host-update", "degraded-hardware", "hardware-failure"]), host=st.sampled_from(HOSTS))
    def something_happens_to_a_host(self, cause: str, host: str) -> None:
        deadline = self.engine.clock.now() + timedelta(days=30, microseconds=7)
        self.command(request, CauseRequest(cause, host=host, postpone_deadline=deadline), "somebody")

    @rule(host=st.sampled_from(HOSTS))
    def host_returns(self, host: str) -> None:
        self.command(fleet_commands.return_host, host, "operator")

    @rule(which=NUMBERS)
    def vm_approves(self, which: int) -> None:
        self.command(approvals.approve, (self.event(which),), "somebody")

    @rule(which=NUMBERS)
    def operator_cancels(self, which: int) -> None:
        self.command(approvals.cancel, self.event(which), "operator")

    @rule(which=NUMBERS, length=st.timedeltas(timedelta(0), timedelta(days=3)))
    def operator_postpones(self, which: int, length: timedelta) -> None:
        self.command(approvals.postpone, self.event(which), "operator", self.engine.clock.now() + length)

    @rule(length=st.sampled_from([timedelta(minutes=1), timedelta(minutes=15), timedelta(hours=25)]))
    def time_passes(self, length: timedelta) -> None:
        self.do(self.engine.advance(length))

    @rule(group=st.sampled_from(GROUPS), enabled=st.booleans())
    def group_is_notified_or_not(self, group: str, enabled: bool) -> None:
        if enabled:
            self.command(enabling.enable, group, group)
        else:
            self.command(enabling.disable, [group], "operator", "a fault")

    @rule(missing=st.sets(st.sampled_from(VMS), max_size=2), tags=st.dictionaries(st.text(max_size=3), st.text()))
    def fleet_is_applied(self, missing: set[str], tags: dict[str, str]) -> None:
        text = "".join(tags)
        texts: dict[str, Any] = {
            "user_data": text,
            "custom_data": text * 2,
            "public_keys": (text, "key") if text else (),
        }
        vms = [vm._replace(tags=tuple(tags.items()), **texts) for vm in FLEET.vms.values() if vm.name not in missing]
        fleet = Fleet(vms, [*FLEET.groups.values(), Group("new", "scale-set")], [*FLEET.hosts.values(), Host("host-c")])
        self.do(self.engine.apply_fleet(fleet, by="operator", force=True))

    @rule(group=st.sampled_from(["web", "auto"]), window=st.sampled_from(["sat 02:00 4h", "daily 00:00 90s"]))
    def policy_changes(self, group: str, window: str) -> None:
        self.command(fleet_commands.set_policy, group, PolicyUpdate(windows=(parse_window(window),)), "owner")

    @rule(pattern=st.sampled_from(["*", "host-a"]), budget=st.integers(1, 2))
    def rollout_starts(self, pattern: str, budget: int) -> None:
        self.command(
            rollout_commands.start,
            (pattern,),
            RolloutSettings(max_unavailable=budget, pause=timedelta(minutes=1.5)),
            "operator",
        )

    @rule(command=st.sampled_from([rollout_commands.pause, rollout_commands.resume, rollout_commands.cancel]))
    def rollout_is_changed(self, command: Callable[..., Any]) -> None:
        for rollout in self.engine.live_rollouts():
            self.command(command, rollout.id, "operator")

    @rule(name=st.sampled_from(["ann", "bob"]), expires=st.none() | st.timedeltas(timedelta(1), timedelta(9)))
    def token_is_created(self, name: str, expires: timedelta | None) -> None:
        now = self.engine.clock.now()
        token = Token(
            name, Role.ADMIN, f"hash of {name}", "root", now, expires_at=None if expires is None else now + expires
        )
        self.command(access.create_token, token, "root")

    @rule(name=st.sampled_from(["ann", "bob"]))
    def token_is_revoked(self, name: str) -> None:
        self.command(access.revoke_token, name, "root")

    @rule(key=st.sampled_from(["a", "b"]), vm=st.sampled_from(VMS))
    def request_has_a_key(self, key: str, vm: str) -> None:
        def decide(draft: Any, now: Any, limits: Any) -> Steps[tuple[int, str]]:
            found = yield from request_in_steps(draft, now, limits, CauseRequest("restart", (vm,)), "somebody")
            return 201, found[0].id

        self.command(access.run_once, f"caller {key}", vm, decide)

    @rule(name=st.sampled_from(["pager", "audit"]))
    def webhook_is_added(self, name: str) -> None:
        webhook = Webhook(name, "https://1.1.1.1/", "s" * 32, "root", START, groups=("web",), kinds=("scheduled",))
        self.command(webhooks.add_webhook, webhook, "root")

    @rule(name=st.sampled_from(["pager", "audit"]), rows=st.dictionaries(NUMBERS, st.booleans() | st.none()))
    def webhook_is_settled(self, name: str, rows: dict[int, bool | None]) -> None:
        before = self.engine._writer.state.webhook(name)
        if before is not None:
            kept = {
                number: None if given_up is None else Undelivered(name, number, 3, 0 if given_up else 2, "refused")
                for number, given_up in rows.items()
            }
            after = before._replace(cursor=before.cursor + 1)
            self.command(webhooks.record_deliveries, before, after, kept)

    @rule(name=st.sampled_from(["pager", "audit"]))
    def webhook_is_removed(self, name: str) -> None:
        self.command(webhooks.remove_webhook, name, "root")


TestChangeSet = ChangeSetMachine.TestCase
TestChangeSet.settings = settings(
    max_examples=amount(500), stateful_step_count=30, suppress_health_check=list(HealthCheck), print_blob=True
)


def test_every_field_of_a_commit_is_sent() -> None:
    """A new field of `Changes` must be added to what is sent, or this fails."""
    assert set(ChangeSet.__struct_fields__) == SENT | {"texts", "layout"}


def test_every_field_is_filled_by_some_command() -> None:
    """So that the random courses above try all of them."""
    machine = ChangeSetMachine()
    machine.begin()
    machine.something_happens_to_a_host("host-update", "host-a")
    machine.rollout_starts("*", 1)
    machine.policy_changes("web", "sat 02:00 4h")
    machine.token_is_created("ann", None)
    machine.token_is_created("bob", timedelta(days=1))
    machine.token_is_revoked("bob")
    machine.request_has_a_key("a", "db-0")
    machine.webhook_is_added("pager")
    machine.webhook_is_settled("pager", {1: True, 2: None, 3: False})
    machine.webhook_is_removed("pager")
    machine.time_passes(timedelta(hours=25))
    machine.fleet_is_applied({"web-0"}, {"a": "b"})
    machine.the_bytes_say_it_all()
    machine.teardown()
    assert machine.replica.seen == SENT


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa5other\x01", b"\x81\xa6events\x01"])
def test_what_is_not_a_change_set_is_an_error(data: bytes) -> None:
    with pytest.raises(BadChangeSet):
        decode([data], Fleet())


def test_a_change_set_of_a_release_with_other_fields_is_an_error() -> None:
    (part,) = encode(Changes(facts={"a": "b"}))
    sent = msgspec.msgpack.decode(part)
    assert decode([msgspec.msgpack.encode(sent)], Fleet()).facts == {"a": "b"}
    other = msgspec.msgpack.encode(sent | {"layout": sent["layout"] + 1})
    with pytest.raises(BadChangeSet, match="other fields"):
        decode([other], Fleet())
    with pytest.raises(BadChangeSet, match="other fields"):
        decode([part, other], Fleet())


def test_only_an_item_that_is_too_large_makes_a_large_part() -> None:
    texts = {f"text {number}": "x" * 100_000 for number in range(20)}
    changes = Changes(facts=texts | {"large": "x" * PART_BYTES}, deliveries=dict.fromkeys("abc"))
    parts = encode(changes)
    assert [len(part) > PART_BYTES for part in parts].count(True) == 1
    assert decode(parts, Fleet()) == changes

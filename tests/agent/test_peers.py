"""Groups of peers over real sockets: machines that die, links that are cut, members that are never ready."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from agent.peer_groups import EVENT, SECRET, TIMEOUT_SECONDS, Machines
from forewarn.agent.peers.group import PeerGroup
from forewarn.agent.peers.messages import APPROVED, FAILED, PREPARING, READY, WAITING
from forewarn.agent.policy import Member, PeersSettings

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = 6.0
"""Of silence: an answer is fresh for three seconds, so that a test has time to kill a machine in the middle."""


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_when_all_are_ready_only_the_first_may_approve(make_machines: Callable[..., Machines], count: int) -> None:
    machines = make_machines(count)
    machines.report(READY)
    machines.until_may("web-0")
    machines.report(APPROVED, "web-0")
    for name in machines.names[1:]:
        machines.until_reason(name, "all VMs are ready; web-0 has approved")


def test_the_next_may_when_the_first_does_not_approve(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(3)
    machines.report(READY)
    for name in machines.names:
        machines.until_may(name)


def test_no_member_may_approve_while_one_is_not_ready(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(3)
    machines.report(WAITING)
    machines.report(READY, "web-0", "web-1")
    machines.until_reason("web-0", "waiting for web-2 (waiting)")
    machines.report(PREPARING, "web-2")
    machines.until_reason("web-0", "waiting for web-2 (preparing)")
    machines.report(FAILED, "web-2")
    machines.until_reason("web-1", "waiting for web-2 (failed)")
    machines.until_reason("web-0", "waiting for web-2 (failed)")
    assert not machines.may_have
    machines.report(READY, "web-2")
    machines.until_may("web-0")
    machines.report(PREPARING, "web-2")
    machines.until_reason("web-0", "waiting for web-2 (preparing)")


@pytest.mark.parametrize("stage", [WAITING, PREPARING, FAILED])
def test_the_group_waits_for_a_machine_that_dies_before_it_is_ready(
    make_machines: Callable[..., Machines], stage: str
) -> None:
    machines = make_machines(3)
    machines.report(stage, "web-0")
    machines.report(READY, "web-1", "web-2")
    machines.until_reason("web-1", f"web-0 ({stage})")
    machines.until_reason("web-2", f"web-0 ({stage})")
    machines.stop("web-0")
    machines.until_reason("web-1", f"web-0 ({stage}, unreachable)")
    machines.until_reason("web-2", f"web-0 ({stage}, unreachable)")
    assert not machines.may_have


@pytest.mark.parametrize("dies", ["web-0", "web-1"])
def test_a_ready_machine_that_dies_counts_while_its_response_is_fresh(
    make_machines: Callable[..., Machines], dies: str
) -> None:
    machines = make_machines(3, LONG)
    machines.report(PREPARING, "web-2")
    machines.report(READY, "web-0", "web-1")
    machines.until_reason("web-0", "waiting for web-2 (preparing)")
    machines.until_reason("web-1", "waiting for web-2 (preparing)")
    machines.stop(dies)
    machines.report(READY, "web-2")
    machines.until_may("web-1" if dies == "web-0" else "web-0")
    machines.until_reason("web-2", f"waiting for {dies} (ready, no fresh response)")
    machines.until_reason("web-2", f"waiting for {dies} (ready, unreachable)")


def test_a_machine_that_returns_starts_again(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(3)
    machines.report(READY)
    machines.until_may("web-0")
    machines.stop("web-0")
    machines.start("web-0")
    # It answers and knows nothing of the event: what it was ready for in its earlier life does not count.
    machines.until_reason("web-1", "web-0 (event unknown)")
    machines.report(PREPARING, "web-0")
    machines.until_reason("web-1", "web-0 (preparing)")
    machines.report(READY, "web-0")
    machines.until_may("web-0")


def test_a_machine_that_is_cut_off_may_no_longer_and_is_waited_for(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(3)
    machines.report(READY)
    machines.until_may("web-0")
    machines.until_reason("web-1", "all VMs are ready")
    machines.cut("web-0", "web-1")
    machines.cut("web-0", "web-2")
    machines.until_reason("web-0", "web-1 (ready, unreachable)", "web-2 (ready, unreachable)")
    machines.until_reason("web-1", "waiting for web-0 (ready, unreachable)")
    machines.join("web-0", "web-1")
    machines.join("web-0", "web-2")
    machines.until_may("web-0")


def test_when_a_link_is_cut_the_first_member_that_reaches_all_may_approve(
    make_machines: Callable[..., Machines],
) -> None:
    machines = make_machines(3)
    machines.cut("web-0", "web-2")
    machines.report(READY)
    machines.until_may("web-1")
    machines.until_reason("web-0", "waiting for web-2 (no response")
    machines.until_reason("web-2", "waiting for web-0 (no response")
    assert machines.may_have == {"web-1"}


def test_a_machine_that_others_cannot_reach_may_still_approve(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(3)
    machines.links["web-1", "web-0"].cut()
    machines.links["web-2", "web-0"].cut()
    machines.report(READY)
    machines.until_may("web-0")
    machines.until_reason("web-1", "waiting for web-0 (no response, unreachable)")
    assert machines.may_have == {"web-0"}


def test_a_machine_that_is_no_member_is_never_approved_for(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(2)
    for group in machines.groups.values():
        group.report(EVENT, ["web-0", "web-1", "db-0"], READY)
    machines.until(lambda decisions: all("db-0 is not in [peers] members" in one.reason for one in decisions.values()))
    assert not machines.may_have


def test_a_member_that_sees_other_machines_in_the_event_does_not_count(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(3)
    machines.report(READY, "web-0", "web-1")
    machines.groups["web-2"].report(EVENT, ["web-2", "web-0"], READY)
    machines.until_reason("web-0", "waiting for web-2 (sees other VMs in the event)")
    assert not machines.may_have
    machines.report(READY, "web-2")
    machines.until_may("web-0")


def test_each_event_is_decided_separately(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(3)
    groups = machines.groups
    groups["web-0"].report("A-1", ["WEB-1", "WEB-0"], PREPARING)
    groups["web-1"].report("a-1", ["WEB-1", "WEB-0"], READY, as_name="WEB-1")
    groups["web-2"].report("B-2", ["web-2", "web-1"], WAITING)
    groups["web-1"].report("B-2", ["web-2", "web-1"], READY)
    machines.until(lambda _: "WEB-0 (preparing)" in groups["web-1"].decide("A-1").reason)
    groups["web-0"].report("A-1", ["WEB-1", "WEB-0"], READY)
    machines.until(lambda _: groups["web-1"].decide("A-1").allowed)
    machines.until(lambda _: "web-2 (waiting)" in groups["web-1"].decide("B-2").reason)
    assert groups["web-0"].decide("B-2").reason == "the event is unknown"
    groups["web-1"].forget("A-1")
    machines.until(lambda _: "WEB-1 (event unknown)" in groups["web-0"].decide("A-1").reason)


def test_a_machine_may_have_another_name_in_an_event() -> None:
    news = threading.Condition()

    def wake() -> None:
        with news:
            news.notify_all()

    def make(me: str, *members: Member) -> PeerGroup:
        group = PeerGroup(PeersSettings(("127.0.0.1", 0), SECRET, members, timedelta(seconds=1)), wake)
        group.start(me)
        return group

    first = make("pool000000")
    second = make("pool000001", Member("pool_0", *first.address), Member("pool_1", "127.0.0.1", 1))
    resources = ["pool_1", "pool_0"]
    try:
        first.report(EVENT, resources, READY, as_name="pool_0")
        second.report(EVENT, resources, READY, as_name="pool_1")
        with news:
            assert news.wait_for(lambda: second.decide(EVENT).allowed, TIMEOUT_SECONDS), second.decide(EVENT)
        assert list(second.snapshot()) == ["pool_0"]
        assert first.decide(EVENT).reason == "pool_1 is not in [peers] members"
    finally:
        first.stop()
        second.stop()


def test_a_snapshot_lists_the_members_that_responded(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(3)
    assert machines.groups["web-0"].snapshot() == {
        "web-1": {"seconds_since_last_response": None, "unreachable": False},
        "web-2": {"seconds_since_last_response": None, "unreachable": False},
    }
    machines.stop("web-2")
    machines.report(READY)
    machines.until_reason("web-0", "web-2 (no response, unreachable)")
    seen = machines.groups["web-0"].snapshot()
    assert seen["web-2"] == {"seconds_since_last_response": None, "unreachable": True}
    assert seen["web-1"]["seconds_since_last_response"] is not None
    assert not seen["web-1"]["unreachable"]


def test_without_an_event_no_member_gets_requests(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(2)
    machines.report(READY)
    machines.until_may("web-0")
    asking = [thread for thread in threading.enumerate() if thread.name.startswith("peers-web-")]
    assert len(asking) == 2
    for group in machines.groups.values():
        group.forget(EVENT)
    for thread in asking:
        thread.join(TIMEOUT_SECONDS)
        assert not thread.is_alive()
    machines.report(READY)
    machines.until_may("web-0")


def test_it_stops_at_once_and_leaves_nothing(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(3)
    hold = threading.Event()
    # One that does not answer is being waited for when the group stops.
    machines.links["web-0", "web-1"].instead = lambda _: bytes(hold.wait(TIMEOUT_SECONDS))
    machines.report(READY)
    machines.until_reason("web-0", "web-1 (")
    for name in machines.names:
        machines.stop(name)
    hold.set()
    left = [thread for thread in threading.enumerate() if thread.name.startswith("peers-")]
    for thread in left:
        thread.join(TIMEOUT_SECONDS)
    assert not any(thread.is_alive() for thread in left)

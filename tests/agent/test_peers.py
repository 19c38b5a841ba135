"""Circles of agents over real sockets: leaders that die, links that are cut, members that are never ready."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from agent.circles import EVENT, PATIENCE_SECONDS, SECRET, Party
from forewarn.agent.peers.group import Circle
from forewarn.agent.peers.messages import FAILED, PREPARING, READY, WAITING
from forewarn.agent.policy import Member, PeersSettings

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_when_all_are_ready_the_first_may_and_nobody_else(make_party: Callable[..., Party], count: int) -> None:
    party = make_party(count)
    party.say(READY)
    party.until_may("web-0")
    for name in party.names[1:]:
        party.until_why(name, "all are ready; web-0 is to approve")
    assert party.may_have == {"web-0"}


def test_nobody_may_while_one_is_not_ready(make_party: Callable[..., Party]) -> None:
    party = make_party(3)
    party.say(WAITING)
    party.say(READY, "web-0", "web-1")
    party.until_why("web-0", "waits for web-2 (waiting)")
    party.say(PREPARING, "web-2")
    party.until_why("web-0", "waits for web-2 (preparing)")
    party.say(FAILED, "web-2")
    party.until_why("web-1", "waits for web-2 (failed)")
    party.until_why("web-0", "waits for web-2 (failed)")
    assert not party.may_have
    party.say(READY, "web-2")
    party.until_may("web-0")
    party.say(PREPARING, "web-2")
    party.until_why("web-0", "waits for web-2 (preparing)")


@pytest.mark.parametrize("stage", [WAITING, PREPARING, FAILED])
def test_a_leader_that_dies_before_it_is_ready_is_waited_for(make_party: Callable[..., Party], stage: str) -> None:
    party = make_party(3)
    party.say(READY)
    party.say(stage, "web-0")
    party.until_why("web-1", f"web-0 ({stage})")
    party.until_why("web-2", f"web-0 ({stage})")
    party.stop("web-0")
    party.until(lambda verdicts: verdicts["web-1"].leader == "web-1" and verdicts["web-2"].leader == "web-1")
    party.until_why("web-1", f"web-0 ({stage}, silent)")
    assert not party.may_have


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("approved", [False, True])
def test_the_next_takes_over_when_the_leader_dies_ready(
    make_party: Callable[..., Party], count: int, approved: bool
) -> None:
    party = make_party(count)
    party.say(READY)
    for name in party.names[1:]:
        party.until_why(name, "web-0 is to approve")
    if approved:
        party.until_may("web-0")
    party.stop("web-0")
    party.until_may("web-1")
    assert "web-2" not in party.may_have


def test_a_leader_that_comes_back_begins_anew(make_party: Callable[..., Party]) -> None:
    party = make_party(3)
    party.say(READY)
    party.until_may("web-0")
    party.stop("web-0")
    party.until_may("web-1")
    party.start("web-0")
    # It answers and knows nothing of the event: what it was ready for in its earlier life does not count.
    party.until_why("web-1", "web-0 (knows nothing of it)")
    party.say(PREPARING, "web-0")
    party.until_why("web-1", "web-0 (preparing)")
    party.say(READY, "web-0")
    party.until_may("web-0")


def test_the_first_of_two_never_goes_on_alone(make_party: Callable[..., Party]) -> None:
    party = make_party(2)
    party.say(READY)
    party.until_may("web-0")
    party.stop("web-1")
    party.until_why("web-0", "1 of 2 support this machine")
    party.start("web-1")
    party.say(READY)
    party.until_may("web-0")


def test_a_leader_that_is_cut_off_may_no_longer(make_party: Callable[..., Party]) -> None:
    party = make_party(3)
    party.say(READY)
    party.until_may("web-0")
    party.cut("web-0", "web-1")
    party.cut("web-0", "web-2")
    party.until_why("web-0", "1 of 3 support this machine and 2 are needed")
    party.until_may("web-1")
    party.join("web-0", "web-1")
    party.join("web-0", "web-2")
    party.until_may("web-0")
    assert "web-2" not in party.may_have


def test_two_that_cannot_hear_each_other(make_party: Callable[..., Party]) -> None:
    party = make_party(2)
    party.say(READY)
    party.until_may("web-0")
    party.cut("web-0", "web-1")
    party.until_may("web-1")
    party.until_why("web-0", "1 of 2 support this machine")


def test_a_leader_that_hears_and_is_not_heard(make_party: Callable[..., Party]) -> None:
    party = make_party(3)
    party.say(READY)
    party.until_may("web-0")
    party.links["web-1", "web-0"].cut()
    party.links["web-2", "web-0"].cut()
    party.until_may("web-1")


def test_word_goes_round_a_link_that_is_cut(make_party: Callable[..., Party]) -> None:
    party = make_party(3)
    party.cut("web-0", "web-2")
    party.say(WAITING)
    party.until_why("web-0", "web-2 (waiting")
    party.say(READY)
    party.until_may("web-0")
    assert party.may_have == {"web-0"}
    party.say(FAILED, "web-2")
    party.until_why("web-0", "web-2 (failed")


def test_a_machine_that_is_no_member_is_never_approved_for(make_party: Callable[..., Party]) -> None:
    party = make_party(2)
    for circle in party.circles.values():
        circle.say(EVENT, ["web-0", "web-1", "db-0"], READY)
    party.until(lambda verdicts: all("db-0 is not among [peers] members" in one.why for one in verdicts.values()))
    assert not party.may_have


def test_who_sees_other_machines_in_the_event_does_not_count(make_party: Callable[..., Party]) -> None:
    party = make_party(3)
    party.say(READY, "web-0", "web-1")
    party.circles["web-2"].say(EVENT, ["web-2", "web-0"], READY)
    party.until_why("web-0", "all are ready", "web-2 told of other machines")
    party.say(READY, "web-2")
    party.until_may("web-0")


def test_each_event_is_decided_by_itself(make_party: Callable[..., Party]) -> None:
    party = make_party(3)
    circles = party.circles
    circles["web-0"].say("A-1", ["WEB-1", "WEB-0"], READY)
    circles["web-1"].say("a-1", ["WEB-1", "WEB-0"], READY, as_name="WEB-1")
    circles["web-2"].say("B-2", ["web-2", "web-1"], WAITING)
    circles["web-1"].say("B-2", ["web-2", "web-1"], READY)
    party.until(lambda _: circles["web-1"].verdict("A-1").may)
    party.until(lambda _: "web-2 (waiting)" in circles["web-1"].verdict("B-2").why)
    assert not circles["web-0"].verdict("A-1").may
    assert circles["web-0"].verdict("B-2").why == "nothing is known of this event"
    circles["web-1"].forget("A-1")
    party.until(lambda _: "WEB-1 (knows nothing of it)" in circles["web-0"].verdict("A-1").why)


def test_a_machine_may_have_another_name_in_an_event() -> None:
    news = threading.Condition()

    def wake() -> None:
        with news:
            news.notify_all()

    def make(me: str, *members: Member) -> Circle:
        circle = Circle(PeersSettings(("127.0.0.1", 0), SECRET, members, timedelta(seconds=1)), me, wake)
        circle.start()
        return circle

    first = make("pool000000")
    second = make("pool000001", Member("pool_0", *first.address), Member("pool_1", "127.0.0.1", 1))
    resources = ["pool_1", "pool_0"]
    try:
        first.say(EVENT, resources, READY, as_name="pool_0")
        second.say(EVENT, resources, READY, as_name="pool_1")
        with news:
            # The other does not have it as a member, and so never hears it; support for it is only in its own hands.
            found = news.wait_for(lambda: "1 of 2 support" in second.verdict(EVENT).why, PATIENCE_SECONDS)
        assert found, second.verdict(EVENT)
        assert list(second.snapshot()) == ["pool_0"]
        assert first.verdict(EVENT).why == "pool_1 is not among [peers] members"
    finally:
        first.stop()
        second.stop()


def test_a_snapshot_says_who_was_heard(make_party: Callable[..., Party]) -> None:
    party = make_party(3)
    assert party.circles["web-0"].snapshot() == {
        "web-1": {"heard_seconds_ago": None, "silent": False},
        "web-2": {"heard_seconds_ago": None, "silent": False},
    }
    party.stop("web-2")
    party.say(READY)
    party.until_why("web-0", "web-2 (not heard, silent)")
    seen = party.circles["web-0"].snapshot()
    assert seen["web-2"] == {"heard_seconds_ago": None, "silent": True}
    assert seen["web-1"]["heard_seconds_ago"] is not None
    assert not seen["web-1"]["silent"]


def test_nobody_is_asked_without_an_event(make_party: Callable[..., Party]) -> None:
    party = make_party(2)
    party.say(READY)
    party.until_may("web-0")
    asking = [thread for thread in threading.enumerate() if thread.name.startswith("peers-web-")]
    assert len(asking) == 2
    for circle in party.circles.values():
        circle.forget(EVENT)
    for thread in asking:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    party.say(READY)
    party.until_may("web-0")


def test_it_stops_at_once_and_leaves_nothing(make_party: Callable[..., Party]) -> None:
    party = make_party(3)
    hold = threading.Event()
    # One that does not answer is being waited for when the circle stops.
    party.links["web-0", "web-1"].instead = lambda _: bytes(hold.wait(PATIENCE_SECONDS))
    party.say(READY)
    party.until_why("web-0", "web-1 (")
    for name in party.names:
        party.stop(name)
    hold.set()
    left = [thread for thread in threading.enumerate() if thread.name.startswith("peers-")]
    for thread in left:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in left)

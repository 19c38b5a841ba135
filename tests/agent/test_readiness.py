"""Who may approve, and when a handler may run: each rule, and random failures of whole networks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.peer_network import EVENT, QUICK, TICK, Network
from depth import amount
from forewarn.agent.peers.messages import (
    APPROVED,
    FAILED,
    PREPARING,
    READY,
    STARTED,
    WAITING,
    PeerEventStatus,
    StatusMessage,
    digest,
)
from forewarn.agent.peers.readiness import PeerTiming, Readiness
from forewarn.agent.policy import Member, PeersSettings

NAMES = ("web-0", "web-1", "web-2")
PEER_TIMEOUT = 6.0
FRESH, TURN = 3.0, 1.0
NOW = 1000.0


def machine(me: str = "web-0", resources: tuple[str, ...] = NAMES, state: str = READY, **others: str) -> Readiness:
    """A machine that sent its requests at NOW. Each peer is ready, or in the given state; `none`: no response."""
    members = tuple(Member(name, "127.0.0.1", 1) for name in (*NAMES, "web-3"))
    made = Readiness(PeersSettings(("127.0.0.1", 0), b"", members, timedelta(seconds=PEER_TIMEOUT)), NOW - 100)
    made.me = me
    made.report(EVENT, resources, state, me, NOW)
    for name in resources:
        state_of_peer = others.get(name.replace("-", "_"), READY)
        if name.casefold() != me.casefold() and state_of_peer != "none":
            hear(made, name, state_of_peer)
    return made


def hear(made: Readiness, name: str, state: str, sent: float = NOW, fresh: float = FRESH, seen: str = "") -> None:
    events = (PeerEventStatus(EVENT, seen or digest(NAMES), state),) if state else ()
    made.record_response(name, StatusMessage(name, fresh, events), sent, sent)


def test_the_first_may_approve_at_once_and_each_other_one_turn_later() -> None:
    for rank, name in enumerate(NAMES):
        decisions = [machine(name).decide(EVENT, NOW + seconds / 4) for seconds in range(12)]
        assert [decision.allowed for decision in decisions] == [seconds / 4 >= rank * TURN for seconds in range(12)]
        for decision in decisions[: rank * 4]:
            assert decision == (False, "all VMs are ready; web-0 approves")


def test_the_turns_count_from_when_the_last_became_ready() -> None:
    made = machine("web-1", web_2=PREPARING)
    hear(made, "web-0", READY, NOW + 1.5)
    hear(made, "web-2", READY, NOW + 2)
    assert not made.decide(EVENT, NOW + 2.9).allowed
    assert made.decide(EVENT, NOW + 3.1).allowed


def test_the_turns_restart_after_a_gap() -> None:
    made = machine("web-1")
    hear(made, "web-2", READY, NOW + 10)
    hear(made, "web-0", READY, NOW + 10)
    assert not made.decide(EVENT, NOW + 10.9).allowed
    assert made.decide(EVENT, NOW + 11).allowed


def test_with_a_time_in_the_rule_the_turns_start_then() -> None:
    made = machine("web-1")
    made.report(EVENT, NAMES, READY, "web-1", NOW + 1, is_due=False)
    made.report(EVENT, NAMES, READY, "web-1", NOW + 1.5)
    assert not made.decide(EVENT, NOW + 1.9).allowed
    assert made.decide(EVENT, NOW + 2).allowed


def test_a_vote_is_valid_from_its_request_for_the_shorter_timeout() -> None:
    made = machine()
    assert made.decide(EVENT, NOW + FRESH - 0.01).allowed
    assert (
        made.decide(EVENT, NOW + FRESH).reason
        == "waiting for web-1 (ready, no fresh response), web-2 (ready, no fresh response)"
    )
    hear(made, "web-1", READY, NOW + 4, fresh=0.5)
    hear(made, "web-2", READY, NOW + 4, fresh=100)
    assert made.decide(EVENT, NOW + 4.4).allowed
    assert made.decide(EVENT, NOW + 4.6).reason == "waiting for web-1 (ready, no fresh response)"
    assert "web-2 (ready, no fresh response)" in made.decide(EVENT, NOW + 4 + FRESH).reason


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (machine(state=PREPARING), "waiting for web-0 (preparing)"),
        (machine(state=FAILED), "waiting for web-0 (failed)"),
        (machine(state=STARTED), "waiting for web-0 (started)"),
        (machine(web_2="none"), "waiting for web-2 (no response)"),
        (machine(web_2=""), "waiting for web-2 (event unknown)"),
        (machine(web_2=FAILED, web_1=WAITING), "waiting for web-1 (waiting), web-2 (failed)"),
        (machine("web-2", web_1=APPROVED), "all VMs are ready; web-1 has approved"),
        (machine(resources=(*NAMES, "db-9")), "db-9 is not in [peers] members"),
        (machine(resources=(*NAMES, "db-8", "db-9")), "db-8, db-9 are not in [peers] members"),
        (machine("web-7"), "web-7 is not one of the event's VMs"),
        (machine(resources=("web-0", "web-1")), "waiting for web-1 (sees other VMs in the event)"),
    ],
)
def test_the_reason_names_the_members_that_are_not_ready(made: Readiness, why: str) -> None:
    assert made.decide(EVENT, NOW + 2.5) == (False, why)


def test_an_unreachable_member_is_reported_as_such() -> None:
    made = machine(web_1=WAITING, web_2="none")
    assert (
        made.decide(EVENT, NOW + PEER_TIMEOUT).reason
        == "waiting for web-1 (waiting, unreachable), web-2 (no response, unreachable)"
    )
    made = machine()
    assert (
        made.decide(EVENT, NOW + PEER_TIMEOUT).reason
        == "waiting for web-1 (ready, unreachable), web-2 (ready, unreachable)"
    )


def test_the_group_waits_for_a_restarted_member() -> None:
    made = machine()
    assert made.decide(EVENT, NOW).allowed
    hear(made, "web-1", "", NOW + 0.1)
    assert made.decide(EVENT, NOW + 0.1).reason == "waiting for web-1 (event unknown)"


def test_names_are_the_same_in_any_letter_case_and_count_once() -> None:
    made = machine("WEB-0", resources=("web-0", "web-1", "Web-1", "web-2", "WEB-0"))
    assert made.decide(EVENT.lower(), NOW).allowed


def test_a_single_machine_needs_no_votes() -> None:
    made = machine(resources=("web-0",))
    assert made.decide(EVENT, NOW) == (True, "this VM is ready, and the only one")
    assert made.members_to_poll() == []
    assert made.may_run_handler(NOW)


def test_votes_about_other_machines_do_not_count() -> None:
    made = machine()
    made.report(EVENT, (*NAMES, "web-3"), READY, "web-0", NOW)
    hear(made, "web-3", READY, seen=digest((*NAMES, "web-3")))
    assert made.decide(EVENT, NOW).reason == "waiting for web-1 (no response), web-2 (no response)"


def test_no_handler_runs_while_a_vote_can_be_used() -> None:
    made = machine("web-1", web_0=PREPARING)
    assert made.may_run_handler(NOW)
    made.status_message("web-1", NOW + 1)
    made.report(EVENT, NAMES, PREPARING, "web-1", NOW + 2)
    made.status_message("web-1", NOW + 2)  # that it is not ready does not bind it
    assert not made.may_run_handler(NOW + 1 + FRESH)
    assert made.may_run_handler(NOW + 1 + FRESH * 1.02)


def test_no_handler_runs_while_this_machine_approves() -> None:
    made = machine()
    assert made.decide(EVENT, NOW).allowed
    assert not made.may_run_handler(NOW + FRESH - 0.01)
    assert made.may_run_handler(NOW + FRESH)


def test_no_handler_runs_just_after_a_start() -> None:
    made = Readiness(PeersSettings(("", 0), b"", (), timedelta(seconds=PEER_TIMEOUT)), NOW)
    assert not made.may_run_handler(NOW + FRESH)
    assert made.may_run_handler(NOW + FRESH * 1.02)


@pytest.mark.parametrize("seconds", [0.1, 1, 4, 10, 600])
def test_a_dead_machine_counts_until_the_next_turn(seconds: float) -> None:
    timing = PeerTiming.of(timedelta(seconds=seconds))
    assert timing.fresh <= min(3, timing.peer_timeout / 2)
    assert timing.request_timeout <= timing.fresh
    # It answered one interval before it died, and all the others became ready one interval later.
    assert 2 * timing.poll_interval + timing.turn < timing.fresh


# Whole networks.

STEPS = st.tuples(
    st.sampled_from(
        ["cut", "one way", "join", "join", "crash", "start", "start", "report", "prepare", "prepare", "restart", "heal"]
    ),
    st.integers(0, 4),
    st.integers(0, 4),
    st.sampled_from([WAITING, READY, READY, FAILED]),
    st.sampled_from([0.125, 0.375, 0.75, 1.0, 2.0, 2.5]),
)


def play(network: Network, steps: list[tuple[str, int, int, str, float]]) -> None:
    count = len(network.names)
    for what, first, second, state, seconds in steps:
        one, other = network.names[first % count], network.names[second % count]
        if what == "cut":
            network.cut |= {(one, other), (other, one)}
        elif what == "one way":
            network.cut.add((one, other))
        elif what == "join":
            network.cut -= {(one, other), (other, one)}
        elif what == "crash":
            network.crash(one)
        elif what == "start":
            network.start(one)
        elif what == "prepare":
            network.prepare(one)
        elif what == "restart":  # as after a reboot: what was prepared is prepared again
            network.crash(one)
            network.start(one)
            network.prepare(one)
        elif what == "heal":
            network.heal()
        else:
            network.report(one, state)
        network.run(seconds)


@settings(max_examples=amount(400))
@given(st.integers(2, 5), st.integers(0, 10**6), st.lists(STEPS, max_size=25))
def test_an_approval_is_never_too_early_and_always_happens(
    count: int, seed: int, steps: list[tuple[str, int, int, str, float]]
) -> None:
    """The network itself fails where an approval or a handler comes too early."""
    network = Network(count, seed)
    play(network, steps)
    network.heal()
    network.run(2 * network.timing.fresh + 2)  # handlers that have waited, and their two seconds
    network.approvals.clear()
    network.run(network.timing.request_timeout + 2 * network.timing.poll_interval)
    assert network.approvals, [one.agent and one.agent.decide_all(0) for one in network.machines.values()]


@settings(max_examples=amount(200))
@given(st.integers(2, 5), st.integers(0, 10**6), st.integers(0, 4), st.integers(0, 8))
@example(2, 0, 0, 0)
def test_a_member_approves_although_any_of_them_dies(count: int, seed: int, dead: int, ticks: int) -> None:
    network = Network(count, seed)
    dies, last = network.names[dead % count], network.names[(dead + 1) % count]
    network.heal()
    network.report(last, PREPARING)
    network.run(2)
    assert not network.approvals
    # Everybody has heard that it is ready. It dies, a little before or after the last one is ready too.
    network.crash(dies)
    network.run(ticks * 0.0625)
    network.report(last, READY)
    network.run(network.timing.fresh)
    assert network.approvals
    assert dies not in {approval.who for approval in network.approvals}
    # It is unknown from now on.
    network.approvals.clear()
    network.run(5)
    assert not network.approvals
    network.start(dies)
    network.run(2)
    assert not network.approvals
    network.report(dies, READY)
    network.run(network.timing.fresh)
    assert network.approvals


@settings(max_examples=amount(100))
@given(st.integers(2, 5), st.integers(0, 10**6))
def test_on_a_fast_network_the_first_vm_approves_before_the_second_turn(count: int, seed: int) -> None:
    """The first VM learns that all are ready after one poll interval and one exchange. The second waits a turn."""
    network = Network(count, seed)
    network.heal()
    network.report(network.names[-1], PREPARING)
    network.run(2)
    network.report(network.names[-1], READY)
    network.run(2)
    first = network.approvals[0]
    assert first.who == "web-0"
    learned_after = network.timing.poll_interval + 2 * max(QUICK) + 2 * TICK  # the simulation rounds up to ticks
    assert learned_after < network.timing.turn
    head_start = network.timing.turn - learned_after
    assert all(other.at - first.at >= head_start for other in network.approvals if other.who != first.who)

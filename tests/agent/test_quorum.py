"""Who may approve: the rules one by one, and whole networks that fall apart at random."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.peer_network import EVENT, Network
from depth import amount
from forewarn.agent.peers.messages import FAILED, PREPARING, READY, STARTED, UNKNOWN, WAITING
from forewarn.agent.peers.quorum import (
    Answer,
    Patience,
    Pledge,
    Standing,
    Statement,
    add_statement,
    find_leader,
    verdict,
)

PATIENCE = Patience.of(timedelta(seconds=10))
NOW = 1000.0
NAMES = ("web-0", "web-1", "web-2")
SUPPORT = 10.0


def said(state: str, run: str = "r", version: int = 1, latest: float = NOW - 0.9) -> tuple[Statement, ...]:
    return (Statement(run, version, state, latest, latest - 0.1),)


def standing(me: str = "web-0", **changes: Any) -> Standing:
    """Everybody is ready, was heard a second ago, and supports this machine."""
    resources = changes.get("resources", NAMES)
    others = [name.casefold() for name in resources if name.casefold() != me.casefold()]
    whole = Standing(
        me,
        READY,
        resources,
        since=NOW - 100,
        answers={name: Answer(NOW - 1, SUPPORT) for name in others},
        words={name: said(READY) for name in others},
        pledge=None,
        quiet_until=NOW - 100,
    )
    return whole._replace(**changes)


def heard(**answers: Answer) -> dict[str, Answer]:
    return {name.replace("_", "-"): answer for name, answer in answers.items()}


FRESH = Answer(NOW - 1, SUPPORT)
STALE = Answer(NOW - 3, SUPPORT)
LONG_AGO = Answer(NOW - 10, SUPPORT)
OTHER_MIND = Answer(NOW - 1, 0.0)
ALL_READY = {"web-0": said(READY), "web-1": said(READY), "web-2": said(READY)}
TWO = ("web-0", "web-1")


@pytest.mark.parametrize(
    ("stand", "leader"),
    [
        (standing(), "web-0"),
        (standing(answers=heard(web_1=FRESH)), "web-0"),
        (standing(answers=heard(web_1=FRESH, web_2=STALE)), "web-0"),
        (standing("web-1", answers=heard(web_0=LONG_AGO, web_2=FRESH), words=ALL_READY), "web-1"),
        (standing("web-1", answers=heard(web_2=FRESH), words=ALL_READY), "web-1"),
        (standing("web-1", resources=TWO, answers=heard(web_0=LONG_AGO)), "web-1"),
        (standing("web-1", resources=TWO, answers={}, words=ALL_READY), "web-1"),
        (standing(resources=("web-0",)), "web-0"),
        (standing(resources=("web-0",), quiet_until=NOW + 5), "web-0"),
        (standing("WEB-0"), "web-0"),
        (standing(pledge=Pledge("web-0", NOW + 9)), "web-0"),
        (standing(pledge=Pledge("web-1", NOW)), "web-0"),
        # The last word of who is silent was that it is ready: it died prepared.
        (standing(answers=heard(web_1=FRESH, web_2=LONG_AGO)), "web-0"),
    ],
)
def test_it_may_when_all_are_ready_and_most_support_it(stand: Standing, leader: str) -> None:
    decided = verdict(stand, set(NAMES), NOW, PATIENCE)
    assert decided.may, decided.why
    assert decided.leader == leader
    assert decided.waiting_for == ()


@pytest.mark.parametrize(
    ("stand", "why", "waiting_for"),
    [
        (standing(state=PREPARING), "waits for web-0 (preparing)", ("web-0",)),
        (standing(state=FAILED), "waits for web-0 (failed)", ("web-0",)),
        (standing(state=STARTED), "waits for web-0 (started)", ("web-0",)),
        (standing(words={"web-1": said(READY)}), "waits for web-2 (not heard)", ("web-2",)),
        (standing(words={**ALL_READY, "web-2": said(UNKNOWN)}), "web-2 (knows nothing of it)", ("web-2",)),
        (standing(words={**ALL_READY, "web-2": said(FAILED)}), "waits for web-2 (failed)", ("web-2",)),
        (
            standing(words={**ALL_READY, "web-1": said(WAITING)}, answers=heard(web_1=LONG_AGO, web_2=FRESH)),
            "waits for web-1 (waiting, silent)",
            ("web-1",),
        ),
        (standing(words={}, answers={}), "web-1 (not heard, silent), web-2 (not heard, silent)", ("web-1", "web-2")),
        (standing("web-1", words=ALL_READY), "all are ready; web-0 is to approve", ("web-0",)),
        (standing(answers=heard(web_1=STALE, web_2=STALE)), "1 of 3 support this machine", ("web-1", "web-2")),
        (standing(answers=heard(web_1=OTHER_MIND, web_2=STALE)), "waits for web-1, web-2", ("web-1", "web-2")),
        (standing(resources=TWO, answers=heard(web_1=STALE)), "1 of 2 support this machine", ("web-1",)),
        (standing(resources=TWO, answers=heard(web_1=LONG_AGO)), "1 of 2 support this machine", ("web-1",)),
        (standing(pledge=Pledge("web-1", NOW + 0.1)), "has just supported web-1", ("web-0",)),
        (standing(quiet_until=NOW + 0.1), "has just started", ("web-0",)),
        (
            standing("web-1", resources=TWO, answers={}, words=ALL_READY, pledge=Pledge("web-0", NOW + 1)),
            "has just supported web-0",
            ("web-1",),
        ),
        (
            standing("web-1", resources=TWO, answers={}, words=ALL_READY, quiet_until=NOW + 1),
            "has just started",
            ("web-1",),
        ),
        (standing(answers=heard(web_1=FRESH, web_2=Answer(NOW - 1, 0.0, agrees=False))), "other machines", ("web-2",)),
        (standing(answers=heard(web_1=Answer(NOW - 1, 0.9), web_2=STALE)), "1 of 3", ("web-1", "web-2")),
        (standing(resources=(*NAMES, "db-9")), "db-9 is not among [peers] members", ("db-9",)),
        (standing(resources=(*NAMES, "db-8", "db-9")), "db-8, db-9 are not among [peers] members", ("db-8", "db-9")),
        (standing("web-7", words=ALL_READY), "web-7 is not one of the machines", ()),
    ],
)
def test_else_it_says_who_is_waited_for(stand: Standing, why: str, waiting_for: tuple[str, ...]) -> None:
    decided = verdict(stand, set(NAMES), NOW, PATIENCE)
    assert not decided.may
    assert why in decided.why
    assert decided.waiting_for == waiting_for


def test_four_machines_take_three() -> None:
    four = (*NAMES, "web-3")
    two_support = heard(web_1=FRESH, web_2=STALE, web_3=OTHER_MIND)
    assert not verdict(standing(resources=four, answers=two_support), set(four), NOW, PATIENCE).may
    three_support = heard(web_1=FRESH, web_2=FRESH, web_3=OTHER_MIND)
    assert verdict(standing(resources=four, answers=three_support), set(four), NOW, PATIENCE).may


def test_the_first_that_is_not_silent_leads() -> None:
    assert find_leader(standing("web-2", answers=heard(web_0=FRESH, web_1=FRESH)), NOW, PATIENCE) == "web-0"
    assert find_leader(standing("web-2", answers=heard(web_0=LONG_AGO, web_1=FRESH)), NOW, PATIENCE) == "web-1"
    assert find_leader(standing("web-2", answers={}), NOW, PATIENCE) == "web-2"
    # Who has not been heard yet has as long as anybody.
    assert find_leader(standing("web-2", answers={}, since=NOW - 9), NOW, PATIENCE) == "web-0"


@pytest.mark.parametrize(
    ("old", "new", "states"),
    [
        # Of one run, the higher version is the later word, whichever way it came.
        (Statement("a", 1, PREPARING, 10), Statement("a", 2, READY, 11), {READY}),
        (Statement("a", 2, FAILED, 10), Statement("a", 1, READY, 11), {FAILED}),
        (Statement("a", 1, READY, 10, 9), Statement("a", 2, FAILED, 9.5), {FAILED}),
        # A machine's own word, asked for after the other had been heard, is later.
        (Statement("a", 9, READY, 10, 9), Statement("b", 1, WAITING, 12, 11), {WAITING}),
        (Statement("a", 9, READY, 10), Statement("b", 1, WAITING, 12, 11), {WAITING}),
        (Statement("b", 1, WAITING, 12, 11), Statement("a", 9, READY, 10), {WAITING}),
        # Which of these was later nobody knows.
        (Statement("a", 9, READY, 10, 9), Statement("b", 1, WAITING, 12), {READY, WAITING}),
        (Statement("a", 9, READY, 10), Statement("b", 1, WAITING, 11, 9.5), {READY, WAITING}),
        (Statement("a", 9, PREPARING, 10, 9), Statement("b", 1, READY, 12), {PREPARING, READY}),
    ],
)
def test_a_word_counts_until_a_later_one_is_known(old: Statement, new: Statement, states: set[str]) -> None:
    known = add_statement((old,), new)
    assert {word.state for word in known} == states
    ready = verdict(standing(words={**ALL_READY, "web-1": known}), set(NAMES), NOW, PATIENCE).may
    assert ready == (states == {READY})


def test_words_that_could_not_be_put_in_order_are_when_a_later_one_comes() -> None:
    known = add_statement((Statement("a", 9, READY, 10, 9),), Statement("b", 1, WAITING, 12))
    assert {word.state for word in add_statement(known, Statement("b", 2, READY, 14, 13))} == {READY}
    assert {word.run for word in add_statement(known, Statement("b", 2, READY, 14, 13))} == {"b"}


@pytest.mark.parametrize("seconds", [0.1, 1, 4, 10, 600])
def test_support_is_over_long_before_the_pledge(seconds: float) -> None:
    patience = Patience.of(timedelta(seconds=seconds))
    assert patience.silence >= 1
    assert patience.fresh <= patience.silence / 2
    assert patience.fresh <= 3
    assert 2 * patience.interval < patience.fresh
    assert patience.timeout <= 2


# Whole networks.

STEPS = st.tuples(
    st.sampled_from(["cut", "cut", "one way", "join", "join", "crash", "start", "start", "say", "ready", "all ready"]),
    st.integers(0, 4),
    st.integers(0, 4),
    st.sampled_from([WAITING, PREPARING, READY, READY, FAILED]),
    st.sampled_from([0.125, 0.375, 0.75, 1.0, 2.0, 2.5]),
)


def play(network: Network, steps: list[tuple[str, int, int, str, float]]) -> None:
    count = len(network.names)
    for name in network.names:
        network.say(name, WAITING)
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
        elif what == "all ready":
            for name in network.names:
                network.say(name, READY)
        else:
            network.say(one, READY if what == "ready" else state)
        network.run(seconds)


def check_one_mind(network: Network) -> None:
    """Who may next, may only when nothing that the one before has sent can still be on its way for a while."""
    apart = network.patience.silence - network.patience.fresh
    for before, after in zip(network.mays, network.mays[1:], strict=False):
        if before.who != after.who:
            assert after.at - before.at >= apart, f"{before} and {after}"


@settings(max_examples=amount(400))
@given(st.integers(2, 5), st.integers(0, 10**6), st.lists(STEPS, max_size=25))
def test_whatever_happens_never_two_and_never_early_and_in_the_end_somebody(
    count: int, seed: int, steps: list[tuple[str, int, int, str, float]]
) -> None:
    network = Network(count, seed)
    play(network, steps)
    check_one_mind(network)

    network.heal()
    network.mays.clear()
    patience = network.patience
    network.run(patience.silence + 2 * (patience.interval + patience.timeout))
    check_one_mind(network)
    assert network.mays, [machine.book and machine.book.verdict(EVENT, 0) for machine in network.machines.values()]


@settings(max_examples=amount(150))
@given(st.integers(2, 5), st.integers(0, 10**6), st.data())
@example(3, 0, None)
def test_when_the_leader_dies_ready_the_next_takes_over(count: int, seed: int, data: st.DataObject | None) -> None:
    network = Network(count, seed)
    network.heal()
    network.run(data.draw(st.sampled_from([1.5, 2.25, 3.0])) if data else 1.5)
    network.mays.clear()
    network.crash("web-0")
    network.run(2 * network.patience.silence + 2)
    assert {may.who for may in network.mays if may.at > network.now - 1} == {"web-1"}
    check_one_mind(network)
    # And back: the first comes again, and has to be ready again.
    network.start("web-0")
    network.run(1)
    network.mays.clear()
    network.run(1)
    assert not network.mays
    network.heal()
    network.run(network.patience.silence + 2)
    assert network.mays[-1].who == "web-0"
    check_one_mind(network)


def cut_off(network: Network, one: str, other: str) -> None:
    network.cut |= {(one, other), (other, one)}


def whose_turn(network: Network, seconds: float) -> set[str]:
    network.mays.clear()
    network.run(seconds)
    return {may.who for may in network.mays}


def test_word_goes_round_when_a_link_is_cut() -> None:
    network = Network(3, seed=1)
    cut_off(network, "web-0", "web-2")
    network.heal_but_links()
    assert whose_turn(network, 6) == {"web-0"}
    network.say("web-2", FAILED)
    network.run(2)
    assert not whose_turn(network, 6)
    network.say("web-2", READY)
    assert whose_turn(network, 6) == {"web-0"}


def test_who_has_started_anew_remembers_that_it_may_have_supported_another() -> None:
    network = Network(3, seed=1)
    network.heal()
    network.run(4)
    cut_off(network, "web-0", "web-1")
    cut_off(network, "web-0", "web-2")
    network.run(6)
    assert whose_turn(network, 1) == {"web-1"}
    # The third comes back at once, and sees the first again instead of the second.
    network.crash("web-2")
    network.cut -= {("web-0", "web-2"), ("web-2", "web-0")}
    network.start("web-2")
    network.say("web-2", READY)
    network.run(6)
    assert network.mays[-1].who == "web-0"
    check_one_mind(network)

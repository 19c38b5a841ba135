"""What agents say to each other, as bytes: what is meant comes through, all else is refused and nothing worse."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.circles import SECRET
from forewarn.agent.peers.messages import (
    READY,
    WAITING,
    EventWord,
    Relay,
    Word,
    read_word,
    write_word,
)
from forewarn.agent.peers.network import PeerClient, StatusServer, listen
from forewarn.agent.policy import Member
from forewarn.errors import BadWord

NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
SECONDS = st.floats(0, 1e6)
RELAYS = st.builds(Relay, NAMES, NAMES, st.integers(0, 2**53), st.sampled_from([READY, ""]), SECONDS)
EVENTS = st.builds(
    EventWord, NAMES, NAMES, st.sampled_from([READY, WAITING]), NAMES, SECONDS, st.lists(RELAYS, max_size=3).map(tuple)
)
WORDS = st.builds(
    Word,
    NAMES,
    NAMES,
    st.integers(0, 2**53),
    st.lists(EVENTS, max_size=3, unique_by=lambda event: event.id.casefold()).map(tuple),
)


@given(WORDS)
def test_a_word_is_read_as_it_was_meant(word: Word) -> None:
    assert read_word(write_word(word)) == word


BAD_NAMES = ["x" * 300, "with\nlines", "no\u00a0break"]


@pytest.mark.parametrize("bad", [*BAD_NAMES, ""])
def test_an_event_that_cannot_be_named_does_not_silence_the_others(bad: str) -> None:
    good = EventWord("one", "digest", READY, "web-0", 1.0, ())
    word = Word("web-0", "run", 1, (good._replace(id=bad), good))
    assert read_word(write_word(word)).events == (good,)


@pytest.mark.parametrize("bad", BAD_NAMES)
def test_nor_does_a_machine_that_cannot_be_named(bad: str) -> None:
    heard = Relay("web-1", "run", 1, READY, 1.0)
    good = EventWord("one", "digest", READY, "web-0", 1.0, (heard,))
    word = Word(
        "web-0", "run", 1, (good._replace(id="two", leader=bad), good._replace(heard=(heard._replace(vm=bad), heard)))
    )
    assert read_word(write_word(word)).events == (good,)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["vm", "run", "version", "events", "id", "state", "heard", "x"]), inner)
    ),
    max_leaves=8,
)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_word_is_refused_and_nothing_worse(body: bytes) -> None:
    with suppress(BadWord):
        read_word(body)


@given(WORDS, st.data())
def test_a_word_with_one_thing_wrong_is_refused(word: Word, data: st.DataObject) -> None:
    whole = json.loads(write_word(word))
    events = whole["events"]
    tables = [whole, *events, *(relay for event in events for relay in event["heard"])]
    table = data.draw(st.sampled_from(tables))
    name = data.draw(st.sampled_from(sorted(table)))
    wrong: object = data.draw(
        st.sampled_from([None, True, -1, 10**400, {}, [1], "x" * 300, "\n", float("nan"), float("inf")])
    )
    table[name] = wrong
    with pytest.raises(BadWord):
        read_word(json.dumps(whole).encode())


def test_a_word_that_would_be_too_large_is_said_without_hearsay() -> None:
    heard = tuple(Relay(f"web-{number}" + "x" * 200, "r" * 32, 1, READY, 1.0) for number in range(1000))
    events = tuple(EventWord(f"id-{number}", "d", READY, "web-0", 1.0, heard) for number in range(3))
    read = read_word(write_word(Word("web-0", "run", 1, events)))
    assert [event.id for event in read.events] == ["id-0", "id-1", "id-2"]
    assert not any(event.heard for event in read.events)


@pytest.mark.parametrize("name", ["web-1", "Größe-1", "名前", "a b%20c", "x\u0301"])
def test_names_of_all_letters_come_through(name: str) -> None:
    asked: list[tuple[str, str]] = []

    def answer(asker: str, wanted: str) -> bytes:
        asked.append((asker, wanted))
        return write_word(Word(wanted, "run", 1, ()))

    server = StatusServer(listen("127.0.0.1", 0), SECRET, answer)
    server.start()
    try:
        client = PeerClient(Member(name, *server.address), SECRET, 60)
        assert client.ask(f"{name}-2").vm == name
        client.close()
    finally:
        server.stop()
    assert asked == [(f"{name}-2", name)]

"""Messages between agents, as bytes: valid ones are read, all others are rejected."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.peer_groups import SECRET
from forewarn.agent.http_server import listen_on
from forewarn.agent.peers.messages import (
    MAX_MESSAGE_SIZE,
    READY,
    STATES,
    PeerEventStatus,
    StatusMessage,
    read_status,
    write_status,
)
from forewarn.agent.peers.network import PeerClient, PeerServer
from forewarn.agent.policy import Member
from forewarn.errors import BadPeerMessage, CannotListen

NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
EVENTS = st.builds(PeerEventStatus, NAMES, NAMES, st.sampled_from(STATES))
MESSAGES = st.builds(
    StatusMessage,
    NAMES,
    st.floats(0, 1e6),
    st.lists(EVENTS, max_size=3, unique_by=lambda event: event.id.casefold()).map(tuple),
)


@given(MESSAGES)
def test_a_message_survives_encoding_and_decoding(message: StatusMessage) -> None:
    assert read_status(write_status(message)) == message


@pytest.mark.parametrize("bad", ["x" * 300, "with\nlines", "no\u00a0break", ""])
def test_an_event_with_an_invalid_id_does_not_hide_the_others(bad: str) -> None:
    good = PeerEventStatus("one", "digest", READY)
    message = StatusMessage("web-0", 1.0, (good._replace(id=bad), good))
    assert read_status(write_status(message)).events == (good,)


def test_no_message_is_too_large_to_be_read() -> None:
    events = tuple(PeerEventStatus(f"{number:0256}", "d" * 32, READY) for number in range(1000))
    body = write_status(StatusMessage("web-0", 1.0, events))
    assert len(body) <= MAX_MESSAGE_SIZE
    assert read_status(body).events == events[:256]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["vm", "fresh", "events", "id", "resources", "state", "x"]), inner)
    ),
    max_leaves=8,
)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_an_invalid_message_is_rejected(body: bytes) -> None:
    with suppress(BadPeerMessage):
        read_status(body)


@given(MESSAGES, st.data())
def test_a_message_with_one_invalid_member_is_rejected(message: StatusMessage, data: st.DataObject) -> None:
    whole = json.loads(write_status(message))
    table = data.draw(st.sampled_from([whole, *whole["events"]]))
    name = data.draw(st.sampled_from(sorted(table)))
    wrong: object = data.draw(
        st.sampled_from([None, True, -1, 10**400, {}, [1], "x" * 300, "\n", float("nan"), float("inf")])
    )
    table[name] = wrong
    with pytest.raises(BadPeerMessage):
        read_status(json.dumps(whole).encode())


@pytest.mark.parametrize("name", ["web-1", "Größe-1", "名前", "a b%20c", "x\u0301"])
def test_names_with_any_letters_are_transmitted(name: str) -> None:
    checked: list[str] = []

    def answer(wanted: str) -> bytes:
        checked.append(wanted)
        return write_status(StatusMessage(wanted, 1.0, ()))

    server = PeerServer(listen_on("127.0.0.1", 0, CannotListen), SECRET, answer)
    server.start()
    client = PeerClient(Member(name, *server.address), SECRET, 60)
    try:
        assert client.request_status(f"{name}-2").vm == name
    finally:
        client.close()
        server.stop()
    assert checked == [name]

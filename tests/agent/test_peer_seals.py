"""Whom a circle of agents believes, and whom it tells: other secrets, old answers, strangers, slow ones."""

from __future__ import annotations

import json
import logging
import socket
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from agent.circles import EVENT, PATIENCE_SECONDS, SECRET, Party
from forewarn.agent.peers.group import Circle
from forewarn.agent.peers.messages import LARGEST, PATH, PREPARING, READY, Word, draw, seal_answer, seal_ask, write_word
from forewarn.agent.peers.network import ASKED, ASKER, NONCE, SEAL
from forewarn.agent.policy import PeersSettings
from forewarn.errors import PeersNotListening

if TYPE_CHECKING:
    from collections.abc import Callable

# Who is believed.


def test_another_secret_is_no_member(make_party: Callable[..., Party], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    party = make_party(2, secrets={"web-1": b"another secret, long enough"})
    party.say(READY)
    party.until_why("web-0", "web-1 (not heard, silent)")
    party.until_why("web-1", "web-0 (not heard, silent)")
    assert not party.may_have
    told = [record.getMessage() for record in caplog.records]
    assert told.count("web-1 does not take our secret: [peers] secret_file must be the same for all.") == 1
    assert told.count("127.0.0.1 asked as a peer and does not have our secret: it was told nothing.") == 2


def test_an_old_answer_is_not_taken_again(make_party: Callable[..., Party], caplog: pytest.LogCaptureFixture) -> None:
    party = make_party(2)
    party.say(READY)
    party.until_may("web-0")
    link = party.links["web-0", "web-1"]
    old = link.answers[-1]
    assert b'"state":"ready"' in old
    link.instead = lambda _: old
    party.until_why("web-0", "1 of 2 support this machine")
    party.until_logged(caplog, "not sealed with our secret for this request")


def test_an_answer_of_one_does_not_stand_for_another(
    make_party: Callable[..., Party], caplog: pytest.LogCaptureFixture
) -> None:
    party = make_party(3)
    party.links["web-0", "web-2"].target = party.circles["web-1"].address
    party.say(READY)
    party.until_why("web-0", "all are ready")  # the word of web-2 comes by web-1
    assert party.circles["web-0"].snapshot()["web-2"]["heard_seconds_ago"] is None
    party.until_logged(caplog, "web-2 is not what answers at 127.0.0.1:")
    party.until_logged(caplog, "web-0 takes this machine for web-2: see its [peers] members.")


def reply(seal: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{SEAL}: {seal}\r\n\r\n".encode() + body


def sealed(body: bytes) -> Callable[[bytes], bytes]:
    """Answers as a member would that has the secret, and has lost its mind."""

    def answer(request: bytes) -> bytes:
        nonce = request.partition(f"{NONCE}: ".encode())[2].partition(b"\r\n")[0].decode()
        return reply(seal_answer(SECRET, nonce, body), body)

    return answer


GOOD = write_word(Word("web-1", "run", 1, ()))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda _: b"", "does not answer as an agent does"),
        (lambda _: b"SSH-2.0-OpenSSH_9.2p1\r\n", "does not answer as an agent does"),
        (lambda _: b"\x00\xff" * 5000, "does not answer as an agent does"),
        (lambda _: b"HTTP/1.1 200 OK\r\n\r\n", "not sealed"),
        (lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{}", "does not answer as an agent does"),
        (lambda _: b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "answers with status 500"),
        (lambda _: b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "answers with status 302"),
        (lambda _: b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (LARGEST + 10_000), "the answer is too large"),
        (lambda _: reply(seal_answer(b"another", "0", GOOD), GOOD), "not sealed"),
        (sealed(b"[]"), "cannot be used: the answer is not an object"),
        (sealed(b"{" * 100_000), "cannot be used: it is not JSON"),
        (sealed(b'{"vm":"web-1","run":"r","version":-1,"events":[]}'), "version is not a whole number"),
        (sealed(write_word(Word("web-7", "run", 1, ()))), "was asked, and web-7 answers"),
    ],
)
def test_what_is_no_answer_is_said_once_and_not_believed(
    make_party: Callable[..., Party],
    caplog: pytest.LogCaptureFixture,
    answer: Callable[[bytes], bytes],
    told: str,
) -> None:
    caplog.set_level(logging.INFO)
    party = make_party(2)
    party.links["web-0", "web-1"].instead = answer
    party.say(READY)
    party.until_why("web-0", "web-1 (not heard, silent)")
    assert sum(told in record.getMessage() for record in caplog.records) == 1
    party.links["web-0", "web-1"].instead = None
    party.until_may("web-0")
    party.until_logged(caplog, "web-1 answers again.")


# Who comes to the door.


def call(address: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(address, PATIENCE_SECONDS) as link:
        link.sendall(request)
        link.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: link.recv(65536), b""))


def asking(secret: bytes = SECRET, asker: str = "web-1", asked: str = "web-0", **changes: str) -> bytes:
    nonce = draw()
    fields = {"nonce": nonce, "asker": asker, "seal": seal_ask(secret, nonce, asker, asked), **changes}
    names = {"nonce": NONCE, "asker": ASKER, "seal": SEAL}
    lines = [f"GET {PATH} HTTP/1.1", f"{ASKED}: {asked}", *(f"{names[name]}: {text}" for name, text in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def test_a_member_is_told(make_party: Callable[..., Party]) -> None:
    party = make_party(1)
    party.circles["web-0"].say(EVENT, ["web-0", "web-1"], PREPARING)
    head, _, body = call(party.circles["web-0"].address, asking()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    told = json.loads(body)
    assert [event["id"] for event in told["events"]] == [EVENT]
    assert told["events"][0]["state"] == PREPARING


@pytest.mark.parametrize(
    "request_of_a_stranger",
    [
        b"GET /v1/status HTTP/1.1\r\nHost: web-0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /v1/status HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"\r\n\r\n",
        asking(secret=b"not the secret, but long"),
        asking(seal=""),
        asking(seal="00"),
        asking(seal="\xe9" * 64),
        asking(asker="web-2", seal=seal_ask(SECRET, "0", "web-1", "web-0")),
        asking(nonce="1", seal=seal_ask(SECRET, "0", "web-1", "web-0")),
        # A seal for one machine is none for another; and no seal of an answer is one of a request.
        asking(seal=seal_answer(SECRET, "0", b"")),
        asking().replace(PATH.encode(), b"/v1/other"),
    ],
)
def test_a_stranger_learns_nothing(make_party: Callable[..., Party], request_of_a_stranger: bytes) -> None:
    party = make_party(1)
    party.circles["web-0"].say(EVENT, ["web-0", "web-1"], PREPARING)
    told = call(party.circles["web-0"].address, request_of_a_stranger)
    assert told == b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def test_a_member_that_means_another_machine_is_told_so_and_nothing_else(
    make_party: Callable[..., Party], caplog: pytest.LogCaptureFixture
) -> None:
    """Each time; in the log it is once."""
    party = make_party(1)
    for _ in range(3):
        told = call(party.circles["web-0"].address, asking(asked="web-5"))
        assert told.startswith(b"HTTP/1.1 421 ")
        assert told.endswith(b"\r\n\r\n")
    assert caplog.text.count("takes this machine for web-5") == 1


@pytest.mark.parametrize("request_without_end", [b"GET /v1/status HTTP/1.1\r\n" * 1000, b"x" * 100_000])
def test_a_request_that_is_too_large_is_cut_off(make_party: Callable[..., Party], request_without_end: bytes) -> None:
    party = make_party(1)
    # A reset is an end too, at whatever point it comes: what had not been read yet was thrown away.
    with suppress(OSError):
        assert call(party.circles["web-0"].address, request_without_end) == b""


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        circle = Circle(PeersSettings(("127.0.0.1", port), SECRET, (), timedelta(seconds=1)), "web-0", lambda: None)
        with pytest.raises(PeersNotListening, match=rf"\[peers\] listen: 127\.0\.0\.1:{port} cannot be listened on"):
            circle.start()
        circle.stop()


@pytest.mark.parametrize("host", ["192.0.2.1", "a\0b"])
def test_an_address_that_is_not_of_this_machine_is_named(host: str) -> None:
    circle = Circle(PeersSettings((host, 0), SECRET, (), timedelta(seconds=1)), "web-0", lambda: None)
    with pytest.raises(PeersNotListening, match="Name an address of this machine"):
        circle.start()


def test_it_listens_on_version_6_too() -> None:
    circle = Circle(PeersSettings(("::1", 0), SECRET, (), timedelta(seconds=1)), "web-0", lambda: None)
    circle.start()
    try:
        assert call(circle.address, asking()).startswith(b"HTTP/1.1 200 ")
    finally:
        circle.stop()

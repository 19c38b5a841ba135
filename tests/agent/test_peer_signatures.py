"""Authentication between agents: wrong secrets, replayed responses and requests, unknown senders."""

from __future__ import annotations

import json
import logging
import socket
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from agent.peer_groups import EVENT, SECRET, TIMEOUT_SECONDS, Machines, logged
from forewarn.agent.peers.group import PeerGroup
from forewarn.agent.peers.messages import (
    MAX_MESSAGE_SIZE,
    PATH,
    PREPARING,
    READY,
    StatusMessage,
    StatusRequest,
    write_status,
)
from forewarn.agent.peers.network import CHALLENGE, HEADERS, SIGNATURE, PeerClient
from forewarn.agent.policy import Member, PeersSettings
from forewarn.errors import PeersNotListening

if TYPE_CHECKING:
    from collections.abc import Callable

# Who is believed.


def test_another_secret_is_no_member(make_machines: Callable[..., Machines], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    machines = make_machines(2, secrets={"web-1": b"another secret, long enough"})
    machines.report(READY)
    machines.until_reason("web-0", "web-1 (no response, unreachable)")
    machines.until_reason("web-1", "web-0 (no response, unreachable)")
    assert not machines.may_have
    lines = logged(caplog)
    assert sum("web-1 rejects our secret. Use the same [peers] secret_file" in line for line in lines) == 1
    rejected = [line for line in lines if "peer_request_rejected: " in line]
    assert len(rejected) == 2
    assert all(line.endswith(" address=127.0.0.1") for line in rejected)


def test_a_replayed_response_is_rejected(
    make_machines: Callable[..., Machines], caplog: pytest.LogCaptureFixture
) -> None:
    machines = make_machines(2)
    machines.report(READY)
    machines.until_may("web-0")
    link = machines.links["web-0", "web-1"]
    old = link.answers[-1]
    assert b'"state":"ready"' in old
    link.instead = lambda _: old
    machines.until_reason("web-0", "web-1 (ready, unreachable)")
    machines.until_logged(caplog, "web-1 sent a response without a valid signature.")


def test_a_response_of_another_member_is_rejected(
    make_machines: Callable[..., Machines], caplog: pytest.LogCaptureFixture
) -> None:
    machines = make_machines(3)
    machines.links["web-0", "web-2"].target = machines.groups["web-1"].address
    machines.report(READY)
    machines.until_reason("web-0", "web-2 (no response, unreachable)")
    assert machines.groups["web-0"].snapshot()["web-2"]["seconds_since_last_response"] is None
    machines.until_logged(caplog, "web-2 is not the VM at 127.0.0.1:")
    machines.until_logged(caplog, "Correct the list on the peer. peer=web-0 expected_vm=web-2")


def reply(signature: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{SIGNATURE}: {signature}\r\n\r\n".encode() + body


def signed(body: bytes) -> Callable[[bytes], bytes]:
    """Return a responder that sends this body with a valid signature."""

    def answer(request: bytes) -> bytes:
        lines = dict(line.split(": ") for line in request.decode().splitlines()[1:] if line)
        *texts, _ = (lines[name] for name in HEADERS)
        return reply(StatusRequest(*texts).sign_response(SECRET, body), body)

    return answer


GOOD = write_status(StatusMessage("web-1", 1.0, ()))


@pytest.mark.parametrize(
    ("answer", "log_text"),
    [
        (lambda _: b"", "sent no valid HTTP response"),
        (lambda _: b"SSH-2.0-OpenSSH_9.2p1\r\n", "sent no valid HTTP response"),
        (lambda _: b"\x00\xff" * 5000, "sent no valid HTTP response"),
        (lambda _: b"HTTP/1.1 200 OK\r\n\r\n", "without a valid signature"),
        (lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{}", "sent no valid HTTP response"),
        (lambda _: b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "responded with status 500"),
        (lambda _: b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "responded with status 302"),
        (lambda _: b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (MAX_MESSAGE_SIZE + 10_000), "a response that is larger than"),
        (
            lambda _: reply(StatusRequest("", "0", "web-0", "web-1").sign_response(b"another", GOOD), GOOD),
            "without a valid signature",
        ),
        (signed(b"[]"), "an invalid response: the response is not an object"),
        (signed(b"{" * 100_000), "an invalid response: it is not JSON"),
        (signed(b'{"vm":"web-1","fresh":-1,"events":[]}'), "fresh is not a number of seconds"),
        (signed(write_status(StatusMessage("web-7", 1.0, ()))), "has the address of web-7"),
    ],
)
def test_an_invalid_response_is_logged_once_and_ignored(
    make_machines: Callable[..., Machines],
    caplog: pytest.LogCaptureFixture,
    answer: Callable[[bytes], bytes],
    log_text: str,
) -> None:
    caplog.set_level(logging.INFO)
    machines = make_machines(2)
    machines.links["web-0", "web-1"].instead = answer
    machines.report(READY)
    machines.until_reason("web-0", "web-1 (no response, unreachable)")
    assert sum(log_text in line for line in logged(caplog)) == 1
    machines.links["web-0", "web-1"].instead = None
    machines.until_may("web-0")
    machines.until_logged(caplog, "peer_recovered: The peer responds again. peer=web-1")


# Who comes to the door.


def call(address: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(address, TIMEOUT_SECONDS) as link:
        link.sendall(request)
        link.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: link.recv(65536), b""))


def asking(secret: bytes = SECRET, receiver: str = "web-0", challenge: str = "", **changes: str) -> bytes:
    request = StatusRequest(challenge, "0", "web-1", receiver)
    names = (name.removeprefix("forewarn-") for name in HEADERS)
    fields = {**dict(zip(names, (*request, request.sign(secret)), strict=True)), **changes}
    lines = [f"GET {PATH} HTTP/1.1", *(f"forewarn-{name}: {text}" for name, text in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def challenge_of(address: tuple[str, int]) -> str:
    """Return the challenge: a request without one gets it, and nothing else."""
    head = call(address, asking()).decode()
    return head.partition(f"{CHALLENGE}: ")[2].partition("\r\n")[0]


def test_a_member_gets_a_response(make_machines: Callable[..., Machines]) -> None:
    machines = make_machines(1)
    group = machines.groups["web-0"]
    group.report(EVENT, ["web-0", "web-1"], PREPARING)
    head, _, body = call(group.address, asking(challenge=challenge_of(group.address))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    status = json.loads(body)
    assert [event["id"] for event in status["events"]] == [EVENT]
    assert status["events"][0]["state"] == PREPARING


def test_a_replayed_request_gets_no_response(make_machines: Callable[..., Machines]) -> None:
    """This includes a captured request, also after a restart of the receiver."""
    machines = make_machines(2)
    machines.report(READY)
    machines.until_may("web-0")
    link, address = machines.links["web-0", "web-1"], machines.groups["web-1"].address
    assert any(b" 200 OK" in answer for answer in link.answers)
    captured = list(link.requests)
    for request in captured:
        assert call(address, request).startswith(b"HTTP/1.1 401 ")
    machines.stop("web-1")
    address = machines.start("web-1").address
    for request in captured:
        assert call(address, request).startswith(b"HTTP/1.1 401 ")


def test_there_is_a_new_challenge_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, make_machines: Callable[..., Machines]
) -> None:
    """So the server has to remember few questions, and the peers learn it by themselves."""
    monkeypatch.setattr("forewarn.agent.peers.network._MAX_NONCES", 2)
    address = make_machines(1).groups["web-0"].address
    client = PeerClient(Member("web-0", *address), SECRET, TIMEOUT_SECONDS)
    seen = set()
    for _ in range(6):
        client.request_status("web-1")
        seen.add(challenge_of(address))
    assert len(seen) > 2
    client.close()


QUESTION = StatusRequest("", "0", "web-1", "web-0")


@pytest.mark.parametrize(
    "request_of_a_stranger",
    [
        b"GET /v1/status HTTP/1.1\r\nHost: web-0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /v2/status HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"\r\n\r\n",
        asking(),
        asking(secret=b"not the secret, but long"),
        asking(signature=""),
        asking(signature="00"),
        asking(signature="\xe9" * 64),
        asking(asker="web-2"),
        asking(nonce="1"),
        # A signature for one machine is none for another; and no signature of an answer is one of a question.
        asking(signature=QUESTION._replace(receiver="web-2").sign(SECRET)),
        asking(signature=QUESTION.sign_response(SECRET, b"")),
        asking().replace(PATH.encode(), b"/v2/other"),
    ],
)
def test_an_unknown_sender_gets_no_information(
    make_machines: Callable[..., Machines], request_of_a_stranger: bytes
) -> None:
    machines = make_machines(1)
    group = machines.groups["web-0"]
    group.report(EVENT, ["web-0", "web-1"], PREPARING)
    challenge = challenge_of(group.address)
    head = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close"
    response = f"{head}\r\n{CHALLENGE}: {challenge}\r\n\r\n"
    assert call(group.address, request_of_a_stranger) == response.encode()
    right = request_of_a_stranger.replace(f"{CHALLENGE}: ".encode(), f"{CHALLENGE}: {challenge}".encode())
    assert call(group.address, right) == response.encode()


def test_a_request_for_another_machine_gets_only_that_error(
    make_machines: Callable[..., Machines], caplog: pytest.LogCaptureFixture
) -> None:
    """Each time; in the log it is once."""
    machines = make_machines(1)
    address = machines.groups["web-0"].address
    challenge = challenge_of(address)
    for number in range(3):
        question = StatusRequest(challenge, str(number), "web-1", "web-5")
        signature = question.sign(SECRET)
        response = call(address, asking(receiver="web-5", challenge=challenge, nonce=str(number), signature=signature))
        assert response.startswith(b"HTTP/1.1 421 ")
        assert response.endswith(b"\r\n\r\n")
    assert sum("expected_vm=web-5" in line for line in logged(caplog)) == 1


@pytest.mark.parametrize("request_without_end", [b"GET /v2/status HTTP/1.1\r\n" * 1000, b"x" * 100_000])
def test_a_request_that_is_too_large_is_cut_off(
    make_machines: Callable[..., Machines], request_without_end: bytes
) -> None:
    machines = make_machines(1)
    # A reset is an end too, at whatever point it comes: what had not been read yet was thrown away.
    with suppress(OSError):
        assert call(machines.groups["web-0"].address, request_without_end) == b""


def settings(host: str, port: int) -> PeersSettings:
    return PeersSettings((host, port), SECRET, (), timedelta(seconds=1))


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PeersNotListening, match=rf"\[peers\] listen: cannot listen on 127\.0\.0\.1:{port}"):
            PeerGroup(settings("127.0.0.1", port), lambda: None)


@pytest.mark.parametrize("host", ["192.0.2.1", "a\0b"])
def test_an_address_that_is_not_of_this_machine_is_named(host: str) -> None:
    with pytest.raises(PeersNotListening, match="Use an address of this VM"):
        PeerGroup(settings(host, 0), lambda: None)


def test_a_group_that_was_never_started_releases_its_address() -> None:
    group = PeerGroup(settings("127.0.0.1", 0), lambda: None)
    group.stop()
    socket.create_server(group.address).close()


def test_it_listens_on_version_6_too() -> None:
    group = PeerGroup(settings("::1", 0), lambda: None)
    group.start("web-0")
    try:
        assert call(group.address, asking(challenge=challenge_of(group.address))).startswith(b"HTTP/1.1 200 ")
    finally:
        group.stop()

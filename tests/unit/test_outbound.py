"""One POST to a real receiver: which responses count as delivered, and which addresses are blocked."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from counted_turns import CountedLoop, longest_turn

from forewarn.core.webhooks import AllowedNetworks, parse_allowed_networks
from forewarn.delivery.outbound import MAX_REDIRECTS, TOO_LONG, DeliveryOutcome, OutboundClient
from webhook_receiver import Receiver, Reply, authority_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCAL = parse_allowed_networks("127.0.0.1/32")
HEADERS = {"Content-Type": "application/cloudevents+json", "X-Own": "yes"}
DELIVERED = DeliveryOutcome(delivered=True, status=200)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def secure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Receiver]:
    """A receiver with TLS, whose certificate this process trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", authority_file(tmp_path))
    made = Receiver(tls=True)
    yield made
    made.close()


async def send(
    url: str, targets: AllowedNetworks = LOCAL, *, seconds: float = 30, body: bytes = b"{}"
) -> DeliveryOutcome:
    outbound = OutboundClient(targets, seconds)
    try:
        return await outbound.post(url, HEADERS, body)
    finally:
        await outbound.close()


@contextmanager
def resolving(monkeypatch: pytest.MonkeyPatch, name: str, *answers: list[str]) -> Iterator[list[str]]:
    """Have a name look up to these addresses, one list after the other: a resolver in the attacker's hand."""
    resolved: list[str] = []
    real = socket.getaddrinfo
    left = list(answers)

    def getaddrinfo(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != name:
            return real(host, port, *args, **options)
        resolved.append(host)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield resolved


async def test_the_request_that_is_sent(receiver: Receiver) -> None:
    assert await send(receiver.url("/hook?key=1"), body=b'{"a":"\xc3\xa4"}') == DELIVERED
    (got,) = receiver.got
    assert (got.path, got.body) == ("/hook?key=1", b'{"a":"\xc3\xa4"}')
    assert got.headers["x-own"] == "yes"
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert got.headers["user-agent"].startswith("Forewarn/")
    assert got.headers["content-length"] == "10"


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_every_success_is_a_delivery(receiver: Receiver, status: int) -> None:
    receiver.respond = lambda _: Reply(status)
    assert await send(receiver.url()) == DeliveryOutcome(delivered=True, status=status)


@pytest.mark.parametrize("status", [300, 303, 304, 400, 401, 404, 410, 429, 500, 503])
async def test_any_other_status_is_a_failure(receiver: Receiver, status: int) -> None:
    receiver.respond = lambda _: Reply(status, {"Location": "/other"})
    assert await send(receiver.url()) == DeliveryOutcome(delivered=False, status=status, error=f"HTTP {status}")
    assert len(receiver.got) == 1


async def test_a_redirect_without_a_place_is_a_failure(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(307)
    assert (await send(receiver.url())).error == "HTTP 307"


async def test_a_receiver_that_hangs_is_left_after_its_time(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(hang=True)
    outcome = await send(receiver.url(), seconds=0.2)
    assert outcome == DeliveryOutcome(delivered=False, error="no response within 0.2 seconds")


async def test_a_receiver_that_resets_rejects_or_sends_invalid_http(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(reset=True)
    outcome = await send(receiver.url())
    assert not outcome.delivered
    assert outcome.error in ("Connection reset by peer", "Server disconnected without sending a response.")
    receiver.close()
    outcome = await send(receiver.url())
    assert not outcome.delivered
    assert outcome.error == "Connection refused"
    with socket.create_server(("127.0.0.1", receiver.port)) as listener:
        posting = asyncio.create_task(send(receiver.url()))
        connection, _ = await asyncio.to_thread(listener.accept)
        connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        outcome = await posting
        connection.close()
    assert not outcome.delivered
    assert outcome.error
    receiver.open()
    receiver.respond = lambda _: Reply()
    assert await send(receiver.url()) == DELIVERED


async def test_only_the_status_counts_however_long_the_body_is(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(flood=b"x")
    assert await send(receiver.url()) == DELIVERED
    assert await asyncio.to_thread(receiver.flood_over.wait, 60)
    assert receiver.flooded < 20_000_000, "it reads on and on"  # what the system keeps on the way is a part of it
    receiver.respond = lambda _: Reply(endless=True)
    assert await send(receiver.url(), seconds=0.5) == DELIVERED


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": CountedLoop}


MAX_CALLS = 50_000
"""In one turn of the event loop: a few milliseconds."""
CONTINUE = Reply(100, flood=b"HTTP/1.1 100 \r\n\r\n")
SMALL_CHUNKS = Reply(headers={"Transfer-Encoding": "chunked"}, flood=b"1\r\nx\r\n")
MANY_HEADERS = Reply(headers={f"{each}": "" for each in range(1000)})


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (CONTINUE, DeliveryOutcome(delivered=False, error=TOO_LONG)),
        (MANY_HEADERS, DELIVERED),
        (SMALL_CHUNKS, DELIVERED),
    ],
    ids=["100 Continue", "many headers", "chunks of one byte"],
)
async def test_a_hostile_response_keeps_the_event_loop_only_for_short_turns(
    receiver: Receiver, secure: Receiver, reply: Reply, outcome: DeliveryOutcome, scheme: str
) -> None:
    """However many receivers send one."""
    hostile = receiver if scheme == "http" else secure
    outbound = OutboundClient(LOCAL, 30)
    assert await outbound.post(hostile.url(), HEADERS, b"{}") == DELIVERED  # imports what it needs
    hostile.respond = lambda _: reply
    with longest_turn() as turns:
        outcomes = await asyncio.gather(*(outbound.post(hostile.url(), HEADERS, b"{}") for _ in range(20)))
    await outbound.close()
    assert turns.longest < MAX_CALLS
    assert set(outcomes) == {outcome}


async def test_a_connection_is_used_again(receiver: Receiver) -> None:
    outbound = OutboundClient(LOCAL, 30)
    for _ in range(3):
        assert await outbound.post(receiver.url(), HEADERS, b"{}") == DELIVERED
    receiver.close()  # the receiver has gone: the connection of before is of no use
    receiver.open()
    outcomes = [await outbound.post(receiver.url(), HEADERS, b"{}") for _ in range(2)]
    assert outcomes[-1] == DELIVERED
    await outbound.close()


# --- Redirects --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_followed_with_the_same_request(receiver: Receiver, other: Receiver, status: int) -> None:
    receiver.respond = lambda _: Reply(status, {"Location": other.url("/there")})
    assert await send(receiver.url(), body=b'{"a":1}') == DELIVERED
    (got,) = other.got
    assert (got.path, got.body, got.headers["x-own"]) == ("/there", b'{"a":1}', "yes")


async def test_a_redirect_may_be_relative(receiver: Receiver) -> None:
    receiver.respond = lambda got: Reply() if got.path == "/there" else Reply(307, {"Location": "there"})
    assert await send(receiver.url("/here")) == DELIVERED


async def test_a_redirect_to_an_invalid_url_is_a_failure(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(307, {"Location": "http://["})
    assert (await send(receiver.url())).error == "redirect to an invalid URL"


async def test_redirects_that_never_end_are_a_failure(receiver: Receiver) -> None:
    receiver.respond = lambda got: Reply(307, {"Location": got.path})
    outcome = await send(receiver.url())
    assert outcome == DeliveryOutcome(delivered=False, status=307, error="more than 3 redirects")
    assert len(receiver.got) == MAX_REDIRECTS + 1


@pytest.mark.parametrize("location", ["http://127.0.0.2:{}/", "http://[::1]:{}/", "http://[::ffff:127.0.0.2]:{}/"])
async def test_a_redirect_to_a_forbidden_address_is_not_followed(
    receiver: Receiver, other: Receiver, location: str
) -> None:
    receiver.respond = lambda _: Reply(307, {"Location": location.format(other.port)})
    outcome = await send(receiver.url())
    assert not outcome.delivered
    assert "webhook_private_networks" in outcome.error
    assert other.got == []


async def test_a_redirect_to_a_name_with_a_forbidden_address_is_not_followed(
    receiver: Receiver, other: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.respond = lambda _: Reply(307, {"Location": f"http://evil.example:{other.port}/"})
    with resolving(monkeypatch, "evil.example", ["127.0.0.2"]) as resolved:
        outcome = await send(receiver.url())
    assert resolved
    assert "evil.example (127.0.0.2)" in outcome.error
    assert other.got == []


@pytest.mark.parametrize(
    "location", ["ftp://127.0.0.1/", "http://me:pw@127.0.0.1/", "file:///etc/passwd", "http://\xe4/"]
)
async def test_a_redirect_to_an_invalid_target_is_a_failure(receiver: Receiver, location: str) -> None:
    receiver.respond = lambda _: Reply(302, {"Location": location})
    outcome = await send(receiver.url())
    assert "Invalid webhook URL" in outcome.error


# --- Names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]", "[::1]"])
async def test_loopback_by_any_name_is_forbidden_unless_allowed(receiver: Receiver, host: str) -> None:
    outcome = await send(receiver.url(host=host), AllowedNetworks())
    assert not outcome.delivered
    assert "webhook_private_networks" in outcome.error
    assert receiver.got == []


async def test_a_name_is_allowed_only_if_all_of_its_addresses_are(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with resolving(monkeypatch, "two.example", ["127.0.0.1", "127.0.0.2"]):
        outcome = await send(receiver.url(host="two.example"))
    assert "two.example (127.0.0.2)" in outcome.error
    assert receiver.got == []
    with resolving(monkeypatch, "one.example", ["127.0.0.1"]):
        assert await send(receiver.url(host="one.example")) == DELIVERED
    assert receiver.got[0].headers["host"] == f"one.example:{receiver.port}"


async def test_the_address_that_was_judged_is_the_one_that_is_called(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is resolved only once, so a second address for it cannot bypass the check (DNS rebinding)."""
    with resolving(monkeypatch, "rebinding.example", ["127.0.0.1"], ["127.0.0.2"]) as resolved:
        assert await send(receiver.url(host="rebinding.example")) == DELIVERED
    assert len(resolved) == 1


async def test_the_next_address_is_tried_if_one_does_not_respond(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with resolving(monkeypatch, "two.example", ["127.0.0.2", "127.0.0.1"]):
        assert await send(receiver.url(host="two.example"), parse_allowed_networks("127.0.0.0/30")) == DELIVERED


async def test_only_the_first_addresses_of_a_name_are_checked_and_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server can return thousands."""
    answer = [f"127.0.{number // 250}.{number % 250 + 1}" for number in range(4000)]
    outbound = OutboundClient(parse_allowed_networks("127.0.0.0/8"), 30)
    assert await outbound.post(receiver.url(), HEADERS, b"{}") == DELIVERED  # imports what it needs
    with resolving(monkeypatch, "many.example", answer), longest_turn() as turns:
        assert await outbound.post(receiver.url(host="many.example"), HEADERS, b"{}") == DELIVERED
    await outbound.close()
    assert turns.longest < MAX_CALLS


async def test_an_unknown_host_name() -> None:
    outcome = await send("http://nothing.invalid/")
    assert "Cannot resolve the host name nothing.invalid" in outcome.error
    outcome = await send(f"http://{'a' * 64}.example/")
    assert "Cannot resolve" in outcome.error


async def test_a_hanging_resolver_blocks_no_other_delivery(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    real, release = socket.getaddrinfo, asyncio.Event()
    loop = asyncio.get_running_loop()
    resolved: list[str] = []

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        if host != "slow.example":
            return real(host, *args, **options)
        resolved.append(host)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        outbound = OutboundClient(LOCAL, 2)
        slow = [outbound.post("http://slow.example/", HEADERS, b"{}") for _ in range(20)]
        fast = outbound.post(receiver.url(), HEADERS, b"{}")
        *late, in_time = await asyncio.gather(*slow, fast)
        assert in_time == DELIVERED
        assert {outcome.error for outcome in late} == {"no response within 2 seconds"}
        assert len(resolved) == 1, "simultaneous connections to one name share its lookup"
        release.set()
        await outbound.close()


# --- TLS --------------------------------------------------------------------------------------------------------


async def test_a_certificate_that_is_trusted_and_for_that_name(secure: Receiver) -> None:
    assert await send(secure.url()) == DELIVERED
    assert await send(secure.url(host="localhost"), AllowedNetworks(everything=True)) == DELIVERED


async def test_a_certificate_for_another_name_is_rejected(secure: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with resolving(monkeypatch, "bank.example", ["127.0.0.1"]):
        outcome = await send(secure.url(host="bank.example"))
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.error
    assert secure.got == []


async def test_an_untrusted_certificate_is_rejected(secure: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    outcome = await send(secure.url())
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.error
    assert secure.got == []


async def test_https_is_never_left_for_http(secure: Receiver, receiver: Receiver) -> None:
    secure.respond = lambda _: Reply(307, {"Location": receiver.url()})
    for url in (secure.url(), secure.url().replace("https", "HTTPS")):
        outcome = await send(url)
        assert "https to http" in outcome.error
    assert receiver.got == []
    receiver.respond = lambda _: Reply(307, {"Location": secure.url("/there")})
    secure.respond = lambda _: Reply()
    assert await send(receiver.url()) == DELIVERED

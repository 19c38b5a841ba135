"""The control API and clients without a token: they flood, stall or never read, also during a stop."""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from forewarn.testing import ServiceProcess
from golden.exchange import Line, Reply, request, stop_cleanly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VMS = b"GET /v1/vms HTTP/1.1\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\n\r\n"
CHUNKED = ("Transfer-Encoding", "chunked")
GROWTH_KB = 30 * 1024
PUSHED_AT_MOST = 64 * 1024 * 1024
SHORTER_THAN_THE_GRACE = 8
SIGN_IN_LIMIT = 16_384
BODY_SECONDS = 10


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    running = ServiceProcess(tmp_path_factory.mktemp("hostile-control")).start("--clock", "virtual")
    running.document()
    yield running
    stop_cleanly(running)


def control_line(service: ServiceProcess) -> Line:
    return Line(service, address=service.control_address)


def bearer(service: ServiceProcess) -> tuple[str, str]:
    return ("Authorization", f"Bearer {service.token}")


def resident_kb(service: ServiceProcess) -> int:
    assert service.process is not None
    lines = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def push(line: Line, block: bytes, most: int = PUSHED_AT_MOST) -> int:
    """Send the block again and again, until it is not taken for a second, or the server has closed."""
    line.socket.setblocking(False)
    pushed = 0
    try:
        while pushed < most and select.select([], [line.socket], [], 1)[1]:
            pushed += line.socket.send(block[pushed % len(block) :])
    except ConnectionError:
        pass
    line.socket.settimeout(20)
    return pushed


def is_problem(reply: Reply, status: int) -> bool:
    assert reply.header("content-type") == "application/problem+json"
    assert reply.header("connection") == "close"
    assert reply.header("date") is not None
    details = json.loads(reply.body)
    return (reply.status, details["status"], details["title"]) == (status, status, "Invalid")


# --- Floods ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [VMS, HEALTH], ids=["refused", "answered"])
def test_clients_that_never_read_do_not_grow_the_service(service: ServiceProcess, unit: bytes) -> None:
    before = resident_kb(service)
    lines = [control_line(service) for _ in range(6)]
    try:
        for line in lines:
            line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            assert push(line, unit * 40_000) < PUSHED_AT_MOST
        assert service.request().status == 200
        assert service.control("GET", "/v1/vms").status == 200
        assert resident_kb(service) - before < GROWTH_KB
    finally:
        for line in lines:
            line.socket.close()


ENDLESS = {
    "target": (b"GET /", b"a" * 100_000),
    "header": (b"GET /v1/vms HTTP/1.1\r\nX-Large: ", b"a" * 100_000),
    "headers": (b"GET /v1/vms HTTP/1.1\r\n", b"X-Large: aaaaaaaaaaaaaaaaaaaaa\r\n" * 3000),
    "trailer": (request("PUT", "/v1/fleet", (CHUNKED,), b"1\r\n#\r\n0\r\nX-Large: "), b"a" * 100_000),
    "chunk extension": (request("PUT", "/v1/fleet", (CHUNKED,), b"1;a="), b"a" * 100_000),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_header_uses_no_memory(service: ServiceProcess, name: str) -> None:
    before = resident_kb(service)
    begin, rest = ENDLESS[name]
    with control_line(service) as line:
        line.send(begin)
        assert push(line, rest) < PUSHED_AT_MOST
        line.rest()  # it has closed the connection
    assert resident_kb(service) - before < GROWTH_KB


def test_a_body_above_the_maximum_is_aborted_and_uses_no_memory(service: ServiceProcess) -> None:
    before = resident_kb(service)
    most = 512 * 1024 * 1024
    with control_line(service) as line:
        line.send(request("PUT", "/v1/fleet", (CHUNKED,)))
        assert push(line, b"10000\r\n" + b"#" * 0x10000 + b"\r\n", most) < most
    assert resident_kb(service) - before < GROWTH_KB


ORIGIN = ("Origin", "http://169.254.169.254")


def wrong_bearer() -> tuple[str, str]:
    return ("Authorization", "Bearer fw_wrong")


@pytest.mark.parametrize("framed", ["length", "chunks"])
@pytest.mark.parametrize("target", ["sign-in", "no token", "wrong token"])
def test_bodies_without_a_token_use_no_memory(
    make_service: Callable[..., ServiceProcess], target: str, framed: str
) -> None:
    """Bodies of 1 MB that never end. A wrong token may be answered late, but its body is not collected meanwhile."""
    service = make_service()
    method, path = ("POST", "/v1/session") if target == "sign-in" else ("PUT", "/v1/fleet")
    headers = [wrong_bearer()] if target == "wrong token" else [ORIGIN]
    headers.append(("Content-Length", "1048577") if framed == "length" else CHUNKED)
    begin = request(method, path, tuple(headers))
    body = b"#" * 1_048_576 if framed == "length" else b"100000\r\n" + b"#" * 0x100000
    lines = [control_line(service) for _ in range(300)]
    before = resident_kb(service)
    grown = 0
    try:
        for line in lines:
            line.send(begin)
            push(line, body, len(body))
            grown = max(grown, resident_kb(service) - before)
        assert grown < GROWTH_KB
        statuses = {line.read_response().status for line in lines[:10]}
        assert statuses == ({413} if target == "sign-in" else {401})
    finally:
        for line in lines:
            line.socket.close()


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "large",
    [
        request("GET", "/v1/vms", (("X-Large", "a" * 16_384),)),
        request("GET", "/v1/vms", tuple((f"X-{number}", "a" * 20) for number in range(700))),
        request("GET", "/v1/vms?" + "a" * 16_384),
    ],
    ids=["header", "headers", "target"],
)
def test_a_header_that_is_too_large_is_rejected(service: ServiceProcess, large: bytes) -> None:
    with control_line(service) as line:
        assert is_problem(line.exchange(large), 431)
        assert line.rest() == b""


def test_a_head_that_is_large_enough_is_served(service: ServiceProcess) -> None:
    with control_line(service) as line:
        assert line.exchange(request("GET", "/v1/vms", (bearer(service), ("X-Large", "a" * 16_000)))).status == 200


@pytest.mark.parametrize(
    "strange",
    [b"\x00\x01 rubbish\r\n\r\n", b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"],
    ids=["rubbish", "CONNECT", "HTTP/9.9"],
)
def test_an_invalid_request_is_rejected(service: ServiceProcess, strange: bytes) -> None:
    with control_line(service) as line:
        assert is_problem(line.exchange(strange), 400)
        assert line.rest() == b""
    with control_line(service) as line:
        line.send(HEALTH + strange)
        assert line.read_response().status == 200


@pytest.mark.parametrize("framed", ["length", "chunks"])
def test_a_large_body_of_a_sign_in_is_rejected_before_its_end(service: ServiceProcess, framed: str) -> None:
    size = SIGN_IN_LIMIT + 1
    fits, begin = b" " * SIGN_IN_LIMIT, request("POST", "/v1/session", (ORIGIN, CHUNKED))
    with control_line(service) as line:
        if framed == "length":
            reply = line.exchange(request("POST", "/v1/session", (ORIGIN, ("Content-Length", "1000000")), b" " * size))
        else:
            reply = line.exchange(begin + b"%x\r\n%b\r\n" % (size, b" " * size))
        problem = json.loads(reply.body)
        assert (reply.status, problem["status"], problem["title"]) == (413, 413, "Invalid")
        assert f"{SIGN_IN_LIMIT:,} bytes" in problem["detail"]
    with control_line(service) as line:
        body = fits if framed == "length" else b"%x\r\n%b\r\n0\r\n\r\n" % (len(fits), fits)
        kind = (ORIGIN,) if framed == "length" else (ORIGIN, CHUNKED)
        assert line.exchange(request("POST", "/v1/session", kind, body)).status == 400, "not JSON, but not too large"
        assert line.exchange(HEALTH).status == 200


def test_a_body_above_the_maximum_of_its_route_is_rejected(service: ServiceProcess) -> None:
    with control_line(service) as line:
        reply = line.exchange(request("POST", "/v1/operations", (bearer(service),), b" " * 1_048_577))
        assert (reply.status, json.loads(reply.body)["type"]) == (413, "urn:forewarn:BodyTooLarge")
        assert "1,048,576 bytes" in json.loads(reply.body)["detail"]


def test_a_body_without_a_valid_token_is_not_asked_for(service: ServiceProcess) -> None:
    headers = (("Content-Length", "1000000"), ("Expect", "100-continue"))
    for known, status in (((), 401), ((wrong_bearer(),), 401), ((bearer(service),), 100)):
        with control_line(service) as line:
            assert line.exchange(request("PUT", "/v1/fleet", (*known, *headers))).status == status


def with_host(service: ServiceProcess, target: str, host: str | None) -> bytes:
    """Return a request with this Host header only, or with none."""
    sent = f"Host: {host}\r\n" if host is not None else ""
    return f"GET {target} HTTP/1.1\r\n{sent}Authorization: Bearer {service.token}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("http://evil.example.org/v1/vms", "127.0.0.1"),
        ("http://127.0.0.1@evil.example.org/v1/vms", "127.0.0.1"),
        ("http://127.0.0.1:80/v1/vms", "127.0.0.1:81"),
        ("HTTP://evil.example.org/v1/vms", "127.0.0.1"),
        ("https://evil.example.org?/v1/vms", "127.0.0.1"),
        ("http://evil.example.org/v1/vms", "evil.example.org"),
        ("http://127.0.0.1/v1/vms", None),
    ],
)
def test_a_target_with_another_host_is_rejected_like_a_wrong_host(
    service: ServiceProcess, target: str, host: str | None
) -> None:
    with control_line(service) as line:
        reply = line.exchange(with_host(service, target, host))
        assert (reply.status, json.loads(reply.body)["type"]) == (421, "urn:forewarn:UnknownHostName")


def test_a_target_with_the_host_of_the_header_is_served(service: ServiceProcess) -> None:
    with control_line(service) as line:
        for target in ("http://LocalHost:1/v1/vms", "/v1/vms"):
            assert line.exchange(with_host(service, target, "localhost:1")).status == 200


def test_a_body_with_broken_chunks_has_no_effect(service: ServiceProcess) -> None:
    before = service.get_json("/v1/fleet")
    whole = b'[[vm]]\nname = "only"\n'
    with control_line(service) as line:
        broken = b"%x\r\n%b\r\nzz\r\n" % (len(whole), whole)
        reply = line.exchange(request("PUT", "/v1/fleet?force=true", (bearer(service), CHUNKED), broken))
        assert is_problem(reply, 400)
        assert "chunked" in json.loads(reply.body)["detail"]
    assert service.get_json("/v1/fleet") == before


# --- What is in order goes on ---------------------------------------------------------------------


def test_responses_keep_the_order_of_the_requests(service: ServiceProcess) -> None:
    known = (bearer(service),)
    kinds = (
        (HEALTH, 200),
        (VMS, 401),
        (request("GET", "/v1/clock", known), 200),
        (request("GET", "/v1/vms/nobody", known), 404),
        (request("POST", "/v1/operations", known, b"{}"), 400),
        (request("DELETE", "/v1/clock", known), 405),
    )
    rounds = 200
    with control_line(service) as line:
        sender = threading.Thread(target=line.send, args=(b"".join(one for one, _ in kinds) * rounds,))
        sender.start()
        for _ in range(rounds):
            assert [line.read_response().status for _ in kinds] == [status for _, status in kinds]
        sender.join()


@pytest.mark.parametrize("framed", ["length", "chunks"])
def test_a_large_fleet_can_arrive_in_small_pieces(make_service: Callable[..., ServiceProcess], framed: str) -> None:
    service = make_service()
    fleet = ("#" * 70 + "\n") * 30_000 + '[[vm]]\nname = "vm-{n}"\ncount = 500\n'
    text = fleet.encode()
    parts = [text[place : place + 1000] for place in range(0, len(text), 1000)]
    headers: tuple[tuple[str, str], ...] = (bearer(service), ("Content-Length", str(len(text))))
    if framed == "chunks":
        headers = (bearer(service), CHUNKED)
        parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]
    with control_line(service) as line:
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.send(request("PUT", "/v1/fleet?force=true", headers))
        for part in parts:
            line.send(part)
        assert line.read_response().status == 200
        assert line.exchange(HEALTH).status == 200
    assert service.get_json("/v1/fleet")["vms"] == 500


# --- Slow -----------------------------------------------------------------------------------------


def test_requests_that_never_finish_are_closed(service: ServiceProcess) -> None:
    """Waits for the server's own deadline; all of them at once, since it takes its seconds."""
    known = bearer(service)
    unfinished = {
        VMS[:1]: b"",
        VMS[:9]: b"",
        VMS[:-2] + b"X-Half": b"",
        HEALTH + HEALTH[:-1]: b"HTTP/1.1 200",
        request("PUT", "/v1/fleet", (known, ("Content-Length", "100")), b"half"): b"HTTP/1.1 408",
        request("PUT", "/v1/fleet", (("Content-Length", "100"),), b"half"): b"HTTP/1.1 401",
        request("POST", "/v1/operations", (known, CHUNKED), b"5\r\n{"): b"HTTP/1.1 408",
    }
    lines = [control_line(service) for _ in unfinished]
    for line, data in zip(lines, unfinished, strict=True):
        line.send(data)
    ends = [line.rest() for line in lines]
    assert [end[:12] for end in ends] == list(unfinished.values())
    for line in lines:
        line.socket.close()
    assert service.control("GET", "/v1/vms").status == 200


def test_a_body_of_which_a_byte_arrives_now_and_then_has_a_deadline(service: ServiceProcess) -> None:
    """Waits for the server's own deadline, with all of them at once."""
    known, length = bearer(service), ("Content-Length", "1000")
    slow = {
        request("POST", "/v1/session", (ORIGIN, length)): (b" ", 408),
        request("POST", "/v1/session", (ORIGIN, CHUNKED)): (b"1\r\n \r\n", 408),
        request("POST", "/v1/operations", (known, length)): (b" ", 408),
        request("PUT", "/v1/fleet", (known, CHUNKED)): (b"1\r\n#\r\n", 408),
        request("PUT", "/v1/fleet", (length,)): (b"#", 401),
        request("PUT", "/v1/fleet", (wrong_bearer(), length)): (b"#", 401),
    }
    lines = {control_line(service): each for each in slow.items()}
    for line, (begin, _) in lines.items():
        line.send(begin)
    ends, until = dict[Line, bytes](), time.monotonic() + 2 * BODY_SECONDS
    received = dict.fromkeys(lines, b"")
    while len(ends) < len(lines) and time.monotonic() < until:
        for line, (_, (part, _)) in lines.items():
            if line not in ends:
                with suppress(ConnectionError):
                    line.send(part)
        for ready in select.select([line.socket for line in lines if line not in ends], [], [], 0.5)[0]:
            line = next(each for each in lines if each.socket is ready)
            try:
                data = line.socket.recv(65536)
            except ConnectionError:
                data = b""
            received[line] += data
            if not data:
                ends[line] = received[line]
    for line, (begin, (_, status)) in lines.items():
        line.socket.close()
        assert line in ends, begin
        assert ends[line].startswith(b"HTTP/1.1 %d" % status), begin
        if status == 408:
            head, _, body = ends[line].partition(b"\r\n\r\n")
            assert is_problem(Reply(head, body), 408)
            assert f"{BODY_SECONDS} seconds" in json.loads(body)["detail"]
    assert service.control("GET", "/v1/vms").status == 200


# --- TLS and stops --------------------------------------------------------------------------------


class TlsService:
    """A service with a certificate, and connections to it whose clients do nothing of themselves."""

    def __init__(self, make_service: Callable[..., ServiceProcess], folder: Path) -> None:
        authority = trustme.CA()
        pem = folder / "both.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
        self.service = make_service("--tls-certificate", str(pem))
        self._context = ssl.create_default_context()
        authority.configure_trust(self._context)
        word = json.loads((Path(self.service.data) / "service.json").read_text())
        host, _, port = word["control"].removeprefix("https://").rpartition(":")
        self.address = (host, int(port))

    def bare_line(self) -> Line:
        return Line(self.service, address=self.address)

    def line(self) -> Line:
        line = self.bare_line()
        line.socket = self._context.wrap_socket(line.socket, server_hostname="127.0.0.1")
        return line


@pytest.fixture
def over_tls(make_service: Callable[..., ServiceProcess], tmp_path: Path) -> TlsService:
    return TlsService(make_service, tmp_path)


def stop_at_once(service: ServiceProcess) -> None:
    """A stop that does not use up the grace of requests under way."""
    assert service.process is not None
    service.process.terminate()
    assert service.process.wait(SHORTER_THAN_THE_GRACE) == 0
    service.stop()
    assert "graceful" not in service.output
    assert "Traceback" not in service.output


def test_a_tls_handshake_that_does_not_complete_is_closed(over_tls: TlsService) -> None:
    """Waits for the server's own deadline."""
    hello = bytes.fromhex("16030100c8010000c40303")
    with over_tls.bare_line() as silent, over_tls.bare_line() as half, over_tls.line() as stalled:
        half.send(hello)
        stalled.send(VMS[:9])
        assert [line.rest() for line in (silent, half)] == [b"", b""]
        with pytest.raises((ssl.SSLEOFError, ConnectionError)):  # cut off, without TLS's farewell
            stalled.read_response()
    with over_tls.line() as line:
        assert line.exchange(HEALTH).status == 200


def test_over_tls_clients_that_never_read_use_no_memory(over_tls: TlsService) -> None:
    before = resident_kb(over_tls.service)
    with over_tls.line() as line:
        line.socket.setblocking(False)
        block, pushed = VMS * 400, 0
        try:
            while pushed < PUSHED_AT_MOST and select.select([], [line.socket], [], 1)[1]:
                pushed += line.socket.send(block)
        except ssl.SSLWantWriteError:
            pass  # no room even for a part of it: nothing is taken any more
        assert pushed < PUSHED_AT_MOST
        assert resident_kb(over_tls.service) - before < GROWTH_KB
        stop_at_once(over_tls.service)


def test_a_stop_does_not_wait_for_idle_tls_clients(over_tls: TlsService) -> None:
    with over_tls.line() as idle, over_tls.line() as silent, over_tls.bare_line():
        assert idle.exchange(HEALTH).status == 200
        assert silent.socket.fileno() > 0
        stop_at_once(over_tls.service)


def test_a_stop_does_not_wait_for_a_feed_over_tls(over_tls: TlsService) -> None:
    with over_tls.line() as feed:
        assert feed.exchange(request("GET", "/v1/feed", (bearer(over_tls.service),))).status == 200
        stop_at_once(over_tls.service)


def test_a_stop_does_not_wait_for_a_body_over_tls(over_tls: TlsService) -> None:
    headers = (bearer(over_tls.service), ("Content-Length", "100"), ("Expect", "100-continue"))
    with over_tls.line() as line:
        assert line.exchange(request("PUT", "/v1/fleet", headers)).status == 100
        line.send(b"half")
        stop_at_once(over_tls.service)


def test_a_stop_waits_for_no_body(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service()
    service.document()
    expecting = (("Content-Length", "100"), ("Expect", "100-continue"))
    target = "/metadata/scheduledevents?api-version=2020-07-01"
    with control_line(service) as control, Line(service) as metadata, Line(service) as approval:
        assert control.exchange(request("PUT", "/v1/fleet", (bearer(service), *expecting))).status == 100
        assert metadata.exchange(request("POST", target, (("Metadata", "true"), *expecting))).status == 100
        approval.send(request("POST", target, (("Metadata", "true"), ("Content-Length", "100")), b'{"Start'))
        stop_at_once(service)

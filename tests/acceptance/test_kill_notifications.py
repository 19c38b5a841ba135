"""Stops and kills during long polls, while a feed is read and the receiver of a webhook hangs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from acceptance.feed_client import Follower
from webhook_receiver import Receiver, Reply

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from forewarn.testing import ServiceProcess

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
name = "web-0"
group = "web"
address = "127.0.0.1"
"""
OPTIONS = ("--webhook-private-networks", "127.0.0.1", "--clock", "virtual")
HELD = 20


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def hold(service: ServiceProcess, tag: str) -> list[socket.socket]:
    """Polls that wait for a whole minute, if nothing happens: longer than the end of a service is waited for."""
    held = [service.connect() for _ in range(HELD)]
    for connection in held:
        connection.sendall(
            b"GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n"
            b"If-None-Match: %b\r\nPrefer: wait=60\r\n\r\n" % tag.encode()
        )
    while metric(service, "forewarn_long_polls") < HELD:
        pass
    return held


def metric(service: ServiceProcess, name: str) -> float:
    lines = service.control("GET", "/metrics").body.decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def answers(held: list[socket.socket]) -> list[bytes]:
    """The status line that each connection had, if any, and it is at its end."""
    found = []
    for connection in held:
        with connection:
            said = b""
            try:
                while part := connection.recv(65536):
                    said += part
            except ConnectionResetError:
                pass
            found.append(said.partition(b"\r\n")[0])
    return found


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_all_subscribers_continue_where_they_were(
    make_service: Callable[..., ServiceProcess], receiver: Receiver, end: str
) -> None:
    service = make_service(*OPTIONS, fleet=FLEET)
    follower = Follower(service, "?after=0")
    follower.up()
    service.request()
    made = service.control("POST", "/v1/webhooks", {"name": "ops", "url": receiver.url()})
    assert made.status == 201
    first = service.get_json("/v1/history?order=newest&limit=1")["history"][0]["sequence"] + 1
    for life in range(3):
        receiver.respond = lambda _: Reply(hang=True)
        event = service.request_operation("restart", "web-0")["events"][0]["id"]
        receiver.until(lambda: bool(receiver.got) and receiver.got[-1].status is None)  # it hangs
        tag = service.request().headers["etag"]
        held = hold(service, tag)
        assert (service.stop() if end == "stop" else service.kill()) == (0 if end == "stop" else -9)
        expected = b"HTTP/1.1 304 Not Modified" if end == "stop" else b""
        assert answers(held) == [expected] * HELD
        receiver.respond = lambda _: Reply()
        service.start(*OPTIONS)
        follower.up()
        # A client that polls again with its old tag has missed nothing, and gets later changes.
        held = hold(service, tag)
        assert service.control("POST", f"/v1/events/{event}/cancel").status == 200
        for connection in held:
            with connection:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK"), life
    rows = service.list_all("/v1/history")
    newest = rows[-1]["sequence"]
    follower.wait_for(newest)
    assert [row["sequence"] for row in follower.found] == list(range(1, newest + 1))
    assert follower.found == rows
    receiver.until(lambda: {got.id for got in receiver.got if got.taken} >= {*map(str, range(first, newest + 1))})
    taken = [got for got in receiver.got if got.taken]
    ids = [int(got.id) for got in taken]
    # What hung was not taken, so it comes again, with its id: each is taken once, and in order. After a kill, what was
    # taken just before may come again, too: the database did not know yet.
    assert (ids if end == "stop" else [*dict.fromkeys(ids)]) == list(range(first, newest + 1))
    assert len(ids) <= newest + 1 - first + 3
    assert json.loads(taken[0].body)["specversion"] == "1.0"
    service.stop()
    follower.end()

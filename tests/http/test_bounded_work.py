"""No request holds up polls: the work of each turn of the event loop has a bound, counted in lines of Python.

The requests are those of the benchmark `routes`: every route, with the worst values that its schema allows. The
service has 2,000 VMs, so work that grows with the fleet in one turn exceeds the bound.
"""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from tools.bench.worst_requests import Request, known_names, worst_requests

from counted_lines import MAX_LINES, Turns
from forewarn.core.fleet_parts import MAX_PART_ITEMS
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.testing.loop_thread import LoopThread

GROUPS, EVENTS = 100, 50
AT_ONCE, FEW_AT_ONCE = 100, 10
SCALE_SET = "web"
FLEET = f'[[group]]\nname = "{SCALE_SET}"\nkind = "scale-set"\n[[vm]]\ngroup = "{SCALE_SET}"\ncount = 1000\n' + "".join(
    f'[[host]]\nname = "host-{number}"\n[[group]]\nname = "group-{number}"\nkind = "availability-set"\n'
    f'[[vm]]\nname = "vm-{number}-{{n}}"\ngroup = "group-{number}"\ncount = 10\nhost = "host-{number}"\n'
    for number in range(GROUPS)
)


class Caller:
    """Sends requests with one token."""

    def __init__(self, service: Service, token: str) -> None:
        self._address = urlsplit(service.control_url)
        self._headers = {"Origin": service.control_url}  # without it, sign-in is rejected at once
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def send(self, request: Request) -> bytes:
        """Return the response, and the first bytes of a feed."""
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=60)
        with closing(connection):
            headers = self._headers | {"Content-Type": request.content_type}
            connection.request(request.method, request.target, request.body, headers)
            response = connection.getresponse()
            return response.read1() if request.route == "/v1/feed" else response.read()

    def send_at_once(self, request: Request, count: int, loop: LoopThread) -> None:
        """Send it on so many connections that all arrive in the same turn of the loop. Return after the responses."""
        held = threading.Event()
        with ExitStack() as stack:
            connections = [
                stack.enter_context(
                    closing(http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=60))
                )
                for _ in range(count)
            ]
            for each in connections:
                each.connect()
            waiting = loop.submit(_hold(held))
            try:
                for each in connections:
                    each.request(request.method, request.target, headers=self._headers)
            finally:
                held.set()
            waiting.result()
            for each in connections:
                assert each.getresponse().read()

    def call(self, method: str, target: str, body: Any = None) -> Any:
        return json.loads(
            self.send(Request(method, target, target, b"" if body is None else json.dumps(body).encode()))
        )


async def _hold(held: threading.Event) -> None:
    assert held.wait(60)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET, webhook_private_networks="127.0.0.0/8") as service:
        for number in range(EVENTS):
            service.request_operation("redeploy", f"vm-{number}-0", notice="30d")
        yield service


@pytest.fixture(scope="module")
def requests(service: Service) -> list[Request]:
    admin = Caller(service, service.token)
    known = known_names(admin.call, SCALE_SET)
    return worst_requests(admin.call("GET", "/v1/openapi.json"), known)


@pytest.mark.parametrize("role", ["no token", "tenant", "admin"])
def test_each_turn_of_the_loop_has_a_bound(service: Service, requests: list[Request], role: str) -> None:
    token = {"no token": "", "admin": service.token}.get(role)
    if token is None:
        new = {"name": role, "role": role, "group": SCALE_SET}
        token = Caller(service, service.token).call("POST", "/v1/tokens", new)["token"]
    caller, turns, found = Caller(service, token), Turns(service._running.loop), {}
    for each in requests:
        with turns:
            caller.send(each)
        found[f"{each.method} {each.route} ({each.worst})"] = turns.longest
    assert len(found) > 500
    assert not [f"{lines:,} lines: {name}" for name, lines in found.items() if lines > MAX_LINES]


def test_many_requests_at_once_take_turns(service: Service, requests: list[Request]) -> None:
    loop = service._running.loop
    caller, turns, found = Caller(service, service.token), Turns(loop), {}
    for each in requests:
        if each.method == "GET" and each.worst == "plain" and each.route != "/v1/feed":
            with turns:
                caller.send_at_once(each, AT_ONCE, loop)
            found[each.route] = turns.longest
    for each in requests:  # a hint is much work, and follows a search in history
        if each.route in ("/v1/events", "/v1/history") and each.worst in ("vm: nearly a name", "host: nearly a name"):
            with turns:
                caller.send_at_once(each, FEW_AT_ONCE, loop)
            found[f"{each.route} ({each.worst})"] = turns.longest
    assert len(found) > 30
    assert not [f"{lines:,} lines: {route}" for route, lines in found.items() if lines > MAX_LINES]


def test_the_largest_part_of_a_fleet_has_a_bound(service: Service) -> None:
    names = [f"part-{number}" for number in range(MAX_PART_ITEMS)]
    text = f'[[vm]]\nname = "part-{{n}}"\ncount = {MAX_PART_ITEMS}\nhosts = ["host-0", "host-1"]\n'
    for method, target, body in (
        ("PATCH", "/v1/fleet", text.encode()),
        ("PATCH", "/v1/fleet", text.replace('"host-0"', '"host-2"').encode()),
        ("POST", "/v1/fleet/remove", json.dumps({"vms": names}).encode()),
    ):
        with (turns := Turns(service._running.loop)):
            answer = json.loads(Caller(service, service.token).send(Request(method, target, target, body)))
        assert MAX_PART_ITEMS // 2 in map(len, answer.values()) or MAX_PART_ITEMS in map(len, answer.values())
        assert turns.longest <= MAX_LINES, f"{turns.longest:,} lines: {method} {target}"

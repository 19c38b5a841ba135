"""The longest poll while another client sends the worst requests of every route, as each role and without a token.

The service has 50,000 VMs. A request counts from the moment when it is sent until shortly after its response, and with
the longest poll that overlaps this time. Of each request the table uses the median of all rounds, and of each route
the request that is worst in this.
"""

from __future__ import annotations

import json
import socket
import time
from array import array
from bisect import bisect_left
from collections import defaultdict
from contextlib import closing, suppress
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tools.bench import full_service
from tools.bench.processes import LOAD_CORE
from tools.bench.report import Outcome, Row
from tools.bench.worst_requests import Request, known_names, worst_requests

if TYPE_CHECKING:
    from tools.bench.context import Context
    from tools.bench.full_service import FullService

MAX_ROUNDS = 5
GOAL_MS = 30
"""Maximum of the longest poll above the longest poll of the idle service."""
PAUSE_SECONDS = 0.01
"""Time after a response that still counts, for work that goes on."""
IDLE_SECONDS = 1
TIMEOUT_SECONDS = 120
ROLES = ("tenant", "viewer", "operator", "admin")
MEGABYTE = 1_000_000


class Sent(NamedTuple):
    """A request, and when it was sent and had its response."""

    role: str
    request: Request
    started: float
    ended: float
    status: int


def measure(context: Context) -> Outcome:
    """Send every request as every role, and find the longest poll of each."""
    full = full_service.start(context.processes, context.folder("routes"), "--webhook-private-networks", "127.0.0.0/8")
    with closing(full.service.control()) as control:
        known = known_names(control.call, full_service.group_name(0))
        generated = worst_requests(control.call("GET", "/v1/openapi.json"), known)
        tokens = {"no token": ""}
        for role in ROLES:
            group = {"group": full_service.group_name(0)} if role == "tenant" else {}
            created = control.call("POST", "/v1/tokens", {"name": f"bench-{role}", "role": role, **group})
            tokens[role] = created["token"]
    by_request: defaultdict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    statuses: dict[tuple[str, str, str, str], int] = {}
    idle_ms = []
    rounds = min(context.rounds, MAX_ROUNDS)
    for number in range(rounds):
        sent, polls = _round(context, full, tokens, [*generated, *_larger(number)])
        for each in sent:
            key = (each.request.method, each.request.route, each.role, each.request.worst)
            by_request[key].append(polls.longest_ms(each.started, each.ended + PAUSE_SECONDS))
            statuses[key] = each.status
        idle_ms.append(polls.longest_ms(sent[-1].ended + 2 * PAUSE_SECONDS, sent[-1].ended + IDLE_SECONDS))
        context.log(f"routes: round {number + 1} of {rounds}: {len(sent):,} requests, {polls.count:,} polls")
    full.service.stop()
    idle = median(idle_ms)
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    medians = {key: median(each) for key, each in by_request.items()}
    for (method, route, role, name), longest in medians.items():
        found = worst.get((method, route))
        if found is None or longest > found[0]:
            worst[method, route] = longest, f"{role}, {name}"
    rows = [Row("longest poll of the idle service", f"{idle:.1f} ms")]
    for (method, route), (longest, request) in sorted(worst.items(), key=lambda item: -item[1][0]):
        goal = f"≤ {idle + GOAL_MS:.0f} ms"
        rows.append(Row(f"`{method} {route}`", f"{longest:.1f} ms", request, goal=goal, met=longest <= idle + GOAL_MS))
    raw = {
        "idle_ms": idle_ms,
        "requests": [
            {"request": key, "status": statuses[key], "longest_poll_ms": each} for key, each in by_request.items()
        ],
    }
    return Outcome(rows, raw)


def _round(
    context: Context, full: FullService, tokens: dict[str, str], requests: list[Request]
) -> tuple[list[Sent], Polls]:
    host, port = full.metadata
    client = context.processes.start(context.processes.module("poll_client", host, str(port)), LOAD_CORE)
    time.sleep(0.5)
    sent = [_send(full, role, token, request) for request in requests for role, token in tokens.items()]
    time.sleep(IDLE_SECONDS + PAUSE_SECONDS)
    client.terminate()
    printed, _ = client.communicate()
    context.processes.end(client)
    times = array("d")
    times.frombytes(printed)
    return sent, Polls(times)


class Polls:
    """The times of polls that followed each other without a pause."""

    def __init__(self, times: array[float]) -> None:
        self._starts, self._ends = times[::2], times[1::2]
        self.count = len(self._starts)

    def longest_ms(self, started: float, ended: float) -> float:
        """Return the duration of the longest poll that was in progress between these times."""
        first, last = bisect_left(self._ends, started), bisect_left(self._starts, ended)
        return max(self._ends[index] - self._starts[index] for index in range(first, last)) * 1000


def _send(full: FullService, role: str, token: str, request: Request) -> Sent:
    """Send a request, and read its response. Of a feed, only the beginning is read."""
    credentials = f"Authorization: Bearer {token}\r\n" if token else ""
    host = ":".join(map(str, full.control))
    head = f"{request.method} {request.target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{credentials}"
    # Without an Origin, sign-in is rejected at once.
    head += f"Origin: http://{host}\r\nContent-Type: {request.content_type}\r\n"
    head += f"Content-Length: {len(request.body)}\r\n\r\n"
    with socket.create_connection(full.control, timeout=TIMEOUT_SECONDS) as connection:
        started = time.perf_counter()
        with suppress(ConnectionError):  # rejected before all of it has arrived
            connection.sendall(head.encode() + request.body)
        status = 0
        with suppress(ConnectionError):
            while part := connection.recv(MEGABYTE):
                status = status or int(part.split(maxsplit=2)[1])
                if request.route == "/v1/feed":
                    break
        ended = time.perf_counter()
        time.sleep(PAUSE_SECONDS)
    return Sent(role, request, started, ended, status)


PART = b'[[vm]]\nname = "part-{n}"\ncount = 2000\n'


def _larger(number: int) -> list[Request]:
    """Return requests that are worse than a schema can say. Every round has VMs of its own."""
    scale_set = full_service.group_name(number + 1)
    vms = [f"{scale_set}_{index}" for index in range(full_service.VMS_PER_SCALE_SET)]
    operation = json.dumps({"cause": "redeploy", "vms": vms, "notice": full_service.NOTICE}).encode()
    longest = "x" * (MEGABYTE - 100)
    group = '[[group]]\nname = "web"\nkind = "availability-set"\n'
    valid = "".join(f'[[vm]]\nname = "vm-{index:06}"\nhost = "h"\n' for index in range(MEGABYTE // 40))
    files = {
        "valid file of 1 MB": valid,
        "valid file of 10 MB": valid + f"# {'x' * 98}\n" * (9 * MEGABYTE // 100),
        "mistake after a long string": f'{group}note = "{longest}"\nkind = = 1\n',
        "mistake after a long dotted key": f"{'a.' * (MEGABYTE // 2 - 100)}a = = 1\n",
    }
    fleet = "/v1/fleet"
    return [
        Request("POST", "/v1/operations", "/v1/operations", operation, worst="1,000 VMs of a scale set"),
        Request(
            "POST", "/v1/session", "/v1/session", json.dumps({longest: 1}).encode(), worst="unknown member of 1 MB"
        ),
        Request("POST", "/v1/session", "/v1/session", b"[" * 100_000 + b"]" * 100_000, worst="nested lists"),
        *(
            Request("PUT", fleet, f"{fleet}?dry_run=true", text.encode(), "application/toml", worst)
            for worst, text in files.items()
        ),
        Request("PATCH", fleet, f"{fleet}?dry_run=true", PART, "application/toml", "2,000 VMs"),
    ]

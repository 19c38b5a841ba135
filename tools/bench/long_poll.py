"""10,000 long polls: the time until the last one returns after a change, and their cost to the polls of other VMs."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing, contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from tools.bench.connection import Connection, poll_bytes
from tools.bench.processes import LOAD_CORE
from tools.bench.report import Outcome, Row, at_least, below, spread
from tools.bench.service import Service, fleet_text
from tools.bench.wrk import Wrk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.bench.context import Context

GROUPS = 10
VMS_PER_GROUP = 1000
LONG_POLLS = GROUPS * VMS_PER_GROUP
GOAL_MS = 400
ROUND_SECONDS = 2
DEFAULT_RATE = "5"
DISABLED_VM = "disabled"
"""A VM that never polls. Its events appear in the feed, and change no document."""
CHANGES_PER_SECOND = 5
KILOBYTE = 1000


class Polls(NamedTuple):
    """The polls of one round."""

    per_second: float
    cpu_us: float
    """CPU time of the service in this round, divided by the number of polls."""


def fleet() -> str:
    """Return a fleet file with one host for all VMs of all groups, and the poller without a host."""
    lines = ['[[host]]\nname = "shared"']
    for group in range(GROUPS):
        lines.append(f'[[group]]\nname = "g{group}"\nkind = "availability-set"')
        addresses = f"127.{group + 1}.0.1-127.{group + 1}.255.254"
        lines.append(f'[[vm]]\nname = "g{group}-{{n}}"\ngroup = "g{group}"\ncount = {VMS_PER_GROUP}')
        lines.append(f'hosts = ["shared"]\naddresses = "{addresses}"')
    lines.append(f'[[vm]]\nname = "{DISABLED_VM}"')
    return "\n".join([*lines, fleet_text(1)])


def measure(context: Context) -> Outcome:
    """Measure the notification with the default rate limit, then the polls without a rate limit."""
    notifications, bytes_each = _measure_notification(context)
    with_long_polls, without = _measure_polls(context)
    last_ms = [notification["last_ms"] for notification in notifications]
    ratios = [a.per_second / b.per_second for a, b in zip(with_long_polls, without, strict=True)]
    cpu_ratios = [a.cpu_us / b.cpu_us for a, b in zip(with_long_polls, without, strict=True)]
    rows: list[Row] = [
        below(
            f"from a change to the last of {LONG_POLLS:,} long polls",
            median(last_ms),
            "ms",
            GOAL_MS,
            f"first {median(notification['first_ms'] for notification in notifications):.0f} ms",
        ),
        at_least(
            f"polls/s with {LONG_POLLS:,} long polls and a feed reader",
            f"{median(polls.per_second for polls in with_long_polls):,.0f}",
            f"without {median(polls.per_second for polls in without):,.0f}",
            median(ratios),
            0.9,
        ),
        Row(
            f"polls with {LONG_POLLS:,} long polls: server CPU per poll",
            f"{median(polls.cpu_us for polls in with_long_polls):.1f} µs",
            f"without {median(polls.cpu_us for polls in without):.1f} µs",
            f"{median(cpu_ratios):.2f}",
        ),
        Row("memory per long poll, with its connection", f"{bytes_each / KILOBYTE:.1f} kB"),
    ]
    raw = {
        "notifications": notifications,
        "last_ms": spread(last_ms),
        "resident_bytes_each": bytes_each,
        "polls_with_long_polls": [polls._asdict() for polls in with_long_polls],
        "polls_without_long_polls": [polls._asdict() for polls in without],
        "polls_ratio": spread(ratios),
        "cpu_ratio": spread(cpu_ratios),
    }
    return Outcome(rows, raw)


def _measure_notification(context: Context) -> tuple[list[dict[str, float]], float]:
    """Return the time to notify all VMs in each round, and the memory per long poll.

    Each round schedules an update of the shared host and cancels it. Both steps change every document.
    """
    service = Service(context.processes, context.folder("long-poll"), fleet())
    service.start("--rate-limit", DEFAULT_RATE)
    notifications = []
    before = service.resident_bytes()
    with _long_polls(context, service) as changes, closing(service.control()) as control:
        bytes_each = (service.resident_bytes() - before) / LONG_POLLS
        for _ in range(context.rounds):
            _wait_until_idle(service)
            scheduled_at = time.perf_counter()
            response = control.call("POST", "/v1/operations", {"cause": "host-update", "host": "shared"})
            scheduled = next(changes)
            _wait_until_idle(service)
            cancelled_at = time.perf_counter()
            control.call("POST", f"/v1/operations/{response['operations'][0]['id']}/cancel")
            cancelled = next(changes)
            last_ms = (scheduled["last"] - scheduled_at) * 1000
            cancelled_ms = (cancelled["last"] - cancelled_at) * 1000
            notifications.append(
                {
                    "first_ms": (scheduled["first"] - scheduled_at) * 1000,
                    "last_ms": last_ms,
                    "cancelled_ms": cancelled_ms,
                }
            )
            context.log(f"long-poll: event notified in {last_ms:.0f} ms, cancellation in {cancelled_ms:.0f} ms")
    service.stop()
    return notifications, bytes_each


def _measure_polls(context: Context) -> tuple[list[Polls], list[Polls]]:
    """Measure rounds with and without long polls. The two take turns to go first."""
    service = Service(context.processes, context.folder("long-poll-load"), fleet())
    service.start()
    with closing(Connection(service.metadata)) as connection:
        response_bytes = len(connection.exchange(poll_bytes()))
    wrk = Wrk(context.processes, service.folder)
    wrk.run(service.metadata, 1, response_bytes)  # warm-up

    def measure_round() -> Polls:
        _wait_until_idle(service)
        cpu_before = service.cpu_seconds()
        load = wrk.run(service.metadata, ROUND_SECONDS, response_bytes)
        return Polls(load.per_second, (service.cpu_seconds() - cpu_before) / load.requests * 1e6)

    with_long_polls, without = [], []
    for number in range(context.rounds):
        if not number % 2:
            without.append(measure_round())
        with _long_polls(context, service), _feed_reader(service) as rows_received:
            with_long_polls.append(measure_round())
            if not rows_received():
                raise RuntimeError("The feed reader received no rows.")
        if number % 2:
            without.append(measure_round())
        rates = f"{with_long_polls[-1].per_second:,.0f}/s with long polls, {without[-1].per_second:,.0f}/s without"
        context.log(f"long-poll: polls {rates}")
    service.stop()
    return with_long_polls, without


@contextmanager
def _long_polls(context: Context, service: Service) -> Iterator[Iterator[dict[str, Any]]]:
    """Keep a long poll of every VM open. Yield the times of the first and the last response to each change."""
    process = context.processes.start(context.processes.module("long_poll_clients"), LOAD_CORE)
    assert process.stdin is not None  # noqa: S101 - for the type checker
    assert process.stdout is not None  # noqa: S101
    sources = [
        f"127.{group + 1}.{number // 256}.{number % 256}"
        for group in range(GROUPS)
        for number in range(1, VMS_PER_GROUP + 1)
    ]
    process.stdin.write(json.dumps({"address": service.metadata, "sources": sources}).encode() + b"\n")
    process.stdin.flush()
    try:
        messages = map(json.loads, process.stdout)
        if next(messages) != {"waiting": LONG_POLLS}:
            raise RuntimeError(f"Not all of the {LONG_POLLS:,} long polls are open.")
        yield messages
    finally:
        context.processes.end(process)


@contextmanager
def _feed_reader(service: Service) -> Iterator[Callable[[], int]]:
    """Read the feed while events are created. Yield a function that returns the number of rows received."""
    stopped = threading.Event()
    rows = 0
    feed = service.control().follow("/v1/feed")

    def create_and_read() -> None:
        nonlocal rows
        with closing(service.control()) as control:
            while not stopped.wait(1 / CHANGES_PER_SECOND):
                control.call("POST", "/v1/operations", {"cause": "restart", "vms": [DISABLED_VM]})
                rows += feed.recv(65536).count(b"data: ")

    thread = threading.Thread(target=create_and_read)
    thread.start()
    try:
        yield lambda: rows
    finally:
        stopped.set()
        thread.join()
        feed.close()


def _wait_until_idle(service: Service) -> None:
    """Wait until the service uses no CPU time. By then every notified client has sent its next long poll."""
    before = -1.0
    while (now := service.cpu_seconds()) != before:
        before = now
        time.sleep(0.2)

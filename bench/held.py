"""10,000 polls that are held: how soon the last one is told of a change, and what they cost the polls of others."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing, contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.connection import Connection, poll_bytes
from bench.processes import LOAD_CORE
from bench.report import Outcome, Row, at_least, below, spread
from bench.service import Service, fleet_text
from bench.wrk import Wrk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.stage import Stage

GROUPS = 10
VMS_OF_GROUP = 1000
HELD = GROUPS * VMS_OF_GROUP
GOAL_MS = 400
ROUND_SECONDS = 2
DEFAULT_RATE = "5"
ASIDE = "aside"
"""A VM that has never asked: what happens to it is in the feed, and changes nobody's document."""
HAPPENINGS_PER_SECOND = 5
KILOBYTE = 1000


class Polls(NamedTuple):
    """What others' polls came to in some seconds."""

    per_second: float
    cpu_us: float
    """What the service computed for each, with all that it did meanwhile."""


def fleet() -> str:
    """One host under everyone, and the poller beside it."""
    lines = ['[[host]]\nname = "shared"']
    for group in range(GROUPS):
        lines.append(f'[[group]]\nname = "g{group}"\nkind = "availability-set"')
        addresses = f"127.{group + 1}.0.1-127.{group + 1}.255.254"
        lines.append(f'[[vm]]\nname = "g{group}-{{n}}"\ngroup = "g{group}"\ncount = {VMS_OF_GROUP}')
        lines.append(f'hosts = ["shared"]\naddresses = "{addresses}"')
    lines.append(f'[[vm]]\nname = "{ASIDE}"')
    return "\n".join([*lines, fleet_text(1)])


def measure(stage: Stage) -> Outcome:
    """First how soon all are told, with the rate limit as it is by default; then the polls, which need it off."""
    told, bytes_each = _tell(stage)
    held, none = _poll(stage)
    last_ms = [found["last_ms"] for found in told]
    ratios = [a.per_second / b.per_second for a, b in zip(held, none, strict=True)]
    cpu_ratios = [a.cpu_us / b.cpu_us for a, b in zip(held, none, strict=True)]
    rows: list[Row] = [
        below(
            f"from a change to the last of {HELD:,} long polls",
            median(last_ms),
            "ms",
            GOAL_MS,
            f"first {median(found['first_ms'] for found in told):.0f} ms",
        ),
        at_least(
            f"polls/s with {HELD:,} long polls and a feed reader",
            f"{median(polls.per_second for polls in held):,.0f}",
            f"without {median(polls.per_second for polls in none):,.0f}",
            median(ratios),
            0.9,
        ),
        Row(
            f"polls with {HELD:,} long polls: server CPU per poll",
            f"{median(polls.cpu_us for polls in held):.1f} µs",
            f"without {median(polls.cpu_us for polls in none):.1f} µs",
            f"{median(cpu_ratios):.2f}",
        ),
        Row("memory per long poll, with its connection", f"{bytes_each / KILOBYTE:.1f} kB"),
    ]
    raw = {
        "told": told,
        "last_ms": spread(last_ms),
        "resident_bytes_each": bytes_each,
        "polls_while_held": [polls._asdict() for polls in held],
        "polls_while_none_is": [polls._asdict() for polls in none],
        "polls_ratio": spread(ratios),
        "cpu_ratio": spread(cpu_ratios),
    }
    return Outcome(rows, raw)


def _tell(stage: Stage) -> tuple[list[dict[str, float]], float]:
    """How long it takes to tell all, and what each takes in memory while it waits.

    A host update that concerns all, announced and withdrawn again; both change every document.
    """
    service = Service(stage.processes, stage.folder("held"), fleet())
    service.start("--rate-limit", DEFAULT_RATE)
    found = []
    alone = service.resident_bytes()
    with _holding(stage, service) as changes, closing(service.control()) as control:
        bytes_each = (service.resident_bytes() - alone) / HELD
        for _ in range(stage.rounds):
            _settle(service)
            begun = time.perf_counter()
            made = control.call("POST", "/v1/operations", {"cause": "host-update", "host": "shared"})
            announced = next(changes)
            _settle(service)
            withdrawn_at = time.perf_counter()
            control.call("POST", f"/v1/operations/{made['operations'][0]['id']}/cancel")
            withdrawn = next(changes)
            found.append(
                {
                    "first_ms": (announced["first"] - begun) * 1000,
                    "last_ms": (announced["last"] - begun) * 1000,
                    "withdrawn_ms": (withdrawn["last"] - withdrawn_at) * 1000,
                }
            )
            stage.say(
                f"held: all told in {found[-1]['last_ms']:.0f} ms, that it is off in {found[-1]['withdrawn_ms']:.0f} ms"
            )
    service.stop()
    return found, bytes_each


def _poll(stage: Stage) -> tuple[list[Polls], list[Polls]]:
    """Rounds with all held and with none, the first of each pair changing."""
    service = Service(stage.processes, stage.folder("held-polls"), fleet())
    service.start()
    with closing(Connection(service.metadata)) as connection:
        length = len(connection.exchange(poll_bytes()))
    wrk = Wrk(stage.processes, service.folder)
    wrk.run(service.metadata, 1, length)  # warms up

    def load() -> Polls:
        _settle(service)
        cpu_before = service.cpu_seconds()
        found = wrk.run(service.metadata, ROUND_SECONDS, length)
        return Polls(found.per_second, (service.cpu_seconds() - cpu_before) / found.requests * 1e6)

    held, none = [], []
    for number in range(stage.rounds):
        if not number % 2:
            none.append(load())
        with _holding(stage, service), _feed_read(service) as told:
            held.append(load())
            if not told():
                raise RuntimeError("Nothing has come by the feed.")
        if number % 2:
            none.append(load())
        stage.say(f"held: {held[-1].per_second:,.0f} polls/s beside them, {none[-1].per_second:,.0f}/s without")
    service.stop()
    return held, none


@contextmanager
def _holding(stage: Stage, service: Service) -> Iterator[Iterator[dict[str, Any]]]:
    """Everyone's polls are held within; what is had says when all have been told of a change, change by change."""
    process = stage.processes.start(stage.processes.module("holder"), LOAD_CORE)
    assert process.stdin is not None  # noqa: S101 - for the type checker
    assert process.stdout is not None  # noqa: S101
    sources = [
        f"127.{group + 1}.{number // 256}.{number % 256}"
        for group in range(GROUPS)
        for number in range(1, VMS_OF_GROUP + 1)
    ]
    process.stdin.write(json.dumps({"address": service.metadata, "sources": sources}).encode() + b"\n")
    process.stdin.flush()
    try:
        said = map(json.loads, process.stdout)
        if next(said) != {"held": HELD}:
            raise RuntimeError("Not all polls are held.")
        yield said
    finally:
        stage.processes.end(process)


@contextmanager
def _feed_read(service: Service) -> Iterator[Callable[[], int]]:
    """Meanwhile somebody follows the feed, and something happens. What is had says how much has come by it."""
    over = threading.Event()
    came = 0
    feed = service.control().follow("/v1/feed")

    def happen() -> None:
        nonlocal came
        with closing(service.control()) as control:
            while not over.wait(1 / HAPPENINGS_PER_SECOND):
                control.call("POST", "/v1/operations", {"cause": "restart", "vms": [ASIDE]})
                came += feed.recv(65536).count(b"data: ")

    thread = threading.Thread(target=happen)
    thread.start()
    try:
        yield lambda: came
    finally:
        over.set()
        thread.join()
        feed.close()


def _settle(service: Service) -> None:
    """Until the service has nothing to do: those who were told have asked again by then."""
    before = -1.0
    while (now := service.cpu_seconds()) != before:
        before = now
        time.sleep(0.2)

"""Several nodes with PostgreSQL: polls and approvals on a follower, commits to it, failover, joining, and fleets.

Plain commits are three inserts in one transaction, in pipeline mode, on one connection to the same server.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import closing
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import psycopg
from tools.bench.approvals import CLIENTS, _address, _approve, _fleet, _plan_for_many, _plan_for_one
from tools.bench.connection import Connection, poll_bytes
from tools.bench.fleet_apply import FLEETS, apply
from tools.bench.processes import ROOT
from tools.bench.report import Outcome, Row, at_least, spread
from tools.bench.service import POLLER, Service, fleet_text
from tools.bench.wrk import Wrk

if TYPE_CHECKING:
    from tools.bench.context import Context

sys.path.insert(0, str(ROOT / "tests"))  # the server that the tests use
from postgresql import PostgresServer

COMMITS = 300
CHANGES = 60
VMS = 100_000
ROUND_SECONDS = 2


def measure(context: Context) -> Outcome:
    server = PostgresServer(durable=True).start()
    try:
        options = ("--database", server.url)
        leader, follower = (Service(context.processes, context.folder(name), _fleet()) for name in ("one", "two"))
        leader.start(*options, "--name", "one")
        follower.start(*options, "--name", "two")
        for number in range(CLIENTS):
            follower.poll(_address(number))
        rows, raw = [], {}
        for measured in (_polls, _approvals, _changes):
            found, figures = measured(context, server, leader, follower)
            rows += found
            raw[measured.__name__.strip("_")] = figures
        found, raw["failover"] = _failover(leader, follower)
        rows += found
        follower.stop()
        for measured_alone in (_join, _fleets):
            found, raw[measured_alone.__name__.strip("_")] = measured_alone(context, server)
            rows += found
        return Outcome(rows, raw)
    finally:
        server.close()


def _polls(context: Context, _: PostgresServer, __: Service, follower: Service) -> tuple[list[Row], Any]:
    single = Service(context.processes, context.folder("single"), _fleet())
    single.start()
    wrk = Wrk(context.processes, single.folder)
    ratios, rates = [], []
    for _round in range(context.rounds):
        figures = []
        for service in (follower, single):
            with closing(Connection(service.metadata, "127.0.0.1")) as connection:
                size = len(connection.exchange(poll_bytes()))
            figures.append(wrk.run(service.metadata, ROUND_SECONDS, size).per_second)
        ratios.append(figures[0] / figures[1])
        rates.append(figures)
    single.stop()
    text = [f"{median(each):,.0f}/s" for each in zip(*rates, strict=True)]
    return [at_least("polls on a follower", text[0], f"one node: {text[1]}", median(ratios), 0.95)], rates


def _approvals(context: Context, server: PostgresServer, leader: Service, follower: Service) -> tuple[list[Row], Any]:
    rows, raw = [], {}
    for name, goal, plan_for in (("one client", 0.4, _plan_for_one), ("64 clients", 1.0, _plan_for_many)):
        ratios, rates, plain_rates = [], [], []
        for _ in range(context.rounds):
            _wait_until_done(leader)
            plan = plan_for(leader)
            _wait_until_equal(leader, follower)
            rates.append(_approve(context, follower, plan)["per_second"])
            plain_rates.append(_plain_commits(server.url))
            ratios.append(rates[-1] / plain_rates[-1])
        context.log(f"approvals through a follower, {name}: {median(rates):,.0f}/s, plain {median(plain_rates):,.0f}/s")
        plain = f"PostgreSQL: {median(plain_rates):,.0f}/s"
        rows.append(
            at_least(f"approvals, {name}, on a follower", f"{median(rates):,.0f}/s", plain, median(ratios), goal)
        )
        raw[name] = {"rates": spread(rates), "plain": spread(plain_rates), "ratio": spread(ratios)}
    return rows, raw


def _wait_until_done(service: Service) -> None:
    """Wait until the work of the last round is done: until then, a VM cannot be restarted again."""
    with closing(service.control()) as control:
        while control.call("GET", "/v1/operations?todo=true")["operations"]:
            time.sleep(0.05)


def _wait_until_equal(leader: Service, follower: Service) -> None:
    while _position(leader) != _position(follower):
        time.sleep(0.05)


def _position(service: Service) -> int:
    with closing(service.control()) as control:
        nodes: list[dict[str, Any]] = control.call("GET", "/v1/nodes")["nodes"]
    return next(int(node["position"]) for node in nodes if node["is_self"])


def _plain_commits(url: str) -> float:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS plain (id bigint GENERATED ALWAYS AS IDENTITY, data text)")
        started = time.perf_counter()
        for _ in range(COMMITS):
            with connection.pipeline():
                connection.execute("BEGIN")
                for _ in range(3):
                    connection.execute("INSERT INTO plain (data) VALUES (%s)", ("x" * 400,))
                connection.execute("COMMIT")
        return COMMITS / (time.perf_counter() - started)


def _changes(_: Context, __: PostgresServer, leader: Service, follower: Service) -> tuple[list[Row], Any]:
    """From the answer of the leader to a change until the follower's long poll has it."""
    delays = []
    with closing(leader.control()) as control, closing(Connection(follower.metadata, _address(0))) as waiting:
        for _number in range(CHANGES):
            tag = waiting.send(poll_bytes()).headers["etag"]
            held = poll_bytes(tag).replace(b"\r\n\r\n", b"\r\nPrefer: wait=30\r\n\r\n")
            arrived: list[float] = []
            waiter = threading.Thread(target=_arrive, args=(waiting, held, arrived))
            waiter.start()
            time.sleep(0.02)  # the poll is held
            event = control.restart("client-0-1")
            answered = time.perf_counter()
            waiter.join()
            delays.append(max(arrived[0] - answered, 0.0) * 1000)
            control.call("POST", f"/v1/events/{event}/cancel", {})
    delays.sort()
    p99 = delays[len(delays) * 99 // 100]
    row = Row("commit to a follower's wire, p99", f"{p99:.1f} ms", goal="≤ 50 ms", met=p99 <= 50)
    return [row], {"p50_ms": median(delays), "p99_ms": p99}


def _arrive(connection: Connection, request: bytes, arrived: list[float]) -> None:
    connection.exchange(request)
    arrived.append(time.perf_counter())


def _failover(leader: Service, follower: Service) -> tuple[list[Row], Any]:
    """Kill the leader, and change something on the other node. Poll it meanwhile."""
    failed, polls, ending = 0, 0, threading.Event()

    def poll() -> None:
        nonlocal failed, polls
        while not ending.is_set():
            polls += 1
            try:
                follower.poll()
            except (OSError, RuntimeError):
                failed += 1
            time.sleep(0.01)

    poller = threading.Thread(target=poll)
    poller.start()
    with closing(follower.control()) as control:
        started = time.perf_counter()
        leader.kill()
        control.restart(f"{POLLER}-1")
        seconds = time.perf_counter() - started
    ending.set()
    poller.join()
    return [
        Row("leader killed to the first new commit", f"{seconds:.1f} s", goal="≤ 5 s", met=seconds <= 5),
        Row("failed reads meanwhile", f"{failed} of {polls}", goal="0", met=not failed),
    ], {"seconds": seconds, "failed": failed, "polls": polls}


def _join(context: Context, server: PostgresServer) -> tuple[list[Row], Any]:
    options = ("--database", server.url, "--database-schema", "large")
    leader, joining = (Service(context.processes, context.folder(name), fleet_text(VMS)) for name in ("large", "joins"))
    leader.start(*options, "--name", "one")
    seconds = joining.start(*options, "--name", "two")
    joining.stop()
    leader.stop()
    row = Row(f"a node joins with {VMS:,} VMs", f"{seconds:.1f} s", goal="≤ 5 s", met=seconds <= 5)
    return [row], {"seconds": seconds}


def _fleets(context: Context, server: PostgresServer) -> tuple[list[Row], Any]:
    """The longest poll on a follower while fleets are applied on the leader."""
    options = ("--database", server.url, "--database-schema", "fleets")
    leader, follower = (
        Service(context.processes, context.folder(name), fleet_text(1)) for name in ("leads", "follows")
    )
    leader.start(*options, "--name", "one")
    follower.start(*options, "--name", "two")
    rows, raw = [], {}
    for name, fleet in FLEETS.items():
        windows = apply(context, leader, name, fleet, follower, partial(_wait_until_equal, leader, follower))
        applying, idle = (window.longest_ms for window in windows)
        text = f"longest poll on a follower while {name} {VMS:,} VMs"
        rows.append(Row(text, f"{applying:.1f} ms", f"idle {idle:.1f} ms", goal="≤ 100 ms", met=applying <= 100))
        raw[name] = [window._asdict() for window in windows]
    follower.stop()
    leader.stop()
    return rows, raw

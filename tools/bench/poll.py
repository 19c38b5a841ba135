"""Polls, compared with nginx that returns the same bytes: a document (200), and no change (304)."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from tools.bench.connection import Connection, Response, poll_bytes
from tools.bench.nginx import Nginx
from tools.bench.report import Outcome, Row, at_least, at_most, spread
from tools.bench.service import POLLER, Service, fleet_text
from tools.bench.wrk import Wrk

if TYPE_CHECKING:
    from tools.bench.context import Context

VMS = 10_000
ROUND_SECONDS = 2


def measure_document(context: Context) -> Outcome:
    """Measure 200 with a document that has one event."""
    return _measure(context, "poll, 200", unchanged=False)


def measure_unchanged(context: Context) -> Outcome:
    """Measure 304 with the current tag in If-None-Match. nginx compares no tags: it always returns 304."""
    return _measure(context, "poll, 304", unchanged=True)


class Round(NamedTuple):
    """The figures of one server in one round."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU time of the server per request. It shows whether the server or the load generator was the limit."""


class Target(NamedTuple):
    """One of the two servers, the tag in its requests, and the size of its responses."""

    server: Service | Nginx
    address: tuple[str, int]
    tag: str
    response_bytes: int

    def load(self, wrk: Wrk, seconds: int) -> Round:
        cpu_before = self.server.cpu_seconds()
        load = wrk.run(self.address, seconds, self.response_bytes, self.tag)
        cpu_us = (self.server.cpu_seconds() - cpu_before) / load.requests * 1e6
        return Round(load.per_second, load.p50_ms, load.p99_ms, cpu_us)


def _measure(context: Context, name: str, *, unchanged: bool) -> Outcome:
    service = Service(context.processes, context.folder(name), fleet_text(VMS))
    service.start()
    service.control().restart(POLLER)  # with fifteen minutes of notice, so the document does not change during the run
    document = _get(service.metadata)
    nginx = Nginx(context.processes, context.folder(f"{name}-nginx"), document)
    tag = document.headers["etag"] if unchanged else ""
    address = nginx.unchanged if unchanged else nginx.document
    _check_same(_get(service.metadata, tag), _get(address, tag))
    forewarn_rounds, nginx_rounds = _alternate(
        context,
        name,
        Wrk(context.processes, service.folder),
        Target(service, service.metadata, tag, response_bytes(service.metadata, tag)),
        Target(nginx, address, tag, response_bytes(address, tag)),
    )
    _check_same(_get(service.metadata, tag), _get(address, tag))
    nginx.stop()
    service.stop()
    return Outcome(_rows(name, forewarn_rounds, nginx_rounds), _raw(forewarn_rounds, nginx_rounds))


def _alternate(
    context: Context, name: str, wrk: Wrk, forewarn: Target, nginx: Target
) -> tuple[list[Round], list[Round]]:
    """Run short rounds in turn, so that load from outside affects both servers. They take turns to go first."""
    rounds: dict[Target, list[Round]] = {forewarn: [], nginx: []}
    for target in rounds:
        target.load(wrk, 1)  # warm-up
    for number in range(context.rounds):
        for target in (forewarn, nginx) if number % 2 else (nginx, forewarn):
            rounds[target].append(target.load(wrk, ROUND_SECONDS))
        context.log(f"{name}: {rounds[forewarn][-1].per_second:,.0f}/s, nginx {rounds[nginx][-1].per_second:,.0f}/s")
    return rounds[forewarn], rounds[nginx]


def _get(address: tuple[str, int], tag: str = "") -> Response:
    connection = Connection(address)
    response = connection.send(poll_bytes(tag))
    connection.close()
    return response


def response_bytes(address: tuple[str, int], tag: str) -> int:
    """Return the size of a response."""
    connection = Connection(address)
    size = len(connection.exchange(poll_bytes(tag)))
    connection.close()
    return size


def _check_same(forewarn: Response, nginx: Response) -> None:
    """Raise an error if the responses differ: then their speed must not be compared."""
    names = ("etag", "content-type", "content-length") if forewarn.status == 200 else ("etag",)
    same_headers = all(forewarn.headers[name] == nginx.headers[name] for name in names)
    if forewarn.status != nginx.status or forewarn.body != nginx.body or not same_headers:
        raise RuntimeError(f"The responses differ: {forewarn} and {nginx}")


def _rows(name: str, ours: list[Round], theirs: list[Round]) -> list[Row]:
    ratio = Round(*(median(a[i] / b[i] for a, b in zip(ours, theirs, strict=True)) for i in range(len(Round._fields))))
    forewarn, nginx = _median(ours), _median(theirs)
    rate, other_rate = f"{forewarn.per_second:,.0f}", f"nginx {nginx.per_second:,.0f}"
    p99, other_p99 = f"{forewarn.p99_ms:.2f} ms", f"nginx {nginx.p99_ms:.2f} ms"
    p50, other_p50 = f"{forewarn.p50_ms:.2f} ms", f"nginx {nginx.p50_ms:.2f} ms"
    cpu, other_cpu = f"{forewarn.cpu_us:.1f} µs", f"nginx {nginx.cpu_us:.1f} µs"
    return [
        at_least(f"{name}: requests/s", rate, other_rate, ratio.per_second, 0.95),
        Row(f"{name}: p50", p50, other_p50, f"{ratio.p50_ms:.2f}"),
        at_most(f"{name}: p99", p99, other_p99, ratio.p99_ms, 1.5),
        Row(f"{name}: server CPU per request", cpu, other_cpu, f"{ratio.cpu_us:.2f}"),
    ]


def _median(rounds: list[Round]) -> Round:
    return Round(*(median(figures) for figures in zip(*rounds, strict=True)))


def _raw(ours: list[Round], theirs: list[Round]) -> dict[str, Any]:
    ratios = [a.per_second / b.per_second for a, b in zip(ours, theirs, strict=True)]
    return {
        "forewarn": [figures._asdict() for figures in ours],
        "nginx": [figures._asdict() for figures in theirs],
        "ratio": spread(ratios),
    }

"""The poll against nginx returning the same bytes: with the document (200), and when nothing has changed (304)."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.connection import Answer, Connection, poll_bytes
from bench.nginx import Nginx
from bench.report import Outcome, Row, at_least, at_most, spread
from bench.service import POLLER, Service, fleet_text
from bench.wrk import Wrk

if TYPE_CHECKING:
    from bench.stage import Stage

VMS = 10_000
ROUND_SECONDS = 2


def measure_found(stage: Stage) -> Outcome:
    """200 with a document of one event."""
    return _measure(stage, "poll, 200", unchanged=False)


def measure_unchanged(stage: Stage) -> Outcome:
    """304 to If-None-Match with the current tag. nginx compares nothing: it always returns 304."""
    return _measure(stage, "poll, 304", unchanged=True)


class Round(NamedTuple):
    """What one server did under load for some seconds."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """What the server computed for each request: it tells when the load, not the server, was what held back."""


class Target(NamedTuple):
    """One of the two servers, what it is asked, and how long its answer is."""

    server: Service | Nginx
    address: tuple[str, int]
    tag: str
    answer_bytes: int

    def load(self, wrk: Wrk, seconds: int) -> Round:
        cpu_before = self.server.cpu_seconds()
        load = wrk.run(self.address, seconds, self.answer_bytes, self.tag)
        cpu_us = (self.server.cpu_seconds() - cpu_before) / load.requests * 1e6
        return Round(load.per_second, load.p50_ms, load.p99_ms, cpu_us)


def _measure(stage: Stage, name: str, *, unchanged: bool) -> Outcome:
    service = Service(stage.processes, stage.folder(name), fleet_text(VMS))
    service.start()
    service.control().restart(POLLER)  # fifteen minutes of notice: the document stays as it is meanwhile
    document = _ask(service.metadata)
    nginx = Nginx(stage.processes, stage.folder(f"{name}-nginx"), document)
    tag = document.headers["etag"] if unchanged else ""
    address = nginx.unchanged if unchanged else nginx.found
    _compare(_ask(service.metadata, tag), _ask(address, tag))
    ours, theirs = _alternate(
        stage,
        name,
        Wrk(stage.processes, service.folder),
        Target(service, service.metadata, tag, _length(service.metadata, tag)),
        Target(nginx, address, tag, _length(address, tag)),
    )
    _compare(_ask(service.metadata, tag), _ask(address, tag))
    nginx.stop()
    service.stop()
    return Outcome(_rows(name, ours, theirs), _raw(ours, theirs))


def _alternate(stage: Stage, name: str, wrk: Wrk, forewarn: Target, nginx: Target) -> tuple[list[Round], list[Round]]:
    """Short rounds in turn, the first of each pair changing: what disturbs the machine disturbs both."""
    rounds: dict[Target, list[Round]] = {forewarn: [], nginx: []}
    for target in rounds:
        target.load(wrk, 1)  # warms up
    for number in range(stage.rounds):
        for target in (forewarn, nginx) if number % 2 else (nginx, forewarn):
            rounds[target].append(target.load(wrk, ROUND_SECONDS))
        stage.say(f"{name}: {rounds[forewarn][-1].per_second:,.0f}/s, nginx {rounds[nginx][-1].per_second:,.0f}/s")
    return rounds[forewarn], rounds[nginx]


def _ask(address: tuple[str, int], tag: str = "") -> Answer:
    connection = Connection(address)
    answer = connection.ask(poll_bytes(tag))
    connection.close()
    return answer


def _length(address: tuple[str, int], tag: str) -> int:
    connection = Connection(address)
    length = len(connection.exchange(poll_bytes(tag)))
    connection.close()
    return length


def _compare(ours: Answer, theirs: Answer) -> None:
    """Both must say the same before their speed is compared."""
    alike = ("etag", "content-type", "content-length") if ours.status == 200 else ("etag",)
    same_headers = all(ours.headers[name] == theirs.headers[name] for name in alike)
    if ours.status != theirs.status or ours.body != theirs.body or not same_headers:
        raise RuntimeError(f"The answers differ: {ours} and {theirs}")


def _rows(name: str, ours: list[Round], theirs: list[Round]) -> list[Row]:
    ratio = Round(*(median(a[i] / b[i] for a, b in zip(ours, theirs, strict=True)) for i in range(len(Round._fields))))
    forewarn, nginx = _middle(ours), _middle(theirs)
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


def _middle(rounds: list[Round]) -> Round:
    return Round(*(median(figures) for figures in zip(*rounds, strict=True)))


def _raw(ours: list[Round], theirs: list[Round]) -> dict[str, Any]:
    ratios = [a.per_second / b.per_second for a, b in zip(ours, theirs, strict=True)]
    return {
        "forewarn": [figures._asdict() for figures in ours],
        "nginx": [figures._asdict() for figures in theirs],
        "ratio": spread(ratios),
    }

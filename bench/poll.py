"""The poll against nginx returning the same bytes: with the document (200), and when nothing has changed (304)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from bench.connection import Answer, Connection, poll_bytes
from bench.nginx import Nginx
from bench.report import Outcome, Row, at_least, at_most, spread
from bench.service import POLLER, Service, fleet_text
from bench.wrk import Load, Wrk

if TYPE_CHECKING:
    from bench.stage import Stage

VMS = 10_000
ROUND_SECONDS = 4


def measure_found(stage: Stage) -> Outcome:
    """200 with a document of one event."""
    return _measure(stage, "poll, 200", unchanged=False)


def measure_unchanged(stage: Stage) -> Outcome:
    """304 to If-None-Match with the current tag. nginx compares nothing: it always returns 304."""
    return _measure(stage, "poll, 304", unchanged=True)


@dataclass(frozen=True)
class Target:
    """One of the two servers, with what it is asked and how long its answer is."""

    wrk: Wrk
    address: tuple[str, int]
    answer_bytes: int
    tag: str

    def run(self, seconds: int) -> Load:
        return self.wrk.run(self.address, seconds, self.answer_bytes, self.tag)


def _measure(stage: Stage, name: str, *, unchanged: bool) -> Outcome:
    service = Service(stage.processes, stage.folder(name), fleet_text(VMS))
    service.start()
    service.control().restart(POLLER)  # fifteen minutes of notice: the document stays as it is meanwhile
    document = _ask(service.metadata)
    nginx = Nginx(stage.processes, stage.folder(f"{name}-nginx"), document)
    tag = document.headers["etag"] if unchanged else ""
    address = nginx.unchanged if unchanged else nginx.found
    _compare(_ask(service.metadata, tag), _ask(address, tag))
    wrk = Wrk(stage.processes, service.folder)
    forewarn = Target(wrk, service.metadata, _length(service.metadata, tag), tag)
    other = Target(wrk, address, _length(address, tag), tag)
    for target in (forewarn, other):
        target.run(1)  # warms up
    ours, theirs = [], []
    for number in range(stage.rounds):
        if number % 2:
            theirs.append(other.run(ROUND_SECONDS))
            ours.append(forewarn.run(ROUND_SECONDS))
        else:
            ours.append(forewarn.run(ROUND_SECONDS))
            theirs.append(other.run(ROUND_SECONDS))
        stage.say(f"{name}: {ours[-1].per_second:,.0f}/s against {theirs[-1].per_second:,.0f}/s")
    _compare(_ask(service.metadata, tag), _ask(address, tag))
    nginx.stop()
    service.stop()
    return Outcome(_rows(name, ours, theirs), _raw(ours, theirs))


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


def _rows(name: str, ours: list[Load], theirs: list[Load]) -> list[Row]:
    rate, p50, p99 = ([a[i] / b[i] for a, b in zip(ours, theirs, strict=True)] for i in range(3))
    our_rate, our_p50, our_p99 = (median(load[i] for load in ours) for i in range(3))
    their_rate, their_p50, their_p99 = (median(load[i] for load in theirs) for i in range(3))
    return [
        at_least(f"{name}: requests/s", f"{our_rate:,.0f}", f"nginx {their_rate:,.0f}", median(rate), 0.85),
        Row(f"{name}: p50", f"{our_p50:.2f} ms", f"nginx {their_p50:.2f} ms", f"{median(p50):.2f}"),
        at_most(f"{name}: p99", f"{our_p99:.2f} ms", f"nginx {their_p99:.2f} ms", median(p99), 2),
    ]


def _raw(ours: list[Load], theirs: list[Load]) -> dict[str, object]:
    ratios = [a.per_second / b.per_second for a, b in zip(ours, theirs, strict=True)]
    return {
        "forewarn": [load._asdict() for load in ours],
        "nginx": [load._asdict() for load in theirs],
        "ratio": spread(ratios),
    }

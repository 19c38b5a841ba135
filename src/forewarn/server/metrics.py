"""/metrics: what is counted, for Prometheus. Counts are plain numbers where they are made, and gathered when asked."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from forewarn import __version__
from forewarn.vitals import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.metrics_core import Metric

    from forewarn.core.ledger import Changes
    from forewarn.engine import Engine
    from forewarn.faults import Faults
    from forewarn.server.lane import Lane
    from forewarn.server.webhooks.dispatcher import Dispatcher

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NOTICE_BOUNDS = (0.0, 30.0, 60.0, 300.0, 600.0, 900.0, 3600.0, 86400.0, 604800.0)
_STATUSES = ("scheduled", "started", "completed", "cancelled")


class Metrics(Collector):
    """Counts what is committed, and asks the others for what they have counted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._events: Counter[tuple[str, str]] = Counter()
        self._approvals: Counter[str] = Counter()
        self._notice: dict[str, Histogram] = {}
        self._sources: list[Callable[[], Iterable[Metric]]] = []
        engine.follow(self._on_commit)

    def add(self, source: Callable[[], Iterable[Metric]]) -> None:
        """Also show what this gives."""
        self._sources.append(source)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _on_commit(self, changes: Changes) -> None:
        for entry in changes.history:
            event = changes.events.get(entry.event)
            if event is None:
                continue
            if entry.what in _STATUSES:
                self._events[event.type, entry.what] += 1
            elif entry.what == "approved":
                self._approvals[event.type] += 1
            if entry.what == "started" and event.started_at is not None:
                given = self._notice.setdefault(event.type, Histogram(NOTICE_BOUNDS))
                given.observe((event.started_at - event.created_at).total_seconds())

    def collect(self) -> Iterable[Metric]:
        yield gauge("forewarn_info", "The version that runs.", ["version"], {(__version__,): 1})
        fleet = self._engine.fleet
        sizes = {("vm",): len(fleet.vms), ("group",): len(fleet.groups), ("host",): len(fleet.hosts)}
        yield gauge("forewarn_fleet", "How much of each kind the fleet has.", ["kind"], sizes)
        live = Counter((event.type, event.status.lower()) for event in self._engine.live_events())
        yield gauge("forewarn_live_events", "Events in documents now.", ["type", "status"], live)
        yield count("forewarn_events", "Events that came to be so.", ["type", "status"], self._events)
        approved = {(name,): number for name, number in self._approvals.items()}
        yield count("forewarn_approvals", "Events approved by VMs, people or policy.", ["type"], approved)
        help_text = "Seconds from when an event was told until it started."
        notice = HistogramMetricFamily("forewarn_notice_seconds", help_text, labels=["type"])
        for name, given in self._notice.items():
            notice.add_metric([name], _buckets(given), given.sum)
        yield notice
        vitals = self._engine.vitals
        lag = HistogramMetricFamily("forewarn_tick_lag_seconds", "How late what was due was looked at.")
        lag.add_metric([], _buckets(vitals.lag), vitals.lag.sum)
        yield lag
        commits = HistogramMetricFamily("forewarn_store_commit_seconds", "How long commits took.")
        commits.add_metric([], _buckets(vitals.commits), vitals.commits.sum)
        yield commits
        yield CounterMetricFamily(
            "forewarn_store_failures", "Commits that could not be written.", value=vitals.failed_commits
        )
        for source in self._sources:
            yield from source()


def lane_metrics(lane: Lane) -> Iterable[Metric]:
    """What the metadata service has counted."""
    polls = {(version, str(status)): number for (version, status), number in lane.tallies.polls().items()}
    yield count("forewarn_polls", "Answered GETs of the document.", ["version", "answer"], polls)
    posts = {(str(status),): number for status, number in lane.tallies.approvals().items()}
    yield count("forewarn_approval_requests", "Answered POSTs to the document.", ["answer"], posts)
    yield GaugeMetricFamily("forewarn_held_polls", "Long polls that wait now.", value=lane.waiters.count)


def webhook_metrics(engine: Engine, webhooks: Dispatcher) -> Iterable[Metric]:
    """How webhooks fare."""
    told = engine.draft().told
    attempts = {key: number for key, number in webhooks.attempts.items() if key[0] in told.webhooks}
    yield count("forewarn_webhook_attempts", "Attempts to deliver.", ["webhook", "outcome"], attempts)
    tallies = {name: told.tally(name) for name in told.webhooks}
    rows = {(name, "waiting"): tally.waiting for name, tally in tallies.items()}
    rows |= {(name, "given up"): tally.given_up for name, tally in tallies.items()}
    yield gauge("forewarn_webhook_undelivered", "Rows of history not delivered.", ["webhook", "state"], rows)
    lost = {(name,): tally.lost for name, tally in tallies.items()}
    yield count("forewarn_webhook_lost", "Rows of history that will never be delivered.", ["webhook"], lost)


def fault_metrics(faults: Faults) -> Iterable[Metric]:
    """How the endpoint fails on purpose."""
    struck = {(kind,): number for kind, number in faults.struck.items()}
    yield count("forewarn_faults_struck", "Requests struck by faults; groups, of disabled.", ["kind"], struck)
    yield GaugeMetricFamily("forewarn_faults_active", "Faults that can strike.", value=len(faults.list()))


def count(name: str, help_text: str, labels: list[str], values: dict[Any, int]) -> Metric:
    """What only grows, by its labels."""
    family = CounterMetricFamily(name, help_text, labels=labels)
    for key, number in sorted(values.items()):
        family.add_metric(key, number)
    return family


def gauge(name: str, help_text: str, labels: list[str], values: dict[Any, int]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for key, number in sorted(values.items()):
        family.add_metric(key, number)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """As Prometheus has them: each with all that was smaller."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))

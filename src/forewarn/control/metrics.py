"""/metrics: what is counted, for Prometheus. Counts are plain numbers where they are made, and gathered when asked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from forewarn import __version__
from forewarn.engine.measurements import Histogram
from forewarn.wire.metrics_text import Labels, Metric, Sample, histogram_samples, write_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forewarn.core.state import Changes
    from forewarn.delivery.webhooks import Dispatcher
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults
    from forewarn.metadata.server import MetadataServer


NOTICE_BOUNDS = (0.0, 30.0, 60.0, 300.0, 600.0, 900.0, 3600.0, 86400.0, 604800.0)
_STATUSES = ("scheduled", "started", "completed", "cancelled")


class Metrics:
    """Counts what is committed, and asks the others for what they have counted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events: Counter[tuple[str, str]] = Counter()
        self._approvals: Counter[str] = Counter()
        self._notice: dict[str, Histogram] = {}
        self._sources: list[Callable[[], Iterable[Metric]]] = []
        engine.follow(self._on_commit)

    def add(self, source: Callable[[], Iterable[Metric]]) -> None:
        """Also show what this gives."""
        self._sources.append(source)

    def render(self) -> str:
        return write_metrics(self.collect())

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
        yield count("forewarn_events_total", "Events that came to be so.", ["type", "status"], self._events)
        approved = {(name,): number for name, number in self._approvals.items()}
        yield count("forewarn_approvals_total", "Events approved by VMs, people or policy.", ["type"], approved)
        notice = {(name,): given for name, given in self._notice.items()}
        help_text = "Seconds from when an event was told until it started."
        yield histogram("forewarn_notice_seconds", help_text, ["type"], notice)
        measurements = self._engine.measurements
        yield histogram("forewarn_tick_lag_seconds", "How late what was due was looked at.", [], {(): measurements.lag})
        yield histogram("forewarn_store_commit_seconds", "How long commits took.", [], {(): measurements.commits})
        failed = {(): measurements.failed_commits}
        yield count("forewarn_store_failures_total", "Commits that could not be written.", [], failed)
        for source in self._sources:
            yield from source()


def metadata_metrics(metadata: MetadataServer) -> Iterable[Metric]:
    """What the metadata service has counted."""
    polls = {(version, str(status)): number for (version, status), number in metadata.counters.polls().items()}
    yield count("forewarn_polls_total", "Answered GETs of the document.", ["version", "answer"], polls)
    posts = {(str(status),): number for status, number in metadata.counters.approvals().items()}
    yield count("forewarn_approval_requests_total", "Answered POSTs to the document.", ["answer"], posts)
    yield gauge("forewarn_held_polls", "Long polls that wait now.", [], {(): metadata.waiters.count})


def webhook_metrics(engine: Engine, webhooks: Dispatcher) -> Iterable[Metric]:
    """How webhooks fare."""
    known = engine.draft().webhooks()
    attempts = {key: number for key, number in webhooks.attempts.items() if key[0] in known}
    yield count("forewarn_webhook_attempts_total", "Attempts to deliver.", ["webhook", "outcome"], attempts)
    stats_by_name = {name: webhooks.stats(webhook) for name, webhook in known.items()}
    rows = {(name, "waiting"): stats.pending for name, stats in stats_by_name.items()}
    rows |= {(name, "given up"): stats.failed for name, stats in stats_by_name.items()}
    yield gauge("forewarn_webhook_undelivered", "Rows of history not delivered.", ["webhook", "state"], rows)
    lost = {(name,): stats.dropped for name, stats in stats_by_name.items()}
    yield count("forewarn_webhook_lost_total", "Rows of history that will never be delivered.", ["webhook"], lost)


def fault_metrics(faults: Faults) -> Iterable[Metric]:
    """Injected faults."""
    struck = {(kind,): number for kind, number in faults.struck.items()}
    yield count("forewarn_faults_struck_total", "Requests struck by faults; groups, of disabled.", ["kind"], struck)
    yield gauge("forewarn_faults_active", "Faults that can strike.", [], {(): len(faults.list())})


def count(name: str, help_text: str, labels: list[str], values: Mapping[Any, int]) -> Metric:
    """What only grows, by its labels."""
    return Metric(name, "counter", help_text, _samples(labels, values))


def gauge(name: str, help_text: str, labels: list[str], values: Mapping[Any, int]) -> Metric:
    return Metric(name, "gauge", help_text, _samples(labels, values))


def histogram(name: str, help_text: str, labels: list[str], values: Mapping[Any, Histogram]) -> Metric:
    samples = []
    for key, given in values.items():
        samples += histogram_samples(_labels(labels, key), given.bounds, given.counts, given.sum)
    return Metric(name, "histogram", help_text, samples)


def _samples(labels: list[str], values: Mapping[Any, int]) -> list[Sample]:
    return [Sample(_labels(labels, key), number) for key, number in sorted(values.items())]


def _labels(names: list[str], values: tuple[str, ...]) -> Labels:
    return tuple(sorted(zip(names, values, strict=True)))

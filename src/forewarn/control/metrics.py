"""/metrics: the metrics of the service, for Prometheus. A request collects the numbers from all parts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from forewarn import __version__
from forewarn.clock import cpu_seconds
from forewarn.engine.measurements import Histogram
from forewarn.system.memory import resident_bytes
from forewarn.wire.metrics_text import Labels, Metric, Sample, histogram_samples, write_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forewarn.core.events import Event
    from forewarn.core.state import Changes
    from forewarn.delivery.webhooks import Dispatcher
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults
    from forewarn.metadata.server import MetadataServer
    from forewarn.system.connections import Connections


NOTICE_BOUNDS = (0.0, 30.0, 60.0, 300.0, 600.0, 900.0, 3600.0, 86400.0, 604800.0)
_STATUSES = ("scheduled", "started", "completed", "cancelled")


class Metrics:
    """Counts events and approvals from commits, and collects the metrics of the other parts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._transitions: Counter[tuple[str, str]] = Counter()
        self._approvals: Counter[str] = Counter()
        self._notice: dict[str, Histogram] = {}
        self._sources: list[Callable[[], Iterable[Metric]]] = []
        engine.subscribe_to_commits(self._on_commit)

    def add(self, source: Callable[[], Iterable[Metric]]) -> None:
        """Add a source of further metrics."""
        self._sources.append(source)

    def render(self) -> str:
        return write_metrics(self.collect())

    def _on_commit(self, changes: Changes) -> None:
        about_events = [entry for entry in changes.history if entry.event in changes.events]
        kinds = Counter((entry.type, entry.kind) for entry in about_events)
        for (event_type, kind), number in kinds.items():
            if kind in _STATUSES:
                self._transitions[event_type, kind] += number
            elif kind == "approved":
                self._approvals[event_type] += number
        for entry in about_events:
            if entry.kind == "started":
                self._observe_notice(changes.events[entry.event])

    def _observe_notice(self, event: Event) -> None:
        if event.type not in self._notice:
            self._notice[event.type] = Histogram(NOTICE_BOUNDS)
        if event.started_at is not None:
            self._notice[event.type].observe((event.started_at - event.created_at).total_seconds())

    def collect(self) -> Iterable[Metric]:
        yield gauge(
            "forewarn_build_info",
            "Version of Forewarn, as a label. The value is always 1.",
            ["version"],
            {(__version__,): 1},
        )
        fleet = self._engine.fleet
        sizes = {("vm",): len(fleet.vms), ("group",): len(fleet.groups), ("host",): len(fleet.hosts)}
        yield gauge("forewarn_fleet_size", "Number of VMs, groups and hosts in the fleet.", ["kind"], sizes)
        live = Counter((event.type, event.status.lower()) for event in self._engine.live_events())
        yield gauge("forewarn_active_events", "Number of active events, by type and status.", ["type", "status"], live)
        help_text = "Number of times that events changed their status, by the new status."
        yield count("forewarn_event_transitions_total", help_text, ["type", "status"], self._transitions)
        approved = {(name,): number for name, number in self._approvals.items()}
        yield count(
            "forewarn_approvals_total",
            "Number of events that a VM, an operator or a policy approved.",
            ["type"],
            approved,
        )
        notice = {(name,): given for name, given in self._notice.items()}
        help_text = "Time between the creation of an event and its start, in seconds."
        yield histogram("forewarn_notice_seconds", help_text, ["type"], notice)
        measurements = self._engine.measurements
        help_text = (
            "Delay between the time for which work is scheduled and the time at which the service does it, in seconds."
        )
        yield histogram("forewarn_scheduler_delay_seconds", help_text, [], {(): measurements.scheduler_delay})
        help_text = "Duration of a commit to the store, in seconds."
        yield histogram("forewarn_store_commit_duration_seconds", help_text, [], {(): measurements.commits})
        failed = {(): measurements.failed_commits}
        yield count("forewarn_store_commit_failures_total", "Number of commits to the store that failed.", [], failed)
        hold = self._engine.clock_hold
        help_text = "Whether starts, inactivity and retention are held after a jump of the system clock: 0 or 1."
        yield gauge("forewarn_clock_held", help_text, [], {(): int(hold.jump is not None)})
        help_text = "Number of jumps of the system clock by more than a minute."
        yield count("forewarn_clock_jumps_total", help_text, [], {(): hold.jumps})
        yield count("process_cpu_seconds_total", "CPU time of the process, in seconds.", [], {(): cpu_seconds()})
        help_text = "Memory of the process that is in RAM, in bytes."
        yield gauge("process_resident_memory_bytes", help_text, [], {(): resident_bytes()})
        for source in self._sources:
            yield from source()


def metadata_metrics(metadata: MetadataServer) -> Iterable[Metric]:
    """Metrics of the metadata endpoint."""
    polls = {(version, str(status)): number for (version, status), number in metadata.counters.polls().items()}
    help_text = "GET requests for the document, by api-version and HTTP status code of the response."
    yield count("forewarn_polls_total", help_text, ["api_version", "code"], polls)
    posts = {(str(status),): number for status, number in metadata.counters.approvals().items()}
    help_text = "Number of approval requests (POST) from VMs, by HTTP status code of the response."
    yield count("forewarn_approval_requests_total", help_text, ["code"], posts)
    yield gauge(
        "forewarn_long_polls", "Number of long polls that wait for a change.", [], {(): metadata.long_polls.count}
    )


def connection_metrics(planes: Mapping[str, Connections[Any]]) -> Iterable[Metric]:
    """Metrics of the connections to the metadata service and to the control API."""
    now = {(plane,): len(connections) for plane, connections in planes.items()}
    yield gauge("forewarn_connections", "Number of open connections.", ["plane"], now)
    maximum = {(plane,): connections.maximum for plane, connections in planes.items()}
    yield gauge("forewarn_max_connections", "Maximum number of connections. 0: no limit.", ["plane"], maximum)
    closed, refused = (
        {
            (plane, limit): number
            for plane, connections in planes.items()
            for limit, number in getattr(connections, name).items()
        }
        for name in ("closed", "refused")
    )
    help_text = "Idle connections that were closed to make room for new ones, by the limit: of an address, or in total."
    yield count("forewarn_connections_closed_total", help_text, ["plane", "limit"], closed)
    help_text = "New connections that were refused, by the limit: of an address, or in total."
    yield count("forewarn_connections_refused_total", help_text, ["plane", "limit"], refused)


def webhook_metrics(engine: Engine, webhooks: Dispatcher) -> Iterable[Metric]:
    """Metrics of the webhooks."""
    known = engine.draft().webhooks()
    attempts = {key: number for key, number in webhooks.attempts.items() if key[0] in known}
    help_text = "Attempts to deliver a row of history to a webhook, by result."
    yield count("forewarn_webhook_delivery_attempts_total", help_text, ["webhook", "result"], attempts)
    stats_by_name = {name: webhooks.stats(webhook) for name, webhook in known.items()}
    rows = {(name, "pending"): stats.pending for name, stats in stats_by_name.items()}
    rows |= {(name, "failed"): stats.failed for name, stats in stats_by_name.items()}
    help_text = "Number of rows of history that a webhook has not received: pending, or failed after the last attempt."
    yield gauge("forewarn_webhook_undelivered_rows", help_text, ["webhook", "state"], rows)
    dropped = {(name,): stats.dropped for name, stats in stats_by_name.items()}
    help_text = "Number of rows of history that were removed before a webhook received them."
    yield count("forewarn_webhook_dropped_rows_total", help_text, ["webhook"], dropped)


def fault_metrics(faults: Faults) -> Iterable[Metric]:
    """Metrics of the faults that are injected into the metadata endpoint."""
    hits = {(kind,): number for kind, number in faults.hits.items()}
    help_text = "Number of requests that a fault affected, by kind of fault. For the kind disabled: number of scopes."
    yield count("forewarn_fault_hits_total", help_text, ["kind"], hits)
    yield gauge("forewarn_active_faults", "Number of faults that have not expired.", [], {(): len(faults.list())})


def count(name: str, help_text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    """Return a counter, with a value for each tuple of label values."""
    return Metric(name, "counter", help_text, _samples(labels, values))


def gauge(name: str, help_text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    return Metric(name, "gauge", help_text, _samples(labels, values))


def histogram(name: str, help_text: str, labels: list[str], values: Mapping[Any, Histogram]) -> Metric:
    samples = []
    for key, given in values.items():
        samples += histogram_samples(_labels(labels, key), given.bounds, given.counts, given.sum)
    return Metric(name, "histogram", help_text, samples)


def _samples(labels: list[str], values: Mapping[Any, float]) -> list[Sample]:
    return [Sample(_labels(labels, key), number) for key, number in sorted(values.items())]


def _labels(names: list[str], values: tuple[str, ...]) -> Labels:
    return tuple(sorted(zip(names, values, strict=True)))

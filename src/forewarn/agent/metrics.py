"""The metrics of an agent, for Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from forewarn.core.durations import from_text
from forewarn.wire.metrics_text import Labels, Metric, Sample, write_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_RUNS = (
    ("prepare", "done", "prepared"),
    ("prepare", "failed", "prepare failed"),
    ("undo", "done", "undone"),
    ("undo", "failed", "undo failed"),
)

METRICS = {
    metric.name: metric
    for metric in (
        Metric("info", "gauge", "Always 1: which agent this is."),
        Metric("ready", "gauge", "1: the machine may be given work; 0: an event is coming."),
        Metric("dry_run", "gauge", "1: it only says what it would do."),
        Metric("run_seconds", "gauge", "How long it has been running."),
        Metric("turned_seconds_ago", "gauge", "When its loop last came round."),
        Metric("answers_total", "counter", "Answers of the endpoint."),
        Metric("troubles_total", "counter", "Requests that came to nothing, by kind."),
        Metric("in_trouble", "gauge", "1: the endpoint does not answer as it should."),
        Metric("answered_seconds_ago", "gauge", "When the endpoint last answered."),
        Metric("incarnation", "gauge", "DocumentIncarnation of the last document."),
        Metric("long_poll", "gauge", "1: the endpoint holds polls until something happens."),
        Metric("events", "gauge", "Events in the document, by type, status and whether they are this machine's."),
        Metric("event_phase", "gauge", "Always 1: how far the agent is with an event of this machine."),
        Metric("event_not_before_seconds", "gauge", "How long until an event of this machine may start."),
        Metric("handler_runs_total", "counter", "Handlers that were run, by action and result."),
        Metric("approvals_total", "counter", "Approvals that were sent, by result."),
        Metric("peer_silent", "gauge", "1: another agent has not been heard for too long."),
        Metric("peer_heard_seconds_ago", "gauge", "When another agent was last heard."),
    )
}


def render_metrics(snapshot: Mapping[str, Any], version: str) -> str:
    """The page with all metrics, except those that have no value at the moment."""
    return write_metrics(
        METRICS[name]._replace(name=f"forewarn_agent_{name}", samples=samples)
        for name, samples in _samples(snapshot, version).items()
        if samples
    )


def _samples(snapshot: Mapping[str, Any], version: str) -> dict[str, list[Sample]]:
    polling: Mapping[str, Any] = snapshot.get("polling") or {}
    events: list[dict[str, Any]] = snapshot.get("events") or []
    mine = [event for event in events if event.get("mine")]
    counts: Mapping[str, int] = snapshot.get("counts") or {}
    peers: Mapping[str, Mapping[str, Any]] = snapshot.get("peers") or {}
    known = (("version", version), ("vm", _text(snapshot.get("vm"))), ("endpoint", _text(snapshot.get("endpoint"))))
    return {
        "info": [Sample(known, 1)],
        "ready": _one(snapshot.get("ready")),
        "dry_run": _one(snapshot.get("dry_run")),
        "run_seconds": _one(snapshot.get("run_seconds")),
        "turned_seconds_ago": _one(snapshot.get("turned_seconds_ago")),
        "answers_total": _one(polling.get("answers")),
        "troubles_total": [Sample((("kind", kind),), count) for kind, count in (polling.get("troubles") or {}).items()],
        "in_trouble": _one(bool(polling.get("trouble"))),
        "answered_seconds_ago": _one(polling.get("answered_seconds_ago")),
        "incarnation": _one(polling.get("incarnation")),
        "long_poll": _one(polling.get("long_poll")),
        "events": _counted(events),
        "event_phase": [Sample(_event_labels(event, phase=_text(event.get("phase"))), 1) for event in mine],
        "event_not_before_seconds": _until(mine, snapshot.get("now")),
        "handler_runs_total": [
            Sample((("action", action), ("result", result)), counts.get(key, 0)) for action, result, key in _RUNS
        ],
        "approvals_total": [
            Sample((("result", "done"),), counts.get("approved", 0)),
            Sample((("result", "failed"),), counts.get("approve failed", 0)),
        ],
        "peer_silent": [Sample((("peer", name),), bool(peer.get("unreachable"))) for name, peer in peers.items()],
        "peer_heard_seconds_ago": [
            Sample((("peer", name),), peer["last_response_seconds_ago"])
            for name, peer in peers.items()
            if peer.get("last_response_seconds_ago") is not None
        ],
    }


def _one(value: float | None) -> list[Sample]:
    return [] if value is None else [Sample((), value)]


def _counted(events: Iterable[Mapping[str, Any]]) -> list[Sample]:
    found = Counter(
        (
            ("type", _text(event.get("type"))),
            ("status", _text(event.get("status"))),
            ("mine", "true" if event.get("mine") else "false"),
        )
        for event in events
    )
    return [Sample(labels, number) for labels, number in found.items()]


def _event_labels(event: Mapping[str, Any], **more: str) -> Labels:
    named = {"event": event.get("id"), "type": event.get("type"), "rule": event.get("rule"), **more}
    return tuple((name, _text(value)) for name, value in named.items())


def _until(events: Iterable[Mapping[str, Any]], now: str | None) -> list[Sample]:
    if not now:
        return []
    return [
        Sample(_event_labels(event), (from_text(event["not_before"]) - from_text(now)).total_seconds())
        for event in events
        if event.get("not_before")
    ]


def _text(value: object) -> str:
    return "" if value is None else str(value)

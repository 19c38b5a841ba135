"""The agent's metrics for Prometheus."""

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
        Metric("info", "gauge", "Always 1. The labels name the agent's version, VM, endpoint and api-version."),
        Metric("ready", "gauge", "1 if the VM can take new work, 0 if an event affects it."),
        Metric("dry_run", "gauge", "1 if the agent runs no handlers and sends no approvals."),
        Metric("uptime_seconds", "gauge", "Time since the agent started."),
        Metric("seconds_since_last_loop", "gauge", "Time since the last run of the agent's loop."),
        Metric("responses_total", "counter", "Responses from the endpoint."),
        Metric("request_errors_total", "counter", "Failed requests to the endpoint, by kind of error."),
        Metric("endpoint_failing", "gauge", "1 if the last request to the endpoint failed."),
        Metric("seconds_since_last_response", "gauge", "Time since the endpoint's last response."),
        Metric("incarnation", "gauge", "DocumentIncarnation of the last document."),
        Metric("long_poll", "gauge", "1 if the endpoint supports long polls."),
        Metric("events", "gauge", "Events in the document, by type, status and whether they affect this VM."),
        Metric("event_phase", "gauge", "Always 1. The label gives the phase of an event of this VM."),
        Metric("event_not_before_seconds", "gauge", "Time until the NotBefore of an event of this VM."),
        Metric("handler_runs_total", "counter", "Handler runs, by action and result."),
        Metric("approvals_total", "counter", "Approvals sent, by result."),
        Metric("peer_unreachable", "gauge", "1 if a peer has not responded within its timeout."),
        Metric("seconds_since_peer_response", "gauge", "Time since the peer's last response."),
    )
}


def render_metrics(snapshot: Mapping[str, Any], version: str) -> str:
    """Return the metrics page. Metrics without a value are left out."""
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
    known = {"version": version, "vm": snapshot.get("vm"), "endpoint": snapshot.get("endpoint")}
    known["api_version"] = polling.get("api_version")
    return {
        "info": [Sample(_labels(known), 1)],
        "ready": _one(snapshot.get("ready")),
        "dry_run": _one(snapshot.get("dry_run")),
        "uptime_seconds": _one(snapshot.get("uptime_seconds")),
        "seconds_since_last_loop": _one(snapshot.get("seconds_since_last_loop")),
        "responses_total": _one(polling.get("responses")),
        "request_errors_total": [
            Sample((("kind", kind),), count) for kind, count in (polling.get("request_errors") or {}).items()
        ],
        "endpoint_failing": _one(bool(polling.get("error"))),
        "seconds_since_last_response": _one(polling.get("seconds_since_last_response")),
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
        "peer_unreachable": [Sample((("peer", name),), bool(peer.get("unreachable"))) for name, peer in peers.items()],
        "seconds_since_peer_response": [
            Sample((("peer", name),), peer["seconds_since_last_response"])
            for name, peer in peers.items()
            if peer.get("seconds_since_last_response") is not None
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
    return _labels({"event": event.get("id"), "type": event.get("type"), "rule": event.get("rule"), **more})


def _labels(named: Mapping[str, object]) -> Labels:
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

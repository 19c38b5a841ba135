"""The metrics of an agent, in Prometheus' text format. Written by hand: an agent has the standard library alone."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_RUNS = (
    ("prepare", "done", "prepared"),
    ("prepare", "failed", "prepare failed"),
    ("undo", "done", "undone"),
    ("undo", "failed", "undo failed"),
)

Labels = tuple[tuple[str, str], ...]
Samples = list[tuple[Labels, float]]


class Metric(NamedTuple):
    """One metric: what it is, and how it is had from a snapshot."""

    name: str
    kind: str
    help: str


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
    """All of them. Those that have no value at the moment are left out."""
    lines = []
    for name, samples in _samples(snapshot, version).items():
        metric = METRICS[name]
        if samples:
            full = f"forewarn_agent_{name}"
            lines += [f"# HELP {full} {metric.help}", f"# TYPE {full} {metric.kind}"]
            lines += [f"{full}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _samples(snapshot: Mapping[str, Any], version: str) -> dict[str, Samples]:
    polling: Mapping[str, Any] = snapshot.get("polling") or {}
    events: list[dict[str, Any]] = snapshot.get("events") or []
    mine = [event for event in events if event.get("mine")]
    counts: Mapping[str, int] = snapshot.get("counts") or {}
    peers: Mapping[str, Mapping[str, Any]] = snapshot.get("peers") or {}
    known = (("version", version), ("vm", _text(snapshot.get("vm"))), ("endpoint", _text(snapshot.get("endpoint"))))
    return {
        "info": [(known, 1)],
        "ready": _one(snapshot.get("ready")),
        "dry_run": _one(snapshot.get("dry_run")),
        "run_seconds": _one(snapshot.get("run_seconds")),
        "turned_seconds_ago": _one(snapshot.get("turned_seconds_ago")),
        "answers_total": _one(polling.get("answers")),
        "troubles_total": [((("kind", kind),), count) for kind, count in (polling.get("troubles") or {}).items()],
        "in_trouble": _one(bool(polling.get("trouble"))),
        "answered_seconds_ago": _one(polling.get("answered_seconds_ago")),
        "incarnation": _one(polling.get("incarnation")),
        "long_poll": _one(polling.get("long_poll")),
        "events": _counted(events),
        "event_phase": [(_event_labels(event, phase=_text(event.get("phase"))), 1) for event in mine],
        "event_not_before_seconds": _until(mine, snapshot.get("now")),
        "handler_runs_total": [
            ((("action", action), ("result", result)), counts.get(key, 0)) for action, result, key in _RUNS
        ],
        "approvals_total": [
            ((("result", "done"),), counts.get("approved", 0)),
            ((("result", "failed"),), counts.get("approve failed", 0)),
        ],
        "peer_silent": [((("peer", name),), bool(peer.get("silent"))) for name, peer in peers.items()],
        "peer_heard_seconds_ago": [
            ((("peer", name),), peer["heard_seconds_ago"])
            for name, peer in peers.items()
            if peer.get("heard_seconds_ago") is not None
        ],
    }


def _one(value: float | None) -> Samples:
    return [] if value is None else [((), value)]


def _counted(events: Iterable[Mapping[str, Any]]) -> Samples:
    found = Counter(
        (
            ("type", _text(event.get("type"))),
            ("status", _text(event.get("status"))),
            ("mine", "true" if event.get("mine") else "false"),
        )
        for event in events
    )
    return list(found.items())


def _event_labels(event: Mapping[str, Any], **more: str) -> Labels:
    named = {"event": event.get("id"), "type": event.get("type"), "rule": event.get("rule"), **more}
    return tuple((name, _text(value)) for name, value in named.items())


def _until(events: Iterable[Mapping[str, Any]], now: str | None) -> Samples:
    if not now:
        return []
    return [
        (_event_labels(event), (read_moment(event["not_before"]) - read_moment(now)).total_seconds())
        for event in events
        if event.get("not_before")
    ]


def read_moment(text: str) -> datetime:
    """Python 3.10 does not know the Z."""
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_quoted(value)}"' for name, value in labels)
    return f"{{{inside}}}"


def _quoted(value: str) -> str:
    whole = value.encode("utf-8", "replace").decode()  # half a letter would cost whoever reads it the whole page
    return whole.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return str(value) if isinstance(value, int) else f"{value:.3f}"

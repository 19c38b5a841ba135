"""The status of an agent for people: what is coming, what was done, what is next."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from forewarn.agent.logs import printable
from forewarn.agent.pages.metrics import read_moment
from forewarn.core.durations import format_duration, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping


def status_lines(snapshot: Mapping[str, Any], now: datetime | None) -> list[str]:
    """Lines for a terminal. `now` by the endpoint's clock; None: not known."""
    return [printable(line) for line in [*_about(snapshot), *_events(snapshot, now), *_done(snapshot)]]


def _about(snapshot: Mapping[str, Any]) -> list[str]:
    lines = []
    if snapshot.get("vm"):
        lines.append(f"machine    {snapshot['vm']}{_from(snapshot.get('vm_from'))}")
    if snapshot.get("endpoint"):
        lines.append(f"endpoint   {snapshot['endpoint']}{_from(snapshot.get('endpoint_from'))}")
    if snapshot.get("config"):
        lines.append(f"config     {snapshot['config']}")
    if snapshot.get("run_seconds") is not None:
        dry = ", dry run: nothing is done" if snapshot.get("dry_run") else ""
        lines.append(f"running    for {_length(snapshot['run_seconds'])}{dry}")
    polling = snapshot.get("polling")
    if polling:
        lines.append(f"asking     {_polling(polling)}")
    if snapshot.get("ready") is not None:
        lines.append(f"ready      {'yes' if snapshot['ready'] else 'no: ' + (snapshot.get('ready_reason') or '')}")
    for name, peer in (snapshot.get("peers") or {}).items():
        heard = peer.get("heard_seconds_ago")
        said = "never heard" if heard is None else f"heard {_length(heard)} ago"
        lines.append(f"peer       {name}: {said}{', silent' if peer.get('silent') else ''}")
    return lines


def _from(origin: str | None) -> str:
    return f" (from {origin})" if origin else ""


def _polling(polling: Mapping[str, Any]) -> str:
    if polling.get("trouble"):
        since = polling.get("trouble_seconds")
        for_ = "" if since is None else f" for {_length(since)}"
        return f"in trouble{for_}: {polling['trouble']}"
    ago = polling.get("answered_seconds_ago")
    if ago is None:
        return "no answer yet"
    held = ", long poll" if polling.get("long_poll") else ""
    return f"{polling.get('answers', 0):,} answers, the last {_length(ago)} ago{held}"


def _events(snapshot: Mapping[str, Any], now: datetime | None) -> list[str]:
    events = snapshot.get("events") or []
    if not events:
        return ["", "Nothing is coming."]
    lines = []
    for event in events:
        lines += ["", *_event(event, now)]
    return lines


def _event(event: Mapping[str, Any], now: datetime | None) -> list[str]:
    whose = "" if event.get("mine") else "not this machine: "
    affected = ", ".join(event.get("resources") or [])
    lines = [f"{event.get('type')} {event.get('id')}  {event.get('status')}{_when(event.get('not_before'), now)}"]
    lines.append(f"  {whose}{affected}")
    facts = [event.get("source") or "", event.get("description") or ""]
    seconds = event.get("duration_seconds")
    if seconds is not None and seconds >= 0:
        facts.append(f"interrupted for {_length(seconds)}")
    if any(facts):
        lines.append(f"  {'; '.join(fact for fact in facts if fact)}")
    if not event.get("mine"):
        return lines
    rule = event.get("rule")
    lines.append(f"  rule       {rule or 'none fits'}")
    lines.append(f"  phase      {event.get('phase') or 'not known'}")
    lines += [f"  {_step(step)}" for step in event.get("steps") or []]
    if approval := event.get("approval"):
        lines.append(f"  approval   {_approval(approval, now)}")
    if event.get("next"):
        lines.append(f"  next       {event['next']}{_when(event.get('next_at'), now, with_moment=False)}")
    return lines


def _step(step: Mapping[str, Any]) -> str:
    took = f" ({step['seconds']:.1f} s)" if step.get("seconds") else ""
    problem = f": {step['problem']}" if step.get("problem") else ""
    return f"{'handler':<10} {step.get('handler')}: {step.get('state')}{took}{problem}"


def _approval(approval: Mapping[str, Any], now: datetime | None) -> str:
    mode = str(approval.get("mode") or "never")
    if approval.get("sent_at"):
        return f"{mode}: sent{_when(approval['sent_at'], now)}"
    return f"{mode}: {approval['why_not']}" if approval.get("why_not") else mode


def _when(moment: str | None, now: datetime | None, *, with_moment: bool = True) -> str:
    """At which moment, and how far that is."""
    if not moment:
        return ""
    at = read_moment(moment)
    shown = f" {at:%Y-%m-%d %H:%M:%S} UTC" if with_moment else ""
    if now is None:
        return shown
    away = at - now
    far = f"in {format_duration(away)}" if away > timedelta(0) else f"{format_duration(-away)} ago"
    return f"{shown} ({far})"


def _done(snapshot: Mapping[str, Any]) -> list[str]:
    counts = snapshot.get("counts") or {}
    done = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return ["", f"So far: {done}."] if done else []


def _length(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1 else f"{seconds:.1f}s"

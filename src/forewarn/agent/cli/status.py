"""forewarn agent status: show current events and what the agent of this VM has done."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from forewarn.agent.cli.options import AgentParser, add_common_options, config_path, load_config, resolve_options
from forewarn.agent.status_server import connect
from forewarn.core.durations import format_relative_time, format_seconds, format_time, from_text
from forewarn.errors import AgentHung, AgentNotRunning, ForewarnError, NotPermitted, UnreadableFile
from forewarn.system.printable import printable

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path


# --- The status as text ---------------------------------------------------------------------------


def status_lines(snapshot: Mapping[str, Any], now: datetime | None) -> list[str]:
    """Return the status as lines for a terminal. `now` is the endpoint's time; None: unknown."""
    return [printable(line) for line in [*_general(snapshot), *_events(snapshot, now), *_totals(snapshot)]]


def _general(snapshot: Mapping[str, Any]) -> list[str]:
    lines = []
    if snapshot.get("vm"):
        lines.append(f"vm         {snapshot['vm']}{_from(snapshot.get('vm_from'))}")
    if snapshot.get("endpoint"):
        lines.append(f"endpoint   {snapshot['endpoint']}{_from(snapshot.get('endpoint_from'))}")
    if snapshot.get("config"):
        lines.append(f"config     {snapshot['config']}")
    if snapshot.get("uptime_seconds") is not None:
        dry_run = " (dry run)" if snapshot.get("dry_run") else ""
        lines.append(f"uptime     {_duration(snapshot['uptime_seconds'])}{dry_run}")
    polling = snapshot.get("polling")
    if polling:
        lines.append(f"polling    {_polling(polling)}")
    if snapshot.get("ready") is not None:
        lines.append(f"ready      {'yes' if snapshot['ready'] else 'no: ' + (snapshot.get('ready_reason') or '')}")
    for name, peer in (snapshot.get("peers") or {}).items():
        ago = peer.get("seconds_since_last_response")
        response = "no response yet" if ago is None else f"last response {_duration(ago)} ago"
        lines.append(f"peer       {name}: {response}{', unreachable' if peer.get('unreachable') else ''}")
    return lines


def _from(origin: str | None) -> str:
    return f" (from {origin})" if origin else ""


def _polling(polling: Mapping[str, Any]) -> str:
    if polling.get("error"):
        seconds = polling.get("failing_seconds")
        since = "" if seconds is None else f" for {_duration(seconds)}"
        return f"failing{since}: {polling['error']}"
    ago = polling.get("seconds_since_last_response")
    if ago is None:
        return "no response yet"
    long_poll = ", long poll" if polling.get("long_poll") else ""
    version = f", api-version {polling['api_version']}" if polling.get("api_version") else ""
    responses = polling.get("responses", 0)
    return f"{responses:,} response{'s' if responses != 1 else ''}, last {_duration(ago)} ago{version}{long_poll}"


def _events(snapshot: Mapping[str, Any], now: datetime | None) -> list[str]:
    events = snapshot.get("events") or []
    if not events:
        return ["", "No scheduled events."]
    lines = []
    for event in events:
        lines += ["", *_event(event, now)]
    return lines


def _event(event: Mapping[str, Any], now: datetime | None) -> list[str]:
    whose = "" if event.get("mine") else "not this VM: "
    affected = ", ".join(event.get("resources") or [])
    lines = [f"{event.get('type')} {event.get('id')}  {event.get('status')}{_when(event.get('not_before'), now)}"]
    lines.append(f"  {whose}{affected}")
    facts = [event.get("source") or "", event.get("description") or ""]
    seconds = event.get("duration_seconds")
    if seconds is not None and seconds >= 0:
        facts.append(f"duration {_duration(seconds)}")
    if any(facts):
        lines.append(f"  {'; '.join(fact for fact in facts if fact)}")
    if not event.get("mine"):
        return lines
    rule = event.get("rule")
    lines.append(f"  rule       {rule or 'no rule matches'}")
    lines.append(f"  phase      {event.get('phase') or 'unknown'}")
    if event.get("failure"):
        lines.append(f"  failed     {event['failure']}")
    lines += [f"  {_step(step)}" for step in event.get("steps") or []]
    if approval := event.get("approval"):
        lines.append(f"  approval   {_approval(approval, now)}")
    if event.get("next"):
        lines.append(f"  next       {event['next']}{_when(event.get('next_at'), now, with_time=False)}")
    return lines


def _step(step: Mapping[str, Any]) -> str:
    took = f" ({step['seconds']:.1f} s)" if step.get("seconds") else ""
    problem = f": {step['problem']}" if step.get("problem") else ""
    return f"{'handler':<10} {step.get('handler')}: {step.get('state')}{took}{problem}"


def _approval(approval: Mapping[str, Any], now: datetime | None) -> str:
    mode = str(approval.get("mode") or "never")
    if approval.get("sent_at"):
        return f"{mode}: sent{_when(approval['sent_at'], now)}"
    return f"{mode}: {approval['reason']}" if approval.get("reason") else mode


def _when(time: str | None, now: datetime | None, *, with_time: bool = True) -> str:
    """Return a time and its distance from now."""
    if not time:
        return ""
    at = from_text(time)
    shown = f" {format_time(at)}" if with_time else ""
    return shown if now is None else f"{shown} ({format_relative_time(at, now)})"


def _totals(snapshot: Mapping[str, Any]) -> list[str]:
    counts = snapshot.get("counts") or {}
    totals = ", ".join(f"{count} {_FAILURES.get(name, name)}" for name, count in counts.items() if count)
    return ["", f"Since the agent started: {totals}."] if totals else []


_FAILURES = {
    "prepare failed": "failed to prepare",
    "undo failed": "failed to undo",
    "approve failed": "failed to approve",
}
"""Counts in words. Their names are those of the status page."""


def _duration(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1 else f"{seconds:.1f}s"


# --- The command ----------------------------------------------------------------------------------


_MAX_RESPONSE_SIZE = 16_000_000
_RESPONSE_SECONDS = 10
"""The agent responds within a few seconds, even if its loop hangs."""


def parser() -> AgentParser:
    parser = AgentParser(
        "status",
        "Show current events and what the agent of this VM has done.\n\n"
        "The command finds the agent by its state folder. If no agent is running, it shows the unfinished\n"
        "work of the last agent, and exits with code 6.",
        "forewarn agent status",
        "forewarn agent status --state /var/lib/forewarn-agent --json",
    )
    add_common_options(parser)
    parser.add_argument("--json", action="store_true", help="print the full status as JSON")
    return parser


def run(options: Namespace) -> int:
    folder = resolve_options(options, load_config(config_path(options))).folder
    snapshot = _request_status(folder)
    running = snapshot is not None
    if snapshot is None:
        snapshot = _recorded_work(folder)
    if options.json:
        sys.stdout.write(json.dumps({"running": running, **snapshot}, indent=2) + "\n")
    elif running or snapshot["events"]:
        now = from_text(snapshot["now"]) if snapshot.get("now") else None
        sys.stdout.writelines(f"{line}\n" for line in status_lines(snapshot, now))
        sys.stdout.flush()
    if not running:
        raise AgentNotRunning(folder=folder)
    return 0


def _recorded_work(folder: Path) -> dict[str, Any]:
    """Return the work that the last agent has recorded and the next one will continue."""
    # Imported here: not needed if an agent is running.
    from forewarn.agent.clock import EndpointClock
    from forewarn.agent.decisions import DecisionContext
    from forewarn.agent.state import FILE, read_state
    from forewarn.agent.status import describe_work

    path = folder / FILE
    try:
        works = read_state(path).works
    except (FileNotFoundError, NotADirectoryError):
        works = []
    except OSError as error:
        raise NotPermitted(action="read", path=path, problem=error.strerror, flag="--state") from error
    except (ValueError, KeyError, TypeError, AttributeError, ForewarnError) as error:
        raise UnreadableFile(path=path, problem=f"it is not an agent's state file ({error}).") from error
    context = DecisionContext(EndpointClock().now(), 0.0)
    return {"events": [describe_work(work, context) for work in works]}


def _request_status(folder: Path) -> dict[str, Any] | None:
    """Return the status of the running agent; None if no agent runs."""
    try:
        connection = connect(folder)
    except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise NotPermitted(
            action="connect to the agent in", path=folder, problem=error.strerror, flag="--state"
        ) from error
    except OSError as error:
        raise AgentHung(folder=folder, problem=error.strerror or "no response") from error
    response = bytearray()
    try:
        with connection:
            connection.settimeout(_RESPONSE_SECONDS)
            connection.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            while (data := connection.recv(65536)) and len(response) < _MAX_RESPONSE_SIZE:
                response += data
        head, _, body = bytes(response).partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise AgentHung(
                folder=folder, problem=body.decode("utf-8", "replace").strip() or "its response is incomplete"
            )
        found: dict[str, Any] = json.loads(body)
    except (OSError, ValueError) as error:
        raise AgentHung(folder=folder, problem=getattr(error, "strerror", "") or str(error)) from error
    return found

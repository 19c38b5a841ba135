"""forewarn agent status: ask the agent of this machine what is coming and what it has done."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from forewarn.agent.cli.options import Parser, add_places, choose_places, config_path, load_config
from forewarn.agent.logs import printable
from forewarn.agent.status_server import connect
from forewarn.core.durations import format_relative_time, format_seconds, format_time, from_text
from forewarn.errors import AgentHung, ForewarnError, NoAgentRuns, NotPermitted, UnreadableFile

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path


# --- The status in words --------------------------------------------------------------------------


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
    at = from_text(moment)
    shown = f" {format_time(at)}" if with_moment else ""
    return shown if now is None else f"{shown} ({format_relative_time(at, now)})"


def _done(snapshot: Mapping[str, Any]) -> list[str]:
    counts = snapshot.get("counts") or {}
    done = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return ["", f"So far: {done}."] if done else []


def _length(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1 else f"{seconds:.1f}s"


# --- The command ----------------------------------------------------------------------------------


_LARGEST = 16_000_000


def parser() -> Parser:
    found = Parser(
        "status",
        "Ask the agent of this machine what is coming and what it has done.\n\n"
        "It is found by its state folder. When none is running: what the last one has left, and exit code 6.",
        "forewarn agent status",
        "forewarn agent status --state /var/lib/forewarn-agent --json",
    )
    add_places(found)
    found.add_argument("--json", action="store_true", help="print all of it as JSON")
    return found


def run(options: Namespace) -> int:
    folder = choose_places(options, load_config(config_path(options))).folder
    snapshot = _ask(folder)
    running = snapshot is not None
    if snapshot is None:
        snapshot = _left_behind(folder)
    if options.json:
        sys.stdout.write(json.dumps({"running": running, **snapshot}, indent=2) + "\n")
    else:
        now = from_text(snapshot["now"]) if snapshot.get("now") else None
        sys.stdout.writelines(f"{line}\n" for line in status_lines(snapshot, now))
        sys.stdout.flush()
    if not running:
        raise NoAgentRuns(folder=folder)
    return 0


def _left_behind(folder: Path) -> dict[str, Any]:
    """What the last agent has written down: what the next one will look after."""
    # Only here: who asks an agent that runs needs nothing of it.
    from forewarn.agent.clock import EndpointClock
    from forewarn.agent.decisions import DecisionContext
    from forewarn.agent.state import FILE, read_works
    from forewarn.agent.status import describe_work

    path = folder / FILE
    try:
        works = read_works(path)
    except (FileNotFoundError, NotADirectoryError):
        works = []
    except OSError as error:
        raise NotPermitted(action="read", path=path, problem=error.strerror, flag="--state") from error
    except (ValueError, KeyError, TypeError, AttributeError, ForewarnError) as error:
        raise UnreadableFile(path=path, problem=f"it is no state of an agent ({error}).") from error
    context = DecisionContext(EndpointClock().now(), 0.0)
    return {"events": [describe_work(work, context) for work in works]}


def _ask(folder: Path) -> dict[str, Any] | None:
    """What the agent says; None: there is none."""
    try:
        line = connect(folder)
    except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise NotPermitted(action="ask the agent on", path=folder, problem=error.strerror, flag="--state") from error
    except OSError as error:
        raise AgentHung(folder=folder, problem=error.strerror or "no answer") from error
    answer = bytearray()
    try:
        with line:
            line.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            while (came := line.recv(65536)) and len(answer) < _LARGEST:
                answer += came
        head, _, body = bytes(answer).partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise AgentHung(folder=folder, problem=body.decode("utf-8", "replace").strip() or "its answer is cut off")
        found: dict[str, Any] = json.loads(body)
    except (OSError, ValueError) as error:
        raise AgentHung(folder=folder, problem=getattr(error, "strerror", "") or str(error)) from error
    return found

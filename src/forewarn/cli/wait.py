"""--wait: show operations or a rollout until they end, with countdown, approvals and progress.

On a terminal the display is live. Otherwise each change is printed as a line.
"""

from __future__ import annotations

import sys
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from forewarn.cli.client import LOST
from forewarn.cli.output import names
from forewarn.cli.tables import LiveLines, can_update_lines, grid_lines
from forewarn.core.durations import backoff_seconds, format_duration, format_seconds, from_text
from forewarn.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forewarn.cli.client import ControlClient


POLL_SECONDS = 0.5
MAX_RETRY_SECONDS = 5.0
RECONNECT_SECONDS = 300.0
"""How long the retries go on while the service does not respond."""
_ENDED = ("done", "failed", "cancelled", "stopped")
_NEVER = Event()


class ProgressRow(NamedTuple):
    """A line of the display."""

    key: str
    title: str
    status: str
    """A line is printed again when this text changes."""
    countdown: str = ""


class Progress:
    """The lines to show at one time, and whether everything has ended."""

    def __init__(self, rows: list[ProgressRow], *, ended: bool) -> None:
        self.rows = rows
        self.ended = ended

    def lines(self) -> Iterator[str]:
        return grid_lines((row.title, row.status, row.countdown) for row in self.rows)


def wait_for_operations(client: ControlClient, ids: list[str], *, quiet: bool = False) -> None:
    """Wait until all operations have ended. Raise an error if one failed or was cancelled."""
    ended: dict[str, dict[str, Any]] = {}

    def poll() -> Progress:
        now = client.get("clock")["now"]
        live = {operation["id"]: operation for operation in client.get("operations", limit="1000")["operations"]}
        for operation_id in ids:
            if operation_id not in live and operation_id not in ended:  # ended, or beyond the first page
                found = client.get("operations", operation_id)
                (ended if found["status"] in _ENDED else live)[operation_id] = found
        shown = [ended.get(operation_id) or live[operation_id] for operation_id in ids]
        return Progress([_row(operation, now) for operation in shown], ended=len(ended) == len(ids))

    command = f"forewarn operation show {ids[0][:8]}" if ids else ""
    _watch(lambda: _poll_with_retries(client, poll), quiet=quiet, command=command)
    bad = [operation for operation in ended.values() if operation["status"] != "done"]
    if bad:
        raise Conflict.relayed(_ending(bad[0]))


def wait_for_rollout(client: ControlClient, rollout_id: str, *, quiet: bool = False) -> None:
    """Wait until the rollout has ended. Raise an error unless it is done."""
    last: dict[str, Any] = {}

    def poll() -> Progress:
        now = client.get("clock")["now"]
        last.update(client.get("rollouts", rollout_id))
        counts = last["counts"]
        status = f"{last['status']}, wave {last['wave']}: " + ", ".join(
            f"{count} {word.replace('_', ' ')}" for word, count in counts.items() if count
        )
        countdown = _until("next wave", last["next_wave_at"], now)
        rows = [ProgressRow(rollout_id, f"rollout {rollout_id[:8]}", status, countdown)]
        live = {operation["id"]: operation for operation in client.get("operations", limit="1000")["operations"]}
        rows += [_row(live[found["operation"]], now) for found in last["in_progress"] if found["operation"] in live]
        return Progress(rows, ended=last["status"] in _ENDED)

    command = f"forewarn rollout show {rollout_id[:8]}"
    _watch(lambda: _poll_with_retries(client, poll), quiet=quiet, command=command)
    if last["status"] != "done":
        reason = f": {last['reason']}" if last["reason"] else ""
        raise Conflict.relayed(f"The rollout was {last['status']}{reason}.")


def _poll_with_retries(client: ControlClient, poll: Callable[[], Progress]) -> Progress:
    """Poll. While the service does not respond, look for it again: it may be restarting."""
    failures, waited = 0, 0.0
    while True:
        try:
            return poll()
        except LOST as error:
            if waited >= RECONNECT_SECONDS:
                raise
            if not failures:
                click.echo(f"forewarn: connection lost ({error}); reconnecting.", err=True)
        failures += 1
        pause = backoff_seconds(failures, POLL_SECONDS, MAX_RETRY_SECONDS)
        _NEVER.wait(pause)
        waited += pause
        client.refresh()


def _watch(poll: Callable[[], Progress], *, quiet: bool, command: str) -> None:
    try:
        if quiet:
            while not poll().ended:
                _NEVER.wait(POLL_SECONDS)
        elif can_update_lines():
            _watch_live(poll)
        else:
            _watch_lines(poll)
    except KeyboardInterrupt:
        click.echo(f"Stopped waiting; the work continues. See: {command}", err=True)
        sys.exit(130)
    except LOST:
        limit = format_seconds(RECONNECT_SECONDS)
        click.echo(f"Stopped waiting after {limit} without the service. When it runs again, see: {command}", err=True)
        raise


def _watch_live(poll: Callable[[], Progress]) -> None:
    live = LiveLines()
    while True:
        progress = poll()
        live.update(progress.lines())
        if progress.ended:
            return
        _NEVER.wait(POLL_SECONDS)


def _watch_lines(poll: Callable[[], Progress]) -> None:
    printed: dict[str, str] = {}
    while True:
        progress = poll()
        for row in progress.rows:
            if printed.get(row.key) != row.status:
                printed[row.key] = row.status
                click.echo(f"{row.title}: {row.status}")
        sys.stdout.flush()
        if progress.ended:
            return
        _NEVER.wait(POLL_SECONDS)


def _row(operation: dict[str, Any], now: str) -> ProgressRow:
    status, countdown = _status(operation, now)
    return ProgressRow(operation["id"], _title(operation), status, countdown)


def _title(operation: dict[str, Any]) -> str:
    # A host can have several operations, one for each VM.
    single = operation["host"] is None or len(operation["vms"]) == 1
    return f"{operation['cause']} of {names(operation['vms'], 3) if single else operation['host']}"


def _status(operation: dict[str, Any], now: str) -> tuple[str, str]:
    status = operation["status"]
    if status == "pending":
        if any(event["status"] == "advisory" for event in operation["events"]):
            return "advisory; it never starts", ""
        waiting = [event for event in operation["events"] if event["status"] == "scheduled"]
        times = [event["not_before"] for event in waiting if not event["approved_at"]]
        latest = max([*times, *([operation["holds_until"]] if operation["holds_until"] else [])], default=None)
        return f"scheduled; {_approvals(operation)}", _until("starts without approval", latest, now)
    if status == "started":
        if not operation["executed_at"]:
            return "started; the fabric is working", ""
        moved = ", ".join(f"{vm} is on {host}" for vm, host in operation["moves"].items())
        health = f", health {operation['health']}" if operation["health"] else ""
        text = f"executed{health}, settling" + (f"; {moved}" if moved else "")
        return text, _until("ends", operation["settles_at"], now)
    return status + (f": {operation['reason']}" if operation["reason"] else ""), ""


def _approvals(operation: dict[str, Any]) -> str:
    given = [f"{event['scope']} by {event['approved_by']}" for event in operation["events"] if event["approved_at"]]
    open_ = [event["scope"] for event in operation["events"] if not event["approved_at"]]
    parts = [f"approved for {', '.join(given)}"] if given else []
    return "; ".join([*parts, *([f"not approved by {names(open_)}"] if open_ else [])]) or "waiting"


def _until(action: str, time: str | None, now: str) -> str:
    if time is None:
        return ""
    left = from_text(time) - from_text(now)
    return f"{action} in {format_duration(left)}" if left.total_seconds() > 0 else ""


def _ending(operation: dict[str, Any]) -> str:
    reason = f": {operation['reason']}" if operation["reason"] else ""
    ended = "has failed" if operation["status"] == "failed" else f"was {operation['status']}"
    return f"{_title(operation)} {ended}{reason}."

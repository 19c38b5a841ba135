"""--wait: watches operations or a rollout until they end, with countdown, approvals and progress.

On a terminal the display is live; elsewhere each change is a line.
"""

from __future__ import annotations

import sys
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.live import Live
from rich.table import Table

from forewarn.cli.output import console, names
from forewarn.core.durations import format_duration, from_text
from forewarn.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.cli.client import Client


LOOK_EVERY_SECONDS = 0.5
_OVER = ("done", "failed", "cancelled", "stopped")
_NEVER = Event()


class Row(NamedTuple):
    """A line of the display."""

    key: str
    what: str
    state: str
    countdown: str = ""


class State:
    """What is watched, at one moment: lines to show, and the words by which a change is known."""

    def __init__(self, rows: list[Row], *, over: bool) -> None:
        self.rows = rows
        self.over = over

    def table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for row in self.rows:
            table.add_row(row.what, row.state, row.countdown)
        return table


def wait_for_operations(client: Client, ids: list[str], *, quiet: bool = False) -> None:
    """Wait until all of them are over; an error if one failed or was cancelled."""
    ended: dict[str, dict[str, Any]] = {}

    def look() -> State:
        now = client.get("clock")["now"]
        live = {operation["id"]: operation for operation in client.get("operations", limit="1000")["operations"]}
        for operation_id in ids:
            if operation_id not in live and operation_id not in ended:  # a long list of live ones is cut
                found = client.get("operations", operation_id)
                (ended if found["status"] in _OVER else live)[operation_id] = found
        shown = [ended.get(operation_id) or live[operation_id] for operation_id in ids]
        return State([_row(operation, now) for operation in shown], over=len(ended) == len(ids))

    _watch(look, quiet=quiet, where=f"forewarn operation show {ids[0][:8]}" if ids else "")
    bad = [operation for operation in ended.values() if operation["status"] != "done"]
    if bad:
        raise Conflict.relayed(_complaint(bad[0]))


def wait_for_rollout(client: Client, rollout_id: str, *, quiet: bool = False) -> None:
    """Until the rollout is over; an error unless it is done."""
    last: dict[str, Any] = {}

    def look() -> State:
        now = client.get("clock")["now"]
        last.update(client.get("rollouts", rollout_id))
        counts = last["counts"]
        state = f"{last['status']}, wave {last['wave']}: " + ", ".join(
            f"{count} {word.replace('_', ' ')}" for word, count in counts.items() if count
        )
        rows = [Row(rollout_id, f"rollout {rollout_id[:8]}", state, _until("next wave", last["next_wave_at"], now))]
        live = {operation["id"]: operation for operation in client.get("operations", limit="1000")["operations"]}
        rows += [_row(live[found["operation"]], now) for found in last["in_progress"] if found["operation"] in live]
        return State(rows, over=last["status"] in _OVER)

    _watch(look, quiet=quiet, where=f"forewarn rollout show {rollout_id[:8]}")
    if last["status"] != "done":
        why = f": {last['reason']}" if last["reason"] else ""
        raise Conflict.relayed(f"The rollout was {last['status']}{why}.")


def _watch(look: Callable[[], State], *, quiet: bool, where: str) -> None:
    try:
        if quiet:
            while not look().over:
                _NEVER.wait(LOOK_EVERY_SECONDS)
        elif sys.stdout.isatty():
            _watch_live(look)
        else:
            _watch_lines(look)
    except KeyboardInterrupt:
        click.echo(f"It goes on without being watched. See it with: {where}", err=True)
        sys.exit(130)


def _watch_live(look: Callable[[], State]) -> None:
    with Live(console=console(), auto_refresh=False, transient=False) as live:
        while True:
            state = look()
            live.update(state.table(), refresh=True)
            if state.over:
                return
            _NEVER.wait(LOOK_EVERY_SECONDS)


def _watch_lines(look: Callable[[], State]) -> None:
    said: dict[str, str] = {}
    while True:
        state = look()
        for row in state.rows:
            if said.get(row.key) != row.state:
                said[row.key] = row.state
                click.echo(f"{row.what}: {row.state}")
        sys.stdout.flush()
        if state.over:
            return
        _NEVER.wait(LOOK_EVERY_SECONDS)


def _row(operation: dict[str, Any], now: str) -> Row:
    """What it is, where it is, and what it counts down to."""
    state, countdown = _state(operation, now)
    return Row(operation["id"], _what(operation), state, countdown)


def _what(operation: dict[str, Any]) -> str:
    # Several operations may be about one host, each with its VM.
    single = operation["host"] is None or len(operation["vms"]) == 1
    return f"{operation['cause']} of {names(operation['vms'], 3) if single else operation['host']}"


def _state(operation: dict[str, Any], now: str) -> tuple[str, str]:
    status = operation["status"]
    if status == "pending":
        moments = [event["not_before"] for event in operation["events"] if not event["approved_at"]]
        latest = max([*moments, *([operation["holds_until"]] if operation["holds_until"] else [])], default=None)
        return f"scheduled; {_approvals(operation)}", _until("starts by itself", latest, now)
    if status == "started":
        if not operation["executed_at"]:
            return "started, being carried out", ""
        moved = ", ".join(f"{vm} is on {host}" for vm, host in operation["moves"].items())
        health = f", health {operation['health']}" if operation["health"] else ""
        state = f"carried out{health}, settling" + (f"; {moved}" if moved else "")
        return state, _until("over", operation["settles_at"], now)
    return status + (f": {operation['reason']}" if operation["reason"] else ""), ""


def _approvals(operation: dict[str, Any]) -> str:
    given = [f"{event['group']} by {event['approved_by']}" for event in operation["events"] if event["approved_at"]]
    open_ = [event["group"] for event in operation["events"] if not event["approved_at"]]
    words = [f"approved for {', '.join(given)}"] if given else []
    return "; ".join([*words, *([f"not approved by {names(open_)}"] if open_ else [])]) or "waits"


def _until(what: str, moment: str | None, now: str) -> str:
    if moment is None:
        return ""
    left = from_text(moment) - from_text(now)
    return f"{what} in {format_duration(left)}" if left.total_seconds() > 0 else ""


def _complaint(operation: dict[str, Any]) -> str:
    why = f": {operation['reason']}" if operation["reason"] else ""
    ended = "has failed" if operation["status"] == "failed" else f"was {operation['status']}"
    return f"{_what(operation)} {ended}{why}."

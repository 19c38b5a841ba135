"""Watching a run of a scenario: live on a terminal, elsewhere a line for each step that is over."""

from __future__ import annotations

import signal
import sys
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table

from forewarn.cli.show import console, names
from forewarn.core.durations import format_duration
from forewarn.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.cli.client import Client

LOOK_EVERY_SECONDS = 0.2
_NEVER = Event()
_SIGNS = {"waiting": "·", "running": "▸", "passed": "✓", "failed": "✗", "skipped": "–"}


def watch_run(client: Client, run_id: str, *, quiet: bool) -> dict[str, Any]:
    """Until the run is over; says how it went, unless it is to be quiet."""
    try:
        if quiet:
            run = _last(_looks(client, run_id))
        elif sys.stdout.isatty():
            run = _watch_live(client, run_id)
        else:
            run = _watch_lines(client, run_id)
    except KeyboardInterrupt:
        _stop(client, run_id)
        sys.exit(130)
    if not quiet:
        click.echo(_verdict(run))
    return run


def _looks(client: Client, run_id: str) -> Iterator[dict[str, Any]]:
    """The run again and again, until it is over."""
    while True:
        run: dict[str, Any] = client.get("runs", run_id)
        yield run
        if run["state"] != "running":
            return
        _NEVER.wait(LOOK_EVERY_SECONDS)


def _last(looks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    run: dict[str, Any] = {}
    for run in looks:  # noqa: B007 - the last one is wanted
        pass
    return run


def _watch_live(client: Client, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = {}
    with Live(console=console(), auto_refresh=False, transient=False) as live:
        for run in _looks(client, run_id):
            live.update(_display(run, client.get("clock")["now"]), refresh=True)
    return run


def _display(run: dict[str, Any], now: str) -> Group:
    table = Table.grid(padding=(0, 2))
    for step in run["steps"]:
        table.add_row(_SIGNS[step["state"]], step["what"], _taken(step, now))
        if step["problem"]:
            table.add_row("", f"  {step['problem']}", "")
    return Group(_heading(run), table)


def _watch_lines(client: Client, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = {}
    said = 0
    for run in _looks(client, run_id):
        if not said:
            click.echo(_heading(run))
        over = [step for step in run["steps"] if step["state"] not in ("waiting", "running")]
        for step in over[said and said - 1 :]:
            problem = f": {step['problem']}" if step["problem"] else ""
            click.echo(f"{_SIGNS[step['state']]} {step['what']} ({_taken(step, '')}){problem}")
        said = 1 + len(over)
        sys.stdout.flush()
    return run


def _heading(run: dict[str, Any]) -> str:
    return f"{run['title']}: {names(run['vms'])} (run {run['id']})"


def _taken(step: dict[str, Any], now: str) -> str:
    """How long it has taken by the service's clock, so far."""
    if step["since"] is None:
        return ""
    until = datetime.fromisoformat(step["ended_at"] or now)
    return format_duration(until - datetime.fromisoformat(step["since"]))


def _verdict(run: dict[str, Any]) -> str:
    length = format_duration(datetime.fromisoformat(run["ended_at"]) - datetime.fromisoformat(run["started_at"]))
    for number, step in enumerate(run["steps"], 1):
        if step["state"] == "failed":
            return f"Failed at step {number}, {step['what']}: {step['problem']}."
    if run["state"] == "stopped":
        return f"Stopped after {length}."
    return f"Passed: {len(run['steps'])} steps in {length} of the service's time."


def _stop(client: Client, run_id: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever presses it twice means the same
    try:
        client.post("runs", run_id, "stop")
        click.echo(f"Run {run_id} is stopped; what had not started is withdrawn.", err=True)
    except Conflict:
        click.echo(f"Run {run_id} was over already.", err=True)

"""forewarn scenario: list scenarios, run them, and watch a run."""

from __future__ import annotations

import signal
import sys
from threading import Event
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins
from rich.console import Group
from rich.live import Live
from rich.table import Table

from forewarn.cli.output import console, names, print_facts, print_json, print_table, service_command
from forewarn.core.durations import format_duration, format_seconds, from_text
from forewarn.errors import Conflict, UnreadableFile
from forewarn.scenarios import library
from forewarn.scenarios.shapes import ScenarioShape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.cli.client import Client


_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@click.group()
def command() -> None:
    """Scenarios: live migration, maintenance, evictions and failures, each to be rehearsed as a whole.

    A scenario is a TOML file with steps, and what is expected at each of them. Some come with Forewarn; your own are
    given by their path.
    """


@command.command("list")
@_json_option
def list_scenarios(as_json: bool) -> None:
    """The scenarios that come with Forewarn. Needs no service.

    \b
    Example:
      forewarn scenario list
    """
    found = [to_builtins(ScenarioShape.of(library.find(name)[0])) for name in library.names()]
    if as_json:
        print_json({"scenarios": found})
        return
    rows = ((each["name"], each["title"], each["needs"]["text"], _length(each)) for each in found)
    print_table(("scenario", "what happens", "needs", "at most"), rows, "There are none.")


@command.command()
@click.argument("scenario", metavar="NAME|FILE")
@click.option("--fleet", is_flag=True, help="Only a fleet file with which it can be played from nothing.")
@_json_option
def show(scenario: str, fleet: bool, as_json: bool) -> None:
    """One scenario: what it needs, its steps, and what is expected. Needs no service.

    \b
    Example:
      forewarn scenario show spot-eviction
      forewarn scenario show spot-eviction --fleet > fleet.toml
    """
    found, text = library.find(scenario)
    if fleet:
        if not found.fleet:
            raise UnreadableFile(path=scenario, problem="it has no fleet. Add the key fleet to it.")
        print_json({"fleet": found.fleet}) if as_json else click.echo(found.fleet.strip("\n"))
        return
    shape = to_builtins(ScenarioShape.of(found, text))
    if as_json:
        print_json(shape)
        return
    print_facts(
        {
            "scenario": shape["name"],
            "title": shape["title"],
            "description": " ".join(shape["description"].split()),
            "needs": shape["needs"]["text"],
            "at most": _length(shape),
            "timings": " ".join(shape["source"].split()),
        }
    )
    click.echo()
    rows = (
        (
            str(number),
            step["title"],
            step["action"] if step["action"] != step["title"] else "",
            "\n".join(step["expects"]),
        )
        for number, step in enumerate(shape["steps"], 1)
    )
    print_table(("step", "title", "action", "expects"), rows, "")
    click.echo(f"\nPlay it with: forewarn scenario run {scenario}")


@command.command()
@click.argument("scenario", metavar="NAME|FILE")
@click.option("--vm", "vms", multiple=True, metavar="NAME", help="Who plays it; may be given several times.")
@click.option("--group", metavar="NAME", help="Instead: as many VMs of this group as are needed.")
@click.option(
    "--speed",
    type=click.FloatRange(0.001, 1_000_000),
    metavar="N",
    help="N times faster than life. Not given: a virtual clock goes as fast as it can.",
)
@click.option("--enable", is_flag=True, help="Count groups that do not listen as listening.")
@click.option(
    "--seen-by",
    multiple=True,
    metavar="NAME",
    help="A virtual clock moves on only when this VM has seen the change; may be given several times.",
)
@service_command
def run(scenario: str, vms: tuple[str, ...], client: Client, as_json: bool, **options: Any) -> None:
    """Play a scenario, and watch it. Ctrl-C stops it, and withdraws what has not started.

    The exit code is 0 if all that was expected came, and 1 if something did not.

    \b
    Example:
      forewarn scenario run live-migration --vm web-0 --speed 60
      forewarn scenario run ./my-scenario.toml --group web --enable
    """
    body: dict[str, Any] = {name: value for name, value in options.items() if value}
    body["seen_by"] = list(options["seen_by"])
    body["vms"] = list(vms)
    if library.is_file(scenario):
        found, text = library.find(scenario)  # so that what is wrong in it is said before anything is asked
        body |= {"text": text, "name": found.name}
    else:
        body["scenario"] = scenario
    started = client.post("runs", body=body)
    ended = watch_run(client, started["id"], quiet=as_json)
    if as_json:
        print_json(ended)
    sys.exit(0 if ended["status"] == "passed" else 1)


@command.command()
@click.argument("run_id", metavar="ID")
@service_command
def stop(run_id: str, client: Client, as_json: bool) -> None:
    """Stop a run that somebody has started. What it caused and has not started is withdrawn.

    \b
    Example:
      forewarn scenario stop r4711
    """
    stopped = client.post("runs", run_id, "stop")
    print_json(stopped) if as_json else click.echo(f"Run {stopped['id']} of {stopped['scenario']} is stopped.")


def _length(shape: dict[str, Any]) -> str:
    return format_seconds(shape["max_duration_seconds"])


# --- Watching a run -------------------------------------------------------------------------------


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
        if run["status"] != "running":
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
        table.add_row(_SIGNS[step["status"]], step["title"], _taken(step, now))
        if step["error"]:
            table.add_row("", f"  {step['error']}", "")
    return Group(_heading(run), table)


def _watch_lines(client: Client, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = {}
    said = 0
    for run in _looks(client, run_id):
        if not said:
            click.echo(_heading(run))
        over = [step for step in run["steps"] if step["status"] not in ("waiting", "running")]
        for step in over[said and said - 1 :]:
            problem = f": {step['error']}" if step["error"] else ""
            click.echo(f"{_SIGNS[step['status']]} {step['title']} ({_taken(step, '')}){problem}")
        said = 1 + len(over)
        sys.stdout.flush()
    return run


def _heading(run: dict[str, Any]) -> str:
    return f"{run['title']}: {names(run['vms'])} (run {run['id']})"


def _taken(step: dict[str, Any], now: str) -> str:
    """How long it has taken by the service's clock, so far."""
    if step["started_at"] is None:
        return ""
    until = from_text(step["ended_at"] or now)
    return format_duration(until - from_text(step["started_at"]))


def _verdict(run: dict[str, Any]) -> str:
    length = format_duration(from_text(run["ended_at"]) - from_text(run["started_at"]))
    for number, step in enumerate(run["steps"], 1):
        if step["status"] == "failed":
            return f"Failed at step {number}, {step['title']}: {step['error']}."
    if run["status"] == "stopped":
        return f"Stopped after {length}."
    return f"Passed: {len(run['steps'])} steps in {length} of the service's time."


def _stop(client: Client, run_id: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever presses it twice means the same
    try:
        client.post("runs", run_id, "stop")
        click.echo(f"Run {run_id} is stopped; what had not started is withdrawn.", err=True)
    except Conflict:
        click.echo(f"Run {run_id} was over already.", err=True)

"""forewarn scenario: list and run scenarios."""

from __future__ import annotations

import signal
import sys
from threading import Event
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from forewarn.cli.output import names, print_facts, print_json, print_table, service_command
from forewarn.cli.tables import LiveLines, can_update_lines, grid_lines
from forewarn.core.durations import format_duration, format_seconds, from_text
from forewarn.core.limits import short_notices
from forewarn.errors import Conflict, UnreadableFile
from forewarn.scenarios import library
from forewarn.scenarios.shapes import ScenarioShape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.cli.client import ControlClient
    from forewarn.core.scenarios import Scenario


_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def command() -> None:
    """Run a sequence of events, and check each step.

    A scenario is a TOML file with steps, and an expectation for each step. Forewarn includes some scenarios. Use your
    own by path.

    \b
    Example:
      forewarn scenario run live-migration --vm web-0
    """


@command.command("list")
@_json_option
def list_scenarios(as_json: bool) -> None:
    """List the included scenarios. No service is needed.

    \b
    Example:
      forewarn scenario list
    """
    found = [to_builtins(ScenarioShape.of(library.find(name)[0])) for name in library.names()]
    if as_json:
        print_json({"scenarios": found})
        return
    rows = ((each["name"], each["title"], each["needs"]["text"], _max_duration(each)) for each in found)
    print_table(("scenario", "title", "needs", "max duration"), rows, "No scenarios.")


@command.command()
@click.argument("scenario", metavar="NAME|FILE")
@click.option("--fleet", is_flag=True, help="Print only the scenario's own fleet file.")
@_json_option
def show(scenario: str, fleet: bool, as_json: bool) -> None:
    """Show a scenario and its steps. No service is needed.

    \b
    Examples:
      forewarn scenario show spot-eviction
      forewarn scenario show spot-eviction --fleet > fleet.toml
    """
    found, text = library.find(scenario)
    if fleet:
        if not found.fleet:
            raise UnreadableFile(path=scenario, problem="it has no fleet. Add the key fleet to the file.")
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
            "max duration": _max_duration(shape),
            "source": " ".join(shape["source"].split()),
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
    click.echo(f"\nRun it with: forewarn scenario run {scenario}")


@command.command()
@click.argument("scenario", metavar="NAME|FILE")
@click.option(
    "--vm",
    "vms",
    multiple=True,
    metavar="NAME",
    help="Use this VM. Can be repeated.",
)
@click.option("--group", metavar="NAME", help="Use VMs of this group.")
@click.option(
    "--speed",
    type=click.FloatRange(0.001, 1_000_000),
    metavar="N",
    help="Run N times faster than real time.  [default: 1; virtual clock: no limit]",
)
@click.option("--enable", is_flag=True, help="Enable events for groups that do not poll.")
@click.option(
    "--seen-by",
    multiple=True,
    metavar="NAME",
    help="Advance a virtual clock only when this VM has seen its document. Can be repeated.",
)
@service_command
def run(scenario: str, vms: tuple[str, ...], client: ControlClient, as_json: bool, **options: Any) -> None:
    """Run a scenario, and show its progress.

    Without --vm and --group the VMs are chosen automatically, if only one choice is possible.

    Ctrl-C stops the run and cancels its scheduled events. The exit code is 0 if all expectations were met, else 1.

    \b
    Examples:
      forewarn scenario run live-migration --vm web-0 --speed 60
      forewarn scenario run ./my-scenario.toml --group web --enable
    """
    body: dict[str, Any] = {name: value for name, value in options.items() if value}
    body["seen_by"] = list(options["seen_by"])
    body["vms"] = list(vms)
    if library.is_file(scenario):
        found, text = library.find(scenario)  # reports an error in the file before a request is sent
        body |= {"text": text, "name": found.name}
    else:
        body["scenario"] = scenario
    started = client.post("runs", body=body)
    if options["speed"] and not options["seen_by"]:
        _warn_of_short_notices(library.find(scenario)[0], options["speed"], client.get("clock")["speed"])
    ended = watch_run(client, started["id"], quiet=as_json)
    if as_json:
        print_json(ended)
    sys.exit(0 if ended["status"] == "passed" else 1)


def _warn_of_short_notices(scenario: Scenario, speed: float, service_speed: float) -> None:
    short = short_notices(scenario.notices, speed * service_speed)
    if short is not None:
        click.echo(
            f"forewarn: at this speed the notices are short: {short.text}. Clients that poll every 10 seconds or less "
            f"often can miss the events. Use --speed {short.max_speed / service_speed:g} or lower.",
            err=True,
        )


@command.command()
@click.argument("run_id", metavar="ID")
@service_command
def stop(run_id: str, client: ControlClient, as_json: bool) -> None:
    """Stop a run, and cancel its scheduled events.

    \b
    Example:
      forewarn scenario stop r4711
    """
    stopped = client.post("runs", run_id, "stop")
    print_json(stopped) if as_json else click.echo(f"Run {stopped['id']} of {stopped['scenario']} was stopped.")


def _max_duration(shape: dict[str, Any]) -> str:
    return format_seconds(shape["max_duration_seconds"])


# --- Watching a run -------------------------------------------------------------------------------


POLL_SECONDS = 0.2
_NEVER = Event()
_SIGNS = {"waiting": "·", "running": "▸", "passed": "✓", "failed": "✗", "skipped": "–"}


def watch_run(client: ControlClient, run_id: str, *, quiet: bool) -> dict[str, Any]:
    """Wait until the run has ended. Show its progress and result, unless quiet."""
    try:
        if quiet:
            run = _last(_polls(client, run_id))
        elif can_update_lines():
            run = _watch_live(client, run_id)
        else:
            run = _watch_lines(client, run_id)
    except KeyboardInterrupt:
        _stop(client, run_id)
        sys.exit(130)
    if not quiet:
        click.echo(_result(run))
    return run


def _polls(client: ControlClient, run_id: str) -> Iterator[dict[str, Any]]:
    """Poll the run until it has ended."""
    while True:
        run: dict[str, Any] = client.get("runs", run_id)
        yield run
        if run["status"] != "running":
            return
        _NEVER.wait(POLL_SECONDS)


def _last(polls: Iterator[dict[str, Any]]) -> dict[str, Any]:
    run: dict[str, Any] = {}
    for run in polls:  # noqa: B007 - the last one is used
        pass
    return run


def _watch_live(client: ControlClient, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = {}
    live = LiveLines()
    for run in _polls(client, run_id):
        live.update(_display(run, client.get("clock")["now"]))
    return run


def _display(run: dict[str, Any], now: str) -> list[str]:
    rows = [(_SIGNS[step["status"]], step["title"], _duration(step, now)) for step in run["steps"]]
    lines = [_heading(run)]
    for step, line in zip(run["steps"], grid_lines(rows), strict=True):
        lines += [line, f"     {step['error']}"] if step["error"] else [line]
    return lines


def _watch_lines(client: ControlClient, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = {}
    printed = 0
    for run in _polls(client, run_id):
        if not printed:
            click.echo(_heading(run))
        ended = [step for step in run["steps"] if step["status"] not in ("waiting", "running")]
        for step in ended[printed and printed - 1 :]:
            problem = f": {step['error']}" if step["error"] else ""
            click.echo(f"{_SIGNS[step['status']]} {step['title']} ({_duration(step, '')}){problem}")
        printed = 1 + len(ended)
        sys.stdout.flush()
    return run


def _heading(run: dict[str, Any]) -> str:
    return f"{run['title']}: {names(run['vms'])} (run {run['id']})"


def _duration(step: dict[str, Any], now: str) -> str:
    """Return the duration of a step so far, on the service's clock."""
    if step["started_at"] is None:
        return ""
    until = from_text(step["ended_at"] or now)
    return format_duration(until - from_text(step["started_at"]))


def _result(run: dict[str, Any]) -> str:
    duration = format_duration(from_text(run["ended_at"]) - from_text(run["started_at"]))
    for number, step in enumerate(run["steps"], 1):
        if step["status"] == "failed":
            return f"Failed at step {number}, {step['title']}: {step['error']}."
    if run["status"] == "stopped":
        return f"Stopped after {duration}."
    return f"Passed: {len(run['steps'])} steps in {duration} on the service's clock."


def _stop(client: ControlClient, run_id: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt this
    try:
        client.post("runs", run_id, "stop")
        click.echo(f"Run {run_id} was stopped. Its scheduled events were cancelled.", err=True)
    except Conflict:
        click.echo(f"Run {run_id} had already ended.", err=True)

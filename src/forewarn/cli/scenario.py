"""forewarn scenario: list and run scenarios."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from forewarn.cli.client import LOST
from forewarn.cli.output import names, print_facts, print_json, print_table, service_command
from forewarn.cli.tables import LiveLines, can_update_lines, grid_lines
from forewarn.core.durations import format_duration, format_seconds
from forewarn.core.limits import short_notices
from forewarn.core.scenarios import RunOptions, RunStatus, StepStatus
from forewarn.errors import UnreadableFile
from forewarn.scenarios import library
from forewarn.scenarios.pace import RunStopped
from forewarn.scenarios.run import ScenarioRun
from forewarn.scenarios.shapes import RunShape, ScenarioShape

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from forewarn.cli.client import ControlClient
    from forewarn.core.scenarios import Run, Scenario, StepResult

    OnChange = Callable[[Run, datetime], None]


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
def run(
    scenario: str,
    vms: tuple[str, ...],
    group: str | None,
    speed: float | None,
    enable: bool,
    seen_by: tuple[str, ...],
    client: ControlClient,
    as_json: bool,
) -> None:
    """Run a scenario, and show its progress.

    Without --vm and --group the VMs are chosen automatically, if only one choice is possible.

    Ctrl-C stops the run and cancels its scheduled events. The exit code is 0 if all expectations were met, else 1.

    \b
    Examples:
      forewarn scenario run live-migration --vm web-0 --speed 60
      forewarn scenario run ./my-scenario.toml --group web --enable
    """
    found, _ = library.find(scenario)  # reports an error in the file before a request is sent
    options = RunOptions(vms, group or "", speed, enable, seen_by)
    show = _show_nothing if as_json else _show_live if can_update_lines() else _show_lines
    try:
        scenario_run = ScenarioRun(client, found, options, show())
    except RunStopped:  # while it waited for the VMs of --seen-by
        sys.exit(130)
    if speed and not seen_by:
        _warn_of_short_notices(found, speed, client.get("clock")["speed"])
    try:
        ended = _run_until_interrupted(scenario_run)
    except LOST:
        click.echo("The run has ended. Its operations and faults may still be in the service.", err=True)
        raise
    if ended.status is RunStatus.STOPPED:
        _report_stop(scenario_run)
        sys.exit(130)
    if as_json:
        print_json(to_builtins(RunShape.of(ended)))
    else:
        click.echo(_result(ended))
    sys.exit(0 if ended.status is RunStatus.PASSED else 1)


def _run_until_interrupted(scenario_run: ScenarioRun) -> Run:
    """Run it to its end. Ctrl-C ends it after the current request, so that nothing that it creates is forgotten."""

    def on_interrupt(*_: object) -> None:
        scenario_run.pace.stop()
        if scenario_run.pace.is_moving_clock:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        return scenario_run.run_to_end()
    finally:
        signal.signal(signal.SIGINT, before)


def _report_stop(scenario_run: ScenarioRun) -> None:
    click.echo("The run was stopped. Its scheduled events were cancelled.", err=True)
    for operation in scenario_run.operations_in_progress():
        left = f"Still in progress: operation {operation['id']} ({operation['cause']}, {names(operation['vms'])})"
        click.echo(left, err=True)


def _warn_of_short_notices(scenario: Scenario, speed: float, service_speed: float) -> None:
    short = short_notices(scenario.notices, speed * service_speed)
    if short is not None:
        click.echo(
            f"forewarn: at this speed the notices are short: {short.text}. Clients that poll every 10 seconds or less "
            f"often can miss the events. Use --speed {short.max_speed / service_speed:g} or lower.",
            err=True,
        )


def _max_duration(shape: dict[str, Any]) -> str:
    return format_seconds(shape["max_duration_seconds"])


# --- Progress of a run ----------------------------------------------------------------------------


_SIGNS = {
    StepStatus.WAITING: "·",
    StepStatus.RUNNING: "▸",
    StepStatus.PASSED: "✓",
    StepStatus.FAILED: "✗",
    StepStatus.SKIPPED: "–",
}


def _show_nothing() -> OnChange:
    return lambda run, now: None


def _show_live() -> OnChange:
    live = LiveLines()
    return lambda run, now: live.update(_display(run, now))


def _display(run: Run, now: datetime) -> list[str]:
    rows = [(_SIGNS[step.status], step.title, _duration(step, now)) for step in run.steps]
    lines = [_heading(run)]
    for step, line in zip(run.steps, grid_lines(rows), strict=True):
        lines += [line, f"     {step.error}"] if step.error else [line]
    return lines


def _show_lines() -> OnChange:
    printed: list[str] = []

    def show(run: Run, now: datetime) -> None:
        lines = [_heading(run)]
        for step in run.steps:
            if step.ended_at is not None:
                problem = f": {step.error}" if step.error else ""
                lines.append(f"{_SIGNS[step.status]} {step.title} ({_duration(step, now)}){problem}")
        for line in lines[len(printed) :]:
            click.echo(line)
        printed[:] = lines
        sys.stdout.flush()

    return show


def _heading(run: Run) -> str:
    return f"{run.scenario.title}: {names(list(run.vms))}"


def _duration(step: StepResult, now: datetime) -> str:
    """Return the duration of a step so far, on the service's clock."""
    return "" if step.started_at is None else format_duration((step.ended_at or now) - step.started_at)


def _result(run: Run) -> str:
    for number, step in enumerate(run.steps, 1):
        if step.status is StepStatus.FAILED:
            return f"Failed at step {number}, {step.title}: {step.error}."
    duration = format_duration((run.ended_at or run.started_at) - run.started_at)
    return f"Passed: {len(run.steps)} steps in {duration} on the service's clock."

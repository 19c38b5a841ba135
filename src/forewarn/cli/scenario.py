"""forewarn scenario: courses of events to rehearse, and rehearsing them."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.rehearsal import watch_run
from forewarn.cli.show import print_facts, print_json, print_table, service_command
from forewarn.core.durations import format_duration
from forewarn.errors import UnreadableFile
from forewarn.scenarios import library
from forewarn.scenarios.shapes import scenario_shape

if TYPE_CHECKING:
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
    found = [scenario_shape(library.find(name)[0]) for name in library.names()]
    if as_json:
        print_json({"scenarios": found})
        return
    rows = ((each["name"], each["title"], each["needs"]["words"], _length(each)) for each in found)
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
            raise UnreadableFile(path=scenario, problem="it has no fleet. Write one into it with the key fleet.")
        print_json({"fleet": found.fleet}) if as_json else click.echo(found.fleet.strip("\n"))
        return
    shape = scenario_shape(found, text)
    if as_json:
        print_json(shape)
        return
    print_facts(
        {
            "scenario": shape["name"],
            "title": shape["title"],
            "about": " ".join(shape["about"].split()),
            "needs": shape["needs"]["words"],
            "at most": _length(shape),
            "timings": " ".join(shape["source"].split()),
        }
    )
    click.echo()
    rows = (
        (str(number), step["what"], step["how"] if step["how"] != step["what"] else "", "\n".join(step["expects"]))
        for number, step in enumerate(shape["steps"], 1)
    )
    print_table(("step", "what", "how", "expected"), rows, "")
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
    sys.exit(0 if ended["state"] == "passed" else 1)


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
    return format_duration(timedelta(seconds=shape["longest_seconds"]))

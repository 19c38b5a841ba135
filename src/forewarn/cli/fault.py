"""forewarn fault: the endpoint, failing on purpose."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import print_json, print_table, service_command, when
from forewarn.core.durations import format_exact_duration
from forewarn.core.faults import FAULTS, GET, METHODS
from forewarn.errors import BadOption

if TYPE_CHECKING:
    from forewarn.cli.client import Client

_KINDS = "\n".join(f"  {kind.name:<10} {kind.meaning}" for kind in FAULTS.values())


@click.group()
def command() -> None:
    """Faults: make the endpoint fail on purpose.

    Needs a service that was started with --allow-faults.

    \b
    Example:
      forewarn fault add 429 --count 3
    """


@command.command(epilog=f"\b\nKinds:\n{_KINDS}")
@click.argument("kind")
@click.option("--vm", metavar="NAME", help="Strike only requests of this VM.  [default: of all]")
@click.option(
    "--method",
    metavar="|".join(METHODS),
    type=click.Choice(METHODS, case_sensitive=False),
    default=GET,
    help="Which requests.  [default: GET]",
)
@click.option("--count", metavar="N", type=int, help="How many requests; 1 if neither this nor --duration is given.")
@click.option("--duration", metavar="DURATION", help="How long, by the service's clock; with --count what ends first.")
@click.option("--delay", metavar="DURATION", help="How long slow and stall keep a client waiting; at most 10m.")
@service_command
def add(client: Client, as_json: bool, **options: Any) -> None:
    """Make the endpoint fail from now on, as KIND says, until it has struck often or long enough.

    \b
    Examples:
      forewarn fault add slow --delay 20s
      forewarn fault add 500 --vm web-0 --method POST --count 3
      forewarn fault add 429 --duration 2m
    """
    body = {"kind": options["kind"].lower(), "vm": options["vm"], "method": options["method"]}
    body |= {"count": options["count"], "duration": options["duration"], "delay": options["delay"]}
    answer = client.post("faults", body=body)
    if as_json:
        print_json(answer)
        return
    now = client.get("clock")["now"]
    if answer["remaining"] == 0:
        groups = "one group" if answer["hits"] == 1 else f"{answer['hits']:,} groups"
        click.echo(f"{answer['id']}: {answer['kind']}, at once: {groups}.")
    else:
        click.echo(f"{answer['id']}: {answer['kind']} of {_vm(answer)} on {answer['method']}, {_bounds(answer, now)}.")


@command.command("list")
@service_command
def list_faults(client: Client, as_json: bool) -> None:
    """The faults that can still strike, the oldest first: it strikes first.

    \b
    Example:
      forewarn fault list
    """
    answer = client.all("faults")
    if as_json:
        print_json(answer)
        return
    now = client.get("clock")["now"]
    rows = (
        (
            fault["id"],
            fault["kind"],
            _vm(fault),
            fault["method"],
            _bounds(fault, now),
            "" if fault["delay_seconds"] is None else format_exact_duration(timedelta(seconds=fault["delay_seconds"])),
            f"{fault['hits']:,}",
            fault["added_by"],
        )
        for fault in answer["faults"]
    )
    columns = ("fault", "kind", "VM", "method", "remaining", "delay", "hits", "added by")
    print_table(columns, rows, "No fault is active: the endpoint answers as it should.")


@command.command()
@click.argument("fault", required=False, metavar="[ID]")
@click.option("--all", "every", is_flag=True, help="All of them.")
@service_command
def clear(fault: str | None, every: bool, client: Client, as_json: bool) -> None:
    """End a fault before its time, or all of them.

    \b
    Examples:
      forewarn fault clear f1
      forewarn fault clear --all
    """
    if every == (fault is not None):
        raise BadOption(name="ID", value=fault or "", problem="name one fault, or use --all.")
    answer = client.delete("faults") if fault is None else client.delete("faults", fault)
    if as_json:
        print_json(answer)
        return
    cleared = answer["faults"] if fault is None else [answer]
    for each in cleared:
        click.echo(f"{each['id']} ({each['kind']}) is cleared. Hits: {each['hits']:,}.")
    if not cleared:
        click.echo("No fault was active.")


def _vm(fault: dict[str, Any]) -> str:
    return str(fault["vm"] or "all")


def _bounds(fault: dict[str, Any], now: str) -> str:
    parts = []
    if fault["remaining"] is not None:
        parts.append("once" if fault["remaining"] == 1 else f"{fault['remaining']:,} times")
    if fault["expires_at"] is not None:
        parts.append(f"until {when(fault['expires_at'], now)}")
    return ", ".join(parts)

"""forewarn fault: inject faults into the metadata endpoint."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import print_json, print_table, service_command, when
from forewarn.core.durations import format_exact_duration
from forewarn.core.faults import ANY, FAULTS, GET, METHODS
from forewarn.errors import BadOption

if TYPE_CHECKING:
    from forewarn.cli.client import ControlClient

_KINDS = "\n".join(f"  {kind.name:<10} {kind.meaning}" for kind in FAULTS.values())


@click.group()
def command() -> None:
    """Make the metadata endpoint fail on purpose.

    The service must run with --allow-faults.

    \b
    Example:
      forewarn fault add 429 --count 3
    """


@command.command(epilog=f"\b\nKinds:\n{_KINDS}")
@click.argument("kind")
@click.option("--vm", metavar="NAME", help="Affect only requests of this VM.  [default: all VMs]")
@click.option(
    "--method",
    metavar="|".join(METHODS),
    type=click.Choice(METHODS, case_sensitive=False),
    default=GET,
    help="Affect only requests with this method.  [default: GET]",
)
@click.option("--count", metavar="N", type=int, help="Number of requests to affect.  [default: 1, without --duration]")
@click.option(
    "--duration",
    metavar="DURATION",
    help="How long the fault is active, on the service's clock. With --count, whichever ends first.",
)
@click.option("--delay", metavar="DURATION", help="Delay of slow and stall, at most 10m.  [default: by kind]")
@service_command
def add(client: ControlClient, as_json: bool, **options: Any) -> None:
    """Add a fault of this KIND.

    It ends after --count requests, or after --duration.

    \b
    Examples:
      forewarn fault add slow --delay 20s
      forewarn fault add 500 --vm web-0 --method POST --count 3
      forewarn fault add 429 --duration 2m
    """
    body = {"kind": options["kind"].lower(), "vm": options["vm"], "method": options["method"]}
    body |= {"count": options["count"], "duration": options["duration"], "delay": options["delay"]}
    response = client.post("faults", body=body)
    if as_json:
        print_json(response)
        return
    now = client.get("clock")["now"]
    if response["remaining"] == 0:
        groups = "one group" if response["hits"] == 1 else f"{response['hits']:,} groups"
        click.echo(f"{response['id']}: {response['kind']}, applied immediately to {groups}.")
    else:
        click.echo(f"{response['id']}: {response['kind']} for {_requests(response)}, {_limits(response, now)}.")


@command.command("list")
@service_command
def list_faults(client: ControlClient, as_json: bool) -> None:
    """List active faults, the oldest first.

    If several faults match a request, the oldest is applied.

    \b
    Example:
      forewarn fault list
    """
    response = client.all("faults")
    if as_json:
        print_json(response)
        return
    now = client.get("clock")["now"]
    rows = (
        (
            fault["id"],
            fault["kind"],
            _vm(fault),
            fault["method"],
            _limits(fault, now),
            "" if fault["delay_seconds"] is None else format_exact_duration(timedelta(seconds=fault["delay_seconds"])),
            f"{fault['hits']:,}",
            fault["added_by"],
        )
        for fault in response["faults"]
    )
    columns = ("fault", "kind", "VM", "method", "remaining", "delay", "hits", "added by")
    print_table(columns, rows, "No active faults.")


@command.command()
@click.argument("fault", required=False, metavar="[ID]")
@click.option("--all", "everything", is_flag=True, help="End all active faults.")
@service_command
def clear(fault: str | None, everything: bool, client: ControlClient, as_json: bool) -> None:
    """End a fault, or all faults.

    \b
    Examples:
      forewarn fault clear f1
      forewarn fault clear --all
    """
    if everything == (fault is not None):
        raise BadOption(name="ID", value=fault or "", problem="use the id of a fault, or --all.")
    response = client.delete("faults") if fault is None else client.delete("faults", fault)
    if as_json:
        print_json(response)
        return
    cleared = response["faults"] if fault is None else [response]
    for each in cleared:
        click.echo(f"{each['id']} ({each['kind']}) was cleared. Hits: {each['hits']:,}.")
    if not cleared:
        click.echo("No active faults.")


def _vm(fault: dict[str, Any]) -> str:
    return str(fault["vm"] or "all")


def _requests(fault: dict[str, Any]) -> str:
    method = "all" if fault["method"] == ANY else fault["method"]
    return f"{method} requests of {fault['vm'] or 'all VMs'}"


def _limits(fault: dict[str, Any], now: str) -> str:
    parts = []
    if fault["remaining"] is not None:
        parts.append("once" if fault["remaining"] == 1 else f"{fault['remaining']:,} times")
    if fault["expires_at"] is not None:
        parts.append(f"until {when(fault['expires_at'], now)}")
    return ", ".join(parts)

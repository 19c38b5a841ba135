"""forewarn host: list hosts, and request work on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.listing import filter_option, list_command, print_list
from forewarn.cli.output import by_name, names, print_facts, print_json, service_command
from forewarn.cli.requests import (
    impact_options,
    override_notice_option,
    request_command,
    request_operations,
    yes_option,
)

if TYPE_CHECKING:
    from forewarn.cli.client import ControlClient


_MOVES = {"migrate": "Freeze", "redeploy": "Redeploy"}
"""How VMs leave a degraded host, each with the type of its event."""


@click.group()
def command() -> None:
    """List hosts. Update, repair or fail them.

    Work on a host affects all VMs on it. Their groups are notified first.

    \b
    Example:
      forewarn host update rack-1-a --impact freeze --duration 9s
    """


@command.command("list")
@click.argument("name", nargs=-1, metavar="[NAME]...")
@filter_option("state", "STATE", "Only hosts in this state, like in-service.")
@list_command
def list_hosts(name: tuple[str, ...], state: str | None, client: ControlClient, **options: Any) -> None:
    """List hosts with their state, VMs and work.

    A NAME can be a shell pattern.

    \b
    Examples:
      forewarn host list
      forewarn host list 'rack-1-*' --quiet
    """

    def table(hosts: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        return ("host", "state", "VM count", "VMs", "work"), [
            (
                host["name"],
                _state(host),
                str(len(host["vms"])),
                names(host["vms"]),
                names([operation["cause"] for operation in host["operations"]], 2),
            )
            for host in by_name(hosts)
        ]

    query = {"name": name, "state": state}
    print_list(client, "hosts", query, options, table, "No matching hosts." if any(query.values()) else "No hosts.")


def _state(host: dict[str, Any]) -> str:
    return f"{host['state']}, spare" if host["spare"] else str(host["state"])


@command.command()
@click.argument("name")
@service_command
def show(name: str, client: ControlClient, as_json: bool) -> None:
    """Show a host: its state, VMs, and scheduled or started work.

    \b
    Example:
      forewarn host show rack-1-a
    """
    host = client.get("hosts", name)
    if as_json:
        print_json(host)
        return
    _print_host(host)


def _print_host(host: dict[str, Any]) -> None:
    print_facts(
        {
            "host": host["name"],
            "state": _state(host),
            "VMs": ", ".join(host["vms"]) or "none",
            "work": ", ".join(
                f"{operation['cause']} {operation['id'][:8]} ({operation['status']})"
                for operation in host["operations"]
            )
            or "none",
        }
    )


@command.command()
@click.argument("name")
@impact_options
@request_command(routine=True, platform=True)
def update(name: str, impact: str, duration: str | None, **options: Any) -> None:
    """Update a host. The groups on it are notified first.

    The update starts when every group has approved, or its notice is over.

    \b
    Example:
      forewarn host update rack-1-a --impact freeze --duration 9s
    """
    request_operations({"cause": "host-update", "host": name, "type": impact, "duration": duration}, options)


@command.command()
@click.argument("name")
@request_command(platform=True)
def repair(name: str, **options: Any) -> None:
    """Repair a host urgently. Its VMs reboot after the minimum notice.

    The repair does not wait for maintenance windows.

    \b
    Example:
      forewarn host repair rack-1-a
    """
    request_operations({"cause": "emergency-repair", "host": name}, options)


@command.command()
@click.argument("name")
@click.option(
    "--as",
    "outcome",
    type=click.Choice(list(_MOVES)),
    help="Live-migrate all its VMs, or redeploy them.  [default: migrate; redeploy a VM that no host can take]",
)
@click.option("--notice", metavar="DURATION", help="Time between the notice and the moves.  [default: 7d]")
@override_notice_option
@click.option("--override-windows", is_flag=True, help="Also start outside the groups' maintenance windows.")
@request_command(notice=False, platform=True)
def degrade(name: str, outcome: str | None, **options: Any) -> None:
    """Take a failing host out of service, and move its VMs away.

    Each VM moves when its group has approved, or its notice is over. If no host can take a VM then, it gets a Redeploy
    with the minimum notice.

    \b
    Example:
      forewarn host degrade rack-1-a --notice 7d
    """
    request_operations({"cause": "degraded-hardware", "host": name, "type": _MOVES.get(outcome or "")}, options)


@command.command()
@click.argument("name")
@click.option(
    "--as",
    "outcome",
    type=click.Choice(["reboot", "redeploy"]),
    default="reboot",
    help="The type of the events. The VMs start on other hosts in any case.  [default: reboot]",
)
@yes_option
@request_command(notice=False, platform=True, notified=False)
def fail(name: str, outcome: str, **options: Any) -> None:
    """Declare a host failed. Its VMs start on other hosts immediately.

    The host goes out of service. The events of its VMs start without notice.

    \b
    Example:
      forewarn host fail rack-1-a
    """
    question = f"Declare {name} failed, and start its VMs on other hosts? This cannot be undone."
    request_operations({"cause": "hardware-failure", "host": name, "type": outcome}, options, question)


@command.command("return")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing.")
@service_command
def return_host(name: str, dry_run: bool, client: ControlClient, as_json: bool) -> None:
    """Return a host to service, and cancel pending moves of its VMs.

    \b
    Example:
      forewarn host return rack-1-a
    """
    host = client.post("hosts", name, "return", body={"dry_run": dry_run})
    if as_json:
        print_json(host)
        return
    if dry_run:
        cancelled = len(host["cancelled"])
        moves = "1 move" if cancelled == 1 else f"{cancelled} moves"
        click.echo(f"Dry run: nothing was changed. {name} would be in service, and {moves} cancelled.")
        return
    _print_host(host)

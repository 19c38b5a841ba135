"""forewarn host: see hosts, and announce work on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import by_name, names, print_facts, print_json, print_table, service_command
from forewarn.cli.requests import confirm, impact_options, request_command, request_operations

if TYPE_CHECKING:
    from forewarn.cli.client import Client


@click.group()
def command() -> None:
    """Hosts: see them, and announce work on them. What happens to a host happens to the VMs on it.

    \b
    Example:
      forewarn host update rack-1-a --impact freeze --duration 9s
    """


@command.command("list")
@service_command
def list_hosts(client: Client, as_json: bool) -> None:
    """All hosts: whether they are in use, and what is on them.

    \b
    Example:
      forewarn host list
    """
    answer = client.all("hosts")
    if as_json:
        print_json(answer)
        return
    rows = (
        (
            host["name"],
            _state(host),
            str(len(host["vms"])),
            names(host["vms"]),
            names([operation["cause"] for operation in host["operations"]], 2),
        )
        for host in by_name(answer["hosts"])
    )
    print_table(("host", "state", "VMs", "which", "work"), rows, "The fleet has no hosts.")


def _state(host: dict[str, Any]) -> str:
    return f"{host['state']}, spare" if host["spare"] else str(host["state"])


@command.command()
@click.argument("name")
@service_command
def show(name: str, client: Client, as_json: bool) -> None:
    """One host: its state, the VMs on it, and the work announced or under way.

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
@request_command(routine=True)
def update(name: str, impact: str, duration: str | None, **options: Any) -> None:
    """Update a host: every group on it is told, and it begins when each has approved or is due.

    \b
    Example:
      forewarn host update rack-1-a --impact freeze --duration 9s
    """
    request_operations({"cause": "host-update", "host": name, "type": impact, "duration": duration}, options)


@command.command()
@click.argument("name")
@request_command()
def repair(name: str, **options: Any) -> None:
    """Repair a host that cannot wait: its VMs are rebooted after the least notice, in a window or not.

    \b
    Example:
      forewarn host repair rack-1-a
    """
    request_operations({"cause": "emergency-repair", "host": name}, options)


@command.command()
@click.argument("name")
@click.option("--notice", metavar="DURATION", help="When its VMs are moved away at the latest; default: 7d.")
@click.option("--override-notice", is_flag=True, help="Insist on a notice below the least.")
@click.option("--override-windows", is_flag=True, help="Also outside the groups' maintenance windows.")
@request_command(notice=False)
def degrade(name: str, **options: Any) -> None:
    """A host is expected to fail: take it out of use, and move its VMs away, each when approved or due.

    \b
    Example:
      forewarn host degrade rack-1-a --notice 7d
    """
    request_operations({"cause": "degraded-hardware", "host": name}, options)


@command.command()
@click.argument("name")
@click.option(
    "--as",
    "outcome",
    type=click.Choice(["reboot", "redeploy"]),
    default="redeploy",
    help="What becomes of its VMs.  [default: redeploy]",
)
@click.option("--yes", is_flag=True, help="Do not ask whether it is meant.")
@request_command(notice=False)
def fail(name: str, outcome: str, yes: bool, **options: Any) -> None:
    """A host has failed: it is out of use, and its VMs are rebooted or started elsewhere at once.

    \b
    Example:
      forewarn host fail rack-1-a --as redeploy
    """
    if not options["dry_run"]:
        confirm(f"Fail {name} and all VMs on it now?", yes)
    request_operations({"cause": "hardware-failure", "host": name, "type": outcome}, options)


@command.command("return")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only say what would be withdrawn; change nothing.")
@service_command
def return_host(name: str, dry_run: bool, client: Client, as_json: bool) -> None:
    """A host is well again: it is used, and nobody is moved away from it any more.

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
        click.echo(f"Dry run: nothing is changed. {name} would be in service, and {cancelled} redeploys cancelled.")
        return
    _print_host(host)

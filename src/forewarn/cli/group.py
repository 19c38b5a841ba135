"""forewarn group: the groups of the fleet, and their policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import by_name, print_facts, print_json, print_table, service_command

if TYPE_CHECKING:
    from forewarn.cli.client import Client


@click.group()
def command() -> None:
    """Groups: who is told together, and by which policy. A VM in no group is one of its own.

    \b
    Example:
      forewarn group policy web --window "sat,sun 02:00 4h Europe/Berlin"
    """


@command.command("list")
@service_command
def list_groups(client: Client, as_json: bool) -> None:
    """The declared groups, and their policy.

    \b
    Example:
      forewarn group list
    """
    answer = client.all("groups")
    if as_json:
        print_json(answer)
        return
    rows = (
        (
            group["name"],
            group["kind"],
            str(group["vms"]),
            ", ".join(group["auto_approve"]),
            group["terminate_notice"] or "",
            "; ".join(group["windows"]),
        )
        for group in by_name(answer["groups"])
    )
    columns = ("group", "kind", "VMs", "auto approve", "terminate notice", "windows")
    print_table(columns, rows, "No groups are declared: each VM is one of its own.")


@command.command()
@click.argument("name")
@service_command
def show(name: str, client: Client, as_json: bool) -> None:
    """One group, and its policy.

    \b
    Example:
      forewarn group show web
    """
    _print(client.get("groups", name), as_json)


@command.command()
@click.argument("name")
@click.option("--auto-approve", metavar="WORDS", help="What starts without asking: reboot, redeploy or both; or none.")
@click.option(
    "--terminate-notice", metavar="PT5M..PT15M", help="How long before a deletion a scale set is told; or off."
)
@click.option("--window", "windows", multiple=True, metavar="WINDOW", help='Like "sat,sun 02:00 4h Europe/Berlin".')
@click.option("--no-windows", is_flag=True, help="Routine operations may start at any time.")
@service_command
def policy(
    name: str,
    auto_approve: str | None,
    terminate_notice: str | None,
    windows: tuple[str, ...],
    no_windows: bool,
    client: Client,
    as_json: bool,
) -> None:
    """Change a group's policy. It lasts until a fleet file is applied.

    \b
    Example:
      forewarn group policy pool --terminate-notice PT10M
    """
    body: dict[str, Any] = {}
    if auto_approve is not None:
        words = auto_approve.replace(",", " ").split()
        body["auto_approve"] = [] if words == ["none"] else words
    if terminate_notice is not None:
        body["terminate_notice"] = terminate_notice
    if windows and no_windows:
        raise click.UsageError("Write --window or --no-windows, not both.")
    if windows or no_windows:
        body["windows"] = list(windows)
    if not body:
        raise click.UsageError("Say what to change: --auto-approve, --terminate-notice, --window or --no-windows.")
    _print(client.post("groups", name, "policy", body=body), as_json)


def _print(group: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(group)
        return
    print_facts(
        {
            "group": group["name"],
            "kind": group["kind"],
            "VMs": str(group["vms"]),
            "domains": f"{group['update_domains']} update, {group['fault_domains']} fault",
            "auto approve": ", ".join(group["auto_approve"]) or "nothing",
            "terminate notice": group["terminate_notice"] or "off",
            "windows": "; ".join(group["windows"]) or "any time",
        }
    )

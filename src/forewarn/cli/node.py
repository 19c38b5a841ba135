"""forewarn node: list the nodes of a service, and let another node lead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import print_json, print_table, service_command, when

if TYPE_CHECKING:
    from forewarn.cli.client import ControlClient


@click.group()
def command() -> None:
    """List the nodes of the service, and let another node lead.

    \b
    Example:
      forewarn node list
    """


@command.command("list")
@service_command
def list_nodes(client: ControlClient, as_json: bool) -> None:
    """List the nodes, with role and lag.

    \b
    Example:
      forewarn node list
    """
    response = client.get("nodes")
    if as_json:
        print_json(response)
        return
    _print(response, client.get("clock")["now"])


def _print(response: dict[str, Any], now: str) -> None:
    rows = (
        (
            node["name"] + (" *" if node["is_self"] else ""),
            node["role"],
            node["epoch"],
            node["behind"],
            f"{node['age_seconds']:.1f}s ago",
            node["address"] or "",
            when(node["started_at"], now),
            node["version"],
        )
        for node in response["nodes"]
    )
    print_table(("node", "role", "epoch", "behind", "reported", "address", "started", "version"), rows, "No nodes.")
    if response["problem"]:
        click.echo(f"The node that answered (*) has a problem: {response['problem']}", err=True)


@command.command("step-down")
@service_command
def step_down(client: ControlClient, as_json: bool) -> None:
    """Let another node lead, for example before maintenance.

    \b
    Example:
      forewarn node step-down
    """
    response = client.post("nodes", "step-down", body={})
    if as_json:
        print_json(response)
    else:
        click.echo("The leader has stepped down. Another node leads within seconds: see forewarn node list")

"""forewarn operation: what was asked for, and saying how the work went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import names, print_facts, print_json, print_table, service_command, short_ids, when

if TYPE_CHECKING:
    from forewarn.cli.client import Client


@click.group()
def command() -> None:
    """Operations: what was asked for, what became of it, and saying so where a person does the work.

    An id may be cut short where it is clear.

    \b
    Example:
      forewarn operation done 4caea225
    """


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that are over.")
@service_command
def list_operations(everything: bool, client: Client, as_json: bool) -> None:
    """What is asked for and not yet over.

    \b
    Example:
      forewarn operation list
    """
    answer = client.all("operations", all="true") if everything else client.all("operations")
    if as_json:
        print_json(answer)
        return
    now = client.get("clock")["now"]
    ids = short_ids([operation["id"] for operation in answer["operations"]])
    rows = (
        (
            ids[operation["id"]],
            operation["cause"],
            operation["status"] + (f": {operation['reason']}" if operation["reason"] else ""),
            operation["host"] or "",
            names(operation["vms"]),
            operation["requested_by"],
            when(operation["requested_at"], now),
        )
        for operation in answer["operations"]
    )
    columns = ("operation", "cause", "status", "host", "VMs", "asked by", "asked")
    print_table(columns, rows, "There has been no operation." if everything else "No operation is under way.")


@command.command()
@click.argument("operation_id", metavar="ID")
@service_command
def show(operation_id: str, client: Client, as_json: bool) -> None:
    """One operation, live or over, with its events.

    \b
    Example:
      forewarn operation show 4caea225
    """
    _print(client, client.get("operations", operation_id), as_json)


@command.command()
@click.argument("operation_id", metavar="ID")
@service_command
def done(operation_id: str, client: Client, as_json: bool) -> None:
    """The work is done and all is well: the events disappear.

    \b
    Example:
      forewarn operation done 4caea225
    """
    _print(client, client.post("operations", operation_id, "done"), as_json)


@command.command()
@click.argument("operation_id", metavar="ID")
@click.option("--reason", metavar="TEXT", default="", help="What went wrong, for history.")
@service_command
def failed(operation_id: str, reason: str, client: Client, as_json: bool) -> None:
    """The work could not be done: the events disappear, and a rollout that it belongs to stops.

    \b
    Example:
      forewarn operation failed 4caea225 --reason "the host does not come back"
    """
    _print(client, client.post("operations", operation_id, "failed", body={"reason": reason}), as_json)


@command.command()
@click.argument("operation_id", metavar="ID")
@service_command
def cancel(operation_id: str, client: Client, as_json: bool) -> None:
    """Withdraw an operation that has not started, with all its events.

    \b
    Example:
      forewarn operation cancel 4caea225
    """
    _print(client, client.post("operations", operation_id, "cancel"), as_json)


def _print(client: Client, operation: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(operation)
        return
    now = client.get("clock")["now"]
    print_facts(
        {
            "operation": operation["id"],
            "cause": operation["cause"],
            "type": operation["type"],
            "status": operation["status"] + (f": {operation['reason']}" if operation["reason"] else ""),
            "host": operation["host"],
            "VMs": ", ".join(operation["vms"]),
            "moves": ", ".join(f"{vm} to {host}" for vm, host in operation["moves"].items()),
            "rollout": operation["rollout"],
            "health": operation["health"],
            "overrides": ", ".join(operation["overrides"]),
            "asked": f"{when(operation['requested_at'], now)} by {operation['requested_by']}",
            "postpone deadline": when(operation["postpone_deadline"], now) if operation["status"] == "pending" else "",
            "not notified": "; ".join(operation["not_notified"].values()),
            "started": when(operation["started_at"], now),
            "last failure": operation["last_failure"],
            "next attempt": when(operation["next_attempt_at"], now),
            "carried out": when(operation["executed_at"], now),
            "ended": when(operation["ended_at"], now),
            "events": ", ".join(event["id"] for event in operation["events"]) or "none",
        }
    )

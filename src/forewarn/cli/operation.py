"""forewarn operation: list operations, cancel them, and mark them done or failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.listing import filter_option, list_command, print_list
from forewarn.cli.output import names, print_facts, print_json, service_command, short_ids, when

if TYPE_CHECKING:
    from forewarn.cli.client import ControlClient


@click.group()
def command() -> None:
    """List operations. Cancel them, or mark them done or failed.

    An id can be shortened to its first characters.

    \b
    Example:
      forewarn operation done 4caea225
    """


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Include ended operations.")
@click.option("--todo", is_flag=True, help="Only work that has to be done now, for --fabric manual.")
@filter_option("vm", "NAME", "Only operations on this VM. Can be a shell pattern.")
@filter_option("group", "NAME", "Only operations with an event of this group.")
@filter_option("host", "NAME", "Only operations on this host.")
@filter_option("type", "TYPE", "Only operations with events of this type, like reboot.")
@filter_option("cause", "CAUSE", "Only operations with this cause, like host-update.")
@filter_option("status", "STATUS", "Only operations with this status: pending, started, done, failed or cancelled.")
@list_command
def list_operations(everything: bool, todo: bool, client: ControlClient, **options: Any) -> None:
    """List pending and started operations.

    With --todo, list the work of started operations that is not done yet. If you do this work yourself (--fabric
    manual), report each with `forewarn operation done` or `failed`.

    \b
    Examples:
      forewarn operation list
      forewarn operation list --todo
      forewarn operation list --all --host rack-1-a --status failed
    """
    if todo and everything:
        raise click.UsageError("Use either --todo or --all.")

    def table(operations: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        now = client.get("clock")["now"]
        ids = short_ids([operation["id"] for operation in operations])
        if todo:
            return ("operation", "to do", "cause", "since"), [
                (ids[each["id"]], _work(each), each["cause"], when(each["started_at"], now)) for each in operations
            ]
        return ("operation", "cause", "status", "host", "VMs", "requested by", "requested"), [
            (
                ids[operation["id"]],
                operation["cause"],
                operation["status"] + (f": {operation['reason']}" if operation["reason"] else ""),
                operation["host"] or "",
                names(operation["vms"]),
                operation["requested_by"],
                when(operation["requested_at"], now),
            )
            for operation in operations
        ]

    filters = {name: options[name] for name in ("vm", "group", "host", "type", "cause", "status")}
    empty = "Nothing to do." if todo else "No operations." if everything else "No pending or started operations."
    empty = "No matching operations." if any(filters.values()) else empty
    print_list(client, "operations", {**filters, "all": everything, "todo": todo}, options, table, empty)


def _work(operation: dict[str, Any]) -> str:
    """Return what somebody has to do for an operation, like `migrate web-0 to rack-2-a`."""
    verb, moves = operation["verb"] or "work on", operation["moves"]
    moved = [f"{vm} to {host}" for vm, host in moves.items()]
    left = [vm for vm in operation["vms"] if vm not in moves]
    on_host = f" on host {operation['host']}" if operation["host"] else ""
    return f"{verb} {names([*moved, *left])}{on_host}" if moved or left else f"{verb}{on_host}"


@command.command()
@click.argument("operation_id", metavar="ID")
@service_command
def show(operation_id: str, client: ControlClient, as_json: bool) -> None:
    """Show an operation and its events.

    \b
    Example:
      forewarn operation show 4caea225
    """
    _print(client, client.get("operations", operation_id), as_json)


@command.command()
@click.argument("operation_id", metavar="ID")
@click.option(
    "--host", "hosts", metavar="VM=HOST", multiple=True, help="The host of a VM after the work, if you have chosen it."
)
@service_command
def done(operation_id: str, hosts: tuple[str, ...], client: ControlClient, as_json: bool) -> None:
    """Mark a started operation as done. Its events disappear.

    \b
    Examples:
      forewarn operation done 4caea225
      forewarn operation done 4caea225 --host web-0=rack-2-a
    """
    placed = {}
    for text in hosts:
        vm, separator, host = text.partition("=")
        if not (vm and separator and host):
            raise click.BadParameter(f"{text!r} does not name a VM and its host. Write VM=HOST.", param_hint="--host")
        placed[vm] = host
    _print(client, client.post("operations", operation_id, "done", body={"hosts": placed} if placed else {}), as_json)


@command.command()
@click.argument("operation_id", metavar="ID")
@click.option("--reason", metavar="TEXT", default="", help="The reason, which history records.")
@service_command
def failed(operation_id: str, reason: str, client: ControlClient, as_json: bool) -> None:
    """Mark a started operation as failed. Its events disappear.

    If the operation belongs to a rollout, the rollout stops.

    \b
    Example:
      forewarn operation failed 4caea225 --reason "the host does not come back"
    """
    _print(client, client.post("operations", operation_id, "failed", body={"reason": reason}), as_json)


@command.command()
@click.argument("operation_id", metavar="ID")
@service_command
def cancel(operation_id: str, client: ControlClient, as_json: bool) -> None:
    """Cancel an operation that has not started, with its events.

    \b
    Example:
      forewarn operation cancel 4caea225
    """
    _print(client, client.post("operations", operation_id, "cancel"), as_json)


def _print(client: ControlClient, operation: dict[str, Any], as_json: bool) -> None:
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
            "requested": f"{when(operation['requested_at'], now)} by {operation['requested_by']}",
            "postpone deadline": when(operation["postpone_deadline"], now) if operation["status"] == "pending" else "",
            "not notified": "; ".join(operation["not_notified"].values()),
            "started": when(operation["started_at"], now),
            "last failure": operation["last_failure"],
            "next attempt": when(operation["next_attempt_at"], now),
            "executed": when(operation["executed_at"], now),
            "ended": when(operation["ended_at"], now),
            "events": ", ".join(event["id"] for event in operation["events"]) or "none",
        }
    )

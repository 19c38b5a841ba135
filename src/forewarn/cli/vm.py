"""forewarn vm: see VMs, have things happen to them, read what they are told."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import by_name, print_facts, print_json, print_table, service_command, when
from forewarn.cli.requests import confirm, request_command, request_operations
from forewarn.core.durations import format_relative_time, from_text

if TYPE_CHECKING:
    from forewarn.cli.client import Client


@click.group()
def command() -> None:
    """VMs: see them, and have things happen to them.

    \b
    Example:
      forewarn vm restart web-0
    """


@command.command("list")
@service_command
def list_vms(client: Client, as_json: bool) -> None:
    """All VMs, whether events are enabled for them, and when their group last polled.

    \b
    Example:
      forewarn vm list
    """
    answer = client.all("vms")
    if as_json:
        print_json(answer)
        return
    now = client.get("clock")["now"]
    rows = (
        (
            vm["name"],
            vm["group"] if vm["group"] != vm["name"] else "",
            vm["host"],
            f"{vm['update_domain']}/{vm['fault_domain']}",
            vm["listen"] or vm["address"] or "",
            vm["state"],
            _yes_or_no(vm["events_enabled"]),
            _last_seen(vm, now),
            str(len(vm["events"]) or ""),
        )
        for vm in by_name(answer["vms"])
    )
    print_table(
        ("VM", "group", "host", "UD/FD", "polls from", "state", "events enabled", "last seen", "events"),
        rows,
        "The fleet has no VMs.",
    )


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def _last_seen(vm: dict[str, Any], now: str) -> str:
    return format_relative_time(from_text(vm["last_seen_at"]), from_text(now)) if vm["last_seen_at"] else "never"


@command.command()
@click.argument("name")
@service_command
def show(name: str, client: Client, as_json: bool) -> None:
    """One VM, with the events that name it.

    \b
    Example:
      forewarn vm show web-0
    """
    vm = client.get("vms", name)
    if as_json:
        print_json(vm)
        return
    now = client.get("clock")["now"]
    print_facts(
        {
            "VM": vm["name"],
            "group": f"{vm['group']} ({vm['kind']})",
            "state": vm["state"],
            "host": vm["host"]
            + (f" (moved; the fleet file has {vm['configured_host']})" if vm["configured_host"] else ""),
            "update domain": str(vm["update_domain"]),
            "fault domain": str(vm["fault_domain"]),
            "address": vm["address"],
            "own address": vm["listen"],
            "host name": vm["hostname"],
            "priority": vm["priority"],
            "size": vm["size"],
            "zone": vm["zone"],
            "tags": ", ".join(f"{key}={value}" for key, value in vm["tags"].items()),
            "auto approve": ", ".join(vm["auto_approve"]),
            "events enabled": _yes_or_no(vm["events_enabled"]),
            "last seen": when(vm["last_seen_at"], now) or "never",
            "incarnation": str(vm["incarnation"]),
            "events": ", ".join(vm["events"]) or "none",
        }
    )


several = click.argument("names", nargs=-1, required=True, metavar="NAME...")


@command.command()
@several
@request_command()
def restart(names: tuple[str, ...], **options: Any) -> None:
    """Restart a VM: its group is told, and it happens when approved or due.

    \b
    Example:
      forewarn vm restart web-0
    """
    request_operations({"cause": "restart", "vms": names}, options)


@command.command()
@several
@request_command()
def redeploy(names: tuple[str, ...], **options: Any) -> None:
    """Move a VM to another host: its group is told, and it happens when approved or due.

    \b
    Example:
      forewarn vm redeploy web-0
    """
    request_operations({"cause": "redeploy", "vms": names}, options)


@command.command()
@several
@click.option("--duration", metavar="DURATION", help="How long the VM is paused; default: 5s.")
@request_command(routine=True)
def migrate(names: tuple[str, ...], duration: str | None, **options: Any) -> None:
    """Move a running VM to another host. VMs on one host are moved, and told of it, together.

    \b
    Example:
      forewarn vm migrate web-0
    """
    request_operations({"cause": "live-migration", "vms": names, "duration": duration}, options)


@command.command()
@several
@request_command()
def evict(names: tuple[str, ...], **options: Any) -> None:
    """Take the room of a Spot VM: it is told, and 30 seconds later deallocated. It stays in the fleet.

    \b
    Example:
      forewarn vm evict batch_3
    """
    request_operations({"cause": "eviction", "vms": names}, options)


@command.command()
@several
@request_command(notice=False)
def rebalance(names: tuple[str, ...], **options: Any) -> None:
    """Advise a Spot VM to move on. Only the api-version in preview shows it; withdraw it with event cancel.

    \b
    Example:
      forewarn vm rebalance batch_3
    """
    request_operations({"cause": "rebalance", "vms": names}, options)


@command.command()
@several
@click.option(
    "--as",
    "reason",
    type=click.Choice(["delete", "scale-in", "repair"]),
    default="delete",
    help="Who asks: a user (delete), or the platform for a smaller set or in place of an ill VM.  [default: delete]",
)
@click.option("--yes", is_flag=True, help="Do not ask whether it is meant.")
@request_command(notice=False)
def delete(names: tuple[str, ...], reason: str, yes: bool, **options: Any) -> None:
    """Delete a VM. A scale set with terminate notices is told beforehand; the VM leaves when the event does.

    \b
    Example:
      forewarn vm delete pool_3 --as scale-in
    """
    if not options["dry_run"]:
        confirm(f"Delete {', '.join(names)}?", yes)
    request_operations({"cause": "instance-repair" if reason == "repair" else reason, "vms": names}, options)


@command.command()
@several
@request_command(notice=False)
def start(names: tuple[str, ...], **options: Any) -> None:
    """Start a VM that was deallocated.

    \b
    Example:
      forewarn vm start batch_3
    """
    request_operations({"cause": "start", "vms": names}, options)


@command.command()
@click.argument("name")
@click.option("--api-version", metavar="V", help="As this api-version shows it; default: the newest.")
@service_command
def document(name: str, api_version: str | None, client: Client, as_json: bool) -> None:
    """Exactly the bytes that the VM would get: JSON already. Reading them does not count as the VM asking.

    \b
    Example:
      forewarn vm document web-0 --api-version 2019-08-01
    """
    query = {"api-version": api_version} if api_version else {}
    body = client.raw("GET", ("vms", name, "document"), query)
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()

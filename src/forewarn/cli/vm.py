"""forewarn vm: list VMs, request operations on them, and read their documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.listing import filter_option, list_command, print_list
from forewarn.cli.output import by_name, print_facts, print_json, service_command, when
from forewarn.cli.requests import (
    duration_option,
    request_command,
    request_image_change,
    request_image_command,
    request_operations,
)
from forewarn.core.durations import format_relative_time, from_text
from forewarn.system.printable import printable_json

if TYPE_CHECKING:
    from forewarn.cli.client import ControlClient


@click.group()
def command() -> None:
    """List VMs. Restart, move, reimage, evict or delete them.

    \b
    Example:
      forewarn vm restart web-0
    """


@command.command("list")
@click.argument("name", nargs=-1, metavar="[NAME]...")
@filter_option("group", "NAME", "Only VMs of this group.")
@filter_option("host", "NAME", "Only VMs on this host.")
@filter_option("state", "STATE", "Only VMs in this state: running or deallocated.")
@list_command
def list_vms(
    name: tuple[str, ...], group: str | None, host: str | None, state: str | None, client: ControlClient, **options: Any
) -> None:
    """List VMs with their host, state and last poll.

    A NAME can be a shell pattern.

    \b
    Examples:
      forewarn vm list
      forewarn vm list 'web-*' --state running
      forewarn vm list --host rack-1-a --quiet
    """

    def table(vms: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        now = client.get("clock")["now"]
        columns = ("VM", "group", "host", "UD/FD", "polls from", "state", "enabled", "last seen", "events")
        return columns, [
            (
                vm["name"],
                vm["group"] if vm["group"] != vm["name"] else "",
                vm["host"] or "",
                f"{vm['update_domain']}/{vm['fault_domain']}",
                vm["listen"] or vm["address"] or "",
                vm["state"],
                _yes_or_no(vm["events_enabled"]),
                _last_seen(vm, now),
                str(len(vm["events"]) or ""),
            )
            for vm in by_name(vms)
        ]

    query = {"name": name, "group": group, "host": host, "state": state}
    print_list(client, "vms", query, options, table, "No matching VMs." if any(query.values()) else "No VMs.")


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def _last_seen(vm: dict[str, Any], now: str) -> str:
    return format_relative_time(from_text(vm["last_seen_at"]), from_text(now)) if vm["last_seen_at"] else "never"


def _polls(polls: dict[str, Any]) -> str:
    interval = polls["interval_seconds"]
    return f"{polls['count']} since the service started" + (f", every {interval:.3g} seconds" if interval else "")


@command.command()
@click.argument("name")
@service_command
def show(name: str, client: ControlClient, as_json: bool) -> None:
    """Show a VM and its events.

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
            "scope": vm["scope"] if vm["scope"] != vm["group"] else None,
            "state": vm["state"],
            "host": (vm["host"] or "")
            + (f" (moved; the fleet file has {vm['configured_host']})" if vm["configured_host"] else ""),
            "update domain": str(vm["update_domain"]),
            "fault domain": str(vm["fault_domain"]),
            "address": vm["address"],
            "own address": vm["listen"],
            "host name": vm["hostname"],
            "priority": vm["priority"],
            "eviction policy": vm["eviction_policy"],
            "size": vm["size"],
            "zone": vm["zone"],
            "tags": ", ".join(f"{key}={value}" for key, value in vm["tags"].items()),
            "OS": vm["os"],
            "location": vm["location"],
            "public keys": str(len(vm["public_keys"]) or ""),
            "user data": _yes_or_no(vm["has_user_data"]),
            "custom data": _yes_or_no(vm["has_custom_data"]),
            "auto approve": ", ".join(vm["auto_approve"]),
            "events enabled": _yes_or_no(vm["events_enabled"]),
            "last seen": when(vm["last_seen_at"], now) or "never",
            "own polls": _polls(vm["polls"]),
            "incarnation": str(vm["incarnation"]),
            "events": ", ".join(vm["events"]) or "none",
        }
    )


several_vms = click.argument("vms", nargs=-1, required=True, metavar="NAME...")


@command.command()
@several_vms
@request_command()
def restart(vms: tuple[str, ...], **options: Any) -> None:
    """Restart VMs. Their groups are notified first.

    A restart starts when the group has approved it, or its notice is over.

    \b
    Example:
      forewarn vm restart web-0
    """
    request_operations({"cause": "restart", "vms": vms}, options)


@command.command()
@several_vms
@request_command()
def redeploy(vms: tuple[str, ...], **options: Any) -> None:
    """Move VMs to other hosts, with a reboot.

    The groups are notified first. A move starts when the group has approved it, or its notice is over.

    \b
    Example:
      forewarn vm redeploy web-0
    """
    request_operations({"cause": "redeploy", "vms": vms}, options)


@command.command()
@several_vms
@request_image_command
def reimage(vms: tuple[str, ...], **options: Any) -> None:
    """Replace the OS disks of VMs with the same image.

    Only a scale set with an OS image notice is notified first. For other VMs, the work starts at once.

    \b
    Example:
      forewarn vm reimage pool_3
    """
    request_image_change("reimage", {"vms": vms}, ", ".join(vms), options)


@command.command("upgrade-image")
@several_vms
@request_image_command
def upgrade_image(vms: tuple[str, ...], **options: Any) -> None:
    """Replace the OS disks of VMs with the newest image.

    Only a scale set with an OS image notice is notified first. For other VMs, the work starts at once.

    \b
    Example:
      forewarn vm upgrade-image pool_3
    """
    request_image_change("image-upgrade", {"vms": vms}, ", ".join(vms), options)


@command.command()
@several_vms
@duration_option("5s")
@request_command(routine=True, platform=True)
def migrate(vms: tuple[str, ...], duration: str | None, **options: Any) -> None:
    """Live-migrate VMs to other hosts. They pause for some seconds.

    The groups are notified first. VMs on the same host move together.

    \b
    Example:
      forewarn vm migrate web-0
    """
    request_operations({"cause": "live-migration", "vms": vms, "duration": duration}, options)


@command.command()
@several_vms
@request_command(platform=True)
def evict(vms: tuple[str, ...], **options: Any) -> None:
    """Evict Spot VMs after a notice of 30 seconds.

    With --override-notice, the notice can be shorter, down to 0s.

    The eviction policy of a VM decides whether it is deallocated or deleted. A deallocated VM stays in the fleet. Start
    it again with: forewarn vm start

    \b
    Examples:
      forewarn vm evict batch_3
      forewarn vm evict batch_3 --notice 5s --override-notice
    """
    request_operations({"cause": "eviction", "vms": vms}, options)


@command.command()
@several_vms
@request_command(notice=False, platform=True, notified=False)
def rebalance(vms: tuple[str, ...], **options: Any) -> None:
    """Recommend that Spot VMs move their work.

    Only preview api-versions show this event, as an advisory. It never starts, and nobody approves it. End it with:
    forewarn event cancel

    \b
    Example:
      forewarn vm rebalance batch_3
    """
    request_operations({"cause": "rebalance", "vms": vms}, options)


@command.command()
@several_vms
@click.option(
    "--as",
    "reason",
    type=click.Choice(["delete", "scale-in", "repair"]),
    default="delete",
    help="Reason: delete (a user), scale-in, or repair (replaces an unhealthy VM).  [default: delete]",
)
@request_command(notice=False, platform=True)
def delete(vms: tuple[str, ...], reason: str, **options: Any) -> None:
    """Delete VMs from the fleet.

    Only a scale set or VM with a terminate notice is notified first. Each VM is removed when its event ends.

    \b
    Example:
      forewarn vm delete pool_3 --as scale-in
    """
    cause = "instance-repair" if reason == "repair" else reason
    request_operations({"cause": cause, "vms": vms}, options, f"Delete {', '.join(vms)}? This cannot be undone.")


@command.command()
@several_vms
@request_command(notice=False, notified=False)
def start(vms: tuple[str, ...], **options: Any) -> None:
    """Start deallocated VMs.

    \b
    Example:
      forewarn vm start batch_3
    """
    request_operations({"cause": "start", "vms": vms}, options)


@command.command()
@click.argument("name")
@click.option("--api-version", metavar="VERSION", help="Api-version of the document.  [default: the newest]")
@service_command
def document(name: str, api_version: str | None, client: ControlClient, as_json: bool) -> None:
    """Print the document that a VM would receive.

    This does not count as a poll of the VM.

    \b
    Example:
      forewarn vm document web-0 --api-version 2019-08-01
    """
    query = {"api-version": api_version} if api_version else {}
    body = client.raw("GET", ("vms", name, "document"), query)
    click.echo(printable_json(body.decode("utf-8", "backslashreplace")), nl=False)

"""forewarn vm: see VMs, restart and redeploy them, read what they are told."""

from __future__ import annotations

import sys
from typing import Any

import click

from forewarn.cli.client import Client
from forewarn.cli.show import how_long_ago, print_facts, print_json, print_table, service_command, when


@click.group()
def command() -> None:
    """VMs: see them, restart and redeploy them.

    \b
    Example:
      forewarn vm restart web-0
    """


@command.command("list")
@service_command
def list_vms(data: str | None, as_json: bool) -> None:
    """All VMs, and whether they listen.

    \b
    Example:
      forewarn vm list
    """
    client = Client(data)
    answer = client.get("vms")
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
            _listening(vm, now),
            str(len(vm["events"]) or ""),
        )
        for vm in answer["vms"]
    )
    print_table(("VM", "group", "host", "UD/FD", "asks from", "listening", "events"), rows, "The fleet has no VMs.")


def _listening(vm: dict[str, Any], now: str) -> str:
    if vm["last_heard_at"] is None:
        return "never asked"
    heard = how_long_ago(vm["last_heard_at"], now)
    return heard if vm["listening"] else f"no ({heard})"


def _hearing(vm: dict[str, Any], now: str) -> str:
    if vm["last_heard_at"] is None:
        return "never asked"
    heard = when(vm["last_heard_at"], now)
    return f"yes, {heard}" if vm["listening"] else f"no, last {heard}"


@command.command()
@click.argument("name")
@service_command
def show(name: str, data: str | None, as_json: bool) -> None:
    """One VM, with the events that name it.

    \b
    Example:
      forewarn vm show web-0
    """
    client = Client(data)
    vm = client.get("vms", name)
    if as_json:
        print_json(vm)
        return
    now = client.get("clock")["now"]
    print_facts(
        {
            "VM": vm["name"],
            "group": f"{vm['group']} ({vm['kind']})",
            "host": vm["host"],
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
            "listening": _hearing(vm, now),
            "incarnation": str(vm["incarnation"]),
            "events": ", ".join(vm["events"]) or "none",
        }
    )


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@service_command
def restart(names: tuple[str, ...], data: str | None, as_json: bool) -> None:
    """Restart a VM: its group is told, and it happens when approved or due.

    \b
    Example:
      forewarn vm restart web-0
    """
    _request("restart", names, data, as_json)


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@service_command
def redeploy(names: tuple[str, ...], data: str | None, as_json: bool) -> None:
    """Move a VM to another node: its group is told, and it happens when approved or due.

    \b
    Example:
      forewarn vm redeploy web-0
    """
    _request("redeploy", names, data, as_json)


def _request(cause: str, names: tuple[str, ...], data: str | None, as_json: bool) -> None:
    client = Client(data)
    for name in names:  # so that a name mistyped at the end does not leave half of it done
        client.get("vms", name)
    operations = [client.post("operations", body={"cause": cause, "vms": [name]}) for name in names]
    if as_json:
        print_json(operations[0] if len(operations) == 1 else operations)
        return
    now = client.get("clock")["now"]
    for operation in operations:
        for line in _outcome(operation, now):
            click.echo(line)


def _outcome(operation: dict[str, Any], now: str) -> list[str]:
    what = f"{operation['cause']} of {', '.join(operation['vms'])}"
    lines = [f"{why}; the {what} starts now." for why in operation["not_told"].values()]
    for event in operation["events"]:
        if event["status"] == "scheduled":
            lines.append(f"{event['type']} scheduled: {what}, not before {when(event['not_before'], now)}.")
            lines.append(f"  event {event['id']}")
        else:
            lines.append(f"{event['type']} {event['status']}: {what}, approved by policy.")
            lines.append(f"  event {event['id']}")
    return lines


@command.command()
@click.argument("name")
@click.option("--api-version", metavar="V", help="As this api-version shows it; default: the newest.")
@service_command
def document(name: str, api_version: str | None, data: str | None, as_json: bool) -> None:
    """Exactly the bytes that the VM would get: JSON already. Reading them does not count as the VM asking.

    \b
    Example:
      forewarn vm document web-0 --api-version 2019-08-01
    """
    query = {"api-version": api_version} if api_version else {}
    body = Client(data).raw("GET", ("vms", name, "document"), query)
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()

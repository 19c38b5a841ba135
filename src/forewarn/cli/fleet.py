"""forewarn fleet: check and apply the fleet file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import by_name, names, print_facts, print_json, print_table, service_command
from forewarn.errors import UnreadableFile
from forewarn.files.fleet_file import parse_fleet

if TYPE_CHECKING:
    from forewarn.cli.client import Client


def read_fleet_file(path: str) -> str:
    """The text of a fleet file, or an error that says why not."""
    try:
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(path=path, problem="it is not UTF-8") from error
    except OSError as error:
        raise UnreadableFile(path=path, problem=error.strerror or str(error)) from error


def full_path(path: str) -> str:
    """The same file by the same name, wherever it is typed."""
    return str(Path(path).resolve())


@click.group()
def command() -> None:
    """The fleet: check and apply its file.

    \b
    Example:
      forewarn fleet check fleet.toml
    """


@command.command()
@click.argument("file", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print what the file declares as JSON.")
def check(file: str, as_json: bool) -> None:
    """Read a fleet file and say what is wrong in it, with line and key. Needs no service.

    \b
    Example:
      forewarn fleet check fleet.toml
    """
    fleet = parse_fleet(read_fleet_file(file), file)
    hosts = {vm.host for vm in fleet.vms.values()} | {*fleet.hosts}
    groups = {vm.group for vm in fleet.vms.values()} | {*fleet.groups}
    if as_json:
        print_json({"file": file, "vms": len(fleet.vms), "groups": len(groups), "hosts": len(hosts)})
    else:
        click.echo(f"{file} is in order: {len(fleet.vms)} VMs in {len(groups)} groups on {len(hosts)} hosts.")


@command.command()
@click.argument("file", type=click.Path())
@click.option("--force", is_flag=True, help="Also remove VMs that have a live event; it ends.")
@service_command
def apply(file: str, force: bool, client: Client, as_json: bool) -> None:
    """Make the running service's fleet what the file says.

    \b
    Example:
      forewarn fleet apply fleet.toml
    """
    text = read_fleet_file(file)
    query = {"source": file, "path": full_path(file), "force": "true" if force else "false"}
    change = client.put("fleet", body=text.encode(), **query)
    if as_json:
        print_json(change)
    else:
        _print_change(change)


def _print_change(change: dict[str, Any]) -> None:
    lines = {
        "adds": change["added"],
        "changes": change["changed"],
        "removes": change["removed"],
        "sets groups": change["groups"],
        "removes groups": change["groups_removed"],
        "adds hosts": change["hosts"],
        "removes hosts": change["hosts_removed"],
    }
    if not any(lines.values()):
        click.echo("Nothing to change: the fleet is as the file says.")
        return
    print_facts({what: f"{len(found):>6}  {names(found)}" if found else None for what, found in lines.items()})


@command.command()
@service_command
def show(client: Client, as_json: bool) -> None:
    """Groups and hosts of the running service.

    \b
    Example:
      forewarn fleet show
    """
    fleet = {"vms": client.get("fleet")["vms"], **client.all("groups"), **client.all("hosts")}
    if as_json:
        print_json(fleet)
        return
    click.echo(f"{fleet['vms']} VMs. Those in no group below are scopes of their own.\n")
    groups = (
        (
            group["name"],
            group["kind"],
            str(group["vms"]),
            f"{group['update_domains']}/{group['fault_domains']}",
            ", ".join(group["auto_approve"]),
        )
        for group in by_name(fleet["groups"])
    )
    print_table(("group", "kind", "VMs", "UDs/FDs", "auto approve"), groups, "No groups are declared.")
    click.echo()
    hosts = ((host["name"], str(len(host["vms"])), names(host["vms"])) for host in by_name(fleet["hosts"]))
    print_table(("host", "VMs", "which"), hosts, "No hosts are declared: each VM has one of its own.")

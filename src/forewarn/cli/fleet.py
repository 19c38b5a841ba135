"""forewarn fleet: check and apply a fleet file, change a part of the fleet, and show it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forewarn.cli.output import by_name, count_of, fact_lines, names, print_json, print_table, service_command
from forewarn.cli.requests import asks, confirm
from forewarn.errors import UnreadableFile
from forewarn.files.fleet_file import MAX_FLEET_BYTES, parse_fleet

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from forewarn.cli.client import ControlClient


def read_fleet_file(path: str) -> str:
    """Return the text of a fleet file."""
    try:
        if Path(path).stat().st_size > MAX_FLEET_BYTES:
            problem = f"it has more than {MAX_FLEET_BYTES // 1_048_576} MiB. Write sets of VMs with count"
            raise UnreadableFile(path=path, problem=problem)
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(path=path, problem="it is not UTF-8") from error
    except OSError as error:
        raise UnreadableFile(path=path, problem=error.strerror or str(error)) from error


def full_path(path: str) -> str:
    """Return the absolute path, which is the same from every working directory."""
    return str(Path(path).resolve())


@click.group()
def command() -> None:
    """Check or apply a fleet file, or a part of one. Show the fleet.

    \b
    Example:
      forewarn fleet check fleet.toml
    """


@command.command()
@click.argument("file", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(file: str, as_json: bool) -> None:
    """Check a fleet file. No service is needed.

    The error lists all mistakes of the file, each with its line and key.

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
        vms = count_of(len(fleet.vms), "VM")
        click.echo(f"{file} is valid: {vms} in {count_of(len(groups), 'group')} on {count_of(len(hosts), 'host')}.")


@command.command()
@click.argument("file", type=click.Path())
@click.option("--force", is_flag=True, help="Also remove VMs with active events. The events are cancelled.")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@service_command
def apply(file: str, force: bool, dry_run: bool, yes: bool, client: ControlClient, as_json: bool) -> None:
    """Apply a fleet file to the running service.

    \b
    Example:
      forewarn fleet apply fleet.toml
    """
    text = read_fleet_file(file).encode()

    def send(*, dry_run: bool) -> dict[str, list[str]]:
        return _file_change(client.put, file, text, force=force, dry_run=dry_run)

    _change(send, dry_run=dry_run, yes=yes, as_json=as_json)


@command.command()
@click.argument("file", type=click.Path())
@click.option(
    "--force", is_flag=True, help="Also change the group of VMs with active events. The events are cancelled."
)
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@service_command
def add(file: str, force: bool, dry_run: bool, yes: bool, client: ControlClient, as_json: bool) -> None:
    """Add or change the VMs, groups and hosts of a file.

    The file has the format of a fleet file. VMs, groups and hosts that it does not name stay as they are. An entry
    replaces all that an earlier file said about this VM, group or host.

    \b
    Example:
      forewarn fleet add more.toml
    """
    text = read_fleet_file(file).encode()

    def send(*, dry_run: bool) -> dict[str, list[str]]:
        return _file_change(client.patch, file, text, force=force, dry_run=dry_run)

    _change(send, dry_run=dry_run, yes=yes, as_json=as_json)


@command.command()
@click.argument("kind", type=click.Choice(["vm", "group", "host"]))
@click.argument("name", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also remove VMs with active events. The events are cancelled.")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@service_command
def remove(
    kind: str, name: tuple[str, ...], force: bool, dry_run: bool, yes: bool, client: ControlClient, as_json: bool
) -> None:
    """Remove VMs, groups or hosts from the fleet.

    A group or a host can be removed when no VM is in it. The fabric does nothing: to delete a VM with a notice, use
    forewarn vm delete.

    \b
    Examples:
      forewarn fleet remove vm web-7
      forewarn fleet remove host rack-1-a rack-1-b
    """

    def send(*, dry_run: bool) -> dict[str, list[str]]:
        body = {f"{kind}s": list(name), "force": force, "dry_run": dry_run}
        found: dict[str, list[str]] = client.post("fleet", "remove", body=body)
        return found

    _change(send, dry_run=dry_run, yes=yes, as_json=as_json, is_removal=True)


def _file_change(
    send: Callable[..., Any], file: str, text: bytes, *, force: bool, dry_run: bool
) -> dict[str, list[str]]:
    query = {"source": file, "force": str(force).lower(), "dry_run": str(dry_run).lower()}
    found: dict[str, list[str]] = send("fleet", body=text, **query)
    return found


def _change(
    send: Callable[..., dict[str, list[str]]], *, dry_run: bool, yes: bool, as_json: bool, is_removal: bool = False
) -> None:
    """Change the fleet, and print what has changed. On a terminal, first ask if something would be lost."""
    if not dry_run and asks(yes):
        expected = send(dry_run=True)
        losses = [f"remove {count_of(len(found), 'VM')} from the fleet"] if (found := expected["removed"]) else []
        for what in ("group", "host") if is_removal else ():
            losses += [f"remove {count_of(len(found), what)}"] if (found := expected[f"{what}s_removed"]) else []
        losses += [f"revoke {count_of(len(found), 'token')}"] if (found := expected["tokens_revoked"]) else []
        if losses:
            click.echo("\n".join(difference_lines(expected)))
            question = " and ".join(losses)
            confirm(f"{question[0].upper()}{question[1:]}?", yes)
    change = send(dry_run=dry_run)
    if as_json:
        print_json(change)
        return
    if dry_run:
        click.echo("Dry run: nothing was changed.")
    click.echo("\n".join(difference_lines(change)))


def difference_lines(change: dict[str, list[str]]) -> list[str]:
    """Return lines about the changes of a fleet file."""
    lines = {
        "VMs added": change["added"],
        "VMs changed": change["changed"],
        "VMs removed": change["removed"],
        "groups added or changed": change["groups"],
        "groups removed": change["groups_removed"],
        "hosts added": change["hosts"],
        "hosts removed": change["hosts_removed"],
        "tokens revoked": change["tokens_revoked"],
    }
    if not any(lines.values()):
        return ["No changes: the fleet already matches the file."]
    return fact_lines({title: f"{len(found):>6}  {names(found)}" if found else None for title, found in lines.items()})


@command.command()
@service_command
def show(client: ControlClient, as_json: bool) -> None:
    """Show the groups and hosts of the running service.

    \b
    Example:
      forewarn fleet show
    """
    fleet = {"vms": client.get("fleet")["vms"], **client.all("groups"), **client.all("hosts")}
    if as_json:
        print_json(fleet)
        return
    click.echo(f"{count_of(fleet['vms'], 'VM')}. A VM without a group is notified alone.\n")
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
    print_table(("group", "kind", "VMs", "UDs/FDs", "auto approve"), groups, "No groups.")
    click.echo()
    hosts = ((host["name"], str(len(host["vms"])), names(host["vms"])) for host in by_name(fleet["hosts"]))
    print_table(("host", "VM count", "VMs"), hosts, "No hosts. Each VM has its own host.")

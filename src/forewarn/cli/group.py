"""forewarn group: list groups, and change their policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import by_name, print_facts, print_json, print_table, service_command, when
from forewarn.cli.requests import request_image_change, request_image_command

if TYPE_CHECKING:
    from forewarn.cli.client import ControlClient


@click.group()
def command() -> None:
    """List groups, and change their policies.

    The VMs of a group are notified together. A VM without a group is notified alone.

    \b
    Example:
      forewarn group policy web --window "sat,sun 02:00 4h Europe/Berlin"
    """


@command.command("list")
@service_command
def list_groups(client: ControlClient, as_json: bool) -> None:
    """List groups with their policies.

    \b
    Example:
      forewarn group list
    """
    response = client.all("groups")
    if as_json:
        print_json(response)
        return
    rows = (
        (
            group["name"],
            group["kind"],
            str(group["vms"]),
            ", ".join(group["auto_approve"]),
            group["terminate_notice"] or "",
            group["os_image_notice"] or "",
            "; ".join(group["windows"]),
        )
        for group in by_name(response["groups"])
    )
    columns = ("group", "kind", "VMs", "auto approve", "terminate notice", "OS image notice", "windows")
    print_table(columns, rows, "No groups. Each VM is notified alone.")


@command.command()
@click.argument("name")
@service_command
def show(name: str, client: ControlClient, as_json: bool) -> None:
    """Show a group and its policy.

    \b
    Example:
      forewarn group show web
    """
    _print(client, client.get("groups", name), as_json)


@command.command()
@click.argument("name")
@click.option(
    "--auto-approve",
    multiple=True,
    metavar="TYPES",
    help="Approve automatically: reboot; redeploy; reboot,redeploy; or none.",
)
@click.option("--terminate-notice", metavar="PT5M..PT15M", help="Notice before a VM is deleted; or off.")
@click.option(
    "--os-image-notice", metavar="PT15M", help="Notice before OS disks of a scale set are replaced: PT15M or off."
)
@click.option(
    "--window",
    "windows",
    multiple=True,
    metavar="WINDOW",
    help='Maintenance window, like "sat,sun 02:00 4h Europe/Berlin". Can be repeated.',
)
@click.option("--no-windows", is_flag=True, help="Remove all maintenance windows: routine work can start at any time.")
@click.option(
    "--approve-when-down/--no-approve-when-down",
    default=None,
    help="Whether to approve the events of a scope while all its VMs are deallocated.",
)
@service_command
def policy(
    name: str,
    auto_approve: tuple[str, ...],
    terminate_notice: str | None,
    os_image_notice: str | None,
    windows: tuple[str, ...],
    no_windows: bool,
    approve_when_down: bool | None,
    client: ControlClient,
    as_json: bool,
) -> None:
    """Change the policy of a group.

    NAME can also be a VM without a group. The change stays until a fleet file has another policy for the group than
    before.

    \b
    Example:
      forewarn group policy pool --terminate-notice PT10M
    """
    body: dict[str, Any] = {}
    if auto_approve:
        types = ",".join(auto_approve).replace(",", " ").split()
        body["auto_approve"] = [] if types == ["none"] else types
    if terminate_notice is not None:
        body["terminate_notice"] = terminate_notice
    if os_image_notice is not None:
        body["os_image_notice"] = os_image_notice
    if windows and no_windows:
        raise click.UsageError("Use either --window or --no-windows.")
    if windows or no_windows:
        body["windows"] = list(windows)
    if approve_when_down is not None:
        body["approve_when_down"] = approve_when_down
    if not body:
        options = "--auto-approve, --terminate-notice, --os-image-notice, --window, --no-windows or --approve-when-down"
        raise click.UsageError(f"Nothing to change. Use {options}.")
    _print(client, client.post("groups", name, "policy", body=body), as_json)


@command.command()
@click.argument("name")
@request_image_command
def reimage(name: str, **options: Any) -> None:
    """Replace the OS disks of a group with the same image.

    It affects all running VMs of the group at the same time. Only a scale set with an OS image notice is notified
    first.

    \b
    Example:
      forewarn group reimage pool
    """
    request_image_change("reimage", {"group": name}, f"all VMs of {name}", options)


@command.command("upgrade-image")
@click.argument("name")
@request_image_command
def upgrade_image(name: str, **options: Any) -> None:
    """Replace the OS disks of a group with the newest image.

    It affects all running VMs of the group at the same time. Only a scale set with an OS image notice is notified
    first. For batches, use: forewarn vm upgrade-image

    \b
    Example:
      forewarn group upgrade-image pool
    """
    request_image_change("image-upgrade", {"group": name}, f"all VMs of {name}", options)


def _print(client: ControlClient, group: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(group)
        return
    now = client.get("clock")["now"]
    scopes = [
        (
            scope["name"],
            str(scope["vms"]),
            "yes" if scope["events_enabled"] else "no",
            when(scope["last_seen_at"], now) or "never",
        )
        for scope in group["scopes"]
    ]
    enabled, last_seen = scopes[0][2:] if len(scopes) == 1 else (None, None)
    print_facts(
        {
            "group": group["name"],
            "kind": group["kind"],
            "VMs": str(group["vms"]),
            "domains": f"{group['update_domains']} update, {group['fault_domains']} fault",
            "auto approve": ", ".join(group["auto_approve"]) or "nothing",
            "terminate notice": group["terminate_notice"] or "off",
            "OS image notice": group["os_image_notice"] or "off",
            "approve when down": "yes" if group["approve_when_down"] else "no",
            "windows": "; ".join(group["windows"]) or "any time",
            "policy": "changed at run time; the fleet file has another" if group["policy_changed"] else None,
            "mode": group["mode"],
            "VMs see": _VISIBLE.get(group["visibility"]),
            "eviction policy": group["eviction_policy"],
            "events enabled": enabled,
            "last seen": last_seen,
        }
    )
    if len(scopes) > 1:
        print_table(("scope", "VMs", "events enabled", "last seen"), scopes, "")


_VISIBLE = {"group": "events of their placement group", "own": "only their own events"}

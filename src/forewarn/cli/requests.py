"""Commands that request a change: their options, the confirmation, the request and the outcome."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import names, print_json, service_command, when
from forewarn.cli.wait import wait_for_operations

if TYPE_CHECKING:
    from collections.abc import Callable


def change_command(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that changes something and can be watched."""
    function = service_command(function)
    function = click.option("--wait", is_flag=True, help="Stay, and show how it goes on until it is over.")(function)
    return click.option(
        "--dry-run", is_flag=True, help="Only say what would be told to whom, and when; change nothing."
    )(function)


def request_command(*, notice: bool = True, routine: bool = False) -> Callable[..., Callable[..., None]]:
    """Add the options of every command that requests an operation, as far as they fit its cause."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        function = change_command(function)
        if routine:
            function = click.option(
                "--postpone-deadline",
                metavar="TIME",
                help="Up to when it may be postponed: a time, or a duration from now.",
            )(function)
            function = click.option(
                "--override-windows", is_flag=True, help="Also outside the groups' maintenance windows."
            )(function)
        if notice:
            function = click.option("--override-notice", is_flag=True, help="Insist on a notice below the least.")(
                function
            )
            function = click.option("--notice", metavar="DURATION", help="How long beforehand it is told.")(function)
        return function

    return decorate


def impact_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that updates hosts."""
    function = click.option("--duration", metavar="DURATION", help="How long a freeze lasts; default: 9s.")(function)
    return click.option(
        "--impact",
        type=click.Choice(["freeze", "reboot"]),
        default="freeze",
        help="What it does to the VMs.  [default: freeze]",
    )(function)


def request_fields(options: dict[str, Any]) -> dict[str, Any]:
    """The options as fields of a request to the service."""
    body = {name: options[name] for name in ("notice", "postpone_deadline") if options.get(name)}
    overrides = [name for name in ("notice", "windows") if options.get(f"override_{name}")]
    return body | ({"overrides": overrides} if overrides else {})


def confirm(question: str, yes: bool) -> None:
    """On a terminal, ask before a change that cannot be undone."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        click.confirm(question, abort=True)


def request_operations(body: dict[str, Any], options: dict[str, Any]) -> None:
    """Request operations, and print the outcome."""
    client = options["client"]
    dry_run = options["dry_run"]
    answer = client.post("operations", body={**body, **request_fields(options), "dry_run": dry_run})
    if options["as_json"]:
        if options["wait"] and not dry_run:
            ids = [operation["id"] for operation in answer["operations"]]
            try:
                wait_for_operations(client, ids, quiet=True)
            finally:
                answer["operations"] = [client.get("operations", operation_id) for operation_id in ids]
                print_json(answer)
            return
        print_json(answer)
        return
    now = client.get("clock")["now"]
    if dry_run:
        click.echo("Dry run: nothing is changed.")
    if not answer["operations"]:
        click.echo("No VM is touched by it.")
    for operation in answer["operations"]:
        for line in outcome_lines(operation, now, dry_run=dry_run):
            click.echo(line)
    if options["wait"] and not dry_run:
        wait_for_operations(client, [operation["id"] for operation in answer["operations"]])


def outcome_lines(operation: dict[str, Any], now: str, *, dry_run: bool = False) -> list[str]:
    """What an operation means for each VM and group, as lines."""
    what = _what(operation)
    starts = "would start now" if dry_run else "starts now"
    if operation["holds_until"]:
        starts = f"waits for a maintenance window, {when(operation['holds_until'], now)}"
    elif operation["events"] and operation["status"] == "pending":
        starts = "waits for the others"
    lines = [f"No notice: {why}. The {what} {starts}." for why in operation["not_notified"].values()]
    if not operation["events"] and not operation["not_notified"]:
        lines.append(f"Nobody is told; the {what} {starts}.")
    for event in operation["events"]:
        of_group = f" for {names(event['vms'])}" if len(operation["events"]) > 1 else ""
        if event["status"] == "scheduled" and event["type"] == "SpotRebalanceRecommendation":
            lines.append(f"{event['type']} told{of_group}: {what}.")
        elif event["status"] == "scheduled":
            lines.append(f"{event['type']} scheduled{of_group}: {what}, not before {when(event['not_before'], now)}.")
        else:
            policy = ", approved by policy" if event["approved_at"] else ""
            lines.append(f"{event['type']} {event['status']}{of_group}: {what}{policy}.")
        if not dry_run:
            lines.append(f"  event {event['id']}")
    if not operation["events"] and not dry_run:
        lines.append(f"  operation {operation['id']}")
    return lines + _destinations(operation)


def _what(operation: dict[str, Any]) -> str:
    if operation["host"]:
        on_it = f" ({names(operation['vms'])})" if operation["vms"] else " (no VM runs on it)"
        return f"{operation['cause']} of {operation['host']}{on_it}"
    return f"{operation['cause']} of {names(operation['vms'])}"


def _destinations(operation: dict[str, Any]) -> list[str]:
    decided = operation["status"] != "pending"
    lines = []
    for vm, host in operation.get("destinations", {}).items():
        if host is None and decided:
            lines.append(f"  {vm}: no host fits it; whoever does the work has to choose")
        elif host is None:
            lines.append(f"  {vm}: no host fits it as things are now; a fabric that can adds a spare one")
        elif decided:
            lines.append(f"  {vm} goes to {host}")
        else:
            lines.append(f"  {vm} would go to {host} as things are now")
    return lines

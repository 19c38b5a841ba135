"""Commands that request a change: their options, the confirmation, the request and the outcome."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import names, print_json, service_command, when
from forewarn.cli.wait import wait_for_operations

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.cli.client import ControlClient


def change_command(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that changes something and can be watched."""
    function = service_command(function)
    function = click.option("--wait", is_flag=True, help="Wait until the operation has ended, and show its progress.")(
        function
    )
    return click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing.")(function)


def request_command(
    *, notice: bool = True, routine: bool = False, platform: bool = False, notified: bool = True
) -> Callable[..., Callable[..., None]]:
    """Add the options of every command that requests an operation, as far as they fit its cause.

    `platform`: the cause can be one of the platform. Azure describes operations of users itself.
    `notified`: the groups get a notice. The command asks if one would get none.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        function = change_command(function)
        if notified:
            function = yes_option(function)
            function = click.option(
                "--require-notice", is_flag=True, help="Reject the request if a group would get no notice."
            )(function)
        if platform:
            function = click.option(
                "--description",
                metavar="TEXT",
                help="Description of the events.  [default: by cause, from the settings]",
            )(function)
        if routine:
            function = click.option(
                "--postpone-deadline",
                metavar="TIME",
                help="Latest time to which the event can be postponed, or a duration from now.",
            )(function)
            function = click.option(
                "--override-windows", is_flag=True, help="Also start outside the groups' maintenance windows."
            )(function)
        if notice:
            function = override_notice_option(function)
            function = click.option(
                "--notice", metavar="DURATION", help="Time between the notice and the start.  [default: by event type]"
            )(function)
        return function

    return decorate


def request_image_command(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that replaces OS disks."""
    return request_command(notice=False)(function)


def yes_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option that skips the question."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(function)


def request_image_change(cause: str, target: dict[str, Any], whose: str, options: dict[str, Any]) -> None:
    """Ask for confirmation, request new OS disks, and print the outcome."""
    question = f"Replace the OS disks of {whose}? What is on them will be lost."
    request_operations({"cause": cause, **target}, options, question)


def override_notice_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option that allows a notice below the minimum."""
    return click.option(
        "--override-notice",
        is_flag=True,
        help="Allow a notice shorter than the event type's minimum (recorded in history).",
    )(function)


def impact_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that updates hosts."""
    function = duration_option("9s")(function)
    return click.option(
        "--impact",
        type=click.Choice(["freeze", "reboot"]),
        default="freeze",
        help="Effect on the VMs.  [default: freeze]",
    )(function)


def duration_option(default: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the option for the duration of a freeze."""
    return click.option(
        "--duration",
        metavar="DURATION",
        help=f"Duration of a freeze; 0s: no interruption; or unknown.  [default: {default}]",
    )


def request_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as members of a request."""
    body = {name: options[name] for name in ("notice", "postpone_deadline") if options.get(name)}
    if options.get("description") is not None:  # an empty text is a description
        body["description"] = options["description"]
    if options.get("require_notice"):
        body["require_notice"] = True
    overrides = [name for name in ("notice", "windows") if options.get(f"override_{name}")]
    return body | ({"overrides": overrides} if overrides else {})


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation on a terminal. If more than one service is known, first print which one is meant."""
    if asks(yes):
        client: ControlClient | None = click.get_current_context().obj
        if client is not None:
            client.announce()
        click.confirm(question, abort=True)


def asks(yes: bool) -> bool:
    """Return whether a command asks: on a terminal, without --yes."""
    return not yes and sys.stdin.isatty() and sys.stdout.isatty()


def request_operations(body: dict[str, Any], options: dict[str, Any], question: str = "") -> None:
    """Request operations, and print the outcome. On a terminal, ask the question first, and if there is no notice."""
    client = options["client"]
    dry_run = options["dry_run"]
    body = {**body, **request_fields(options)}
    if not dry_run and asks(options.get("yes", True)):
        expected = client.post("operations", body={**body, "dry_run": True})
        now = client.get("clock")["now"]
        lines = [line for found in expected["operations"] for line in _no_notice_lines(found, now, dry_run=True)]
        if lines or question:
            client.announce()
            print_first(lines)
            confirm(question or "Request it anyway?", yes=False)
    response = client.post("operations", body={**body, "dry_run": dry_run})
    if options["as_json"]:
        if options["wait"] and not dry_run:
            ids = [operation["id"] for operation in response["operations"]]
            try:
                wait_for_operations(client, ids, quiet=True)
            finally:
                response["operations"] = [client.get("operations", operation_id) for operation_id in ids]
                print_json(response)
            return
        print_json(response)
        return
    now = client.get("clock")["now"]
    if dry_run:
        click.echo("Dry run: nothing was changed.")
    if not response["operations"]:
        click.echo("No VM is affected.")
    for operation in response["operations"]:
        for line in outcome_lines(operation, now, dry_run=dry_run):
            click.echo(line)
    if options["wait"] and not dry_run:
        wait_for_operations(client, [operation["id"] for operation in response["operations"]])


def outcome_lines(operation: dict[str, Any], now: str, *, dry_run: bool = False) -> list[str]:
    """Return lines about the effect of an operation on each group and VM."""
    title = _title(operation)
    lines = _no_notice_lines(operation, now, dry_run=dry_run)
    if not operation["events"] and not operation["not_notified"]:
        lines.append(f"No notice. The {title} {_start(operation, now, dry_run=dry_run)}.")
    for event in operation["events"]:
        of_group = f" for {names(event['vms'])}" if len(operation["events"]) > 1 else ""
        if event["status"] == "advisory":
            lines.append(f"{event['type']} sent{of_group}: {title}.")
        elif event["status"] == "scheduled":
            lines.append(f"{event['type']} scheduled{of_group}: {title}, not before {when(event['not_before'], now)}.")
        else:
            policy = ", approved by policy" if event["approved_at"] else ""
            lines.append(f"{event['type']} {event['status']}{of_group}: {title}{policy}.")
        if not dry_run:
            lines.append(f"  event {event['id']}")
    if not operation["events"] and not dry_run:
        lines.append(f"  operation {operation['id']}")
    return lines + _destinations(operation)


def _no_notice_lines(operation: dict[str, Any], now: str, *, dry_run: bool) -> list[str]:
    """Return a line for each scope that gets no notice."""
    what = f"The {_title(operation)} {_start(operation, now, dry_run=dry_run)}."
    return [f"No notice: {reason}. {what}" for reason in operation["not_notified"].values()]


def _start(operation: dict[str, Any], now: str, *, dry_run: bool) -> str:
    if operation["holds_until"]:
        return f"waits for a maintenance window at {when(operation['holds_until'], now)}"
    if operation["events"] and operation["status"] == "pending":
        return "waits for the notified VMs"
    return "would start now" if dry_run else "starts now"


def print_first(lines: list[str], maximum: int = 5) -> None:
    """Print the first lines, and the number of the others."""
    for line in lines[:maximum]:
        click.echo(line)
    if len(lines) > maximum:
        click.echo(f"and {len(lines) - maximum} more")


def _title(operation: dict[str, Any]) -> str:
    if operation["host"]:
        on_it = f" ({names(operation['vms'])})" if operation["vms"] else " (no VMs)"
        return f"{operation['cause']} of {operation['host']}{on_it}"
    return f"{operation['cause']} of {names(operation['vms'])}"


def _destinations(operation: dict[str, Any]) -> list[str]:
    decided, starts = operation["status"] != "pending", operation["verb"] == "start"
    lines = []
    for vm, host in operation.get("destinations", {}).items():
        if host is None and decided:
            lines.append(f"  {vm}: no host can take it; the fabric must choose one")
        elif host is None:
            lines.append(f"  {vm}: no host can take it now; the fabric may add one")
        elif decided:
            lines.append(f"  {vm} {'starts on' if starts else 'moves to'} {host}")
        else:
            lines.append(f"  {vm} would {'start on' if starts else 'move to'} {host} (may change)")
    return lines

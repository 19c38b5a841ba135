"""forewarn webhook: send history to other systems."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import names, print_facts, print_json, print_table, service_command, when
from forewarn.cli.requests import confirm
from forewarn.errors import UnreadableFile, WebhookTestFailed

if TYPE_CHECKING:
    from forewarn.cli.client import ControlClient


@click.group()
def command() -> None:
    """Send history to other systems.

    Forewarn sends each new row of history to the webhook's URL, as a signed CloudEvent.

    \b
    Example:
      forewarn webhook add pager https://example.com/hooks/forewarn --group web
    """


@command.command()
@click.argument("name")
@click.argument("url")
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP", help="Only entries about this group. Can be repeated."
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Only this kind of history entry, like scheduled. Can be repeated.",
)
@click.option(
    "--secret-file",
    "secret",
    metavar="FILE",
    help="File with the secret for signatures; - for standard input.  [default: a new secret]",
)
@service_command
def add(
    name: str,
    url: str,
    groups: tuple[str, ...],
    kinds: tuple[str, ...],
    secret: str | None,
    client: ControlClient,
    as_json: bool,
) -> None:
    """Add a webhook, and print the secret of its signatures.

    It gets history from now on. The secret cannot be printed again.

    \b
    Examples:
      forewarn webhook add pager https://example.com/hooks/forewarn
      forewarn webhook add web-team https://example.com/web --group web --kind scheduled --kind started
    """
    body: dict[str, Any] = {"name": name, "url": url, "groups": list(groups), "kinds": list(kinds)}
    if secret:
        body["secret"] = _read_secret(secret)
    response = client.post("webhooks", body=body)
    if as_json:
        print_json(response)
    elif secret:
        click.echo(f"Webhook {name} was added. Test it with: forewarn webhook test {name}")
    else:
        click.echo(f"Webhook {name} was added. Its secret for signatures, which cannot be shown again:", err=True)
        click.echo(response["secret"])


def _read_secret(path: str) -> str:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise UnreadableFile(path=path, problem=getattr(error, "strerror", None) or "it is not UTF-8") from error
    return text.strip()


@command.command("list")
@service_command
def list_webhooks(client: ControlClient, as_json: bool) -> None:
    """List webhooks with the state of their deliveries.

    \b
    Example:
      forewarn webhook list
    """
    response = client.all("webhooks")
    if as_json:
        print_json(response)
        return
    rows = (
        (
            webhook["name"],
            webhook["url"],
            _filter(webhook),
            str(webhook["position"]),
            str(webhook["pending"]),
            str(webhook["failed"]),
            webhook["last_error"] or "",
        )
        for webhook in response["webhooks"]
    )
    columns = ("webhook", "URL", "kinds", "position", "pending", "failed", "last error")
    print_table(columns, rows, "No webhooks.")


def _filter(webhook: dict[str, Any]) -> str:
    kinds = names(webhook["kinds"]) or "all"
    return f"{kinds} of {names(webhook['groups'])}" if webhook["groups"] else kinds


@command.command()
@click.argument("name")
@service_command
def show(name: str, client: ControlClient, as_json: bool) -> None:
    """Show a webhook and the state of its deliveries.

    \b
    Example:
      forewarn webhook show pager
    """
    webhook = client.get("webhooks", name)
    if as_json:
        print_json(webhook)
        return
    print_facts(
        {
            "webhook": webhook["name"],
            "URL": webhook["url"],
            "groups": ", ".join(webhook["groups"]) or "all",
            "kinds": ", ".join(webhook["kinds"]) or "all",
            "added": f"{when(webhook['created_at'], client.get('clock')['now'])} by {webhook['created_by']}",
            "position": f"row {webhook['position']} of history",
            "pending": str(webhook["pending"]),
            "failed": str(webhook["failed"]),
            "dropped": str(webhook["dropped"]) if webhook["dropped"] else None,
            "last error": webhook["last_error"],
        }
    )


@command.command()
@click.argument("name")
@service_command
def test(name: str, client: ControlClient, as_json: bool) -> None:
    """Send a test event to a webhook.

    Forewarn does not retry it. The exit code is 6 if the delivery fails.

    \b
    Example:
      forewarn webhook test pager
    """
    response = client.post("webhooks", name, "test")
    if as_json:
        print_json(response)
    if not response["delivered"]:
        raise WebhookTestFailed(name=name, problem=response["error"])
    if not as_json:
        click.echo(f"{name} accepted the test event (HTTP {response['status']}).")


@command.command()
@click.argument("name")
@service_command
def failures(name: str, client: ControlClient, as_json: bool) -> None:
    """List rows of history that were not delivered to a webhook.

    A row is pending, retrying or failed. Later rows wait while one is retried.

    \b
    Example:
      forewarn webhook failures pager
    """
    response = client.all("webhooks", name, "failures")
    if as_json:
        print_json(response)
        return
    rows = (
        (
            str(row["sequence"]),
            row["entry"]["kind"],
            row["entry"]["group"] or "",
            names(row["entry"]["vms"]),
            str(row["attempts"]),
            "failed" if row["failed"] else "retrying" if row["attempts"] else "pending",
            row["error"] or "",
        )
        for row in response["failures"]
    )
    columns = ("row", "kind", "group", "VMs", "attempts", "status", "error")
    print_table(columns, rows, "No undelivered rows.")


@command.command()
@click.argument("name")
@click.option("--sequence", type=click.IntRange(1), metavar="N", help="Retry only this row of history.")
@service_command
def retry(name: str, sequence: int | None, client: ControlClient, as_json: bool) -> None:
    """Retry undelivered rows now. Failed rows get one more attempt.

    \b
    Example:
      forewarn webhook retry pager
    """
    response = client.post("webhooks", name, "retry", body={} if sequence is None else {"sequence": sequence})
    if as_json:
        print_json(response)
    elif not response["retried"]:
        click.echo("No undelivered rows.")
    else:
        rows = "1 row" if response["retried"] == 1 else f"{response['retried']} rows"
        click.echo(f"Retrying {rows}. See the result with: forewarn webhook failures {name}")


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@service_command
def remove(name: str, yes: bool, client: ControlClient, as_json: bool) -> None:
    """Remove a webhook, and discard its undelivered rows.

    \b
    Example:
      forewarn webhook remove pager
    """
    confirm(f"Remove webhook {name} and discard its undelivered rows? This cannot be undone.", yes)
    response = client.delete("webhooks", name)
    if as_json:
        print_json(response)
    else:
        click.echo(f"Webhook {name} was removed.")

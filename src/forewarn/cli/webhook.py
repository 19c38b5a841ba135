"""forewarn webhook: who else is told of what happens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import names, print_facts, print_json, print_table, service_command, when
from forewarn.cli.requests import confirm
from forewarn.errors import UnreadableFile, WebhookTestFailed

if TYPE_CHECKING:
    from forewarn.cli.client import Client


@click.group()
def command() -> None:
    """Webhooks: who else is told of what happens, as signed CloudEvents.

    \b
    Example:
      forewarn webhook add pager https://example.com/hooks/forewarn --group web
    """


@command.command()
@click.argument("name")
@click.argument("url")
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP", help="Only what is about this group; repeat for more."
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Only this kind of history entry, like scheduled; may be repeated.",
)
@click.option(
    "--secret-file", metavar="FILE", help="Sign with what is in this file; - is standard input. Else one is made."
)
@service_command
def add(
    name: str,
    url: str,
    groups: tuple[str, ...],
    kinds: tuple[str, ...],
    secret_file: str | None,
    client: Client,
    as_json: bool,
) -> None:
    """Have everything that happens from now on sent to a URL, and show the secret to check signatures with.

    \b
    Examples:
      forewarn webhook add pager https://example.com/hooks/forewarn
      forewarn webhook add web-team https://example.com/web --group web --kind scheduled --kind started
    """
    body: dict[str, Any] = {"name": name, "url": url, "groups": list(groups), "kinds": list(kinds)}
    if secret_file:
        body["secret"] = _read_secret(secret_file)
    answer = client.post("webhooks", body=body)
    if as_json:
        print_json(answer)
    elif secret_file:
        click.echo(f"{name} is told from now on. Try it with: forewarn webhook test {name}")
    else:
        click.echo(f"{name} is told from now on. The secret of its signatures, which is shown this once:", err=True)
        click.echo(answer["secret"])


def _read_secret(path: str) -> str:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise UnreadableFile(path=path, problem=getattr(error, "strerror", None) or "it is not UTF-8") from error
    return text.strip()


@command.command("list")
@service_command
def list_webhooks(client: Client, as_json: bool) -> None:
    """All webhooks, and how they fare.

    \b
    Example:
      forewarn webhook list
    """
    answer = client.all("webhooks")
    if as_json:
        print_json(answer)
        return
    rows = (
        (
            webhook["name"],
            webhook["url"],
            _wishes(webhook),
            str(webhook["position"]),
            str(webhook["pending"]),
            str(webhook["failed"]),
            webhook["last_error"] or "",
        )
        for webhook in answer["webhooks"]
    )
    columns = ("webhook", "url", "kinds", "position", "pending", "failed", "last error")
    print_table(columns, rows, "There is no webhook.")


def _wishes(webhook: dict[str, Any]) -> str:
    kinds = names(webhook["kinds"]) or "everything"
    return f"{kinds} of {names(webhook['groups'])}" if webhook["groups"] else kinds


@command.command()
@click.argument("name")
@service_command
def show(name: str, client: Client, as_json: bool) -> None:
    """One webhook, and how it fares.

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
            "url": webhook["url"],
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
def test(name: str, client: Client, as_json: bool) -> None:
    """Send a webhook an event about nothing, now and once. Exit code 6 if it is not delivered.

    \b
    Example:
      forewarn webhook test pager
    """
    answer = client.post("webhooks", name, "test")
    if as_json:
        print_json(answer)
    if not answer["delivered"]:
        raise WebhookTestFailed(name=name, problem=answer["error"])
    if not as_json:
        click.echo(f"{name} has taken it (status {answer['status']}).")


@command.command()
@click.argument("name")
@service_command
def failures(name: str, client: Client, as_json: bool) -> None:
    """Rows of history that a webhook has not taken: one is tried again while later ones wait, others were given up.

    \b
    Example:
      forewarn webhook failures pager
    """
    answer = client.all("webhooks", name, "failures")
    if as_json:
        print_json(answer)
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
        for row in answer["failures"]
    )
    columns = ("row", "kind", "group", "VMs", "attempts", "status", "error")
    print_table(columns, rows, f"{name} has been told of everything.")


@command.command()
@click.argument("name")
@click.option("--sequence", type=click.IntRange(1), metavar="N", help="Only this row of history.")
@service_command
def retry(name: str, sequence: int | None, client: Client, as_json: bool) -> None:
    """Try now what is not delivered, also what was given up: that gets one more attempt.

    \b
    Example:
      forewarn webhook retry pager
    """
    answer = client.post("webhooks", name, "retry", body={} if sequence is None else {"sequence": sequence})
    if as_json:
        print_json(answer)
    elif not answer["retried"]:
        click.echo(f"{name} has been told of everything: there is nothing to try again.")
    else:
        rows = "1 row is" if answer["retried"] == 1 else f"{answer['retried']} rows are"
        click.echo(f"{rows} tried now. See what came of it with: forewarn webhook failures {name}")


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask whether it is meant.")
@service_command
def remove(name: str, yes: bool, client: Client, as_json: bool) -> None:
    """Tell a webhook no more, also not what is still waiting.

    \b
    Example:
      forewarn webhook remove pager
    """
    confirm(f"Remove {name}, and all that it has not been told of yet?", yes)
    answer = client.delete("webhooks", name)
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{name} is told no more.")

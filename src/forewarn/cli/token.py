"""forewarn token: who may ask the service for what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import print_json, print_table, service_command, when
from forewarn.core.access import Role
from forewarn.errors import NotPermitted
from forewarn.system.files import write_atomically

if TYPE_CHECKING:
    from forewarn.cli.client import Client


@click.group()
def command() -> None:
    """Tokens: who may ask the service for what.

    \b
    Example:
      forewarn token create ci --role operator
    """


@command.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    required=True,
    help="viewer sees; operator also acts; admin also manages fleet, tokens and webhooks; tenant sees and approves"
    " the events of one group.",
)
@click.option("--group", metavar="GROUP", default="", help="Of a tenant: the group.")
@click.option("--expires", metavar="TIME", default="", help="When it stops to be good: a moment, or from now on.")
@click.option("--out", metavar="FILE", help="Write the token to this file, for you alone, instead of showing it.")
@service_command
def create(name: str, role: str, group: str, expires: str, out: str | None, client: Client, as_json: bool) -> None:
    """Make a token, and show it: this once, for only its hash is kept.

    \b
    Examples:
      forewarn token create ci --role operator --expires 90d
      forewarn token create web-team --role tenant --group web
    """
    if out:
        _reserve(out)  # before the token is made: it is shown only once
    try:
        answer = client.post("tokens", body={"name": name, "role": role, "group": group, "expires": expires})
    except BaseException:
        if out:
            Path(out).unlink()
        raise
    if out:
        write_atomically(Path(out), f"{answer['token']}\n".encode())
        answer["token"] = None
    if as_json:
        print_json(answer)
    elif out:
        click.echo(f"The token of {name} ({_role(answer)}) is in {out}.")
    else:
        click.echo(f"The token of {name} ({_role(answer)}), which is shown this once:", err=True)
        click.echo(answer["token"])


def _reserve(path: str) -> None:
    try:
        Path(path).touch(0o600, exist_ok=False)
    except OSError as error:
        raise NotPermitted(action="write", path=path, problem=error.strerror, flag="--out") from error


def _role(token: dict[str, Any]) -> str:
    return f"{token['role']} of {token['group']}" if token["group"] else str(token["role"])


@command.command("list")
@service_command
def list_tokens(client: Client, as_json: bool) -> None:
    """Who has a token.

    \b
    Example:
      forewarn token list
    """
    answer = client.all("tokens")
    if as_json:
        print_json(answer)
        return
    now = client.get("clock")["now"]
    rows = (
        (
            token["name"],
            _role(token),
            when(token["created_at"], now),
            token["created_by"],
            when(token["expires_at"], now) or "never",
        )
        for token in answer["tokens"]
    )
    print_table(("token", "role", "created", "by", "expires"), rows, "There is no token.")


@command.command()
@click.argument("name")
@service_command
def revoke(name: str, client: Client, as_json: bool) -> None:
    """Make a token open nothing any more, from this moment on.

    \b
    Example:
      forewarn token revoke ci
    """
    answer = client.delete("tokens", name)
    if as_json:
        print_json(answer)
    else:
        click.echo(f"The token of {name} opens nothing any more.")

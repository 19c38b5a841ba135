"""forewarn token: create, list and revoke access tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import print_json, print_table, service_command, when
from forewarn.core.access import Role
from forewarn.errors import NotPermitted
from forewarn.system.files import write_atomically

if TYPE_CHECKING:
    from forewarn.cli.client import ControlClient


@click.group()
def command() -> None:
    """Create, list and revoke access tokens.

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
    help="viewer: read. operator: also request and change operations. admin: also manage fleet, tokens and webhooks. "
    "tenant: read and approve the events of one group.",
)
@click.option("--group", metavar="GROUP", default="", help="The group of a tenant.")
@click.option(
    "--expires",
    metavar="TIME",
    default="",
    help="Time when the token expires, or a duration from now.  [default: never]",
)
@click.option("--out", metavar="FILE", help="Write the token to a new file that only you can read; do not print it.")
@service_command
def create(
    name: str, role: str, group: str, expires: str, out: str | None, client: ControlClient, as_json: bool
) -> None:
    """Create a token, and print it.

    The token cannot be printed again: the service stores only its hash.

    \b
    Examples:
      forewarn token create ci --role operator --expires 90d
      forewarn token create web-team --role tenant --group web
    """
    if out:
        _reserve(out)  # first: a token that cannot be written would be lost
    try:
        response = client.post("tokens", body={"name": name, "role": role, "group": group, "expires": expires})
    except BaseException:
        if out:
            Path(out).unlink()
        raise
    if out:
        write_atomically(Path(out), f"{response['token']}\n".encode())
        response["token"] = None
    if as_json:
        print_json(response)
    elif out:
        click.echo(f"The token of {name} ({_role(response)}) is in {out}.")
    else:
        click.echo(f"The token of {name} ({_role(response)}). It cannot be shown again:", err=True)
        click.echo(response["token"])


def _reserve(path: str) -> None:
    try:
        Path(path).touch(0o600, exist_ok=False)
    except OSError as error:
        raise NotPermitted(action="write", path=path, problem=error.strerror, flag="--out") from error


def _role(token: dict[str, Any]) -> str:
    return f"{token['role']} of {token['group']}" if token["group"] else str(token["role"])


@command.command("list")
@click.option("--sessions", is_flag=True, help="Also list the sessions of the portal. Revoke one by its name.")
@service_command
def list_tokens(sessions: bool, client: ControlClient, as_json: bool) -> None:
    """List tokens, without their secrets.

    \b
    Example:
      forewarn token list
    """
    response = client.all("tokens", **({"sessions": "true"} if sessions else {}))
    if as_json:
        print_json(response)
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
        for token in response["tokens"]
    )
    print_table(("token", "role", "created", "created by", "expires"), rows, "No tokens.")


@command.command()
@click.argument("name")
@service_command
def revoke(name: str, client: ControlClient, as_json: bool) -> None:
    """Revoke a token. It is invalid immediately.

    \b
    Example:
      forewarn token revoke ci
    """
    response = client.delete("tokens", name)
    if as_json:
        print_json(response)
    else:
        click.echo(f"The token of {name} was revoked.")

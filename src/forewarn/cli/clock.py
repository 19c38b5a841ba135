"""forewarn clock: the service's clock, and moving it where it is virtual."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.show import print_json, service_command

if TYPE_CHECKING:
    from forewarn.cli.client import Client


@click.group()
def command() -> None:
    """The service's clock.

    \b
    Example:
      forewarn clock advance 14m50s
    """


@command.command()
@service_command
def show(client: Client, as_json: bool) -> None:
    """What time it is for the service.

    \b
    Example:
      forewarn clock show
    """
    _print(client.get("clock"), as_json)


@command.command()
@click.argument("length")
@service_command
def advance(length: str, client: Client, as_json: bool) -> None:
    """Move a virtual clock on. Returns when everything due by then is done.

    \b
    Example:
      forewarn clock advance 14m50s
    """
    _print(client.post("clock", "advance", body={"by": length}), as_json)


def _print(clock: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(clock)
        return
    speed = "" if clock["speed"] == 1 else f", notices {clock['speed']:g} times shorter"
    click.echo(f"{datetime.fromisoformat(clock['now']):%Y-%m-%d %H:%M:%S} UTC ({clock['clock']} clock{speed})")

"""forewarn clock: the service's clock, and moving it where it is virtual."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.client import TIMEOUT_SECONDS
from forewarn.cli.output import print_json, service_command
from forewarn.core.durations import format_time, from_text
from forewarn.errors import BadOption

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
@click.argument("length", metavar="DURATION")
@click.option(
    "--seen-by",
    metavar="VM",
    multiple=True,
    help="Let this VM, which polls by itself, see every step before the next; may be given several times.",
)
@click.option("--timeout", metavar="DURATION", help="How long a VM may take for a step, in real time.  [default: 30s]")
@service_command
def advance(length: str, seen_by: tuple[str, ...], timeout: str | None, client: Client, as_json: bool) -> None:
    """Move a virtual clock on. Returns when everything due by then is done.

    It never waits for an application, unless VMs are named with --seen-by: then it goes from deadline to deadline,
    and at each one until they have been given their document and have come back for more.

    \b
    Examples:
      forewarn clock advance 14m50s
      forewarn clock advance 15m --seen-by web-0
    """
    if not seen_by and timeout is not None:
        raise BadOption(name="--timeout", value=timeout, problem="it needs --seen-by VM.")
    body: dict[str, Any] = {"by": length}
    if seen_by:
        body |= {"seen_by": list(seen_by), "timeout": timeout}
    # The service gives up by itself; how many steps there are, only it knows.
    seconds = timedelta(days=1).total_seconds() if seen_by else TIMEOUT_SECONDS
    _print(client.post("clock", "advance", body=body, seconds=seconds), as_json)


def _print(clock: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(clock)
        return
    speed = "" if clock["speed"] == 1 else f", notices {clock['speed']:g} times shorter"
    click.echo(f"{format_time(from_text(clock['now']))} ({clock['clock']} clock{speed})")

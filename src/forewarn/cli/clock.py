"""forewarn clock: show the service's clock, advance a virtual one, and accept the system time after a jump."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.client import TIMEOUT_SECONDS
from forewarn.cli.output import print_json, service_command
from forewarn.core.durations import format_time, from_text
from forewarn.errors import BadOption

if TYPE_CHECKING:
    from forewarn.cli.client import ControlClient


NEXT = "next"


@click.group()
def command() -> None:
    """Show the service's clock, or advance it.

    \b
    Example:
      forewarn clock advance 14m50s
    """


@command.command()
@service_command
def show(client: ControlClient, as_json: bool) -> None:
    """Show the time on the service's clock.

    \b
    Example:
      forewarn clock show
    """
    _print(client.get("clock"), as_json)


@command.command()
@click.argument("by", metavar="DURATION")
@click.option(
    "--seen-by",
    metavar="VM",
    multiple=True,
    help="Wait at each step until this VM has polled and seen its document. Can be repeated.",
)
@click.option("--timeout", metavar="DURATION", help="Maximum wait for a VM at each step, in real time.  [default: 30s]")
@service_command
def advance(by: str, seen_by: tuple[str, ...], timeout: str | None, client: ControlClient, as_json: bool) -> None:
    """Advance a virtual clock, and do everything that is due.

    The DURATION can be `next`: the clock then moves to the time at which something is due.

    With --seen-by the clock stops at each deadline. It continues when the VM has received its document and polled
    again. Without --seen-by it does not wait for applications.

    \b
    Examples:
      forewarn clock advance 14m50s
      forewarn clock advance 15m --seen-by web-0
      forewarn clock advance next
    """
    if not seen_by and timeout is not None:
        raise BadOption(name="--timeout", value=timeout, problem="it needs --seen-by VM.")
    body: dict[str, Any] = {"to": by} if by == NEXT else {"by": by}
    if seen_by:
        body |= {"seen_by": list(seen_by), "timeout": timeout}
    # The service applies the timeout. The client does not know the number of steps.
    seconds = timedelta(days=1).total_seconds() if seen_by else TIMEOUT_SECONDS
    _print(client.post("clock", "advance", body=body, seconds=seconds), as_json)


@command.command()
@service_command
def accept(client: ControlClient, as_json: bool) -> None:
    """Accept the system time after a jump of the system clock.

    After a jump of more than a minute, the service continues without the jump. It starts no event because of the
    time, disables no group, and removes no history. It uses the system time again after ten minutes without another
    jump, or when you accept it.

    \b
    Example:
      forewarn clock accept
    """
    _print(client.post("clock", "accept"), as_json)


def _print(clock: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(clock)
        return
    speed = "" if clock["speed"] == 1 else f", notices {clock['speed']:g} times shorter"
    click.echo(f"{format_time(from_text(clock['now']))} ({clock['clock']} clock{speed})")
    if due := clock.get("next_due"):
        click.echo(f"Next: {due['description']} {format_time(from_text(due['time']))}")
    if jump := clock.get("jump"):
        seen_at, system_time, until = (from_text(jump[name]) for name in ("seen_at", "system_time", "held_until"))
        click.echo(
            f"The system clock jumped {jump['description']} at {format_time(seen_at)}, to {format_time(system_time)}.\n"
            f"Starts, inactivity and retention wait until {format_time(until)}. If the system time is right, run: "
            "forewarn clock accept"
        )

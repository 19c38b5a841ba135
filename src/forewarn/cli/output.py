"""Output of the commands: tables, facts, names and times, or JSON."""

from __future__ import annotations

import json
import re
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.client import ControlClient
from forewarn.cli.completion import complete_by_metavar
from forewarn.cli.tables import table_lines, terminal_width
from forewarn.core.durations import format_relative_time, format_time, from_text
from forewarn.system.printable import printable_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_PARTS = re.compile(r"([0-9]+)").split


service_option = click.option(
    "--service", metavar="NAME", help="Name of a service on this machine.  [env: FOREWARN_SERVICE]"
)


def service_command(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that uses a running service. The command gets a client for it."""
    function = _checking_responses(function)

    @wraps(function)
    def with_client(
        service: str | None, data: str | None, server: str | None, token_file: str | None, **options: Any
    ) -> None:
        # JSON has the values as they are, with escapes. Text has printable values: a line break in one is no new line.
        client = ControlClient(service, data, server, token_file, printable=not options["as_json"])
        click.get_current_context().obj = client
        function(client=client, **options)

    json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    data_option = click.option(
        "--data",
        metavar="DIR",
        shell_complete=complete_by_metavar,
        help="Data folder of the service, or :memory:.",
    )
    server_option = click.option(
        "--server",
        metavar="URL",
        help="URL of the control API of a remote service.  [env: FOREWARN_SERVER]",
    )
    token_option = click.option(
        "--token-file",
        metavar="FILE",
        shell_complete=complete_by_metavar,
        help="File with the access token.  [env: FOREWARN_TOKEN_FILE]",
    )
    return service_option(data_option(server_option(token_option(json_option(with_client)))))


def _checking_responses(function: Callable[..., None]) -> Callable[..., None]:
    """Report a response that the command cannot read as a response that is not from Forewarn."""

    @wraps(function)
    def checked(client: ControlClient, **options: Any) -> None:
        try:
            function(client=client, **options)
        except UnicodeEncodeError:  # of the output
            raise
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise client.unreadable(error) from error

    return checked


def print_json(value: Any) -> None:
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    click.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=not is_unicode)))


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]], empty: str) -> None:
    """Print a table, or the text `empty` if it has no rows."""
    found = list(rows)
    lines = table_lines(columns, found, terminal_width()) if found else (empty,)
    click.echo("\n".join(lines))


def print_facts(facts: dict[str, str | None]) -> None:
    """Print names and values, one per line. Leave out those without a value."""
    for line in fact_lines(facts):
        click.echo(line)


def fact_lines(facts: dict[str, str | None]) -> list[str]:
    width = max(len(name) for name in facts)
    return [f"{name:<{width}}  {value}" for name, value in facts.items() if value]


def when(text: str | None, now: str) -> str:
    """Format a time, with its distance from now: `14:30:00 UTC (in 15m)`."""
    if text is None:
        return ""
    time, present = from_text(text), from_text(now)
    day, clock = format_time(time).split(maxsplit=1)
    shown = clock if time.date() == present.date() else f"{day} {clock}"
    return f"{shown} ({format_relative_time(time, present)})"


def short_ids(ids: list[str]) -> dict[str, str]:
    """Shorten each id to its first characters: at least eight, and enough to be unique."""
    length = 8
    while len({found[:length] for found in ids}) < len(set(ids)):
        length += 1
    return {found: found[:length] for found in ids}


def by_name(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort by name, with numbers in their order: web-2 comes before web-10."""
    return sorted(
        found, key=lambda each: [(int(part) if part.isdecimal() else 0, part) for part in _PARTS(each["name"])]
    )


def count_of(number: int, what: str) -> str:
    """Return a number of things: `1 VM`, `2 VMs`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def names(found: list[str], maximum: int = 5) -> str:
    """Join names. Of a longer list, show the first ones and the number of the others."""
    shown = ", ".join(found[:maximum])
    return shown if len(found) <= maximum else f"{shown} and {len(found) - maximum} more"


# --- Explanations ---------------------------------------------------------------------------------


def print_waits(found: dict[str, Any], now: str) -> None:
    """Print what an operation or a rollout waits for, and what happens next."""
    if found["waits"]:
        click.echo("\nWaits for:")
    for wait in found["waits"]:
        click.echo(f"  [{'x' if wait['done'] else ' '}] {wait_line(wait, now)}")
    click.echo(f"\nNext: {found['next']}" + (f" Latest time: {when(found['latest'], now)}." if found["latest"] else ""))


def wait_line(wait: dict[str, Any], now: str) -> str:
    until = f", until {when(wait['until'], now)}" if wait["until"] and not wait["done"] else ""
    group, text = f" of {wait['scope'] or wait['group'] or 'other groups'}", wait["text"]
    if wait["kind"] == "approval":
        return (
            f"approval{group}: given by {wait['by']}, {when(wait['time'], now)}"
            if wait["done"]
            else f"approval{group}{until}"
        )
    if wait["kind"] == "window":
        return f"the maintenance window{group}" + (f" ({text})" if text else "") + until
    if wait["kind"] == "deletion":
        return f"other deletions: {wait['text']}{until}"
    if wait["kind"] == "arrival":
        return f"the arrival of {wait['text'] or 'a VM on its way to the host'}"
    if wait["kind"] == "fabric":
        return f"the fabric {wait['text']}" + (f": done {when(wait['time'], now)}" if wait["done"] else "")
    if wait["kind"] == "gate":
        return f"the health gate of {wait['text']}{until}"
    if wait["kind"] == "pause":
        return f"the pause between two waves{until}"
    if wait["kind"] == "resume":
        return "an operator who resumes it"
    if wait["kind"] in ("operation", "host", "rollout"):
        return str(wait["text"])
    return f"settling{until}"

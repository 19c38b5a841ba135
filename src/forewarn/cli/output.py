"""Output of the commands: tables, facts, names and times relative to the service's clock, or JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from forewarn.cli.client import Client
from forewarn.core.durations import format_relative_time, format_time, from_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_PARTS = re.compile(r"([0-9]+)").split

_PIPED_WIDTH = 240
"""Where nobody looks at a screen, nothing is cut to fit one."""


def service_command(function: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that asks a running service; the command is given a client for it."""

    @wraps(function)
    def with_client(data: str | None, server: str | None, token_file: str | None, **options: Any) -> None:
        function(client=Client(data, server, token_file), **options)

    json_option = click.option("--json", "as_json", is_flag=True, help="Print the service's answer as JSON.")
    data_option = click.option(
        "--data", metavar="DIR", help="The data folder of the service to ask.  [env: FOREWARN_DATA]"
    )
    server_option = click.option(
        "--server",
        metavar="URL",
        help="A service elsewhere, by its control address.  [env: FOREWARN_SERVER]",
    )
    token_option = click.option(
        "--token-file",
        metavar="FILE",
        help="The file with the token to use.  [env: FOREWARN_TOKEN_FILE]",
    )
    return data_option(server_option(token_option(json_option(with_client))))


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False, markup=False)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]], empty: str) -> None:
    """A table, or a sentence when there is nothing to show."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        console().print(table)
    else:
        click.echo(empty)


def print_facts(facts: dict[str, str | None]) -> None:
    """Names and values, one a line; what is not known is left out."""
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        if value:
            click.echo(f"{name:<{width}}  {value}")


def when(text: str | None, now: str) -> str:
    """A moment as a person reads it: what the clock says then, and how far off that is."""
    if text is None:
        return ""
    moment, present = from_text(text), from_text(now)
    day, clock = format_time(moment).split(maxsplit=1)
    shown = clock if moment.date() == present.date() else f"{day} {clock}"
    return f"{shown} ({format_relative_time(moment, present)})"


def short_ids(ids: list[str]) -> dict[str, str]:
    """Each id cut to as many characters as tell it from the others, eight at least."""
    length = 8
    while len({found[:length] for found in ids}) < len(set(ids)):
        length += 1
    return {found: found[:length] for found in ids}


def by_name(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the order in which a person counts: web-2 comes before web-10."""
    return sorted(
        found, key=lambda each: [(int(part) if part.isdecimal() else 0, part) for part in _PARTS(each["name"])]
    )


def names(found: list[str], most: int = 5) -> str:
    """Names, and how many more."""
    shown = ", ".join(found[:most])
    return shown if len(found) <= most else f"{shown} and {len(found) - most} more"

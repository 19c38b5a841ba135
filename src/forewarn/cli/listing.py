"""Commands that list things: their filters, the maximum number of rows, and the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import print_json, print_table, service_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forewarn.cli.client import ControlClient

DEFAULT_ROWS = 1000
"""Of a table. JSON and --quiet are for programs, which must not lose rows."""


def list_command(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that lists VMs, hosts, events or operations."""
    function = service_command(function)
    function = click.option(
        "--limit",
        type=click.IntRange(0),
        metavar="N",
        help=f"Show at most N rows. 0: no limit.  [default: {DEFAULT_ROWS:,}; with --quiet or --json: no limit]",
    )(function)
    return click.option("-q", "--quiet", is_flag=True, help="Print only names or ids, one per line.")(function)


def filter_option(name: str, metavar: str, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option that becomes a query parameter."""
    return click.option(f"--{name}", name, metavar=metavar, help=text)


def print_list(
    client: ControlClient,
    name: str,
    query: dict[str, Any],
    options: dict[str, Any],
    table: Callable[[list[dict[str, Any]]], tuple[Iterable[str], Iterable[Iterable[str]]]],
    empty: str,
) -> None:
    """Read a list and print it. `table` returns the columns and the rows for the items.

    The options are those of `list_command`. A parameter can have several values. One without a value is not sent.
    """
    given = [
        (key, each)
        for key, value in query.items()
        for each in (value if isinstance(value, tuple) else (value,))
        if each not in (None, "", False)
    ]
    parameters = [(key, "true" if value is True else value) for key, value in given]
    as_json, quiet = options["as_json"], options["quiet"]
    limit: int | None = options["limit"]
    if limit is None:
        limit = 0 if as_json or quiet else DEFAULT_ROWS
    found, total = _read(client, name, parameters, limit)
    if as_json:
        print_json({name: found} if total is None else {name: found, "total": total})
    elif quiet:
        for item in found:
            click.echo(item["name"] if "name" in item else item["id"])
    else:
        columns, rows = table(found)
        print_table(columns, rows, empty)
    if total is not None:
        click.echo(
            f"forewarn: {total - len(found):,} more of {total:,} {name.replace('vms', 'VMs')} are not shown. "
            "Use a filter, or --limit 0 to show all.",
            err=True,
        )


def _read(
    client: ControlClient, name: str, query: list[tuple[str, str]], limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    """Return the items, and the number of all matching items if some are left out."""
    found: list[dict[str, Any]] = []
    for page in client.pages((name,), query, size=limit):
        found += page
        if limit and len(found) >= limit:
            break
    if not limit or len(found) < limit:
        return found, None
    total = client.count((name,), query)
    return found[:limit], total if total > limit else None

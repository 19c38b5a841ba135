"""forewarn history: show what happened, when, and who did it."""

from __future__ import annotations

from http.client import HTTPException
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.client import MAX_PAGE_SIZE
from forewarn.cli.output import names, print_json, print_table, service_command
from forewarn.core.durations import format_time, from_text
from forewarn.errors import ServiceUnreachable
from forewarn.system.standard_streams import OUTPUT_ERRORS

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from forewarn.cli.client import ControlClient

DEFAULT_SHOWN = 100
MAX_SHOWN = MAX_PAGE_SIZE
_FILTERS = (
    "vm",
    "group",
    "host",
    "event",
    "operation",
    "rollout",
    "type",
    "cause",
    "by",
    "kind",
    "since",
    "until",
    "during",
)


@click.command()
@click.option("--vm", metavar="NAME", help="Only entries about this VM.")
@click.option("--group", multiple=True, metavar="NAME", help="Only entries about this group. Can be repeated.")
@click.option("--host", metavar="NAME", help="Only entries about this host, or VMs that moved to it.")
@click.option("--event", metavar="ID", help="Only entries about this event and its operation.")
@click.option("--operation", metavar="ID", help="Only entries about this operation.")
@click.option("--rollout", metavar="ID", help="Only entries about this rollout.")
@click.option("--type", metavar="TYPE", help="Only entries of operations with this event type, like reboot.")
@click.option("--cause", metavar="CAUSE", help="Only entries of operations with this cause, like host-update.")
@click.option("--by", metavar="NAME", help="Only entries by this token or VM.")
@click.option(
    "--kind", multiple=True, metavar="KIND", help="Only entries of this kind, like approved. Can be repeated."
)
@click.option("--since", metavar="TIME", help="Only entries since a time, a date, or a duration ago, like 30d.")
@click.option("--until", metavar="TIME", help="Only entries before a time, a date, or a duration ago.")
@click.option("--during", metavar="PERIOD", help="Only entries of a year, month or day: 2026, 2026-03, 2026-03-05.")
@click.option(
    "--last",
    type=click.IntRange(1, MAX_SHOWN),
    metavar="N",
    help=f"Show the newest N entries, at most {MAX_SHOWN}.  [default: {DEFAULT_SHOWN}]",
)
@click.option("--all", "everything", is_flag=True, help="Show all stored entries.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all matching entries as CSV, for a spreadsheet.")
@service_command
def command(
    client: ControlClient, as_json: bool, last: int | None, everything: bool, as_csv: bool, **filters: Any
) -> None:
    """Show what happened, when, and who did it.

    The newest entry comes last.

    \b
    Examples:
      forewarn history --last 20
      forewarn history --vm web-0 --during 2026-03
      forewarn history --event 4caea225
      forewarn history --cause host-update --kind approved --since 30d --all
      forewarn history --since 30d --csv > history.csv
    """
    if last is not None and (everything or as_csv):
        raise click.UsageError(f"Use either --last N or {'--csv' if as_csv else '--all'}.")
    if as_json and as_csv:
        raise click.UsageError("Use either --json or --csv.")
    query = [
        (name, value)
        for name in _FILTERS
        for value in (filters[name] if isinstance(filters[name], tuple) else (filters[name],))
        if value is not None
    ]
    if as_csv:
        with client.open("GET", ("history",), [*query, ("format", "csv")]) as response:
            _copy(response, client)
        return
    if everything:
        found = [entry for page in client.pages(("history",), query) for entry in page]
        more = False
    else:
        newest = [("order", "newest"), ("limit", str(last or DEFAULT_SHOWN))]
        items, following = client.page(("history",), [*query, *newest])
        found, more = items[::-1], following is not None
    if as_json:
        print_json({"history": found})
        return
    print_table(("time (UTC)", "kind", "about", "type", "by", "reason"), map(row_of, found), "No entries.")
    if more and last is None:
        click.echo(f"Only the newest {len(found)} entries are shown. Use --last N or --all to see more.", err=True)


def _copy(response: HTTPResponse, client: ControlClient) -> None:
    """Print a text while it is received."""
    try:
        for line in response:
            click.echo(line.decode(), nl=False)
    except (OSError, HTTPException) as error:
        if isinstance(error, OSError) and error.errno in OUTPUT_ERRORS:
            raise
        raise ServiceUnreachable(url=client.url, problem="the response was incomplete") from error


def row_of(entry: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    """Return the cells of a history entry: time, kind, subject, event type, author and reason."""
    time = format_time(from_text(entry["time"]), zone=False)
    return time, entry["kind"], _about(entry), entry["type"] or "", entry["by"], entry["reason"] or ""


def _about(entry: dict[str, Any]) -> str:
    group, vms = entry["group"], names(entry["vms"])
    if group and vms and vms != group:
        return f"{group}: {vms}"
    return vms or group or entry["host"] or ""

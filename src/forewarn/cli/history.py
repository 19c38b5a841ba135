"""forewarn history: what happened to whom, when, by whom and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.client import LARGEST_PAGE
from forewarn.cli.output import names, print_json, print_table, service_command
from forewarn.core.durations import format_time, from_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.cli.client import Client

USUALLY_SHOWN = 100
MOST_SHOWN = int(LARGEST_PAGE)
_ASKED = ("vm", "group", "host", "type", "cause", "by", "kind", "since", "until", "during")


@click.command()
@click.option("--vm", metavar="NAME", help="Only about this VM.")
@click.option("--group", multiple=True, metavar="NAME", help="Only about this group; may be repeated.")
@click.option("--host", metavar="NAME", help="Only about this host, or VMs that were brought to it.")
@click.option("--type", metavar="TYPE", help="Only of operations with events of this type, like reboot.")
@click.option("--cause", metavar="CAUSE", help="Only of operations with this cause, like host-update.")
@click.option("--by", metavar="WHO", help="Only what this person, token or VM did.")
@click.option("--kind", multiple=True, metavar="KIND", help="Only this kind of entry, like approved; may be repeated.")
@click.option("--since", metavar="TIME", help="From then on: a time, a date, or how long ago, like 30d.")
@click.option("--until", metavar="TIME", help="Before then, written in the same ways.")
@click.option("--during", metavar="SPAN", help="Only in this year, month or day: 2026, 2026-03, 2026-03-05.")
@click.option(
    "--last",
    type=click.IntRange(1, MOST_SHOWN),
    help=f"How many of the newest, up to {MOST_SHOWN}.  [default: {USUALLY_SHOWN}]",
)
@click.option("--all", "everything", is_flag=True, help="All that are kept, instead of the newest.")
@service_command
def command(client: Client, as_json: bool, last: int | None, everything: bool, **asked: Any) -> None:
    """What happened to whom, when, by whom and why; the newest last.

    \b
    Examples:
      forewarn history --last 20
      forewarn history --vm web-0 --during 2026-03
      forewarn history --cause host-update --kind approved --since 30d --all
    """
    if last is not None and everything:
        raise click.UsageError("Say --last N or --all, not both.")
    query = [
        (name, value)
        for name in _ASKED
        for value in (asked[name] if isinstance(asked[name], tuple) else (asked[name],))
        if value is not None
    ]
    if everything:
        found = [entry for page in _pages(client, query) for entry in page]
        more = False
    else:
        newest = [("order", "newest"), ("limit", str(last or USUALLY_SHOWN))]
        page = _page(client, [*query, *newest])
        found, more = page["history"][::-1], page["next"] is not None
    if as_json:
        print_json({"history": found})
        return
    print_table(("time (UTC)", "kind", "about", "by", "reason"), map(row_of, found), "Nothing of that has happened.")
    if more and last is None:
        click.echo(f"These are the newest {len(found)}; --last N shows another number, --all everything.", err=True)


def _pages(client: Client, query: list[tuple[str, str]]) -> Iterator[list[dict[str, Any]]]:
    cursor: list[tuple[str, str]] = [("limit", LARGEST_PAGE)]
    while True:
        page = _page(client, [*query, *cursor])
        yield page["history"]
        if page["next"] is None:
            return
        cursor = [("limit", LARGEST_PAGE), ("cursor", page["next"])]


def _page(client: Client, query: list[tuple[str, str]]) -> dict[str, Any]:
    with client.open("GET", ("history",), query) as answer:
        page: dict[str, Any] = json.loads(answer.read())
        return page


def row_of(entry: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """Return the cells of a history entry: time, kind, subject, author and reason."""
    time = format_time(from_text(entry["time"]), zone=False)
    return time, entry["kind"], _about(entry), entry["by"], entry["reason"] or ""


def _about(entry: dict[str, Any]) -> str:
    group, vms = entry["group"], names(entry["vms"])
    if group and vms and vms != group:
        return f"{group}: {vms}"
    return vms or group or entry["host"] or ""

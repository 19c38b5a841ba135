"""forewarn event: see, approve, postpone, cancel, explain and watch events."""

from __future__ import annotations

import json
import sys
from http.client import HTTPException
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.history import row_of
from forewarn.cli.output import names, print_facts, print_json, print_table, service_command, short_ids, when
from forewarn.cli.requests import change_command
from forewarn.cli.wait import wait_for_operations
from forewarn.core.durations import format_seconds
from forewarn.delivery.feed import RETRY_MILLISECONDS, EventStreamParser
from forewarn.errors import NoService, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.cli.client import Client


@click.group()
def command() -> None:
    """Events: see, approve, postpone and cancel them. An id may be cut short where it is clear.

    \b
    Example:
      forewarn event list
    """


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that are over.")
@service_command
def list_events(everything: bool, client: Client, as_json: bool) -> None:
    """What is coming, and what is under way.

    \b
    Example:
      forewarn event list --all
    """
    answer = client.all("events", all="true") if everything else client.all("events")
    if as_json:
        print_json(answer)
        return
    now = client.get("clock")["now"]
    ids = short_ids([event["id"] for event in answer["events"]])
    rows = (
        (
            ids[event["id"]],
            event["type"],
            event["status"],
            names(event["vms"]),
            event["source"],
            when(event["not_before"], now) if event["status"] == "scheduled" else "",
            _approval(event),
        )
        for event in answer["events"]
    )
    empty = "There has been no event." if everything else "No event is coming or under way."
    print_table(("event", "type", "status", "VMs", "source", "not before", "approved"), rows, empty)


def _approval(event: dict[str, Any]) -> str:
    return f"by {event['approved_by']}" if event["approved_at"] else ""


@command.command()
@click.argument("event_id", metavar="ID")
@service_command
def show(event_id: str, client: Client, as_json: bool) -> None:
    """One event, live or over.

    \b
    Example:
      forewarn event show 4caea225
    """
    _print_event(client, client.get("events", event_id), as_json)


def _print_event(client: Client, event: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(event)
        return
    now = client.get("clock")["now"]
    seconds = event["duration_seconds"]
    approved = when(event["approved_at"], now)
    print_facts(
        {
            "event": event["id"],
            "type": event["type"],
            "status": event["status"],
            "VMs": ", ".join(event["vms"]),
            "group": event["group"],
            "source": event["source"],
            "description": event["description"],
            "interruption": format_seconds(seconds) if seconds is not None else "unknown",
            "announced": when(event["created_at"], now),
            "not before": when(event["not_before"], now),
            "approved": f"{approved} by {event['approved_by']}" if approved else None,
            "started": when(event["started_at"], now),
            "ended": when(event["ended_at"], now),
            "operation": event["operation"],
        }
    )


@command.command()
@click.argument("event_id", metavar="ID")
@service_command
def approve(event_id: str, client: Client, as_json: bool) -> None:
    """Let an event start before its time, as one of its VMs could.

    \b
    Example:
      forewarn event approve 4caea225
    """
    _print_event(client, client.post("events", event_id, "approve"), as_json)


@command.command()
@click.argument("event_id", metavar="ID")
@service_command
def cancel(event_id: str, client: Client, as_json: bool) -> None:
    """Withdraw an event that has not started: it disappears from the document.

    \b
    Example:
      forewarn event cancel 4caea225
    """
    _print_event(client, client.post("events", event_id, "cancel"), as_json)


@command.command()
@click.argument("event_id", metavar="ID")
@click.option("--by", "length", metavar="DURATION", help="How much later than it would start now.")
@click.option("--until", metavar="TIME", help="Not before this moment, or this long from now on.")
@change_command
def postpone(event_id: str, length: str | None, until: str | None, **options: Any) -> None:
    """Let routine work of the platform wait, up to its deadline. Windows are kept; NotBefore only moves later.

    \b
    Example:
      forewarn event postpone 4caea225 --by 2h
    """
    if bool(length) == bool(until):
        raise click.UsageError("Say how far: --by DURATION or --until TIME.")
    client = options["client"]
    body = {"by": length, "until": until, "dry_run": options["dry_run"]}
    event = client.post("events", event_id, "postpone", body=body)
    if options["dry_run"] and not options["as_json"]:
        click.echo("Dry run: nothing is changed. It would be:")
    if options["wait"] and not options["dry_run"]:
        wait_for_operations(client, [event["operation"]], quiet=options["as_json"])
        event = client.get("events", event["id"])
    _print_event(client, event, options["as_json"])


@command.command()
@click.argument("event_id", metavar="ID")
@click.option("--wait", is_flag=True, help="Stay, and show how it goes on until it is over.")
@service_command
def explain(event_id: str, wait: bool, client: Client, as_json: bool) -> None:
    """Why it is waiting: the cause, who asked, what it waits for, what comes next, and when at the latest.

    \b
    Example:
      forewarn event explain 4caea225
    """
    found = client.get("events", event_id, "explain")
    if as_json:
        print_json(found)
    else:
        print_explanation(found, client.get("clock")["now"])
    if wait:
        wait_for_operations(client, [found["operation"]], quiet=as_json)


@command.command()
@click.argument("event_id", metavar="ID")
@service_command
def history(event_id: str, client: Client, as_json: bool) -> None:
    """Show the history of an event.

    \b
    Example:
      forewarn event history 4caea225
    """
    answer = client.all("events", event_id, "history")
    if as_json:
        print_json(answer)
        return
    now = client.get("clock")["now"]
    rows = (
        (when(entry["time"], now), entry["kind"], entry["by"], names(entry["vms"]), entry["reason"] or "")
        for entry in answer["history"]
    )
    print_table(("time", "kind", "by", "VMs", "reason"), rows, "Nothing has happened to it.")


@command.command()
@click.option("--group", multiple=True, metavar="NAME", help="Only about this group; may be repeated.")
@click.option(
    "--kind", multiple=True, metavar="KIND", help="Only this kind of history entry, like started; may be repeated."
)
@click.option("--after", metavar="N", help="Begin after this row of history; 0: with all that is kept.")
@service_command
def watch(group: tuple[str, ...], kind: tuple[str, ...], after: str | None, client: Client, as_json: bool) -> None:
    """What happens, as it happens, until Ctrl-C. Goes on where it was when the service is started again.

    \b
    Examples:
      forewarn event watch
      forewarn event watch --group web --kind scheduled --kind started
    """
    query = [*(("group", name) for name in group), *(("kind", name) for name in kind)]
    if after is not None:
        query.append(("after", after))
    print_feed(client, query, as_json=as_json)


# --- Explanation of a wait ------------------------------------------------------------------------


def print_explanation(found: dict[str, Any], now: str) -> None:
    """The cause, who asked, what it waits for, what comes next and when."""
    event = found["event"]
    print_facts(
        {
            "event": f"{event['id']}: {event['type']} of {names(event['vms'])}, {event['status']}",
            "cause": f"{found['cause']}. {found['cause_description']}",
            "asked": f"{when(found['requested_at'], now)} by {found['requested_by']}",
            "host": found["host"],
            "rollout": found["rollout"],
            "not notified": "; ".join(found["not_notified"].values()),
        }
    )
    if found["waits"]:
        click.echo("\nIt waits for:")
    for wait in found["waits"]:
        click.echo(f"  [{'x' if wait['done'] else ' '}] {_wait_line(wait, now)}")
    click.echo(
        f"\nNext: {found['next']}" + (f" At the latest {when(found['latest'], now)}." if found["latest"] else "")
    )
    if found["status"] == "pending" and found["postpone_deadline"]:
        click.echo(f"It may be postponed until {when(found['postpone_deadline'], now)}.")


def _wait_line(wait: dict[str, Any], now: str) -> str:
    until = f", until {when(wait['until'], now)}" if wait["until"] and not wait["done"] else ""
    group = f" of {wait['group']}" if wait["group"] else ""
    if wait["kind"] == "approval":
        return (
            f"approval{group}: given by {wait['by']}, {when(wait['time'], now)}"
            if wait["done"]
            else f"approval{group}{until}"
        )
    if wait["kind"] == "window":
        return f"the maintenance window{group} ({wait['text']}){until}"
    if wait["kind"] == "deletion":
        return f"the other deletion: {wait['text']}{until}"
    if wait["kind"] == "fabric":
        return f"the fabric {wait['text']}" + (f": done {when(wait['time'], now)}" if wait["done"] else "")
    if wait["kind"] == "gate":
        return f"the health gate of {wait['text']}{until}"
    return f"settling{until}"


# --- The feed of history --------------------------------------------------------------------------


SILENCE_SECONDS = 60
"""The connection counts as lost after this time without data. The service sends a sign of life every 15 seconds."""
_NEVER = Event()


def print_feed(client: Client, query: list[tuple[str, str]], *, as_json: bool) -> None:
    """Print each row as it comes: a line of JSON, or of words."""
    try:
        for data in FeedReader(client, query).rows():
            click.echo(data if as_json else _history_line(json.loads(data)))
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of the output has closed it
        sys.stdout = None
        sys.exit(0)


def _history_line(entry: dict[str, Any]) -> str:
    time, kind, about, by, reason = row_of(entry)
    return f"{time}  {kind:<14}  {about}{' ' if about else ''}by {by}" + (f": {reason}" if reason else "")


class FeedReader:
    """Reads the feed from a position on, and connects again when the connection is lost."""

    def __init__(self, client: Client, query: list[tuple[str, str]]) -> None:
        self._client = client
        self._query = query
        self._position = ""
        self._connected = False
        """Whether it ever was. If the first connection fails, that is an error."""
        self._lost = False

    def rows(self) -> Iterator[str]:
        """The JSON of each row, endlessly."""
        while True:
            try:
                yield from self._rows_of_connection()
                problem = "the connection was closed"
            except (Unavailable, NoService) as error:
                if not self._connected:
                    raise
                problem = str(error)
            except (OSError, HTTPException) as error:
                problem = str(error) or type(error).__name__
            if not self._lost:
                click.echo(f"forewarn: cut off ({problem}); going on as soon as it is back.", err=True)
                self._lost = True
            _NEVER.wait(RETRY_MILLISECONDS / 1000)
            self._client = self._client.anew()

    def _rows_of_connection(self) -> Iterator[str]:
        resumes = {"Last-Event-ID": self._position} if self._position else {}
        with self._client.open("GET", ("feed",), self._query, headers=resumes, seconds=SILENCE_SECONDS) as answer:
            self._connected, self._lost = True, False
            listener = EventStreamParser()
            for line in answer:
                message = listener.parse_line(line.decode())
                if message is not None:
                    # Before it is handed on: what whoever is given it does then is its own affair.
                    self._position = message.id
                    if message.data:
                        yield message.data

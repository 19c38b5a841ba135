"""forewarn event: list, approve, postpone, cancel, explain and watch events."""

from __future__ import annotations

import sys
from http.client import HTTPException
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.client import LOST
from forewarn.cli.history import row_of
from forewarn.cli.listing import filter_option, list_command, print_list
from forewarn.cli.output import (
    names,
    print_facts,
    print_json,
    print_waits,
    service_command,
    short_ids,
    wait_line,
    when,
)
from forewarn.cli.requests import asks, change_command, confirm, yes_option
from forewarn.cli.wait import wait_for_operations
from forewarn.core.durations import format_seconds
from forewarn.system.printable import printable_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.cli.client import ControlClient


@click.group()
def command() -> None:
    """List, approve, postpone, cancel and explain events.

    An id can be shortened to its first characters.

    \b
    Example:
      forewarn event list
    """


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Include ended events.")
@filter_option("vm", "NAME", "Only events of this VM. Can be a shell pattern.")
@filter_option("group", "NAME", "Only events of this group.")
@filter_option("host", "NAME", "Only events of operations on this host.")
@filter_option("type", "TYPE", "Only events of this type, like reboot.")
@filter_option("cause", "CAUSE", "Only events of operations with this cause, like host-update.")
@filter_option(
    "status", "STATUS", "Only events with this status: scheduled, started, advisory, completed or cancelled."
)
@list_command
def list_events(everything: bool, client: ControlClient, **options: Any) -> None:
    """List active events: scheduled, started, and advisories.

    \b
    Examples:
      forewarn event list --all
      forewarn event list --vm 'web-*' --type reboot
      forewarn event list --status scheduled --quiet
    """

    def table(events: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        now = client.get("clock")["now"]
        ids = short_ids([event["id"] for event in events])
        return ("event", "type", "status", "VMs", "source", "not before", "approved"), [
            (
                ids[event["id"]],
                event["type"],
                event["status"],
                names(event["vms"]),
                event["source"],
                when(event["not_before"], now) if event["status"] == "scheduled" else "",
                _approval(event),
            )
            for event in events
        ]

    filters = {name: options[name] for name in ("vm", "group", "host", "type", "cause", "status")}
    empty = "No events." if everything else "No active events."
    empty = "No matching events." if any(filters.values()) else empty
    print_list(client, "events", {**filters, "all": everything}, options, table, empty)


def _approval(event: dict[str, Any]) -> str:
    return f"by {event['approved_by']}" if event["approved_at"] else ""


@command.command()
@click.argument("event_id", metavar="ID")
@service_command
def show(event_id: str, client: ControlClient, as_json: bool) -> None:
    """Show an event.

    \b
    Example:
      forewarn event show 4caea225
    """
    _print_event(client, client.get("events", event_id), as_json)


def _print_event(client: ControlClient, event: dict[str, Any], as_json: bool) -> None:
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
            "scope": event["scope"] if event["scope"] != event["group"] else None,
            "source": event["source"],
            "description": event["description"],
            "interruption": format_seconds(seconds) if seconds is not None else "unknown",
            "created": when(event["created_at"], now),
            "not before": when(event["not_before"], now) if event["status"] != "advisory" else None,
            "approved": f"{approved} by {event['approved_by']}" if approved else None,
            "started": when(event["started_at"], now),
            "ended": when(event["ended_at"], now),
            "operation": event["operation"],
        }
    )


@command.command()
@click.argument("event_id", metavar="[ID]", required=False)
@click.option("--vm", metavar="NAME", help="Approve all events of this VM that wait for an approval.")
@click.option("--all", "everything", is_flag=True, help="Approve all events that wait for an approval.")
@click.option("--dry-run", is_flag=True, help="With --vm or --all: show what would be approved; change nothing.")
@yes_option
@service_command
def approve(
    event_id: str | None,
    vm: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    client: ControlClient,
    as_json: bool,
) -> None:
    """Approve events, so that they can start before NotBefore.

    An advisory never starts, so it cannot be approved.

    \b
    Examples:
      forewarn event approve 4caea225
      forewarn event approve --vm web-0
      forewarn event approve --all --dry-run
    """
    if (event_id is not None) + (vm is not None) + everything != 1:
        raise click.UsageError("Give one of: an ID, --vm NAME, --all.")
    if event_id is not None:
        if dry_run:
            raise click.UsageError("Use --dry-run with --vm NAME or --all.")
        _print_event(client, client.post("events", event_id, "approve"), as_json)
        return
    body = {"vm": vm, "all": everything or None}
    if everything and not dry_run and asks(yes):
        waiting = len(client.post("events", "approve", body={**body, "dry_run": True})["events"])
        if waiting:
            confirm(f"Approve {waiting} event{'s' if waiting != 1 else ''}?", yes)
    response = client.post("events", "approve", body={**body, "dry_run": dry_run})
    if as_json:
        print_json(response)
        return
    if dry_run:
        click.echo("Dry run: nothing was changed.")
    verb = "would be approved" if dry_run else "approved"
    for event in response["events"]:
        click.echo(f"{event['type']} of {names(event['vms'])} {verb}: event {event['id']}")
    if not response["events"]:
        click.echo("No event waits for an approval.")


@command.command()
@click.argument("event_id", metavar="ID")
@service_command
def cancel(event_id: str, client: ControlClient, as_json: bool) -> None:
    """Cancel an event that has not started.

    The event disappears from the document of its VMs.

    \b
    Example:
      forewarn event cancel 4caea225
    """
    _print_event(client, client.post("events", event_id, "cancel"), as_json)


@command.command()
@click.argument("event_id", metavar="ID")
@click.option("--by", metavar="DURATION", help="Move NotBefore later by this duration.")
@click.option("--until", metavar="TIME", help="Move NotBefore to this time, or to a duration from now.")
@change_command
def postpone(event_id: str, by: str | None, until: str | None, **options: Any) -> None:
    """Postpone an event of routine work, up to its postpone deadline.

    The new time is in a maintenance window, and never earlier than before.

    \b
    Example:
      forewarn event postpone 4caea225 --by 2h
    """
    if bool(by) == bool(until):
        raise click.UsageError("Use either --by DURATION or --until TIME.")
    client = options["client"]
    body = {"by": by, "until": until, "dry_run": options["dry_run"]}
    event = client.post("events", event_id, "postpone", body=body)
    if options["dry_run"] and not options["as_json"]:
        click.echo("Dry run: nothing was changed. The event would be:")
    if options["wait"] and not options["dry_run"]:
        wait_for_operations(client, [event["operation"]], quiet=options["as_json"])
        event = client.get("events", event["id"])
    _print_event(client, event, options["as_json"])


@command.command()
@click.argument("event_id", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait until the operation has ended, and show its progress.")
@service_command
def explain(event_id: str, wait: bool, client: ControlClient, as_json: bool) -> None:
    """Explain why an event waits, and what happens next.

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
@click.option("--group", multiple=True, metavar="NAME", help="Only entries about this group. Can be repeated.")
@click.option(
    "--kind", multiple=True, metavar="KIND", help="Only this kind of history entry, like started. Can be repeated."
)
@click.option("--type", "event_type", metavar="TYPE", help="Only entries of operations with this event type.")
@click.option("--after", metavar="N", help="Start after this row of history. 0: with the oldest.")
@service_command
def watch(
    group: tuple[str, ...],
    kind: tuple[str, ...],
    event_type: str | None,
    after: str | None,
    client: ControlClient,
    as_json: bool,
) -> None:
    """Print new history entries until Ctrl-C, one line each.

    For an event, the line has its type, status, cause, source, NotBefore and description, and what it waits for. With
    --json, the line has the whole event.

    After a lost connection it reconnects, and continues with the next entry.

    \b
    Examples:
      forewarn event watch
      forewarn event watch --group web --kind scheduled --kind started
      forewarn event watch --type Terminate
    """
    query = [*(("group", name) for name in group), *(("kind", name) for name in kind)]
    query += [(name, value) for name, value in (("type", event_type), ("after", after)) if value is not None]
    print_feed(client, query, as_json=as_json)


# --- Explanation of a wait ------------------------------------------------------------------------


def print_explanation(found: dict[str, Any], now: str) -> None:
    """Print the cause of an event, what it waits for, and what happens next."""
    event = found["event"]
    print_facts(
        {
            "event": f"{event['id']}: {event['type']} of {names(event['vms'])}, {event['status']}",
            "cause": f"{found['cause']}. {found['cause_description']}",
            "requested": f"{when(found['requested_at'], now)} by {found['requested_by']}",
            "host": found["host"],
            "rollout": found["rollout"],
            "not notified": "; ".join(found["not_notified"].values()),
        }
    )
    print_waits(found, now)
    if found["status"] == "pending" and found["postpone_deadline"]:
        click.echo(f"Can be postponed until {when(found['postpone_deadline'], now)}.")


# --- The feed of history --------------------------------------------------------------------------


READ_TIMEOUT_SECONDS = 60
"""After this time without data the connection is considered lost. The service sends a heartbeat every 15 seconds."""
_NEVER = Event()


def print_feed(client: ControlClient, query: list[tuple[str, str]], *, as_json: bool) -> None:
    """Print each new row as a line of text or JSON."""
    try:
        for data in FeedClient(client, query).rows():
            click.echo(printable_json(data) if as_json else _history_line(client.decoded(data)))
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader has closed the pipe
        sys.stdout = None
        sys.exit(0)


def _history_line(entry: dict[str, Any]) -> str:
    time, kind, about, event_type, by, reason = row_of(entry)
    snapshot = entry["snapshot"]
    what = _snapshot_facts(snapshot, entry["time"]) if snapshot else [event_type, entry["cause"] or ""]
    facts = "; ".join([*filter(None, what), f"by {by}" + (f": {reason}" if reason else "")])
    return f"{time}  {kind:<14}  {about}{'  ' if about else ''}{facts}"


def _snapshot_facts(event: dict[str, Any], time: str) -> list[str]:
    """Describe an event as it was at a time."""
    # Most waits end at NotBefore at the latest, which the line has already.
    waits = [wait | {"until": None} if wait["until"] == event["not_before"] else wait for wait in event["waits"]]
    return [
        f"{event['type']}{_interruption(event)}, {event['status']}",
        f"{event['cause']} ({event['source']})",
        f"not before {when(event['not_before'], time)}" if event["status"] == "scheduled" else "",
        event["description"].rstrip("."),
        f"waits for {' and '.join(wait_line(wait, time) for wait in waits)}" if waits else "",
    ]


def _interruption(event: dict[str, Any]) -> str:
    if event["type"] != "Freeze":
        return ""
    seconds = event["duration_seconds"]
    return " of unknown duration" if seconds is None else f" of {format_seconds(seconds)}"


class FeedClient:
    """Reads the feed. Reconnects after a lost connection, and continues with the next row."""

    def __init__(self, client: ControlClient, query: list[tuple[str, str]]) -> None:
        self._client = client
        self._query = query
        self._position = ""
        self._connected = False
        """Whether it has connected at least once. A failure of the first connection is an error."""
        self._lost = False

    def rows(self) -> Iterator[str]:
        """Yield the JSON of each row, without end."""
        from forewarn.delivery.feed import RETRY_MILLISECONDS  # slow to import, and only this command needs it

        while True:
            try:
                yield from self._rows_of_connection()
                problem = "the connection was closed"
            except LOST as error:
                if not self._connected:
                    raise
                problem = str(error)
            except (OSError, HTTPException) as error:
                problem = str(error) or type(error).__name__
            if not self._lost:
                click.echo(f"forewarn: connection lost ({problem}); reconnecting.", err=True)
                self._lost = True
            _NEVER.wait(RETRY_MILLISECONDS / 1000)
            self._client.refresh()

    def _rows_of_connection(self) -> Iterator[str]:
        from forewarn.delivery.feed import EVENT_STREAM, EventStreamParser

        headers = {"Last-Event-ID": self._position} if self._position else {}
        with self._client.open(
            "GET", ("feed",), self._query, headers=headers, seconds=READ_TIMEOUT_SECONDS
        ) as response:
            if not response.getheader("Content-Type", "").startswith(EVENT_STREAM):
                raise self._client.unreadable(ValueError("no event stream"))
            self._connected, self._lost = True, False
            listener = EventStreamParser()
            for line in response:
                message = listener.parse_line(line.decode())
                if message is not None:
                    # Set before the yield: the caller may stop reading there.
                    self._position = message.id
                    if message.data:
                        yield message.data

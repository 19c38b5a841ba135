"""forewarn event: see, approve, postpone and cancel events."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.asking import acting_command
from forewarn.cli.explanation import print_explanation
from forewarn.cli.following import follow
from forewarn.cli.show import names, print_facts, print_json, print_table, service_command, short_ids, when
from forewarn.cli.waiting import wait_for_operations
from forewarn.core.durations import format_duration

if TYPE_CHECKING:
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
            "interruption": format_duration(timedelta(seconds=seconds)) if seconds is not None else "unknown",
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
@click.option("--by", "length", metavar="LENGTH", help="How much later than it would start now.")
@click.option("--until", metavar="MOMENT", help="Not before this moment, or this long from now on.")
@acting_command
def postpone(event_id: str, length: str | None, until: str | None, **options: Any) -> None:
    """Let routine work of the platform wait, up to its deadline. Windows are kept; NotBefore only moves later.

    \b
    Example:
      forewarn event postpone 4caea225 --by 2h
    """
    if bool(length) == bool(until):
        raise click.UsageError("Say how far: --by LENGTH or --until MOMENT.")
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
    """All that happened to an event: who, what, when, why.

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
        (when(entry["at"], now), entry["what"], entry["by"], names(entry["vms"]), entry["why"] or "")
        for entry in answer["history"]
    )
    print_table(("when", "what", "by", "VMs", "why"), rows, "Nothing has happened to it.")


@command.command()
@click.option("--group", multiple=True, metavar="NAME", help="Only about this group; may be repeated.")
@click.option("--kind", multiple=True, metavar="KIND", help="Only this, like started; may be repeated.")
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
    follow(client, query, as_json=as_json)

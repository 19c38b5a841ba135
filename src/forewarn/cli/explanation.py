"""Why something waits, as a person reads it."""

from __future__ import annotations

from typing import Any

import click

from forewarn.cli.show import names, print_facts, when


def print_explanation(found: dict[str, Any], now: str) -> None:
    """The cause, who asked, what it waits for, what comes next and when."""
    event = found["event"]
    print_facts(
        {
            "event": f"{event['id']}: {event['type']} of {names(event['vms'])}, {event['status']}",
            "cause": f"{found['cause']}. {found['meaning']}",
            "asked": f"{when(found['requested_at'], now)} by {found['requested_by']}",
            "host": found["host"],
            "rollout": found["rollout"],
            "not told": "; ".join(found["not_told"].values()),
        }
    )
    if found["waits"]:
        click.echo("\nIt waits for:")
    for wait in found["waits"]:
        click.echo(f"  [{'x' if wait['over'] else ' '}] {_words(wait, now)}")
    click.echo(
        f"\nNext: {found['next']}" + (f" At the latest {when(found['latest'], now)}." if found["latest"] else "")
    )
    if found["progress"] == "pending" and found["postpone_until"]:
        click.echo(f"It may be postponed until {when(found['postpone_until'], now)}.")


def _words(wait: dict[str, Any], now: str) -> str:
    until = f", until {when(wait['until'], now)}" if wait["until"] and not wait["over"] else ""
    group = f" of {wait['group']}" if wait["group"] else ""
    if wait["what"] == "approval":
        return (
            f"approval{group}: given by {wait['by']}, {when(wait['at'], now)}"
            if wait["over"]
            else f"approval{group}{until}"
        )
    if wait["what"] == "window":
        return f"the maintenance window{group} ({wait['words']}){until}"
    if wait["what"] == "deletion":
        return f"the other deletion: {wait['words']}{until}"
    if wait["what"] == "fabric":
        return f"the fabric {wait['words']}" + (f": done {when(wait['at'], now)}" if wait["over"] else "")
    if wait["what"] == "gate":
        return f"the health gate of {wait['words']}{until}"
    return f"settling{until}"

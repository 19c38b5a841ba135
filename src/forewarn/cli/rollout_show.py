"""Rollouts and their plans as a person sees them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from forewarn.cli.show import names, print_facts, print_table, short_ids, when
from forewarn.core.durations import format_duration


def print_plan(plan: dict[str, Any], now: str) -> None:
    """Which hosts when, which groups, and when it ends."""
    hosts = sum(len(wave["hosts"]) for wave in plan["waves"])
    click.echo(f"{hosts} hosts in {len(plan['waves'])} waves: {_what(plan)}.\n")
    rows = (
        (
            str(number),
            names(wave["hosts"], 4),
            names([f"{found['group']} UD {found['update_domain']}" for found in wave["groups"]], 4),
            str(wave["vms"]),
            when(wave["announced_at"], now),
            when(wave["starts_at"], now),
        )
        for number, wave in enumerate(plan["waves"], 1)
    )
    print_table(("wave", "hosts", "groups", "VMs", "announced", "starts, if not approved"), rows, "Nothing to walk.")
    for left_out in plan["skipped"]:
        click.echo(f"{left_out['host']} is left out: {left_out['why']}")
    click.echo(f"\nExpected end  {when(plan['expected_end'], now)}")
    click.echo(f"Longest       {when(plan['longest_end'], now)}, unless it is paused or postponed")


def print_rollouts(rollouts: list[dict[str, Any]], now: str, empty: str) -> None:
    ids = short_ids([rollout["id"] for rollout in rollouts])
    rows = (
        (
            ids[rollout["id"]],
            names(rollout["hosts"]),
            rollout["stage"],
            str(rollout["wave"]),
            *(str(rollout["counts"][word]) for word in ("done", "under_way", "waiting", "skipped")),
            when(rollout["requested_at"], now),
        )
        for rollout in rollouts
    )
    columns = ("rollout", "hosts", "stage", "wave", "done", "under way", "waiting", "left out", "started")
    print_table(columns, rows, empty)


def print_rollout(rollout: dict[str, Any], now: str) -> None:
    """One rollout in full."""
    print_facts(
        {
            "rollout": rollout["id"],
            "hosts": ", ".join(rollout["hosts"]),
            "stage": rollout["stage"] + (f": {rollout['outcome']}" if rollout["outcome"] else ""),
            "what": _what(rollout),
            "asked": f"{when(rollout['requested_at'], now)} by {rollout['requested_by']}",
            "wave": str(rollout["wave"]),
            "next wave": when(rollout["next_at"], now),
            "done": names(rollout["done"], 10),
            "under way": names([found["host"] for found in rollout["under_way"]], 10),
            "waiting": names(rollout["waiting"], 10),
            "left out": "; ".join(f"{found['host']}: {found['why']}" for found in rollout["skipped"][:10]),
            "ended": when(rollout["ended_at"], now),
        }
    )


def _what(course: dict[str, Any]) -> str:
    seconds = course["duration_seconds"]
    length = f" of {format_duration(timedelta(seconds=seconds))}" if seconds else ""
    pause = course["pause_seconds"]
    between = f", {format_duration(timedelta(seconds=pause))} between waves" if pause else ""
    budget = course["budget"]
    at_once = "one host at a time" if budget == 1 else f"at most {budget} hosts at once"
    return f"{course['type']}{length}, {at_once}{between}"

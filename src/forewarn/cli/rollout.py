"""forewarn rollout: update many hosts in waves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import (
    names,
    print_facts,
    print_json,
    print_table,
    print_waits,
    service_command,
    short_ids,
    when,
)
from forewarn.cli.requests import (
    asks,
    change_command,
    confirm,
    impact_options,
    print_first,
    request_command,
    request_fields,
)
from forewarn.cli.wait import wait_for_rollout
from forewarn.core.durations import format_seconds

if TYPE_CHECKING:
    from forewarn.cli.client import ControlClient


@click.group()
def command() -> None:
    """Update many hosts in waves.

    A wave affects at most one update domain of each group. A rollout waits for hosts that have other work, and while
    another rollout updates another update domain of a group. It stops when a health check fails. An id can be shortened
    to its first characters.

    \b
    Example:
      forewarn rollout start --hosts 'rack-1-*' --impact freeze --duration 9s
    """


@command.command()
@click.option(
    "--hosts",
    multiple=True,
    required=True,
    metavar="PATTERN",
    help="Hosts to update, like 'rack-1-*'. Can be repeated.",
)
@impact_options
@click.option(
    "--max-unavailable",
    type=int,
    default=5,
    metavar="N",
    help="Maximum number of hosts that are updated at the same time.  [default: 5]",
)
@click.option("--pause", metavar="DURATION", help="Pause between waves.  [default: 0s]")
@click.option("--health-timeout", metavar="DURATION", help="Maximum time for VMs to become healthy.  [default: 15m]")
@request_command(routine=True, platform=True)
def start(hosts: tuple[str, ...], impact: str, **options: Any) -> None:
    """Start a rollout.

    Each wave notifies the groups on its hosts, updates the hosts, and checks the health of the VMs. If a check fails,
    the rollout stops and cancels scheduled events.

    \b
    Example:
      forewarn rollout start --hosts 'rack-1-*' --impact freeze --duration 9s
    """
    client = options["client"]
    body = {"hosts": hosts, "type": impact, **request_fields(options)}
    body |= {name: options[name] for name in ("duration", "max_unavailable", "pause", "health_timeout")}
    if options["dry_run"]:
        plan = client.post("rollouts", body=body | {"dry_run": True})
        print_json(plan) if options["as_json"] else print_plan(plan, client.get("clock")["now"])
        return
    if asks(options["yes"]):
        client.announce()
        print_first(_no_notice_lines(client.post("rollouts", body=body | {"dry_run": True})))
        confirm(f"Update the hosts {names(list(hosts))}? To see the plan first, use --dry-run.", yes=False)
    rollout = client.post("rollouts", body=body)
    _show(client, rollout["id"], options, announce=True)


def _show(client: ControlClient, rollout_id: str, options: dict[str, Any], *, announce: bool = False) -> None:
    """Print the rollout: with --wait, when it has ended."""
    if options["wait"]:
        if announce and not options["as_json"]:
            click.echo(f"Rollout {rollout_id} has started.")
        wait_for_rollout(client, rollout_id, quiet=options["as_json"])
    rollout = client.get("rollouts", rollout_id)
    print_json(rollout) if options["as_json"] else print_rollout(rollout, client.get("clock")["now"])


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Include ended rollouts.")
@service_command
def list_rollouts(everything: bool, client: ControlClient, as_json: bool) -> None:
    """List running and paused rollouts.

    \b
    Example:
      forewarn rollout list --all
    """
    response = client.all("rollouts", all="true") if everything else client.all("rollouts")
    if as_json:
        print_json(response)
        return
    empty = "No rollouts." if everything else "No running or paused rollouts."
    print_rollouts(response["rollouts"], client.get("clock")["now"], empty)


@command.command()
@click.argument("rollout_id", metavar="ID")
@click.option("--plan", is_flag=True, help="Show the plan of the remaining waves instead.")
@service_command
def show(rollout_id: str, plan: bool, client: ControlClient, as_json: bool) -> None:
    """Show a rollout and the status of its hosts.

    \b
    Example:
      forewarn rollout show 4caea225 --plan
    """
    found = client.get("rollouts", rollout_id, "plan") if plan else client.get("rollouts", rollout_id)
    if as_json:
        print_json(found)
        return
    now = client.get("clock")["now"]
    print_plan(found, now) if plan else print_rollout(found, now)


@command.command()
@click.argument("rollout_id", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait until the rollout has ended, and show its progress.")
@service_command
def explain(rollout_id: str, wait: bool, client: ControlClient, as_json: bool) -> None:
    """Explain what a rollout waits for, and what happens next.

    \b
    Example:
      forewarn rollout explain 4caea225
    """
    found = client.get("rollouts", rollout_id, "explain")
    if as_json:
        print_json(found)
    else:
        print_facts({"rollout": f"{found['rollout']}, {found['status']}"})
        print_waits(found, client.get("clock")["now"])
    if wait:
        wait_for_rollout(client, found["rollout"], quiet=as_json)


@command.command()
@click.argument("rollout_id", metavar="ID")
@change_command
def pause(rollout_id: str, **options: Any) -> None:
    """Pause a rollout: schedule no new waves.

    Events that are already scheduled continue.

    \b
    Example:
      forewarn rollout pause 4caea225
    """
    _turn(rollout_id, "pause", options)


@command.command()
@click.argument("rollout_id", metavar="ID")
@change_command
def resume(rollout_id: str, **options: Any) -> None:
    """Resume a paused rollout.

    \b
    Example:
      forewarn rollout resume 4caea225
    """
    _turn(rollout_id, "resume", options)


@command.command()
@click.argument("rollout_id", metavar="ID")
@change_command
def cancel(rollout_id: str, **options: Any) -> None:
    """Cancel a rollout and its scheduled events.

    Started events continue until they end.

    \b
    Example:
      forewarn rollout cancel 4caea225
    """
    _turn(rollout_id, "cancel", options)


def _turn(rollout_id: str, verb: str, options: dict[str, Any]) -> None:
    client = options["client"]
    rollout = client.post("rollouts", rollout_id, verb, body={"dry_run": options["dry_run"]})
    if not options["dry_run"]:
        if verb == "cancel":
            options["wait"] = False  # it has ended
        _show(client, rollout["id"], options)
    elif options["as_json"]:
        print_json(rollout)
    else:
        click.echo("Dry run: nothing was changed. The rollout would be:")
        print_rollout(rollout, client.get("clock")["now"])


# --- Output ---------------------------------------------------------------------------------------


def print_plan(plan: dict[str, Any], now: str) -> None:
    """Print the waves of a plan, with their hosts, groups and times."""
    hosts = sum(len(wave["hosts"]) for wave in plan["waves"])
    click.echo(f"{_count(hosts, 'host')} in {_count(len(plan['waves']), 'wave')}: {_summary(plan)}.\n")
    rows = (
        (
            str(number),
            names(wave["hosts"], 4),
            names([f"{found['group']} UD {found['update_domain']}" for found in wave["groups"]], 4),
            str(wave["vms"]),
            when(wave["scheduled_at"], now),
            when(wave["starts_at"], now),
        )
        for number, wave in enumerate(plan["waves"], 1)
    )
    print_table(("wave", "hosts", "groups", "VMs", "scheduled", "starts, if not approved"), rows, "No waves.")
    for skipped in plan["skipped"]:
        click.echo(f"{skipped['host']} is skipped: {skipped['reason']}")
    print_first(_no_notice_lines(plan))
    click.echo(f"\nExpected end  {when(plan['expected_end'], now)}")
    click.echo(f"Latest end    {when(plan['latest_end'], now)}, unless it is paused, postponed or waits for other work")


def _no_notice_lines(plan: dict[str, Any]) -> list[str]:
    return [f"No notice: {reason}." for reason in plan["not_notified"].values()]


def print_rollouts(rollouts: list[dict[str, Any]], now: str, empty: str) -> None:
    ids = short_ids([rollout["id"] for rollout in rollouts])
    rows = (
        (
            ids[rollout["id"]],
            names(rollout["hosts"]),
            rollout["status"],
            str(rollout["wave"]),
            *(str(rollout["counts"][word]) for word in ("done", "in_progress", "pending", "skipped")),
            when(rollout["requested_at"], now),
        )
        for rollout in rollouts
    )
    columns = ("rollout", "hosts", "status", "wave", "done", "in progress", "pending", "skipped", "started")
    print_table(columns, rows, empty)


def print_rollout(rollout: dict[str, Any], now: str) -> None:
    """Print a rollout with its hosts."""
    print_facts(
        {
            "rollout": rollout["id"],
            "hosts": ", ".join(rollout["hosts"]),
            "status": rollout["status"] + (f": {rollout['reason']}" if rollout["reason"] else ""),
            "update": _summary(rollout),
            "requested": f"{when(rollout['requested_at'], now)} by {rollout['requested_by']}",
            "wave": str(rollout["wave"]),
            "next wave": when(rollout["next_wave_at"], now) or _next_wave(rollout),
            "done": names(rollout["done"], 10),
            "in progress": names([found["host"] for found in rollout["in_progress"]], 10),
            "pending": names(rollout["pending"], 10),
            "skipped": "; ".join(f"{found['host']}: {found['reason']}" for found in rollout["skipped"][:10]),
            "ended": when(rollout["ended_at"], now),
        }
    )


def _next_wave(rollout: dict[str, Any]) -> str:
    if rollout["status"] != "running" or rollout["in_progress"] or not rollout["pending"]:
        return ""
    return f"when a host is free; see: forewarn rollout explain {rollout['id'][:8]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _summary(settings: dict[str, Any]) -> str:
    seconds = settings["duration_seconds"]
    duration = f" of {format_seconds(seconds)}" if seconds is not None else ""
    pause = settings["pause_seconds"]
    between = f", {format_seconds(pause)} between waves" if pause else ""
    maximum = settings["max_unavailable"]
    at_once = "one host at a time" if maximum == 1 else f"at most {maximum} hosts at once"
    with_notice = ", only with notice" if settings["require_notice"] else ""
    return f"{settings['type']}{duration}, {at_once}{between}{with_notice}"

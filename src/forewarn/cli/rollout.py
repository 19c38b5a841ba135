"""forewarn rollout: a host update that walks many hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import names, print_facts, print_json, print_table, service_command, short_ids, when
from forewarn.cli.requests import change_command, confirm, impact_options, request_command, request_fields
from forewarn.cli.wait import wait_for_rollout
from forewarn.core.durations import format_seconds

if TYPE_CHECKING:
    from forewarn.cli.client import Client


@click.group()
def command() -> None:
    """Rollouts: update many hosts, one update domain of a group at a time, and stop when health fails.

    An id may be cut short where it is clear.

    \b
    Example:
      forewarn rollout start --hosts 'rack-1-*' --impact freeze --duration 9s
    """


@command.command()
@click.option("--hosts", "patterns", multiple=True, required=True, metavar="PATTERN", help="Hosts, like 'rack-1-*'.")
@impact_options
@click.option(
    "--max-unavailable",
    "max_unavailable",
    type=int,
    default=5,
    metavar="N",
    help="How many hosts at once.  [default: 5]",
)
@click.option("--pause", metavar="DURATION", help="Between a wave and the next; default: none.")
@click.option(
    "--health-timeout",
    "health_timeout",
    metavar="DURATION",
    help="How long VMs may take to be well again; default: 15m.",
)
@click.option("--yes", is_flag=True, help="Do not show the plan and ask whether it is meant.")
@request_command(routine=True)
def start(patterns: tuple[str, ...], yes: bool, impact: str, **options: Any) -> None:
    """Start to walk hosts, wave by wave: announce, carry out, look whether all is well, go on.

    A gate that fails stops it, and withdraws what is only scheduled.

    \b
    Example:
      forewarn rollout start --hosts 'rack-1-*' --impact freeze --duration 9s
    """
    client = options["client"]
    body = {"hosts": patterns, "type": impact, **request_fields(options)}
    body |= {name: options[name] for name in ("duration", "max_unavailable", "pause", "health_timeout")}
    if options["dry_run"]:
        plan = client.post("rollouts", body=body | {"dry_run": True})
        print_json(plan) if options["as_json"] else print_plan(plan, client.get("clock")["now"])
        return
    confirm(f"Update the hosts {names(list(patterns))} now? See the plan with --dry-run.", yes)
    rollout = client.post("rollouts", body=body)
    _show(client, rollout["id"], options, announce=True)


def _show(client: Client, rollout_id: str, options: dict[str, Any], *, announce: bool = False) -> None:
    """Print the rollout, watched or as it is."""
    if options["wait"]:
        if announce and not options["as_json"]:
            click.echo(f"Rollout {rollout_id} is under way.")
        wait_for_rollout(client, rollout_id, quiet=options["as_json"])
    rollout = client.get("rollouts", rollout_id)
    print_json(rollout) if options["as_json"] else print_rollout(rollout, client.get("clock")["now"])


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that are over.")
@service_command
def list_rollouts(everything: bool, client: Client, as_json: bool) -> None:
    """Rollouts under way, and how far they are.

    \b
    Example:
      forewarn rollout list --all
    """
    answer = client.all("rollouts", all="true") if everything else client.all("rollouts")
    if as_json:
        print_json(answer)
        return
    empty = "There has been no rollout." if everything else "No rollout is under way."
    print_rollouts(answer["rollouts"], client.get("clock")["now"], empty)


@command.command()
@click.argument("rollout_id", metavar="ID")
@click.option("--plan", is_flag=True, help="The waves still to come, as the fleet is now.")
@service_command
def show(rollout_id: str, plan: bool, client: Client, as_json: bool) -> None:
    """One rollout: what is done, under way, left out and still to come.

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
@change_command
def pause(rollout_id: str, **options: Any) -> None:
    """Announce nothing more until it is resumed. What is announced goes on.

    \b
    Example:
      forewarn rollout pause 4caea225
    """
    _turn(rollout_id, "pause", options)


@command.command()
@click.argument("rollout_id", metavar="ID")
@change_command
def resume(rollout_id: str, **options: Any) -> None:
    """Schedule the next waves again.

    \b
    Example:
      forewarn rollout resume 4caea225
    """
    _turn(rollout_id, "resume", options)


@command.command()
@click.argument("rollout_id", metavar="ID")
@change_command
def cancel(rollout_id: str, **options: Any) -> None:
    """End the walk: what is only scheduled is withdrawn, what has started goes on to its end.

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
            options["wait"] = False  # it is over
        _show(client, rollout["id"], options)
    elif options["as_json"]:
        print_json(rollout)
    else:
        click.echo("Dry run: nothing is changed. It would be:")
        print_rollout(rollout, client.get("clock")["now"])


# --- Output ---------------------------------------------------------------------------------------


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
            when(wave["scheduled_at"], now),
            when(wave["starts_at"], now),
        )
        for number, wave in enumerate(plan["waves"], 1)
    )
    print_table(("wave", "hosts", "groups", "VMs", "scheduled", "starts, if not approved"), rows, "There are no waves.")
    for left_out in plan["skipped"]:
        click.echo(f"{left_out['host']} is skipped: {left_out['reason']}")
    click.echo(f"\nExpected end  {when(plan['expected_end'], now)}")
    click.echo(f"Latest end    {when(plan['latest_end'], now)}, unless it is paused or postponed")


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
    """One rollout in full."""
    print_facts(
        {
            "rollout": rollout["id"],
            "hosts": ", ".join(rollout["hosts"]),
            "status": rollout["status"] + (f": {rollout['reason']}" if rollout["reason"] else ""),
            "what": _what(rollout),
            "asked": f"{when(rollout['requested_at'], now)} by {rollout['requested_by']}",
            "wave": str(rollout["wave"]),
            "next wave": when(rollout["next_wave_at"], now),
            "done": names(rollout["done"], 10),
            "in progress": names([found["host"] for found in rollout["in_progress"]], 10),
            "pending": names(rollout["pending"], 10),
            "skipped": "; ".join(f"{found['host']}: {found['reason']}" for found in rollout["skipped"][:10]),
            "ended": when(rollout["ended_at"], now),
        }
    )


def _what(settings: dict[str, Any]) -> str:
    seconds = settings["duration_seconds"]
    length = f" of {format_seconds(seconds)}" if seconds else ""
    pause = settings["pause_seconds"]
    between = f", {format_seconds(pause)} between waves" if pause else ""
    most = settings["max_unavailable"]
    at_once = "one host at a time" if most == 1 else f"at most {most} hosts at once"
    return f"{settings['type']}{length}, {at_once}{between}"

"""forewarn rollout: a host update that walks many hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.asking import acting_command, asking_command, confirm, impact_options, terms_asked
from forewarn.cli.rollout_show import print_plan, print_rollout, print_rollouts
from forewarn.cli.show import names, print_json, service_command
from forewarn.cli.waiting import wait_for_rollout

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
@click.option("--budget", type=int, default=5, metavar="N", help="How many hosts at once.  [default: 5]")
@click.option("--pause", metavar="LENGTH", help="Between a wave and the next; default: none.")
@click.option("--health-time", metavar="LENGTH", help="How long VMs may take to be well again; default: 15m.")
@click.option("--yes", is_flag=True, help="Do not show the plan and ask whether it is meant.")
@asking_command(routine=True)
def start(patterns: tuple[str, ...], yes: bool, impact: str, **options: Any) -> None:
    """Start to walk hosts, wave by wave: announce, carry out, look whether all is well, go on.

    A gate that fails stops it, and withdraws what is only scheduled.

    \b
    Example:
      forewarn rollout start --hosts 'rack-1-*' --impact freeze --duration 9s
    """
    client = options["client"]
    body = {"hosts": patterns, "type": impact, **terms_asked(options)}
    body |= {name: options[name] for name in ("duration", "budget", "pause", "health_time")}
    if options["dry_run"]:
        plan = client.post("rollouts", body=body | {"dry_run": True})
        print_json(plan) if options["as_json"] else print_plan(plan, client.get("clock")["now"])
        return
    confirm(f"Walk the hosts {names(list(patterns))} now? See the plan with --dry-run.", yes)
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
@acting_command
def pause(rollout_id: str, **options: Any) -> None:
    """Announce nothing more until it is resumed. What is announced goes on.

    \b
    Example:
      forewarn rollout pause 4caea225
    """
    _turn(rollout_id, "pause", options)


@command.command()
@click.argument("rollout_id", metavar="ID")
@acting_command
def resume(rollout_id: str, **options: Any) -> None:
    """Walk on.

    \b
    Example:
      forewarn rollout resume 4caea225
    """
    _turn(rollout_id, "resume", options)


@command.command()
@click.argument("rollout_id", metavar="ID")
@acting_command
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

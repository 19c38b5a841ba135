"""The command line: one file per noun the user types, loaded only when it is typed."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from forewarn import __version__
from forewarn.errors import ForewarnError, exit_code, nearest

NOUNS = {
    "up": "Start the service.",
    "vm": "VMs: see them, and have things happen to them.",
    "host": "Hosts: see them, and announce work on them.",
    "rollout": "Rollouts: update many hosts, domain by domain.",
    "scenario": "Scenarios: rehearse a whole course of events.",
    "event": "Events: see, approve, postpone and cancel them.",
    "history": "History: what happened to whom, when, by whom and why.",
    "operation": "Operations: what was asked for, and saying how it went.",
    "group": "Groups: who is told together, and by which policy.",
    "fleet": "The fleet: check and apply its file.",
    "clock": "The service's clock.",
    "fault": "Faults: make the endpoint fail on purpose.",
    "webhook": "Webhooks: who else is told of what happens.",
    "token": "Tokens: who may ask the service for what.",
    "agent": "The agent in the VM: prepares, approves and undoes.",
    "verify": "Check any Scheduled Events server against the wire contract.",
    "settings": "Every setting, and where its value comes from.",
}


class Nouns(click.Group):
    """Commands are imported when they are needed: `forewarn vm list` must not wait for a web server to load."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            hint = nearest(cmd_name, NOUNS)
            ctx.fail(f"There is no command {cmd_name!r}.{hint}")
        command = import_module(f"forewarn.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            from forewarn.cli.renamed_options import name_current_option

            raise name_current_option(error) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(NOUNS.items()))


@click.command(cls=Nouns, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="forewarn")
def root() -> None:
    """Forewarn tells machines what is about to happen to them.

    \b
    Start a service:     forewarn up
    See its VMs:         forewarn vm list
    Announce a restart:  forewarn vm restart NAME
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run a command; an error is one line that says what would be right, and a code that says which kind it was."""
    try:
        return root.main(arguments, prog_name="forewarn")
    except ForewarnError as error:
        click.echo(f"forewarn: {error}", err=True)
        sys.exit(exit_code(error))

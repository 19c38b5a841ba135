"""forewarn agent: passes its arguments on. The agent has its own command line, without click, to stay small."""

from __future__ import annotations

import sys

import click

from forewarn.agent.cli.main import main


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Prepare the VM for events, approve them, and restore it.

    \b
    Example:
      forewarn agent run --config agent.toml
    """
    sys.exit(main(list(arguments)))

"""forewarn agent: handed on as it was typed. The agent has a command line of its own, without click, to stay small."""

from __future__ import annotations

import sys

import click

from forewarn.agent.cli.main import main


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run the agent in this VM, or ask it.

    \b
    Example:
      forewarn agent run --config agent.toml
    """
    sys.exit(main(list(arguments)))

"""forewarn agent: passes its arguments on. The agent has its own command line, without click, to stay small."""

from __future__ import annotations

import sys

import click
from click.shell_completion import CompletionItem

from forewarn.agent.cli.main import COMMANDS, main, parser_of


def complete(ctx: click.Context, _: click.Parameter | None, incomplete: str) -> list[CompletionItem]:
    """Return the commands of the agent, or the options of its command, that begin like this."""
    typed: tuple[str, ...] = ctx.params.get("arguments") or ()
    if not typed:
        found = list(COMMANDS.items())
    elif typed[0] not in COMMANDS:
        return []
    else:
        options = parser_of(typed[0])._actions  # noqa: SLF001 - argparse has no public list
        taken = next((option for option in options if typed[-1] in option.option_strings), None)
        if not incomplete.startswith("-") and not (taken and taken.nargs == 0):
            # A value of the option, or the argument of the command. The shell completes names of files.
            return [CompletionItem(incomplete, type="file")]
        found = [(name, option.help or "") for option in options for name in option.option_strings]
    return [CompletionItem(name, help=text) for name, text in found if name.startswith(incomplete)]


class AgentCommand(click.Command):
    """Completes the options of the agent's commands, which click does not know."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return complete(ctx, None, incomplete)


@click.command(cls=AgentCommand, context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=complete)
def command(arguments: tuple[str, ...]) -> None:
    """Prepare the VM for events, approve them, and restore it.

    \b
    Example:
      forewarn agent run --config agent.toml
    """
    sys.exit(main(list(arguments)))

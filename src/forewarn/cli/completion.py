"""forewarn completion: print a script that lets a shell complete commands and options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forewarn.cli import PROGRAM, root

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_by_metavar(_: click.Context, option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the value of an option: names of files for FILE, of folders for DIR, and the values of `one|other`."""
    from click.shell_completion import CompletionItem  # not loaded by other commands

    metavar = option.metavar or ""
    if metavar in ("FILE", "DIR"):
        return [CompletionItem(incomplete, type=metavar.lower())]
    values = metavar.split("|") if "|" in metavar else []
    return [CompletionItem(value) for value in values if value.startswith(incomplete)]


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> None:
    """Print a script that completes commands and options in your shell.

    Add the output to the start-up file of your shell: ~/.bashrc or ~/.zshrc. For fish, write it to
    ~/.config/fish/completions/forewarn.fish.

    \b
    Examples:
      forewarn completion bash >> ~/.bashrc
      forewarn completion zsh >> ~/.zshrc
      forewarn completion fish > ~/.config/fish/completions/forewarn.fish
    """
    from click.shell_completion import get_completion_class

    variable = f"_{PROGRAM.upper()}_COMPLETE"  # root.main reads it when the shell asks for completions
    shells = get_completion_class(shell)
    assert shells is not None  # noqa: S101 - click knows these three
    click.echo(shells(root, {}, PROGRAM, variable).source())

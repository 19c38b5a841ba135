"""The commands of Forewarn with their options and texts, for the reference and the man pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forewarn.cli import NOUNS, root

if TYPE_CHECKING:
    import argparse

COMMON_AFTER = 10
"""An option that more commands than this have, with the same help, is described once."""


def commands() -> dict[str, click.Command]:
    """Every command by what is typed after `forewarn`, apart from those of the agent."""
    context = click.Context(root)
    found: dict[str, click.Command] = {}
    for noun in NOUNS:
        command = root.get_command(context, noun)
        if noun == "agent" or command is None:
            continue
        if isinstance(command, click.Group):
            found |= {f"{noun} {verb}": each for verb, each in command.commands.items()}
        else:
            found[noun] = command
    return found


def options_of(command: click.Command) -> dict[str, str]:
    """The options as they are typed, with their help."""
    found = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            names = ", ".join([*parameter.opts, *parameter.secondary_opts])
            metavar = "" if parameter.is_flag else f" {value_of(parameter, command)}"
            found[names + metavar] = " ".join((parameter.help or "").split())
    return found


def value_of(parameter: click.Option, command: click.Command) -> str:
    if isinstance(parameter.type, click.Choice):
        return "|".join(map(str, parameter.type.choices))
    return parameter.metavar or parameter.make_metavar(click.Context(command))


def common_options() -> dict[str, str]:
    counted: dict[tuple[str, str], int] = {}
    for command in commands().values():
        for option in options_of(command).items():
            counted[option] = counted.get(option, 0) + 1
    return {option: text for (option, text), number in counted.items() if number > COMMON_AFTER}


def help_parts(command: click.Command) -> tuple[str, list[str]]:
    """The text of the help, and the lines of its examples."""
    text, _, examples = (command.help or "").partition("Example")
    paragraphs = [" ".join(part.split()) for part in text.replace("\b", "").split("\n\n")]
    lines = [line.strip() for line in examples.splitlines()[1:] if line.strip()]
    return "\n\n".join(part for part in paragraphs if part), lines


def usage(command: click.Command) -> str:
    arguments = [part for part in command.collect_usage_pieces(click.Context(command)) if part != "[OPTIONS]"]
    return " ".join([*arguments, "[OPTIONS]"])


def agent_options(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The options and arguments as they are typed, with their help."""
    found = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list
        if "--help" in action.option_strings:
            continue
        metavar = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
        name = " ".join(part for part in (", ".join(action.option_strings), str(metavar)) if part)
        found[name] = " ".join((action.help or "").replace("%%", "%").split())
    return found


def agent_examples(parser: argparse.ArgumentParser) -> list[str]:
    return [line.strip() for line in (parser.epilog or "").splitlines()[1:] if line.strip()]

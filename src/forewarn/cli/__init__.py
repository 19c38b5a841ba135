"""The command line: one module for each noun. A module is imported only when its noun is typed."""

from __future__ import annotations

import errno
import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from forewarn import __version__
from forewarn.cli.variables import warn_of_unknown_variables
from forewarn.errors import ForewarnError, exit_code, nearest
from forewarn.system.printable import printable, printable_error, printable_output
from forewarn.system.standard_streams import OUTPUT_ERRORS, discard

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECTIONS = {
    "Test an application": {
        "up": "Start the service.",
        "vm": "List VMs. Restart, move, reimage, evict or delete them.",
        "event": "List, approve, postpone, cancel and explain events.",
        "clock": "Show the service's clock, or advance it.",
        "portal": "Open the portal in a browser, signed in with your token.",
        "scenario": "Run a sequence of events, and check each step.",
        "fault": "Make the metadata endpoint fail on purpose.",
    },
    "Operate a fleet": {
        "fleet": "Check or apply a fleet file, or a part of one. Show the fleet.",
        "group": "List groups, and change their policies.",
        "host": "List hosts. Update, repair or fail them.",
        "rollout": "Update many hosts in waves.",
        "operation": "List operations. Cancel them, or mark them done or failed.",
        "history": "Show what happened, when, and who did it.",
        "service": "List the services that run on this machine.",
        "node": "List the nodes of the service, and let another node lead.",
        "webhook": "Send history to other systems.",
        "token": "Create, list and revoke access tokens.",
        "backup": "Write a backup of the database, also while the service runs.",
        "restore": "Replace the database with a backup.",
        "database": "Move the data of a service, or report a restore of PostgreSQL.",
        "install": "Write a systemd unit that runs the service.",
        "uninstall": "Remove the systemd unit. The data stays.",
    },
    "In a VM, and tools": {
        "agent": "Prepare the VM for events, approve them, and restore it.",
        "verify": "Check a Scheduled Events server against the wire contract.",
        "settings": "Show every setting and the origin of its value.",
        "completion": "Print a script that completes commands and options in your shell.",
    },
}
"""The commands, by kind of user. Each help text is also the first line of the command's own help."""

_LISTED_WITH = {
    "group": ("fleet", "Apply fleet files. Change the policies of groups."),
    "rollout": ("host", "Update, repair or fail hosts, one or in waves."),
    "service": ("token", "Manage tokens. List the services that run here."),
    "node": ("token", "Manage tokens. List the services that run here."),
    "restore": ("backup", "Back up the database, or restore it."),
    "database": ("backup", "Back up the database, or restore it."),
    "uninstall": ("install", "Write the systemd unit of the service, or remove it."),
    "completion": ("settings", "Show every setting. Complete commands in your shell."),
}
"""Commands that share a line with another one, so that the help fits on a screen."""

NOUNS = {noun: text for section in SECTIONS.values() for noun, text in section.items()}


PROGRAM = "forewarn"
_UNKNOWN_COMMAND = re.compile(r"No such command '([^']*)'")  # click has no attribute for the name
_UNKNOWN_VALUE = re.compile(r"'([^']*)' is not one of ")


def _hint_with_noun(verb: str) -> str:
    """Return a suggestion for a command without its noun: 'vm restart' for `forewarn reboot`."""
    for noun in ("vm", "event", "operation", "host"):
        if hint := nearest(verb, import_module(f"forewarn.cli.{noun}").command.commands, prefix=f"{noun} "):
            return hint
    return ""


class Nouns(click.Group):
    """Imports a command when it is used, so that `forewarn vm list` does not load a web server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            if ctx.resilient_parsing:
                return None  # a shell asks for completions of a line that is wrong
            hint = nearest(cmd_name, NOUNS) or _hint_with_noun(cmd_name)
            ctx.fail(f"Unknown command {cmd_name!r}.{hint}")
        command = import_module(f"forewarn.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without an import of all commands."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(noun, help=text) for noun, text in NOUNS.items() if noun.startswith(incomplete)]
        return found or click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            parameters = error.ctx.command.params if error.ctx else []
            options = [name for parameter in parameters for name in parameter.opts if name.startswith("--")]
            hint = nearest(error.option_name, options)
            message = f"No such option {error.option_name!r}.{hint}"
            raise click.NoSuchOption(error.option_name, message, ctx=error.ctx) from None
        except click.UsageError as error:
            group = error.ctx.command if error.ctx else None
            if isinstance(group, click.Group) and (unknown := _UNKNOWN_COMMAND.match(error.message)):
                hint = nearest(unknown[1], group.commands)
                raise click.UsageError(f"No such command {unknown[1]!r}.{hint}", ctx=error.ctx) from None
            parameter = error.param if isinstance(error, click.BadParameter) else None
            choice = parameter.type if parameter is not None else None
            if isinstance(choice, click.Choice) and (unknown := _UNKNOWN_VALUE.match(error.message)):
                text = error.message + nearest(unknown[1], choice.choices)
                raise click.BadParameter(text, ctx=error.ctx, param=parameter) from None
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section. The usage line shows the two options, to keep the help on one screen."""
        for title, section in SECTIONS.items():
            lines = {noun: text for noun, text in section.items() if noun not in _LISTED_WITH}
            for noun, (other, text) in _LISTED_WITH.items():
                if other in lines:
                    lines[f"{other}/{noun}"] = text
                    del lines[other]
            with formatter.section(title):
                formatter.write_dl([(nouns.ljust(17), text) for nouns, text in lines.items()])


@click.command(
    cls=Nouns,
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="[--version] [--help]",
    subcommand_metavar="COMMAND [OPTIONS]",
)
@click.version_option(__version__, prog_name=PROGRAM)
def root() -> None:
    """\b
    Notify VMs before maintenance, with the protocol of Azure Scheduled Events.
    For the options of a command and an example: forewarn COMMAND --help
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run a command. An error is printed as one line, and its family decides the exit code."""
    if "_FOREWARN_COMPLETE" in os.environ:  # a shell asks for completions, which click writes as bytes
        return root.main(arguments, prog_name=PROGRAM)
    with printable_output():
        return _run_safely(arguments)


def _run_safely(arguments: list[str] | None) -> Any:
    try:
        warn_of_unknown_variables()
        return root.main(arguments, prog_name=PROGRAM)
    except ForewarnError as error:
        _print_error(printable_error(error))
        sys.exit(exit_code(error))
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS or error.filename is not None:
            raise
        discard(sys.stdout)
        if error.errno != errno.EPIPE:  # the reader has closed the pipe
            _print_error(printable(f"Cannot write: {error.strerror}"))
        sys.exit(1)
    finally:
        try:
            sys.stderr.flush()
        except OSError:
            discard(sys.stderr)  # a log that nobody can read is no error


def _print_error(text: str) -> None:
    try:
        click.echo(f"forewarn: {text}", err=True)
    except OSError:
        discard(sys.stderr)  # the exit code still reports the error

"""Entry point of `forewarn agent`: finds the command, and turns errors into messages and exit codes."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from forewarn.errors import BadCommandLine, ForewarnError, NeedsUnix, exit_code, nearest
from forewarn.system.printable import printable, printable_error, printable_output
from forewarn.system.standard_streams import discard, open_missing_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forewarn.agent.cli.options import AgentParser


COMMANDS = {
    "run": "Poll for events, run handlers, approve, and undo.",
    "check": "Describe what a policy does, or list the mistakes in it.",
    "plan": "Show what the agent would do about an event, and when.",
    "status": "Show current events and what the agent of this VM has done.",
    "history": "Show what the agent of this VM has done for events, newest last.",
    "install": "Write a systemd unit that runs the agent.",
    "uninstall": "Remove the systemd unit that runs the agent.",
    "bundle": "Write the agent as a single file for Python 3.10 or newer.",
}

_PORTABLE = ("check", "plan")
"""Commands that also run on Windows."""

_HELP = """usage: forewarn agent COMMAND [OPTIONS]

The agent runs in a VM. It polls for scheduled events, prepares the VM, approves, and undoes the preparation.

{commands}

Example:
  forewarn agent run --config agent.toml
  forewarn agent run --help
"""


def parser_of(command: str) -> AgentParser:
    """Return the parser of a command."""
    parser: AgentParser = import_module(f"forewarn.agent.cli.{command}").parser()
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. An error is printed as one line, or a line for each mistake of a file."""
    open_missing_streams()
    with printable_output():
        return _run_safely(arguments)


def _run_safely(arguments: Sequence[str] | None) -> int:
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()
    except ForewarnError as error:
        _print_error(printable_error(error))
        return exit_code(error)
    except OSError as error:
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):  # the reader has closed the pipe
            _print_error(printable(f"{error.filename or 'Cannot write'}: {error.strerror or error}"))
        return 1
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str]) -> int:
    command = arguments[0] if arguments else ""
    if command in ("", "-h", "--help"):
        commands = "\n".join(f"  {name:<9} {summary}" for name, summary in COMMANDS.items())
        sys.stdout.write(_HELP.format(commands=commands))
        return 0 if command else 2
    if command == "--version":
        from forewarn import __version__

        sys.stdout.write(f"forewarn, version {__version__}\n")
        return 0
    if command not in COMMANDS:
        kind = "option" if command.startswith("-") else "command"
        problem = f"There is no {kind} {command!r}.{nearest(command, COMMANDS)}"
        raise BadCommandLine(problem=problem, program="forewarn agent")
    module = import_module(f"forewarn.agent.cli.{command}")
    options = module.parser().read(arguments[1:])
    if command not in _PORTABLE:
        _check_system(command)
    from forewarn.agent.cli.options import mistyped_variables  # `--version` needs no options

    for warning in mistyped_variables():
        _print_error(printable(warning))
    code: int = module.run(options)
    return code


def _check_system(command: str) -> None:
    """Raise NeedsUnix on Windows. The state folder needs a lock that only a killed agent loses."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise NeedsUnix(command=command) from None


def _print_error(text: str) -> None:
    try:
        sys.stderr.write(f"forewarn: {text}\n")
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)  # the exit code still reports the error

"""What is typed after `forewarn agent`: a verb, and the verb's options."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

from forewarn.errors import BadCommandLine, ForewarnError, exit_code, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from forewarn.agent.cli.options import Parser


VERBS = {
    "run": "Watch for events, prepare for them, approve, and undo.",
    "check": "Read a config and say what it does, or what is wrong in it.",
    "plan": "Say what would be done about an event, and when.",
    "status": "Ask the agent of this machine what is coming and what it has done.",
    "install": "Write a systemd unit that runs the agent.",
    "bundle": "Write the agent as one file that any Python 3.10 or newer runs.",
}

_HELP = """usage: forewarn agent VERB [OPTIONS]

The agent in a VM: it sees what is about to happen, prepares, approves, and undoes.

{verbs}

Example:
  forewarn agent run --config agent.toml
  forewarn agent run --help
"""


def parser_of(verb: str) -> Parser:
    """The options of a verb."""
    parser: Parser = import_module(f"forewarn.agent.cli.{verb}").parser()
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; an error is one line that says what would be right, and a code that says which kind it was."""
    _open_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal of another alphabet is no reason to fail
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()
    except ForewarnError as error:
        _say_error(str(error))
        return exit_code(error)
    except OSError as error:
        _leave(sys.stdout)
        if not isinstance(error, BrokenPipeError):  # whoever read has enough
            _say_error(f"{error.filename or 'Cannot write'}: {error.strerror or error}")
        return 1
    except KeyboardInterrupt:
        return 130


def _open_streams() -> None:
    """What whoever started this has closed is opened to nowhere: else the next file would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _leave(stream: TextIO) -> None:
    """What Python flushes at its end must not meet the broken pipe or the full disk once more."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(arguments: list[str]) -> int:
    verb = arguments[0] if arguments else ""
    if verb in ("", "-h", "--help"):
        verbs = "\n".join(f"  {name:<9} {does}" for name, does in VERBS.items())
        sys.stdout.write(_HELP.format(verbs=verbs))
        return 0 if verb else 2
    if verb == "--version":
        from forewarn import __version__

        sys.stdout.write(f"forewarn, version {__version__}\n")
        return 0
    if verb not in VERBS:
        what = "no option" if verb.startswith("-") else "no command"
        problem = f"There is {what} {verb!r}.{nearest(verb, VERBS)}"
        raise BadCommandLine(problem=problem, program="forewarn agent")
    module = import_module(f"forewarn.agent.cli.{verb}")
    code: int = module.run(module.parser().read(arguments[1:]))
    return code


def _say_error(text: str) -> None:
    """Names and texts in it may come from elsewhere: nothing of them reaches a terminal as an order."""
    from forewarn.system.logs import printable

    try:
        sys.stderr.write(f"forewarn: {printable(text)}\n")
        sys.stderr.flush()
    except OSError:
        _leave(sys.stderr)  # nobody hears it; the code says it too

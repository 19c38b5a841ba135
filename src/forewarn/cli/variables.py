"""Environment variables of Forewarn. A mistyped one would be ignored silently."""

from __future__ import annotations

import os

import click

from forewarn.errors import nearest

PREFIX = "FOREWARN_"
OTHER_VARIABLES = frozenset(
    (
        # Of the command line, and of tests.
        *("CONFIG", "DATA", "RUNTIME_DIR", "SERVER", "SERVICE", "TOKEN_FILE"),
        # Of the agent.
        *("AGENT_CONFIG", "AGENT_STATE", "ENDPOINT", "VM_NAME"),
        # Which the agent and `forewarn verify` set for the programs that they start.
        *("ACTION", "HANDLER", "MEMO", "SECONDS", "TIMEOUT_SECONDS", "VM"),
    )
)
"""Variables that are not settings, without their prefix."""
_OF_PROGRAMS = ("EVENT_", "MEMO_")


def warn_of_mistyped_variables() -> None:
    """Print a warning for each variable that nothing reads, and whose name is near one that something reads."""
    names = [name.removeprefix(PREFIX) for name in os.environ if name.startswith(PREFIX)]
    unknown = [name for name in names if name not in OTHER_VARIABLES and not name.startswith(_OF_PROGRAMS)]
    if not unknown:
        return
    from forewarn.settings import RENAMED, SETTINGS  # slow to import, and seldom needed

    settings = [name.upper() for name in SETTINGS]
    former = [name.upper() for name in RENAMED]
    for name in sorted(set(unknown).difference(settings, former)):
        if hint := nearest(name, [*settings, *OTHER_VARIABLES], prefix=PREFIX):
            click.echo(f"forewarn: the variable {PREFIX}{name} has no effect.{hint}", err=True)

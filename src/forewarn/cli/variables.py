"""Environment variables of Forewarn. An unknown one would be ignored silently."""

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
_OF_KUBERNETES = ("SERVICE_HOST", "SERVICE_PORT", "PORT_")
"""Kubernetes sets them, and PORT with a URL, if it has a Service with the name `forewarn`."""
_MAX_LONGER_NAMES = 3


def warn_of_unknown_variables() -> None:
    """Print a warning for each variable that nothing reads."""
    names = [name.removeprefix(PREFIX) for name in os.environ if name.startswith(PREFIX)]
    unknown = [name for name in names if name not in OTHER_VARIABLES and not _is_of_other_program(name)]
    if not unknown:
        return
    from forewarn.settings import SETTINGS  # slow to import, and seldom needed

    settings = [name.upper() for name in SETTINGS]
    for name in sorted(set(unknown).difference(settings)):
        hint = _hint(name, sorted({*settings, *OTHER_VARIABLES}))
        click.echo(f"forewarn: the variable {PREFIX}{name} has no effect.{hint}", err=True)


def _is_of_other_program(name: str) -> bool:
    return name.startswith((*_OF_PROGRAMS, *_OF_KUBERNETES)) or (
        name == "PORT" and "://" in os.environ["FOREWARN_PORT"]
    )


def _hint(name: str, known: list[str]) -> str:
    """Return a suggestion: longer names that start with this one, or a name that is near."""
    longer = [repr(PREFIX + each) for each in known if each.startswith(f"{name}_")]
    if 0 < len(longer) <= _MAX_LONGER_NAMES:
        return f" Did you mean {' or '.join(longer)}?"
    return nearest(name, known, PREFIX) or nearest(name.removeprefix("AGENT_"), known, PREFIX)

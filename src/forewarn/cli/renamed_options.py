"""Former names of command-line options. A former name is an error that names the current one."""

from __future__ import annotations

import click

from forewarn.errors import nearest
from forewarn.settings import RENAMED

RENAMED_OPTIONS = {
    "--postpone-until": "--postpone-deadline",
    "--in": "--notice",
    "--budget": "--max-unavailable",
    "--health-time": "--health-timeout",
    "--why": "--reason",
    "--row": "--sequence",
    "--limit": "--timeout",
    "--on": "--method",
    "--for": "--duration",
    "--other": "--same-group",
    "--outside": "--other-group",
    "--patience": "--max-wait",
    **{f"--{name.replace('_', '-')}": renamed.option for name, renamed in RENAMED.items()},
}


def name_current_option(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return the error with the current name of the option, if the command has an option of that name."""
    current = RENAMED_OPTIONS.get(error.option_name)
    if error.ctx is None:
        return error
    options = [option for parameter in error.ctx.command.params for option in parameter.opts if option.startswith("--")]
    if current is None or current.split()[0] not in options:
        hint = nearest(error.option_name, options)
        return click.NoSuchOption(error.option_name, f"No such option {error.option_name!r}.{hint}", ctx=error.ctx)
    message = f"No such option {error.option_name!r}. It is now called {current!r}."
    return click.NoSuchOption(error.option_name, message, ctx=error.ctx)

"""forewarn settings: every setting, its value, and where the value came from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import print_json, print_table
from forewarn.settings import SETTINGS, Value, resolve

if TYPE_CHECKING:
    from collections.abc import Callable


def setting_options(function: Callable[..., None]) -> Callable[..., None]:
    """A flag per setting."""
    function = click.option("--config", metavar="FILE", help="A TOML file with settings.  [env: FOREWARN_CONFIG]")(
        function
    )
    for setting in reversed(SETTINGS.values()):
        default = f"  [default: {setting.default}; env: {setting.variable}]" if setting.default else ""
        help_text = setting.help + (default or f"  [env: {setting.variable}]")
        alone: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if setting.is_switch else {}
        function = click.option(setting.flag, setting.name, metavar=setting.form, help=help_text, **alone)(function)
    return function


def resolve_settings(config: str | None, flags: dict[str, Any]) -> dict[str, Value]:
    return resolve(flags, os.environ, config)


@click.command()
@setting_options
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(as_json: bool, config: str | None, **flags: str | None) -> None:
    """Every setting that `forewarn up` would use, and where its value comes from.

    A flag beats a variable, a variable beats the file, the file beats the default.

    \b
    Example:
      FOREWARN_SPEED=60 forewarn settings
    """
    values = resolve_settings(config, flags)
    if as_json:
        print_json({name: {"value": str(value), "from": value.origin} for name, value in values.items()})
        return
    rows = ((name, str(value), value.origin, SETTINGS[name].help) for name, value in values.items())
    print_table(("setting", "value", "from", "meaning"), rows, "")

"""forewarn settings: every setting, its value, and where the value came from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.output import print_json, print_table
from forewarn.settings import SETTINGS, SETTLING, Value, refuse_old_settle, resolve

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
        more: dict[str, Any] = {}
        if setting.is_switch:
            more = {"is_flag": False, "flag_value": "true"}  # the flag alone says something
        if setting.is_repeatable:
            more = {"multiple": True, "callback": lambda *given: ",".join(given[-1]) if given[-1] else None}
        function = click.option(setting.flag, setting.name, metavar=setting.form, help=help_text, **more)(function)
    for cause in SETTLING:
        function = click.option(f"--settle-{cause}", hidden=True, expose_value=False, callback=_refuse_old)(function)
    return function


def _refuse_old(_: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        refuse_old_settle(str(option.name), value, option.opts[0], "--settle {cause}={value}")


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

"""forewarn settings: show every setting with its value and origin."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.completion import complete_by_metavar
from forewarn.cli.output import print_json, print_table
from forewarn.settings import SECTIONS, SETTINGS, Value, resolve, without_password

if TYPE_CHECKING:
    from collections.abc import Callable


class SettingsCommand(click.Command):
    """A command with an option for each setting. Its help lists them under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {option.name: option.get_help_record(ctx) for option in self.get_params(ctx)}
        names = {title: [setting.name for setting in settings] for title, settings in SECTIONS.items()}
        others = [name for name in records if name not in SETTINGS]
        for title, section in {**names, "Other options": others}.items():
            with formatter.section(title):
                formatter.write_dl([record for name in section if (record := records[name]) is not None])


def setting_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each setting."""
    function = click.option(
        "--config",
        metavar="FILE",
        shell_complete=complete_by_metavar,
        help="TOML file with settings.  [env: FOREWARN_CONFIG]",
    )(function)
    for setting in reversed(SETTINGS.values()):
        help_text = setting.help + (f"  [default: {setting.default}]" if setting.default else "")
        more: dict[str, Any] = {"shell_complete": complete_by_metavar}
        if setting.is_switch:
            more |= {"is_flag": False, "flag_value": "true"}
        if setting.is_repeatable or setting.is_list:
            join = setting.separator.join
            more |= {"multiple": True, "callback": lambda *given, join=join: join(given[-1]) if given[-1] else None}
        function = click.option(setting.option, setting.name, metavar=setting.metavar, help=help_text, **more)(function)
    return function


def resolve_settings(config: str | None, options: dict[str, Any]) -> dict[str, Value]:
    return resolve(options, os.environ, config)


@click.command(cls=SettingsCommand)
@setting_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool, config: str | None, **options: str | None) -> None:
    """Show every setting and the origin of its value.

    These are the values that `forewarn up` would use with the same options and environment.

    An option overrides a variable, a variable overrides the file, the file overrides the default. The variable of a
    setting is FOREWARN_ and its name in capitals.

    \b
    Example:
      FOREWARN_SPEED=60 forewarn settings
    """
    values = resolve_settings(config, options)
    values["database"] = values["database"]._replace(value=without_password(values["database"].value))
    if as_json:
        print_json({name: {"value": str(value), "from": value.origin} for name, value in values.items()})
        return
    rows = ((name, str(value).replace("\n", "; "), value.origin, SETTINGS[name].help) for name, value in values.items())
    print_table(("setting", "value", "from", "meaning"), rows, "")

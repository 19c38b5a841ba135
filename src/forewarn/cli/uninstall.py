"""forewarn uninstall: remove the systemd unit that runs the service."""

from __future__ import annotations

from pathlib import Path

import click

from forewarn.cli.install import UNIT_NAME
from forewarn.system.systemd_unit import UNIT_FOLDER, remove_unit


@click.command()
@click.option(
    "--unit-dir", metavar="DIR", default=UNIT_FOLDER, help=f"Folder of the unit file.  [default: {UNIT_FOLDER}]"
)
def command(unit_dir: str) -> None:
    """Remove the systemd unit. The data stays.

    The config file and the user stay, too. The command does not stop the service.

    \b
    Example:
      sudo forewarn uninstall
    """
    click.echo(remove_unit(Path(unit_dir) / UNIT_NAME), nl=False)

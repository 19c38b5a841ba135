"""forewarn backup: write a backup of the database."""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn

import click

from forewarn.cli.output import count_of, print_json, service_option
from forewarn.cli.selection import default_services, find_service, select
from forewarn.cli.settings import resolve_settings
from forewarn.errors import BadOption
from forewarn.system.user_folders import MEMORY

data_option = click.option("--data", metavar="DIR", help="Data folder of the service.  [env: FOREWARN_DATA]")
server_option = click.option("--server", hidden=True)
"""Not supported. It exists so that its error says what to do."""


def data_folder(data: str | None, server: str | None) -> str:
    """Return the data folder whose files the command reads. They must be on this machine."""
    server = select(None, data, server).server
    if server:
        problem = "the command needs the files of the service. Run it on the machine of the service, with --data DIR."
        raise BadOption(name="--server", value=server, problem=problem)
    return _on_disk(str(resolve_settings(None, {"data": data})["data"].value))


def running_data_folder(service: str | None, data: str | None, server: str | None) -> str:
    """Return the data folder of the selected service, or of the only one that runs. Otherwise as `data_folder`."""
    selected = select(service, data, server)
    if selected.service or (not (selected.data or selected.server) and default_services()):
        return _on_disk(find_service(selected.service, None).data)
    return data_folder(selected.data, selected.server)


def _on_disk(folder: str) -> str:
    if folder == MEMORY:
        problem = "a service in memory has no files. Start the service with a data folder: forewarn up --data DIR"
        raise BadOption(name="--data", value=folder, problem=problem)
    return folder


def clean_up_on_signals() -> None:
    """Let a signal end the command as Ctrl-C does, so that it removes its unfinished files."""

    def end(number: int, _: Any) -> NoReturn:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--keep",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=1,
    help="Keep N backups: FILE is the newest, FILE.1 the one before it, and so on.  [default: 1]",
)
@service_option
@data_option
@server_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: str, keep: int, service: str | None, data: str | None, server: str | None, as_json: bool) -> None:
    """Write a backup of the database, also while the service runs.

    The backup has everything up to the moment at which the command begins: fleet, events, history, tokens and webhooks.
    The command reads the backup back, and only then replaces an earlier one. It replaces only backups of Forewarn, no
    other file.

    A backup contains the secrets of webhooks. Only its owner can read it.

    \b
    Example:
      forewarn backup /backups/forewarn.db --keep 7
    """
    from forewarn.assembly import back_up  # the web server takes a while to load

    clean_up_on_signals()
    folder = running_data_folder(service, data, server)
    found = back_up(folder, file, keep)
    if as_json:
        print_json(found._asdict())
        return
    content = f"{count_of(found.vms, 'VM')}, history up to row {found.sequence}, {found.bytes:,} bytes"
    click.echo(f"Backed up {folder} to {found.file}: {content}.")

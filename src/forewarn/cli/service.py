"""forewarn service: the services that run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forewarn.cli.client import proves_itself
from forewarn.cli.output import print_json, print_table
from forewarn.cli.selection import known_services
from forewarn.system.http_client import connect, origin_of
from forewarn.system.service_files import registry_problem

if TYPE_CHECKING:
    from forewarn.system.service_files import ServiceFile

PROBE_SECONDS = 5
COLUMNS = ("name", "control", "metadata", "data", "pid", "state")


@click.group()
def command() -> None:
    """List the services that run on this machine."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List the services of this user that run on this machine.

    A service that does not respond, or has not finished its start, is shown as `not responding`. To use one of several
    services, name it: --service NAME.

    \b
    Example:
      forewarn service list
    """
    found = [{**each._asdict(), "state": _state(each)} for each in known_services()]
    if as_json:
        print_json({"services": [{column: each[column] for column in COLUMNS} for each in found]})
        return
    problem = registry_problem()
    empty = f"Found no service: {problem}" if problem else "No service is running."
    print_table(COLUMNS, ([str(each[column]) for column in COLUMNS] for each in found), empty)


def _state(service: ServiceFile) -> str:
    try:
        with connect(origin_of(service.control, service.certificate), seconds=PROBE_SECONDS) as connection:
            return "running" if proves_itself(connection, service.proof_key) else "not responding"
    except OSError:
        return "not responding"

"""forewarn up: run the service until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import shutil
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import uvloop

from forewarn import __version__
from forewarn.assembly import Assembly
from forewarn.cli import service_files
from forewarn.cli.fleet import full_path, read_fleet_file
from forewarn.cli.settings import SettingsCommand, resolve_settings, setting_options
from forewarn.control.fleet import applied_before, apply_fleet
from forewarn.core.fleet import VM, Fleet, own_host
from forewarn.core.history import ENGINE
from forewarn.errors import NotPermitted, StoreFailed
from forewarn.settings import MEMORY
from forewarn.system.logs import TEXT, configure_logging, get_logger

_log = get_logger(__name__)


@click.command(cls=SettingsCommand)
@setting_options
def command(config: str | None, **options: str | None) -> None:
    """Start the service.

    It runs the metadata service for VMs and the control API for operators. Without a fleet file the fleet has one VM:
    this machine, with the address 127.0.0.1.

    Each option is also an environment variable (FOREWARN_RATE_LIMIT=5) and a key of the --config file
    (rate_limit = 5). A DURATION looks like 90s, 14m50s, 2h or 7d.

    \b
    Examples:
      forewarn up
      forewarn up --fleet fleet.toml --speed 60
      forewarn up --data :memory: --clock virtual
    """
    values = {name: value.value for name, value in resolve_settings(config, options).items()}
    configure_logging(TEXT)
    # uvicorn logs a warning for each request that is not HTTP. A client could fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    _raise_file_limit()
    uvloop.run(serve(values))


def _raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: each connection needs a file descriptor."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


async def serve(values: dict[str, Any]) -> None:
    """Run until SIGINT or SIGTERM."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    service = ForegroundService(values)
    # Exclude long-lived objects from garbage collection, and collect seldom: almost all other objects are freed by
    # their reference count.
    gc.freeze()
    await service.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    try:
        click.echo(service.greeting())
        sys.stdout.flush()
        await stopped.wait()
    finally:
        await service.stop()


class ForegroundService:
    """The running service, and the files that tell the command line where it is."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._data: str = values["data"]
        self._all = Assembly(values)
        self._engine = self._all.engine

    async def start(self) -> None:
        token = service_files.read_token(self._data)
        await self._all.start(self._prepare_fleet, token, partial(service_files.write_token, self._data))
        certificate = self._all.certificate
        file = service_files.ServiceFile(
            control=self._all.control_url,
            metadata=self._all.metadata_url,
            token_file=str(service_files.token_path(self._data).absolute()),
            pid=os.getpid(),
            certificate=full_path(certificate.path) if certificate else "",
        )
        try:
            service_files.write(self._data, file)
        except NotPermitted as error:
            _log.warning(
                "service_file_not_written",
                "Commands on this machine do not find the service. Give them its address with --server.",
                error=str(error),
            )

    async def stop(self) -> None:
        service_files.remove(self._data)
        await self._all.stop()

    async def _prepare_fleet(self) -> None:
        source: str = self._values["fleet"]
        if source:
            text, path = read_fleet_file(source), full_path(source)
            if not applied_before(self._engine, text, path):
                try:
                    await apply_fleet(self._engine, self._all.metadata, text, source, ENGINE, path=path, force=False)
                except StoreFailed as error:
                    if not self._engine.fleet.vms:
                        raise
                    _log.error(
                        "fleet_not_applied",
                        "Cannot write the changed fleet file. The service continues with the stored fleet. When the "
                        "disk has space, apply the file with: forewarn fleet apply FILE",
                        file=path,
                        error=str(error),
                    )
                else:
                    return
        elif not self._engine.fleet.vms:
            await self._engine.apply_fleet(_this_machine(), ENGINE, reason="no fleet file; the fleet is this machine")
        fleet = self._engine.fleet
        await self._all.metadata.listen(fleet, self._all.metadata.reserve(fleet))

    def greeting(self) -> str:
        """Return the first output: the addresses, and commands to try."""
        metadata = f"{self._all.metadata_url}/metadata/scheduledevents"
        return greeting(self._values, self._engine.fleet, metadata, self._all.control_url)


def _this_machine() -> Fleet:
    name = socket.gethostname()
    return Fleet([VM(name, name, own_host(name), address="127.0.0.1", hostname=name)])


# --- The first output -----------------------------------------------------------------------------


def greeting(values: dict[str, Any], fleet: Fleet, metadata: str, control: str) -> str:
    """Return the first output of a service with these settings and addresses."""
    name = _example_vm(fleet)
    poll_url = _poll_url(fleet, name, metadata)
    cli = _command_line(values["data"])
    lines = [
        f"Forewarn {__version__} is running with {len(fleet.vms)} VM{'s' if len(fleet.vms) != 1 else ''}.",
        f"  metadata  {metadata}",
        f"  control   {control}",
        f"  data      {values['data']}",
        *([f"  fabric    {values['fabric']}"] if values["fabric"] != "simulated" else []),
        "",
        "Try in another terminal:",
        *([f"  curl -H Metadata:true '{poll_url}?api-version=2020-07-01'"] if poll_url else []),
        f"  {cli} vm restart {name}",
        f"  {cli} event list",
    ]
    if values["clock"] == "virtual":
        lines.append(f"  {cli} clock advance 15m")
    return "\n".join(lines)


def _example_vm(fleet: Fleet) -> str:
    local = fleet.at_address("127.0.0.1")
    return local.name if local is not None else next(iter(fleet.vms), "NAME")


def _poll_url(fleet: Fleet, name: str, metadata: str) -> str:
    """Return the URL at which a program on this machine polls as the VM; empty if the VM must poll itself."""
    if fleet.at_address("127.0.0.1") is not None:
        return metadata
    vm = fleet.vms.get(name)
    return f"http://{vm.listen}/metadata/scheduledevents" if vm is not None and vm.listen else ""


def _command_line(data: str) -> str:
    """Return the shell command that starts this program."""
    program = "forewarn" if shutil.which("forewarn") else _short(Path(sys.argv[0]))
    if program.endswith("__main__.py"):
        program = f"{Path(sys.executable).name} -m forewarn"
    default = resolve_settings(None, {})["data"].value
    return program if data in (MEMORY, default) else f"FOREWARN_DATA={data} {program}"


def _short(path: Path) -> str:
    """Return the path relative to the working directory, if it is inside."""
    with suppress(FileNotFoundError):  # the working directory may have been deleted
        if path.is_relative_to(Path.cwd()):
            return str(path.relative_to(Path.cwd()))
    return str(path)

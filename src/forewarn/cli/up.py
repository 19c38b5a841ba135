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
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from forewarn import __version__
from forewarn.assembly import Assembly
from forewarn.cli.fleet import difference_lines, full_path, read_fleet_file
from forewarn.cli.published_files import PublishedFiles
from forewarn.cli.selection import default_services
from forewarn.cli.settings import SettingsCommand, resolve_settings, setting_options
from forewarn.control.fleet import apply_fleet, is_last_applied
from forewarn.core.fleet import VM, Fleet, own_host
from forewarn.core.history import ENGINE
from forewarn.settings import default_name
from forewarn.system.logs import TEXT, configure_logging, get_logger
from forewarn.system.service_files import TOKEN_FILE, ServiceFile, identify_folder, identify_process
from forewarn.system.standard_streams import discard
from forewarn.system.user_folders import MEMORY

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
        _write_output(service.greeting())
        await stopped.wait()
    finally:
        await service.stop()


def _write_output(text: str) -> None:
    """Print a text. The service runs even if nobody can read it: the disk may be full, or a pipe without a reader."""
    try:
        click.echo(text)
    except OSError as error:
        discard(sys.stdout)
        _log.warning("output_failed", "Cannot write to standard output.", error=error.strerror)


class ForegroundService:
    """The running service, and the files that tell the command line where it is."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._all = Assembly(values)
        self._engine = self._all.engine
        self._applied: list[str] = []
        """What the fleet file has changed, for the first output."""
        self._files = PublishedFiles(self._service_file(), is_name_fixed=bool(values["name"]))
        self._keeper: asyncio.Task[None] | None = None

    def _service_file(self) -> ServiceFile:
        data: str = self._values["data"]
        folder = None if data == MEMORY else Path(data).absolute()
        certificate = self._all.certificate
        process = identify_process()
        device, inode = identify_folder(data) if folder else (0, 0)
        return ServiceFile(
            name=self._values["name"] or default_name(data),
            control=self._all.control_url,
            metadata=self._all.metadata_url,
            token_file=str(folder / TOKEN_FILE) if folder else "",
            certificate=full_path(certificate.path) if certificate else "",
            data=str(folder or MEMORY),
            device=device,
            inode=inode,
            pid=process.pid,
            started=process.started,
            proof_key=self._all.proof_key,
        )

    async def start(self) -> None:
        try:
            self._files.register()
            await self._all.start(self._prepare_fleet, self._files.read_token(), self._files.save_token)
        except BaseException:
            self._files.remove()
            raise
        self._files.write_missing()
        self._keeper = asyncio.create_task(self._files.keep())

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        self._files.remove()
        await self._all.stop()

    async def _prepare_fleet(self) -> None:
        source: str = self._values["fleet"]
        if source:
            text = read_fleet_file(source)
            if not is_last_applied(self._engine, text):
                change = await apply_fleet(self._engine, self._all.metadata, text, source, ENGINE, force=False)
                self._applied = [f"Applied {source}:", *difference_lines(msgspec.structs.asdict(change)), ""]
                return
        elif not self._engine.fleet.vms:
            await self._engine.apply_fleet(_this_machine(), ENGINE, reason="no fleet file; the fleet is this machine")
        fleet = self._engine.fleet
        await self._all.metadata.listen(fleet, self._all.metadata.reserve(fleet))

    def greeting(self) -> str:
        """Return the first output: what the fleet file has changed, the addresses, and commands to try."""
        metadata = f"{self._all.metadata_url}/metadata/scheduledevents"
        first = greeting(self._values, self._files.file, self._engine.fleet, metadata)
        return "\n".join([*self._applied, first])


def _this_machine() -> Fleet:
    name = socket.gethostname()
    return Fleet([VM(name, name, own_host(name), address="127.0.0.1", hostname=name)])


# --- The first output -----------------------------------------------------------------------------


def greeting(values: dict[str, Any], service: ServiceFile, fleet: Fleet, metadata: str) -> str:
    """Return the first output of a service with these settings and addresses."""
    name = _example_vm(fleet)
    poll_url = _poll_url(fleet, name, metadata)
    cli, selection = _command_line(), _selection(service)
    lines = [
        f"Forewarn {__version__} is running with {len(fleet.vms)} VM{'s' if len(fleet.vms) != 1 else ''}.",
        f"  name      {service.name}",
        f"  metadata  {metadata}",
        f"  control   {service.control}",
        f"  data      {values['data']}",
        *([f"  fabric    {values['fabric']}"] if values["fabric"] != "simulated" else []),
        "",
        "Try in another terminal:",
        *([f"  curl -H Metadata:true '{poll_url}?api-version=2020-07-01'"] if poll_url else []),
        f"  {cli} vm restart {name}{selection}",
        f"  {cli} event list{selection}",
    ]
    if values["clock"] == "virtual":
        lines.append(f"  {cli} clock advance 15m{selection}")
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


def _command_line() -> str:
    """Return the shell command that starts this program."""
    program = "forewarn" if shutil.which("forewarn") else _short(Path(sys.argv[0]))
    return f"{Path(sys.executable).name} -m forewarn" if program.endswith("__main__.py") else program


def _selection(service: ServiceFile) -> str:
    """Return the option that a command needs to find this service. Empty: it finds it without options."""
    elsewhere = os.environ.get("FOREWARN_SERVER") or os.environ.get("FOREWARN_SERVICE", service.name) != service.name
    return "" if not elsewhere and default_services() == [service] else f" --service {service.name}"


def _short(path: Path) -> str:
    """Return the path relative to the working directory, if it is inside."""
    with suppress(FileNotFoundError):  # the working directory may have been deleted
        if path.is_relative_to(Path.cwd()):
            return str(path.relative_to(Path.cwd()))
    return str(path)

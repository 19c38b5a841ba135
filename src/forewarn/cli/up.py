"""forewarn up: run the service until SIGINT or SIGTERM. SIGHUP reloads the fleet file and the certificate."""

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
from forewarn.cli.output import count_of, names
from forewarn.cli.portal import portal_url
from forewarn.cli.published_files import PublishedFiles
from forewarn.cli.selection import default_services
from forewarn.cli.settings import SettingsCommand, resolve_settings, setting_options
from forewarn.clock import real_seconds
from forewarn.control.fleet import LAST_FILE, apply_fleet, is_last_applied
from forewarn.core.fleet import VM, Fleet, own_host
from forewarn.core.history import ENGINE
from forewarn.errors import Conflict, ForewarnError, StoreFailed
from forewarn.settings import default_name, without_password
from forewarn.system.logs import JSON, LOG_LEVELS, configure_logging, get_logger
from forewarn.system.service_files import TOKEN_FILE, ServiceFile, identify_folder, identify_process
from forewarn.system.standard_streams import discard, has_terminal
from forewarn.system.systemd_notify import NOTIFY_VARIABLES, SystemdNotifier
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
    settings = resolve_settings(config, options)
    values = {name: value.value for name, value in settings.items()}
    configure_logging(values["log_format"], level=LOG_LEVELS[values["log_level"]])
    # uvicorn logs a warning for each request that is not HTTP. A client could fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of each lost connection
    _raise_file_limit()
    uvloop.run(serve(values, {name: value.origin for name, value in settings.items()}))


def _raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: each connection needs a file descriptor."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


WAITING_SECONDS = 5.0
"""How often a service that waits for its database tells systemd so."""


async def serve(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Run until SIGINT or SIGTERM, or until the terminal is closed."""
    loop = asyncio.get_running_loop()
    stopped, reload_requested = asyncio.Event(), asyncio.Event()
    ends_with_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL  # not with nohup

    def on_hangup() -> None:
        (stopped if ends_with_terminal and not has_terminal() else reload_requested).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    systemd = SystemdNotifier()
    for name in NOTIFY_VARIABLES:  # programs of the fabric must not notify systemd
        os.environ.pop(name, None)
    service = ForegroundService(values, origins)
    # Exclude long-lived objects from garbage collection, and collect seldom: almost all other objects are freed by
    # their reference count.
    gc.freeze()
    if not await _start(service, systemd, stopped):
        _log.info("service_stopped", "The service has stopped.")
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    tasks = [
        asyncio.create_task(_reload_forever(service, systemd, reload_requested)),
        asyncio.create_task(_notify_watchdog(service, systemd)),
    ]
    try:
        systemd.ready(service.status())
        if values["log_format"] != JSON:  # a program that reads the log should get only JSON
            _write_output(await service.greeting())
        service.log_start()
        await stopped.wait()
    finally:
        systemd.stopping()
        for task in tasks:
            task.cancel()
        await service.stop()
        _log.info("service_stopped", "The service has stopped.")


async def _start(service: ForegroundService, systemd: SystemdNotifier, stopped: asyncio.Event) -> bool:
    """Start the service. Returns False if it was stopped before: it may wait for its database for long."""
    starting, stopping = asyncio.create_task(service.start()), asyncio.create_task(stopped.wait())
    while not (starting.done() or stopping.done()):
        await asyncio.wait([starting, stopping], timeout=WAITING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if problem := service.waits_for:
            systemd.waiting(problem, 12 * WAITING_SECONDS)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        return False
    await starting
    return True


async def _reload_forever(service: ForegroundService, systemd: SystemdNotifier, requested: asyncio.Event) -> None:
    while True:
        await requested.wait()
        requested.clear()
        systemd.reloading(real_seconds())
        await service.reload()
        systemd.ready(service.status())


async def _notify_watchdog(service: ForegroundService, systemd: SystemdNotifier) -> None:
    """Notify systemd while the event loop runs. Without that notification, systemd restarts the service."""
    while systemd.watchdog_seconds is not None:
        systemd.alive(service.status())
        await asyncio.sleep(systemd.watchdog_seconds)


def _write_output(text: str) -> None:
    """Print a text. The service runs even if nobody can read it: the disk may be full, or a pipe without a reader."""
    try:
        click.echo(text)
    except OSError as error:
        discard(sys.stdout)
        _log.warning("output_failed", "Cannot write to standard output.", error=error.strerror)


class ForegroundService:
    """The running service, and the files that tell the command line where it is."""

    def __init__(self, values: dict[str, Any], origins: dict[str, str]) -> None:
        self._values = values
        self._all = Assembly(values, origins)
        self._engine = self._all.engine
        self._token = ""
        """The admin token of the token file."""
        self._applied: list[str] = []
        """What the fleet file has changed, for the first output."""
        certificate = self._all.certificate
        self._files = PublishedFiles(
            self._service_file(),
            certificate.pem if certificate is not None else lambda: "",
            is_name_fixed=bool(values["name"]),
        )
        self._keeper: asyncio.Task[None] | None = None

    def _service_file(self) -> ServiceFile:
        data: str = self._values["data"]
        folder = None if data == MEMORY else Path(data).absolute()
        process = identify_process()
        device, inode = identify_folder(data) if folder else (0, 0)
        return ServiceFile(
            name=self._values["name"] or default_name(data),
            control=self._all.control_url,
            metadata=self._all.metadata_url,
            token_file=str(folder / TOKEN_FILE) if folder else "",
            certificate="",  # the published one may change
            data=str(folder or MEMORY),
            device=device,
            inode=inode,
            pid=process.pid,
            started=process.started,
            proof_key=self._all.proof_key,
        )

    @property
    def waits_for(self) -> str:
        """Why the start takes long; empty: it does not wait."""
        return self._all.node.problem if self._all.node is not None else ""

    async def start(self) -> None:
        try:
            self._files.register()
            self._all.facts.name = self._files.file.name  # it may have got a number
            self._token = self._files.read_token()
            await self._all.start(self._prepare_fleet, self._token, self._save_token)
        except BaseException:
            self._files.remove()
            raise
        if self._all.node is not None:
            self._all.node.on_lead.append(self._apply_first_fleet)
        self._files.write_missing()
        self._keeper = asyncio.create_task(self._files.keep())

    def _save_token(self, token: str) -> None:
        self._token = token
        self._files.save_token(token)

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        self._files.remove()
        await self._all.stop()

    async def _prepare_fleet(self) -> None:
        source: str = self._values["fleet"]
        # With several nodes, the fleet is in the database. A file is only applied if there is no fleet yet.
        has_fleet = self._all.node is not None and (bool(self._engine.fleet.vms) or not self._engine.leads)
        if source and not has_fleet:
            text = read_fleet_file(source)
            if not await is_last_applied(self._engine, text):
                try:
                    change = await apply_fleet(self._engine, self._all.metadata, text, source, ENGINE, force=False)
                except (Conflict, StoreFailed) as error:
                    if not self._engine.fleet.vms:
                        raise
                    _log.error(
                        "fleet_not_applied",
                        "Cannot apply the changed fleet file now. The service continues with the stored fleet. Apply "
                        "the file later with: forewarn fleet apply FILE",
                        file=full_path(source),
                        error=str(error),
                    )
                    self._engine.fleet_problem = self._not_in_force(error)
                else:
                    self._applied = [f"Applied {source}:", *difference_lines(msgspec.structs.asdict(change)), ""]
                    return
        elif source and self._engine.fleet.vms:
            await self._warn_of_other_fleet(read_fleet_file(source))
        elif not self._engine.fleet.vms and not has_fleet:
            await self._engine.apply_fleet(_this_machine(), ENGINE, reason="no fleet file; the fleet is this machine")
        fleet = self._engine.fleet
        await self._all.metadata.listen(fleet, self._all.metadata.reserve(fleet))

    def _not_in_force(self, error: ForewarnError) -> str:
        return f"The fleet file {full_path(self._values['fleet'])} is not in force: {error}"

    async def _apply_first_fleet(self) -> None:
        """Apply the fleet file if there is no fleet yet: the node that led before may have failed to."""
        if self._engine.fleet.vms or LAST_FILE in self._engine.facts:
            return
        try:
            await self._prepare_fleet()
        except ForewarnError as error:
            _log.error("first_fleet_not_applied", "Cannot apply the fleet file.", error=str(error))

    async def _warn_of_other_fleet(self, text: str) -> None:
        if not await is_last_applied(self._engine, text):
            _log.warning(
                "fleet_file_ignored",
                "The database has another fleet than the file, and this node uses it. To apply the file: forewarn "
                "fleet apply FILE",
                path=full_path(self._values["fleet"]),
            )

    async def reload(self) -> None:
        """Apply the fleet file if it has changed, and load the certificate. If one is invalid, keep the current one."""
        _log.info("reload_started", "SIGHUP: reloading the fleet file and the certificate.")
        failed = []
        try:
            await self._reload_fleet()
        except Exception as error:  # noqa: BLE001 - the service continues with the old fleet
            _log.exception("fleet_reload_failed", "The fleet has not changed.", path=self._values["fleet"])
            if isinstance(error, Conflict | StoreFailed):
                self._engine.fleet_problem = self._not_in_force(error)
            failed.append("fleet")
        if self._all.certificate is not None:
            if not self._all.certificate.reload():
                failed.append("certificate")
            await self._files.refresh()
        if failed:
            _log.error("reload_failed", "Reload failed. The old values stay in use.", failed=" and ".join(failed))
        else:
            _log.info("reload_completed", "Reload completed. Other settings need a restart.")

    async def _reload_fleet(self) -> None:
        source: str = self._values["fleet"]
        if not source:
            return
        text = await asyncio.to_thread(read_fleet_file, source)
        if await is_last_applied(self._engine, text):
            self._engine.fleet_problem = ""  # a changed file was rejected, and this is the last valid one again
            _log.info("fleet_unchanged", "The fleet file was already applied.", path=source)
            return
        if self._all.node is not None:
            await self._warn_of_other_fleet(text)
            return
        change = await apply_fleet(self._engine, self._all.metadata, text, source, ENGINE, force=False)
        changes = {name: names(found) for name, found in msgspec.structs.asdict(change).items() if found}
        _log.info("fleet_reloaded", "Applied the fleet file.", path=source, **changes)

    def status(self) -> str:
        """Return one line for `systemctl status`."""
        return f"{count_of(len(self._engine.fleet.vms), 'VM')}; control API at {self._all.control_url}"

    def log_start(self) -> None:
        """Log that the service is ready. The log must not have the one-time link of the portal."""
        _log.info(
            "service_started",
            "The service is ready.",
            version=__version__,
            name=self._files.file.name,
            metadata=self._all.metadata_url,
            control=self._all.control_url,
            vms=len(self._engine.fleet.vms),
        )

    async def greeting(self) -> str:
        """Return the first output: what the fleet file has changed, the addresses, and commands to try."""
        metadata = f"{self._all.metadata_url}/metadata/scheduledevents"
        # The journal of systemd keeps the output, and other users may read it.
        path = await self._all.portal_path("" if JOURNAL_VARIABLE in os.environ else self._token)
        first = greeting(self._values, self._files.file, self._engine.fleet, metadata, path)
        return "\n".join([*self._applied, first])


def _this_machine() -> Fleet:
    name = socket.gethostname()
    return Fleet([VM(name, name, own_host(name), address="127.0.0.1", hostname=name)])


# --- The first output -----------------------------------------------------------------------------


JOURNAL_VARIABLE = "JOURNAL_STREAM"
"""systemd sets it if the output goes to the journal."""


def greeting(values: dict[str, Any], service: ServiceFile, fleet: Fleet, metadata: str, portal_path: str) -> str:
    """Return the first output of a service with these settings and addresses."""
    name = _example_vm(fleet)
    poll_url = _poll_url(fleet, name, metadata)
    cli, selection = _command_line(), _selection(service)
    portal = f"{cli} portal{selection}"
    lines = [
        f"Forewarn {__version__} is running with {count_of(len(fleet.vms), 'VM')}.",
        f"  name      {service.name}",
        f"  metadata  {metadata}",
        f"  control   {service.control}",
        f"  portal    {portal_url(service.control, portal_path)}",
        f"            ({f'valid once, for a minute; later: {portal}' if '#' in portal_path else f'sign in: {portal}'})",
        f"  data      {values['data']}",
        *([f"  database  {without_password(values['database'])}"] if values["database"] else []),
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

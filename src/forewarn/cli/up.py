"""forewarn up: builds clock, store, fabric, engine and servers, and runs them until told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import shlex
import signal
import socket
import sys
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import click
import uvloop

from forewarn.cli import service_file
from forewarn.cli.fleet import full_path, read_fleet_file
from forewarn.cli.greeting import greeting
from forewarn.cli.settings import resolve_settings, setting_options
from forewarn.clock import SystemClock, VirtualClock
from forewarn.core.backlog import Pace
from forewarn.core.causes import CAUSES
from forewarn.core.fleet import VM, Fleet, own_host
from forewarn.core.records import ENGINE
from forewarn.core.terms import Terms
from forewarn.engine import Engine, Published
from forewarn.errors import BadSetting
from forewarn.fabrics.command import CommandFabric
from forewarn.fabrics.manual import ManualFabric
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.faults import Faults
from forewarn.play.pace import without_audience
from forewarn.play.player import Player
from forewarn.server.callers import Callers
from forewarn.server.control import Control, control_app
from forewarn.server.faulty import metadata_app
from forewarn.server.first_token import leave_admin_token
from forewarn.server.fleet_control import applied_before, apply_fleet
from forewarn.server.lane import Lane
from forewarn.server.listeners import MetadataServer, Server, address_of, open_socket
from forewarn.server.metadata import Rules
from forewarn.server.metrics import Metrics, fault_metrics, lane_metrics, webhook_metrics
from forewarn.server.pages import Pages
from forewarn.server.stamp import Stamp
from forewarn.server.tally import Tallies
from forewarn.server.tls import Certificate
from forewarn.server.waiters import Waiters
from forewarn.server.webhooks.dispatcher import Dispatcher
from forewarn.server.webhooks.outbound import Outbound
from forewarn.settings import MEMORY
from forewarn.stores.sqlite import SqliteStore
from forewarn.wire.versions import available_versions

if TYPE_CHECKING:
    from forewarn.ports import Clock, Fabric


logger = logging.getLogger(__name__)


@click.command()
@setting_options
def command(config: str | None, **flags: str | None) -> None:
    """Start the service: the metadata endpoint for VMs, and the control API for everyone else.

    With no fleet there is one VM, named after this machine and reached from 127.0.0.1.

    \b
    Examples:
      forewarn up
      forewarn up --fleet fleet.toml --speed 60
      forewarn up --data :memory: --clock virtual
    """
    values = {name: value.value for name, value in resolve_settings(config, flags).items()}
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    # Every request that is not HTTP would be a line otherwise: the log is not a client's to fill.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    _raise_file_limit()
    uvloop.run(serve(values))


def _raise_file_limit() -> None:
    """Each poll that is held open is a file: take as many as the system gives."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def serve(values: dict[str, Any]) -> None:
    """Run until SIGINT or SIGTERM."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    service = Service(values)
    await service.start()
    try:
        click.echo(service.greeting())
        sys.stdout.flush()
        await stopped.wait()
    finally:
        await service.stop()


def build_fabric(values: dict[str, Any], clock: Clock) -> Fabric:
    """Who does the work: what the setting names."""
    program: str = values["fabric_command"]
    if bool(program) != (values["fabric"] == "command"):
        problem = (
            "write the program to run, like '/usr/local/bin/host-work'"
            if not program
            else f"it is for --fabric command, and this is {values['fabric']}"
        )
        raise BadSetting(name="fabric_command", value=program, origin="--fabric", problem=problem)
    if values["fabric"] == "manual":
        return ManualFabric(clock)
    if values["fabric"] == "command":
        data = values["data"]
        folder = Path(mkdtemp(prefix="forewarn-")) if data == MEMORY else Path(data)  # the programs may outlive us
        return CommandFabric(_words(program), folder / "orders")
    return SimulatedFabric(clock)


def _words(program: str) -> list[str]:
    try:
        return shlex.split(program)
    except ValueError as error:
        problem = f"{error}; write it as for a shell"
        raise BadSetting(name="fabric_command", value=program, origin="--fabric-command", problem=problem) from None


def certificate_of(values: dict[str, Any]) -> Certificate | None:
    """The certificate of the control API, if there is to be one."""
    certificate, key = values["tls_certificate"], values["tls_key"]
    if key and not certificate:
        problem = "it is the key of a certificate: give that too, with --tls-certificate"
        raise BadSetting(name="tls_key", value=key, origin="--tls-key", problem=problem)
    host = values["control"].rpartition(":")[0].strip("[]")
    if not certificate and not (host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)):
        logger.warning(
            "Tokens for %s travel unencrypted: give a certificate with --tls-certificate.", values["control"]
        )
    return Certificate(certificate, key) if certificate else None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def terms_of(values: dict[str, Any], fabric: Fabric) -> Terms:
    """The terms of the house, as the settings say."""
    return Terms(
        speed=values["speed"],
        silence=values["silence"],
        settle={cause: values[name] for cause in CAUSES if (name := f"settle_{cause.replace('-', '_')}") in values},
        pending_user_operations=values["pending_user_operations"],
        postponement=values["postponement"],
        history_retention=values["history_retention"],
        makes_hosts=fabric.makes_hosts,
        webhook_targets=values["webhook_private_targets"],
    )


class Service:
    """Everything that runs, put together."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._data: str = values["data"]
        store = SqliteStore(None if self._data == MEMORY else Path(self._data))
        clock = VirtualClock() if values["clock"] == "virtual" else SystemClock()
        fabric = build_fabric(values, clock)
        self.engine = Engine(clock, store, fabric, terms_of(values, fabric))
        rules = Rules(
            rate_limit=values["rate_limit"],
            preview_versions=values["preview_versions"],
            newer_versions=values["newer_versions"],
            post_without_header=values["post_without_header"],
            first_get_delay=values["first_get_delay"],
        )
        faults = Faults(self.engine, allowed=values["allow_faults"])
        pages, stamp = Pages(self.engine), Stamp(clock)
        if isinstance(clock, VirtualClock):
            clock.on_move = stamp.turn
        versions = available_versions(preview=rules.preview_versions)
        lane = Lane(
            self.engine,
            Callers(self.engine, rules.rate_limit),
            pages,
            stamp,
            Waiters(self.engine),
            Tallies(versions),
            versions,
            limited=rules.rate_limit > 0,
            fast=values["fast_lane"] and not faults.allowed,  # a fault strikes in the application
        )
        self.metadata = MetadataServer(metadata_app(lane, rules, faults), open_socket(values["metadata"]), lane)
        self.engine.subscribe(self._on_published)
        outbound = Outbound(values["webhook_private_targets"], values["webhook_timeout"].total_seconds())
        pace = Pace(values["webhook_retry"].total_seconds(), values["webhook_attempts"])
        self.webhooks = Dispatcher(self.engine, outbound, pace)
        self.player = Player(self.engine, faults, without_audience(self.engine), versions[max(versions)])
        metrics = Metrics(self.engine)
        metrics.add(partial(lane_metrics, lane))
        metrics.add(partial(webhook_metrics, self.engine, self.webhooks))
        metrics.add(partial(fault_metrics, faults))
        control = Control(
            self.engine,
            self.metadata,
            metrics,
            self.webhooks,
            faults,
            self.player,
            preview_versions=rules.preview_versions,
        )
        self._feed = control.feed
        self._certificate = certificate_of(values)
        self.control = Server(
            control_app(self.engine, control), open_socket(values["control"]), certificate=self._certificate
        )

    async def start(self) -> None:
        await self.engine.start()
        await self.webhooks.start()
        await self.metadata.start()
        await self._prepare_fleet()
        await self._leave_token()
        await self.control.start()
        service_file.write(
            self._data,
            service_file.Found(
                control=self._control_url,
                metadata=f"http://{address_of(self.metadata.listener)}",
                token_file=str(service_file.token_path(self._data).absolute()),
                pid=os.getpid(),
                certificate=full_path(self._certificate.path) if self._certificate else "",
            ),
        )
        # What is there now stays: it need not be looked through for garbage again and again. What comes
        # is freed when it is let go, almost all of it: looking for cycles seldom is often enough.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)

    @property
    def _control_url(self) -> str:
        return f"{'https' if self._certificate else 'http'}://{address_of(self.control.listener)}"

    async def _leave_token(self) -> None:
        left = service_file.read_token(self._data)
        await leave_admin_token(self.engine, left, partial(service_file.write_token, self._data))

    async def stop(self) -> None:
        """Answer what is under way, also what is held back, then stop."""
        service_file.remove(self._data)
        self._feed.stop()
        try:
            await asyncio.gather(self.metadata.stop(), self.control.stop(), self.webhooks.stop(), self.player.stop())
        finally:
            await self.engine.stop()

    def _on_published(self, published: Published) -> None:
        if published.fleet:  # a VM that was deleted had perhaps an address of its own
            self.metadata.close_departed(self.engine.fleet)

    async def _prepare_fleet(self) -> None:
        source: str = self._values["fleet"]
        if source:
            text, path = read_fleet_file(source), full_path(source)
            if not applied_before(self.engine, text, path):
                await apply_fleet(self.engine, self.metadata, text, source, ENGINE, path=path, force=False)
                return
        elif not self.engine.fleet.vms:
            await self.engine.apply_fleet(_this_machine(), ENGINE, why="no fleet file: this machine alone")
        fleet = self.engine.fleet
        await self.metadata.listen(fleet, self.metadata.reserve(fleet))

    def greeting(self) -> str:
        """What is running, and what to try next."""
        metadata = f"http://{address_of(self.metadata.listener)}/metadata/scheduledevents"
        return greeting(self._values, self.engine.fleet, metadata, self._control_url)


def _this_machine() -> Fleet:
    name = socket.gethostname()
    return Fleet([VM(name, name, own_host(name), address="127.0.0.1", hostname=name)])

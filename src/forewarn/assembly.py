"""Composition root: builds clock, store, fabric, engine and servers for `forewarn up` and for tests."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import shutil
from contextlib import ExitStack, closing
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from forewarn.clock import SystemClock, VirtualClock
from forewarn.control.api import Control, control_app
from forewarn.control.auth import HostNames, ensure_admin_token
from forewarn.control.clock import DEFAULT_TIMEOUT
from forewarn.control.connection_guard import ControlLimits
from forewarn.control.metrics import Metrics, connection_metrics, fault_metrics, metadata_metrics, webhook_metrics
from forewarn.control.server import Certificate, ControlServer
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.limits import OperatorLimits, short_notices
from forewarn.core.webhooks import WebhookRetryPolicy
from forewarn.delivery.feed import FeedLimits
from forewarn.delivery.outbound import OutboundClient
from forewarn.delivery.webhooks import Dispatcher
from forewarn.engine.engine import Engine, Published
from forewarn.engine.faults import Faults
from forewarn.errors import BadSetting, SameAddress
from forewarn.fabrics.command import CommandFabric
from forewarn.fabrics.manual import ManualFabric
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.metadata.limits import MetadataLimits
from forewarn.metadata.routes import MetadataOptions
from forewarn.metadata.server import MetadataServer
from forewarn.scenarios.runs import ScenarioRuns
from forewarn.stores import sqlite_backup
from forewarn.stores.sqlite import SqliteStore
from forewarn.system.addresses import read_host_port
from forewarn.system.connections import connection_places
from forewarn.system.logs import get_logger
from forewarn.system.sockets import address_of, open_socket, overlap
from forewarn.system.user_folders import MEMORY

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from forewarn.ports import Clock, Fabric
    from forewarn.stores.sqlite_backup import Backup, PreparedRestore

_log = get_logger(__name__)

MAX_FEED_READERS = 1000

ORDERS_FOLDER = "orders_folder"
"""Not a setting: order folder of a service without a data folder. The caller removes it."""


def build_fabric(values: dict[str, Any], clock: Clock) -> Fabric:
    """Build the fabric that the settings name."""
    program: str = values["fabric_command"]
    if bool(program) != (values["fabric"] == "command"):
        problem = (
            "--fabric command needs a program, for example '/usr/local/bin/host-work'."
            if not program
            else f"it needs --fabric command, but the fabric is {values['fabric']}."
        )
        raise BadSetting(name="fabric_command", value=program, origin="--fabric-command", problem=problem)
    if values["fabric"] == "manual":
        return ManualFabric(clock)
    if values["fabric"] == "command":
        data = values["data"]
        folder = Path(data)
        if data == MEMORY:  # the programs may outlive the service, so the folder is kept
            folder = Path(values.get(ORDERS_FOLDER) or mkdtemp(prefix="forewarn-"))
        return CommandFabric(_split_command(program), folder / "orders")
    return SimulatedFabric(clock)


def _split_command(program: str) -> list[str]:
    """Return the program and its arguments. A program that cannot be started is an error now, not at its first use."""
    try:
        words = shlex.split(program)
        problem = ""
    except ValueError as error:
        words, problem = [], f"{error}. Write the program as in a shell."
    if not problem and not (words and shutil.which(words[0])):
        name = words[0] if words else ""
        found = "/" in name and Path(name).exists()
        missing = f"there is no program {name!r}" + ("" if "/" in name else " in the folders of PATH")
        problem = f"{name} is not an executable file." if found else f"{missing}."
    if problem:
        raise BadSetting(name="fabric_command", value=program, origin="--fabric-command", problem=problem)
    return words


def read_certificate(values: dict[str, Any]) -> Certificate | None:
    """Return the certificate of the control API, if one is set."""
    certificate, key = values["tls_certificate"], values["tls_key"]
    if key and not certificate:
        problem = "--tls-key needs --tls-certificate"
        raise BadSetting(name="tls_key", value=key, origin="--tls-key", problem=problem)
    host, _ = read_host_port(values["control"])
    if not certificate and not (host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)):
        _log.warning(
            "control_api_unencrypted",
            "Tokens are sent unencrypted. Set a certificate with --tls-certificate.",
            address=values["control"],
        )
    return Certificate(certificate, key) if certificate else None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def operator_limits(values: dict[str, Any], fabric: Fabric) -> OperatorLimits:
    """Build the limits of the core from the settings."""
    return OperatorLimits(
        speed=values["speed"],
        inactivity_timeout=values["inactivity_timeout"],
        settle=values["settle"],
        description=values["description"],
        max_pending_user_operations=values["max_pending_user_operations"],
        max_postponement=values["max_postponement"],
        history_retention=values["history_retention"],
        makes_hosts=fabric.makes_hosts,
        webhook_private_networks=values["webhook_private_networks"],
    )


def metadata_limits(values: dict[str, Any], places: int) -> MetadataLimits:
    """Build the limits of the metadata server from the settings. `places` depends on the limit of open files."""
    return MetadataLimits(
        max_header_bytes=values["max_header_size"],
        header_seconds=values["header_timeout"].total_seconds(),
        body_seconds=values["body_timeout"].total_seconds(),
        idle_seconds=values["idle_timeout"].total_seconds(),
        send_seconds=values["send_timeout"].total_seconds(),
        max_pipelined_requests=values["max_pipelined_requests"],
        max_connections=values["max_connections"],
        max_connections_per_address=values["max_connections_per_address"],
        address_share=4,
        places=places,
        trusted_proxies=values["trusted_proxies"],
    )


def control_limits(values: dict[str, Any], places: int) -> ControlLimits:
    """Build the limits of the control API from the settings. `places` depends on the limit of open files."""
    return ControlLimits(
        max_connections=values["max_control_connections"],
        max_connections_per_address=values["max_control_connections_per_address"],
        address_share=2,
        places=places,
        trusted_proxies=values["trusted_proxies"],
    )


def feed_limits(values: dict[str, Any], places: int) -> FeedLimits:
    """Build the limits of the feed. Its readers can take half of the connections to the control API."""
    readers = min(MAX_FEED_READERS, max(min(values["max_control_connections"], places) // 2, 1))
    return FeedLimits(readers, min(values["max_feed_readers_per_token"], max(readers // 2, 1)))


def _warn_of_short_notices(values: dict[str, Any]) -> None:
    """Log a warning if notices are too short for slow polls. A virtual clock waits for its user, so it needs none."""
    notices = {event_type.name: event_type.min_notice for event_type in EVENT_TYPES.values()}
    short = short_notices(notices, values["speed"]) if values["clock"] == "system" else None
    if short is not None:
        _log.warning(
            "notices_short",
            "Clients that poll every 10 seconds or less often can miss these events. Set a lower --speed.",
            speed=f"{values['speed']:g}",
            notices=short.text,
            max_speed=f"{short.max_speed:g}",
        )


def back_up(data: str, file: str, keep: int) -> Backup:
    """Back up the store of a data folder. The service may be running."""
    return sqlite_backup.back_up(Path(data), Path(file), keep)


def prepare_restore(data: str, file: str) -> AbstractContextManager[PreparedRestore]:
    """Lock a data folder, and prepare its store from a backup. The service must not be running."""
    return sqlite_backup.prepare_restore(Path(data), Path(file))


class Assembly:
    """A complete service."""

    def __init__(self, values: dict[str, Any]) -> None:
        # First the parts that can fail, so that a failed start leaves nothing open.
        self.certificate = read_certificate(values)
        self.proof_key = secrets.token_hex(32)
        """Proves to the command line that this is the service whose file it has read."""
        _warn_of_short_notices(values)
        with ExitStack() as stack:
            listeners = [stack.enter_context(closing(open_socket(values[name]))) for name in ("metadata", "control")]
            if overlap(*(listener.getsockname() for listener in listeners)):
                first, second = (f"{name} = {values[name]!r}" for name in ("metadata", "control"))
                raise SameAddress(first=f"The settings {first}", second=second)
            self._build(values, *listeners)
            stack.pop_all()

    def _build(self, values: dict[str, Any], metadata_listener: socket.socket, control_listener: socket.socket) -> None:
        data: str = values["data"]
        store = SqliteStore(None if data == MEMORY else Path(data))
        clock = VirtualClock() if values["clock"] == "virtual" else SystemClock()
        fabric = build_fabric(values, clock)
        self.engine = Engine(clock, store, fabric, operator_limits(values, fabric))
        options = MetadataOptions(
            rate_limit=values["rate_limit"],
            preview_versions=values["preview_versions"],
            newer_versions=values["newer_versions"],
            post_without_header=values["post_without_header"],
            first_get_delay=values["first_get_delay"],
            access_log=values["access_log"],
        )
        self.faults = Faults(self.engine, allowed=values["allow_faults"])
        places = connection_places()
        limits = metadata_limits(values, places.metadata)
        self.metadata = MetadataServer(self.engine, metadata_listener, options, limits, self.faults)
        self.metadata.own_listeners = {
            f"{name} = {values[name]!r}": listener
            for name, listener in (("metadata", metadata_listener), ("control", control_listener))
        }
        if isinstance(clock, VirtualClock):
            clock.on_move = self.metadata.common_headers.refresh
        self.engine.subscribe(self._on_published)
        outbound = OutboundClient(values["webhook_private_networks"], values["webhook_timeout"].total_seconds())
        retry_policy = WebhookRetryPolicy(values["webhook_retry_delay"].total_seconds(), values["webhook_max_attempts"])
        self.webhooks = Dispatcher(self.engine, outbound, retry_policy)
        make_barrier = partial(self.metadata.delivery_tracker.barrier, limit=DEFAULT_TIMEOUT)
        newest = self.metadata.versions[max(self.metadata.versions)]
        self.scenario_runs = ScenarioRuns(self.engine, self.faults, make_barrier, newest)
        metrics = Metrics(self.engine)
        metrics.add(partial(metadata_metrics, self.metadata))
        metrics.add(partial(webhook_metrics, self.engine, self.webhooks))
        metrics.add(partial(fault_metrics, self.faults))
        control = Control(
            self.engine,
            self.metadata,
            metrics,
            self.webhooks,
            self.faults,
            self.scenario_runs,
            preview_versions=options.preview_versions,
            proof_key=self.proof_key,
            feed_limits=feed_limits(values, places.control),
        )
        self._control = control
        # With a certificate, browsers check the name themselves.
        host = read_host_port(values["control"])[0]
        host_names = None if self.certificate else HostNames((host, *values["control_names"]))
        self.control = ControlServer(
            control_app(self.engine, control, host_names, has_access_log=values["access_log"]),
            control_listener,
            self.certificate,
            control_limits(values, places.control),
        )
        metrics.add(
            partial(connection_metrics, {"metadata": self.metadata.connections, "control": self.control.connections})
        )

    async def start(
        self, prepare: Callable[[], Awaitable[None]], token: str, save_token: Callable[[str], None]
    ) -> None:
        """Start the service. `prepare` applies the fleet before the control API accepts requests. `token` is the stored
        admin token; `save_token` stores a new one."""
        await self.engine.start()
        try:
            await self.webhooks.start()
            await self.metadata.start()
            await prepare()
            await ensure_admin_token(self.engine, token, save_token)
            await self.control.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Finish open requests and long polls, then stop."""
        self._control.stop()
        try:
            await asyncio.gather(
                self.metadata.stop(), self.control.stop(), self.webhooks.stop(), self.scenario_runs.stop()
            )
        finally:
            await self.engine.stop()

    @property
    def metadata_url(self) -> str:
        return f"http://{address_of(self.metadata.listener)}"

    @property
    def control_url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://{address_of(self.control.listener)}"

    def _on_published(self, published: Published) -> None:
        if published.fleet:  # a deleted VM may have had its own listener
            self.metadata.close_departed(self.engine.fleet)

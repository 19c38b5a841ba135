"""Composition root: builds clock, store, fabric, engine and servers for `forewarn up` and for tests."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import shutil
import socket
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn import __version__
from forewarn.clock import SystemClock, VirtualClock
from forewarn.control.api import Control, control_app
from forewarn.control.auth import HostNames, ensure_admin_token
from forewarn.control.connection_guard import ControlLimits
from forewarn.control.metrics import Metrics, connection_metrics, fault_metrics, metadata_metrics, webhook_metrics
from forewarn.control.nodes import LOST_SECONDS, ensure_node_token, node_metrics, serve_node_tokens
from forewarn.control.server import Certificate, ControlServer
from forewarn.control.session_cookie import SessionCookie
from forewarn.control.sessions import PORTAL_PATH, ServiceFacts, new_link
from forewarn.core.durations import to_text
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.limits import OperatorLimits, short_notices
from forewarn.core.webhooks import WebhookRetryPolicy
from forewarn.delivery.feed import FeedLimits
from forewarn.delivery.outbound import OutboundClient
from forewarn.delivery.webhooks import Dispatcher
from forewarn.engine.engine import Engine, Published
from forewarn.engine.faults import Faults
from forewarn.errors import (
    BadSetting,
    BadToken,
    ExtraMissing,
    NotLeading,
    OtherService,
    SameAddress,
    SamePlace,
    SettingsDiffer,
    StoreFailed,
    UnreadableFile,
)
from forewarn.fabrics.command import CommandFabric
from forewarn.fabrics.manual import ManualFabric
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.metadata.limits import MetadataLimits
from forewarn.metadata.routes import MetadataOptions
from forewarn.metadata.server import MetadataServer
from forewarn.nodes.forwarding import NodeForwarder, is_running
from forewarn.nodes.node import Node
from forewarn.portal.pages import Portal
from forewarn.ports import NodeRow
from forewarn.settings import SETTINGS, SHARED, Value, default_name, without_password
from forewarn.stores import sqlite_backup
from forewarn.stores.sqlite import SqliteStore
from forewarn.stores.sqlite_file import DATABASE_NAME, lock_folder
from forewarn.system.addresses import read_host_port, show_host_port
from forewarn.system.connections import connection_places
from forewarn.system.files import write_atomically
from forewarn.system.logs import get_logger
from forewarn.system.number_file import NumberFile
from forewarn.system.sockets import address_of, open_socket, overlap
from forewarn.system.user_folders import MEMORY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

    from forewarn.ports import Clock, Fabric, Store
    from forewarn.stores.postgresql_server import PostgresqlServer
    from forewarn.stores.sql import Database
    from forewarn.stores.sqlite_backup import Backup, PreparedRestore

_log = get_logger(__name__)

POSITION_FILE = "last-commit"
"""Start of the name of a file in the data folder of a node: the last commit of the service that it knows."""
SERVICE_ID_FILE = "service-id"
"""In the data folder of a node: the service that it belongs to."""
ORDERS_FOLDER = "orders_folder"
"""Not a setting: order folder of a service without a data folder. The caller removes it."""


def build_fabric(values: dict[str, Any], clock: Clock, settings: Mapping[str, Value]) -> Fabric:
    """Build the fabric that the settings name."""
    origin = settings["fabric_command" if values["fabric_command"] else "fabric"].origin
    program: str = values["fabric_command"]
    if bool(program) != (values["fabric"] == "command"):
        problem = (
            "--fabric command needs a program, for example '/usr/local/bin/host-work'."
            if not program
            else f"it needs --fabric command, but the fabric is {values['fabric']}."
        )
        raise BadSetting(name="fabric_command", value=program, origin=origin, problem=problem)
    if values["fabric"] == "manual":
        return ManualFabric(clock)
    if values["fabric"] == "command":
        data = values["data"]
        folder = Path(data)
        if data == MEMORY:  # the programs may outlive the service, so the folder is kept
            folder = Path(values.get(ORDERS_FOLDER) or mkdtemp(prefix="forewarn-"))
        return CommandFabric(_split_command(program, origin), folder / "orders")
    return SimulatedFabric(clock)


def _split_command(program: str, origin: str) -> list[str]:
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
        raise BadSetting(name="fabric_command", value=program, origin=origin, problem=problem)
    return words


def read_certificate(values: dict[str, Any]) -> Certificate | None:
    """Return the certificate of the control API, if one is set."""
    certificate, key = values["tls_certificate"], values["tls_key"]
    if key and not certificate:
        problem = "--tls-key needs --tls-certificate"
        raise BadSetting(name="tls_key", value=key, origin="--tls-key", problem=problem)
    host, _ = read_host_port(values["control"])
    if not certificate and not _is_loopback(host):
        _log.warning(
            "control_api_unencrypted",
            "Tokens are sent unencrypted. Set a certificate with --tls-certificate.",
            address=values["control"],
        )
    return Certificate(certificate, key) if certificate else None


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


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


class FixedLimits(NamedTuple):
    """Limits that are not settings. Tests replace them."""

    metadata: MetadataLimits = MetadataLimits()
    webhook_retry: WebhookRetryPolicy = WebhookRetryPolicy()


def metadata_limits(fixed: MetadataLimits, values: dict[str, Any], places: int) -> MetadataLimits:
    """Complete the limits of the metadata server from the settings. `places` depends on the limit of open files."""
    return replace(
        fixed,
        max_connections=values["max_connections"],
        max_connections_per_address=values["max_connections_per_address"],
        address_share=4,
        places=places,
        trusted_proxies=values["trusted_proxies"],
        proxy_protocol=values["proxy_protocol"],
    )


def control_limits(values: dict[str, Any], places: int) -> ControlLimits:
    """Build the limits of the control API from the settings. `places` depends on the limit of open files."""
    return ControlLimits(address_share=2, places=places, trusted_proxies=values["trusted_proxies"])


def feed_limits(places: int) -> FeedLimits:
    """Build the limits of the feed. Its readers can take half of the connections to the control API."""
    fixed = FeedLimits()
    readers = min(fixed.readers, max(min(ControlLimits().max_connections, places) // 2, 1))
    return FeedLimits(readers, min(fixed.readers_of_token, max(readers // 2, 1)))


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


def move_database(source: str, target: str, schema: str) -> dict[str, int]:
    """Copy all data from one store to another, empty one. Returns the number of rows of each table."""
    try:
        from forewarn.stores import move
    except ImportError as error:
        raise ExtraMissing from error
    if (is_database(source) and is_database(target)) or source == target:
        raise SamePlace(place=without_password(target))

    def opened(place: str, *, is_source: bool) -> AbstractContextManager[Database]:
        if is_database(place):
            return move.open_postgresql(place, schema, is_source=is_source)
        return move.open_sqlite(Path(place))

    if not is_database(source) and not (Path(source) / DATABASE_NAME).exists():
        raise UnreadableFile(path=Path(source) / DATABASE_NAME, problem="the file does not exist")
    with opened(source, is_source=True) as old, opened(target, is_source=False) as new:
        return new.run(lambda: old.run(lambda: move.move(old, new, without_password(target))))


def report_restore(database: str, schema: str) -> str:
    """Report that a database was restored, so that the leader skips numbers. Returns the place of the database."""
    try:
        from forewarn.stores.postgresql import PostgresqlMembership
        from forewarn.stores.postgresql_server import PostgresqlServer
    except ImportError as error:
        raise ExtraMissing from error
    server = PostgresqlServer(database, schema)
    server.prepare(creates=False)
    with closing(PostgresqlMembership(server, "restored")) as membership:
        membership.report_restore()
    return server.place


def is_database(place: str) -> bool:
    """Return whether this is the URL of a database, or its parameters, and not a folder."""
    return "://" in place or "=" in place


def _service_id(secret: str) -> str:
    """Return a name of the service that does not reveal the secret of its nodes."""
    return sha256(f"service {secret}".encode()).hexdigest()[:32]


class SharedDatabase:
    """The database that several nodes share, and what this node needs for it."""

    def __init__(self, values: dict[str, Any], stack: ExitStack) -> None:
        for name, value in (("clock", "virtual"), ("allow_faults", True)):
            if values[name] == value:
                problem = "several nodes cannot use it. Leave out --database, or this setting."
                raise BadSetting(name=name, value=str(value).lower(), origin=SETTINGS[name].option, problem=problem)
        try:
            from forewarn.stores import postgresql
            from forewarn.stores.postgresql_server import PostgresqlServer
        except ImportError as error:
            raise ExtraMissing from error
        self._values = values
        self.id = secrets.token_hex(8)
        data: str = values["data"]
        self._lock = None if data == MEMORY else stack.enter_context(closing(lock_folder(Path(data))))
        self.listener = stack.enter_context(closing(open_socket(values["node_listen"] or values["node_address"])))
        if not values["tls_certificate"] and not _is_loopback(read_host_port(values["node_address"])[0]):
            _log.warning(
                "node_connections_unencrypted",
                "Other nodes send tokens unencrypted to this node. Use a private network, or set a certificate with "
                "--tls-certificate.",
                address=values["node_address"],
            )
        server = PostgresqlServer(values["database"], values["database_schema"])
        self._file = None if data == MEMORY else Path(data) / SERVICE_ID_FILE
        self.secret = ""
        """The secret that the nodes of the service share, after `prepare`."""
        self._server = server
        if self._file is not None and self._file.with_name(DATABASE_NAME).exists():
            _log.warning(
                "own_database_ignored",
                "The data folder has a database of its own. This node does not use it. To copy its data to an empty "
                "schema: forewarn database move",
                path=str(self._file.with_name(DATABASE_NAME)),
            )
        self.store = postgresql.PostgresqlStore(server, self.id)
        service = _service_id(self.secret)
        position_path = self._file and self._file.with_name(f"{POSITION_FILE}-{service[:8]}")
        self.position_file = NumberFile(position_path) if position_path is not None else None
        self.membership = stack.enter_context(closing(postgresql.PostgresqlMembership(server, self.id)))
        self.journal = postgresql.PostgresqlJournal(server, self.id)

    async def prepare(self) -> None:
        """Check the database, and create or upgrade the schema."""
        check = partial(self._check_service, self._server)
        self.secret = await asyncio.to_thread(self._server.prepare, check)
        if self._file is not None:
            write_atomically(self._file, _service_id(self.secret).encode())

    def row(self, control: str, certificate: Certificate | None, clock: Clock) -> NodeRow:
        """Return how this node is listed."""
        address: str = self._values["node_address"]
        host, port = read_host_port(address)
        if not (port and self._values["node_listen"]):  # the port is known only now
            address = show_host_port(host, self.listener.getsockname()[1])
        name = self._values["name"] or socket.gethostname()
        pem = certificate.pem() if certificate is not None else ""
        started_at = to_text(clock.now())
        return NodeRow(self.id, name, address, control, pem, __version__, started_at, 0)

    def _check_service(self, server: PostgresqlServer, secret: str) -> None:
        """Check that the data folder was not used with another service."""
        if self._file is None or not self._file.exists():
            return
        if self._file.read_text().strip() != _service_id(secret):
            raise OtherService(folder=self._values["data"], schema=server.schema, place=server.place, file=self._file)

    async def join(self, row: NodeRow) -> None:
        """Check the name of this node, compare settings that must be equal on all nodes, and list this node.

        The first node decides about the settings.
        """
        known = await asyncio.to_thread(self.membership.nodes)
        answers = await asyncio.gather(*(is_running(other, self.secret) for other in known))
        gone = {other.id for other, runs in zip(known, answers, strict=True) if not runs}
        own = {name: str(Value(self._values[name], "")) for name in SHARED}
        shared = await asyncio.to_thread(self.membership.join, row, own, gone, LOST_SECONDS)
        for name, value in shared.items():
            if name in own and own[name] != value:
                raise SettingsDiffer(name=name, own=own[name], other=value)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


class Assembly:
    """A complete service."""

    limits = FixedLimits()
    """A program of a test can replace them for its process."""

    def __init__(
        self, values: dict[str, Any], origins: Mapping[str, str] | None = None, limits: FixedLimits | None = None
    ) -> None:
        """`origins`: where the value of each setting came from, for people. `limits`: of this service only."""
        if limits is not None:
            self.limits = limits
        self._settings = {name: Value(values[name], (origins or {}).get(name, "default")) for name in SETTINGS}
        # First the parts that can fail, so that a failed start leaves nothing open.
        self.certificate = read_certificate(values)
        self.proof_key = secrets.token_hex(32)
        """Proves to the command line that this is the service whose file it has read."""
        _warn_of_short_notices(values)
        self.node: Node | None = None
        self.forwarder: NodeForwarder | None = None
        self._creating_token: asyncio.Task[None] | None = None
        with ExitStack() as stack:
            listeners = [stack.enter_context(closing(open_socket(values[name]))) for name in ("metadata", "control")]
            if overlap(*(listener.getsockname() for listener in listeners)):
                first, second = (f"{name} = {values[name]!r}" for name in ("metadata", "control"))
                raise SameAddress(first=f"The settings {first}", second=second)
            shared = self._shared = SharedDatabase(values, stack) if values["database"] else None
            self._build(values, listeners[0], listeners[1], shared)
            stack.pop_all()

    def _build(
        self,
        values: dict[str, Any],
        metadata_listener: socket.socket,
        control_listener: socket.socket,
        shared: SharedDatabase | None,
    ) -> None:
        data: str = values["data"]
        store: Store = SqliteStore(None if data == MEMORY else Path(data)) if shared is None else shared.store
        clock = VirtualClock() if values["clock"] == "virtual" else SystemClock()
        fabric = build_fabric(values, clock, self._settings)
        self.engine = Engine(clock, store, fabric, operator_limits(values, fabric))
        if shared is not None:
            scheme = "https" if self.certificate else "http"
            row = shared.row(f"{scheme}://{address_of(control_listener)}", self.certificate, clock)
            lease_seconds = values["lease"].total_seconds()
            self.node = Node(
                self.engine, shared.store, shared.membership, shared.journal, row, lease_seconds, shared.position_file
            )
            tls = None
            if self.certificate is not None:
                tls, self.certificate.on_reload = self.certificate.context, self._report_certificate
            self.forwarder = self.engine.forwarder = NodeForwarder(self.node, shared.secret, tls)
        options = MetadataOptions(
            rate_limit=values["rate_limit"],
            preview_versions=values["preview_versions"],
            post_without_header=values["post_without_header"],
            first_get_delay=values["first_get_delay"],
            access_log=values["access_log"],
        )
        self.faults = Faults(self.engine, allowed=values["allow_faults"])
        places = connection_places()
        limits = metadata_limits(self.limits.metadata, values, places.metadata)
        self.metadata = MetadataServer(
            *(self.engine, metadata_listener, options, limits, self.faults),
            own_listeners={
                f"{name} = {values[name]!r}": listener
                for name, listener in (("metadata", metadata_listener), ("control", control_listener))
            },
            all_addresses_needed=shared is None,
        )
        self.engine.subscribe(self._on_published)
        outbound = OutboundClient(values["webhook_private_networks"])
        self.webhooks = Dispatcher(self.engine, outbound, self.limits.webhook_retry)
        metrics = Metrics(self.engine)
        metrics.add(partial(metadata_metrics, self.metadata))
        metrics.add(partial(webhook_metrics, self.engine, self.webhooks))
        metrics.add(partial(fault_metrics, self.faults))
        self.facts = ServiceFacts(
            values["name"] or default_name(data), values["fabric"], values["allow_faults"], self.metadata.versions
        )
        control = Control(
            self.engine,
            self.metadata,
            metrics,
            self.webhooks,
            self.faults,
            preview_versions=options.preview_versions,
            proof_key=self.proof_key,
            feed_limits=feed_limits(places.control),
            service_facts=self.facts,
            settings=self._settings,
            cookie=SessionCookie(has_tls=self.certificate is not None),
            session_lifetime=values["portal_session"],
            node=self.node,
        )
        self._control = control

        def on_move() -> None:
            self.metadata.common_headers.refresh()
            control.live_states.clock_changed()

        if isinstance(clock, VirtualClock):
            clock.on_move = on_move
        if self.node is not None and self.forwarder is not None:
            self.node.on_lead.append(self.webhooks.start)
            self.node.on_follow.append(self.webhooks.suspend)
            serve_node_tokens(self.engine, self.forwarder)
            metrics.add(partial(node_metrics, self.node, self.forwarder))
        # With a certificate, browsers check the name themselves.
        host = read_host_port(values["control"])[0]
        host_names = None if self.certificate else HostNames((host, *values["control_names"]))
        self.control = ControlServer(
            control_app(
                control,
                host_names,
                Portal().routes(),
                has_access_log=values["access_log"],
                forwarder=self.forwarder,
            ),
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
        if self._shared is None or self.node is None or self.forwarder is None:
            await self.engine.start()
        else:
            await self._start_node(self._shared, self.node, self.forwarder)
        try:
            if self.node is None:
                await self.webhooks.start()
            await self.metadata.start()
            await prepare()
            if self.node is None or self.forwarder is None:
                await ensure_admin_token(self.engine, token, save_token)
            else:
                self._creating_token = await ensure_node_token(
                    self.engine, self.forwarder, self.node.row.name, token, save_token
                )
            self._control.start()
            if self.node is None:
                await self.control.start()
        except BaseException:
            await self.stop()
            raise

    async def _start_node(self, shared: SharedDatabase, node: Node, forwarder: NodeForwarder) -> None:
        """Load the state. If the database is away, wait for it. Until then the control API knows no token."""

        async def join() -> None:
            await shared.prepare()
            forwarder.use_secret(shared.secret)
            await shared.join(node.row)

        await self.control.start()
        try:
            await node.wait_for_database(join)
            await forwarder.start(shared.listener)
            await node.wait_for_database(node.start)
        except BaseException:
            await self.control.stop()
            raise

    async def stop(self) -> None:
        """Finish open requests and long polls, then stop."""
        self._control.stop()
        if self._creating_token is not None:
            self._creating_token.cancel()
        try:
            await asyncio.gather(self.metadata.stop(), self.control.stop(), self.webhooks.stop())
        finally:
            if self.node is not None and self.forwarder is not None:
                await self.node.suspend()
                await self.engine.stop()
                await self.forwarder.stop()
                await self.node.stop()
            else:
                await self.engine.stop()
            if self._shared is not None:
                self._shared.close()

    @property
    def metadata_url(self) -> str:
        return f"http://{address_of(self.metadata.listener)}"

    @property
    def control_url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://{address_of(self.control.listener)}"

    async def portal_path(self, token: str) -> str:
        """Return the path of the portal, with a one-time code for the owner of this token if that is possible."""
        try:
            link = await new_link(self.engine, self._control.tokens.find(token).name)
        except (BadToken, NotLeading, StoreFailed):
            return PORTAL_PATH
        return link.path

    def _report_certificate(self) -> None:
        """Other nodes trust exactly the certificate that this node has reported."""
        if self.node is not None and self.certificate is not None:
            self.node.row = self.node.row._replace(certificate=self.certificate.pem())

    def _on_published(self, published: Published) -> None:
        if published.fleet:  # a deleted VM may have had its own listener
            self.metadata.close_departed(self.engine.fleet)
            if self.node is not None and not self.engine.leads:
                self._listening = asyncio.create_task(self._listen_for_vms())

    async def _listen_for_vms(self) -> None:
        """Listen for the VMs of a fleet that another node has applied."""
        async with self.metadata.applying:
            fleet = self.engine.fleet
            await self.metadata.listen(fleet, self.metadata.reserve(fleet))

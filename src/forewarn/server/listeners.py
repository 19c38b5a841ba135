"""Sockets: where the two services listen, and the addresses that always mean one VM."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from forewarn.errors import CannotListen
from forewarn.server.bounded import IDLE_SECONDS, Bounded
from forewarn.server.control_intake import ControlIntake
from forewarn.server.fastlane import protocol_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.core.fleet import Fleet
    from forewarn.server.lane import Lane
    from forewarn.server.tls import Certificate
    from forewarn.server.witness import Witness

STOP_SECONDS = 10
"""How long requests under way may take to finish when the service stops."""

SWEEP_SECONDS = 1.0
SWEEP_AT_STOP_SECONDS = 0.5
"""Who stands still from one look to the next, while the service stops, is not waited for."""
HANDSHAKE_SECONDS = 10.0
"""How long a client may take to begin TLS."""

TURNS_TO_CLOSE = 3
"""After so many turns of the loop, connections that had nothing under way are closed."""

SWEPT_AT_ONCE = 500
"""So many connections are looked at in a turn of the loop: polls are answered in between."""


def open_socket(address: str) -> socket.socket:
    """Listen on HOST:PORT, or say why that cannot be."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
    except OSError as error:
        listener.close()
        raise CannotListen(address=address, problem=_why(error, host, port)) from error
    listener.setblocking(False)
    return listener


def _why(error: OSError, host: str, port: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there. Stop it, or choose another port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine has no such address. Add it first, for example: ip address add {host}/32 dev lo"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} needs the right to bind low ports (root, or CAP_NET_BIND_SERVICE)."
    if isinstance(error, socket.gaierror):
        return f"{host!r} is not an address of this machine or a name for one."
    return str(error)


def address_of(listener: socket.socket) -> str:
    """HOST:PORT as it came out, with the port that was given for 0."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn, started and stopped by the composition root, which owns the signals of both services."""

    def __init__(
        self, app: Any, listener: socket.socket, protocol: Any = ControlIntake, certificate: Certificate | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # else a forged X-Forwarded-For would be the caller's address
            server_header=False,
            date_header=protocol is ControlIntake,  # the metadata service stamps its own, by its own clock
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        super().__init__(config)
        self.listener = listener
        self._certificate = certificate
        self._renewal: asyncio.Task[None] | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.config.load()
        if self._certificate is not None:
            self.config.ssl = self._certificate.context
            self._renewal = asyncio.create_task(self._certificate.keep())
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets=[self.listener])
        self._loop_task = asyncio.create_task(self.main_loop())
        self._sweeper = asyncio.create_task(self._sweep_forever())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, which has no word for how long the beginning of TLS may take."""
        protocol: Any = self.config.http_protocol_class
        make = partial(protocol, config=self.config, server_state=self.server_state, app_state={})
        limit = HANDSHAKE_SECONDS if self.config.ssl else None
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                make, sock=one, ssl=self.config.ssl, backlog=self.config.backlog, ssl_handshake_timeout=limit
            )
            for one in sockets or []
        ]
        self.started = True

    async def stop(self) -> None:
        """Take no new requests, answer those under way."""
        if self._renewal is not None:
            self._renewal.cancel()
        for task in (self._loop_task, self._sweeper):
            if task is not None:
                task.cancel()
        self.listener.close()
        if not self.started:
            return
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for _ in range(TURNS_TO_CLOSE):
            await asyncio.sleep(0)
        if not self.server_state.connections and not self.server_state.tasks:
            return  # uvicorn would wait a while for nobody
        sweeper = asyncio.create_task(self._sweep_until_stopped())
        try:
            await self.shutdown(sockets=[self.listener])
        finally:
            sweeper.cancel()

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self._look_at_all(Bounded.sweep)

    async def _sweep_until_stopped(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_AT_STOP_SECONDS)
            await self._look_at_all(Bounded.sweep_at_stop)

    async def _look_at_all(self, look: Callable[[Bounded], None]) -> None:
        for number, connection in enumerate(list(self.server_state.connections), start=1):
            if isinstance(connection, Bounded):
                look(connection)
            if not number % SWEPT_AT_ONCE:
                await asyncio.sleep(0)


class MetadataServer(Server):
    """The metadata service on its own address and on those of single VMs."""

    def __init__(self, app: Witness, listener: socket.socket, lane: Lane) -> None:
        self._protocol = protocol_for(lane, app.connection)
        super().__init__(app, listener, self._protocol)
        self._app = app
        self._lane = lane
        self._of_vms: dict[str, asyncio.AbstractServer] = {}
        self._doors: list[asyncio.AbstractServer] = []
        self._stamping: asyncio.Task[None] | None = None
        self.applying = asyncio.Lock()
        """One fleet at a time: two could reserve the same address."""

    async def start(self) -> None:
        await super().start()
        self._stamping = asyncio.create_task(self._lane.stamp.keep())

    async def stop(self) -> None:
        if self._stamping is not None:
            self._stamping.cancel()
        for server in [*(self.servers if self.started else ()), *self._of_vms.values(), *self._doors]:
            server.close()
        # First every connection is told that its answer is the last, so that the answer can say so.
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._app.stop()
        await super().stop()

    def reserve(self, fleet: Fleet) -> dict[str, socket.socket]:
        """Sockets for the VMs' own addresses that are not listened on yet; all of them, or an error."""
        reserved: dict[str, socket.socket] = {}
        try:
            for address in fleet.listeners():
                if address not in self._of_vms:
                    reserved[address] = open_socket(address)
        except CannotListen:
            release(reserved)
            raise
        return reserved

    async def listen(self, fleet: Fleet, reserved: dict[str, socket.socket]) -> None:
        """Listen for exactly the VMs of this fleet that have an address of their own."""
        self.close_departed(fleet)
        for address, listener in reserved.items():
            self._of_vms[address] = await self._listen_on(address, listener)

    async def open_door(self, vm: str) -> str:
        """An address with a free port that means this VM, whatever the fleet file says. Returns it."""
        listener = open_socket("127.0.0.1:0")
        address = address_of(listener)
        self._lane.callers.doors[address] = vm
        self._doors.append(await self._listen_on(address, listener))
        return address

    async def _listen_on(self, address: str, listener: socket.socket) -> asyncio.AbstractServer:
        make = partial(
            self._protocol,
            config=self.config,
            server_state=self.server_state,
            app_state={"listener": address},
        )
        return await asyncio.get_running_loop().create_server(make, sock=listener, backlog=self.config.backlog)

    def close_departed(self, fleet: Fleet) -> None:
        """Listen no more for VMs that have left the fleet."""
        wanted = set(fleet.listeners())
        for address in [address for address in self._of_vms if address not in wanted]:
            self._of_vms.pop(address).close()


def release(reserved: dict[str, socket.socket]) -> None:
    """Let go of sockets that were reserved for nothing."""
    for listener in reserved.values():
        with contextlib.suppress(OSError):
            listener.close()

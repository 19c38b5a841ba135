"""The metadata service: where it listens, its connections, and what they share."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from forewarn.errors import CannotListen
from forewarn.metadata.callers import Callers
from forewarn.metadata.counters import Counters
from forewarn.metadata.delivery_tracking import DeliveryTracker
from forewarn.metadata.faults import InjectedFaults
from forewarn.metadata.limits import MetadataLimits
from forewarn.metadata.long_poll import Waiters
from forewarn.metadata.pages import Pages
from forewarn.metadata.protocol import Connection
from forewarn.metadata.replies import CommonHeaders
from forewarn.metadata.request import EVENTS_PATH, parse_target
from forewarn.metadata.routes import Routes
from forewarn.system.connections import Connections
from forewarn.system.sockets import address_of, open_socket, release
from forewarn.wire.versions import available_versions

if TYPE_CHECKING:
    import socket

    from forewarn.core.fleet import Fleet
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults
    from forewarn.metadata.callers import Caller
    from forewarn.metadata.request import Request
    from forewarn.metadata.routes import Result, Rules

BACKLOG = 2048
SWEPT_AT_ONCE = 500
"""So many connections are looked at in a turn of the loop: polls are answered in between."""


class MetadataServer:
    """The metadata service on its own address and on those of single VMs."""

    def __init__(
        self,
        engine: Engine,
        listener: socket.socket,
        rules: Rules,
        limits: MetadataLimits | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.engine = engine
        self.listener = listener
        self.limits = limits or MetadataLimits()
        self.versions = available_versions(preview=rules.preview_versions)
        self.callers = Callers(engine, rules.rate_limit)
        self.limited = rules.rate_limit > 0
        self.waiters = Waiters(engine)
        self.counters = Counters(self.versions)
        self.common_headers = CommonHeaders(engine.clock)
        self.delivery_tracker = DeliveryTracker(engine)
        self.routes = Routes(engine, Pages(engine), self.waiters, rules, self.versions)
        self._faults = InjectedFaults(engine, faults, self.routes) if faults is not None and faults.allowed else None
        if faults is not None:
            faults.on_change = self._start_epoch
        self.polled = engine.polled
        self.epoch = 0
        """Goes up with every change of any document, of the fleet or of the faults: an answer holds within one."""
        # What almost everybody asks for need not be parsed each time.
        self.targets = {
            target: parse_target(target)
            for target in (f"{EVENTS_PATH}?api-version={name}".encode() for name in self.versions)
        }
        self.connections: Connections[Connection] = Connections("metadata service", self.limits)
        self._server: asyncio.Server | None = None
        self._of_vms: dict[str, asyncio.AbstractServer] = {}
        self._doors: list[asyncio.AbstractServer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.applying = asyncio.Lock()
        """One fleet at a time: two could reserve the same address."""
        engine.subscribe(lambda _: self._start_epoch())
        engine.last_seen.held = self.waiters.by_group

    # --- For connections ------------------------------------------------------------------------------

    def answer(self, request: Request) -> Result:
        return self.routes.answer(request) if self._faults is None else self._faults.answer(request)

    def may_fail(self, caller: Caller) -> bool:
        """Whether a fault is to strike this caller's next poll."""
        return self._faults is not None and self._faults.find(caller, "GET") is not None

    def count(self, request: Request, status: int) -> None:
        if not request.target.is_document:
            return
        if request.method == "GET":
            self.counters.poll(request.target.query.get("api-version", ""), status).count += 1
        elif request.method == "POST":
            self.counters.approval(status).count += 1

    def _start_epoch(self) -> None:
        self.epoch += 1

    # --- Starting and stopping ------------------------------------------------------------------------

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(partial(Connection, self), sock=self.listener, backlog=BACKLOG)
        self._tasks = [asyncio.create_task(self.common_headers.keep()), asyncio.create_task(self._sweep_forever())]

    async def stop(self) -> None:
        """Take no new requests, and answer those in progress, also those that are held back."""
        for task in self._tasks:
            task.cancel()
        for server in (self._server, *self._of_vms.values(), *self._doors):
            if server is not None:
                server.close()
        self.listener.close()
        # First every connection learns that its answer is the last, so that the answer can say so.
        for connection in self.connections.close():
            connection.shut_down()
        self.delivery_tracker.stop()
        self.routes.stop()
        try:
            async with asyncio.timeout(self.limits.stop_seconds):
                await self.connections.drain()
        except TimeoutError:
            for connection in self.connections.all():
                connection.abort()

    async def _sweep_forever(self) -> None:
        rounds = self.limits.rounds
        while True:
            await asyncio.sleep(self.limits.sweep_seconds)
            for number, connection in enumerate(self.connections.all(), start=1):
                connection.sweep(rounds)
                if not number % SWEPT_AT_ONCE:
                    await asyncio.sleep(0)

    # --- The addresses of single VMs ------------------------------------------------------------------

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
        self.callers.doors[address] = vm
        self._doors.append(await self._listen_on(address, listener))
        return address

    async def _listen_on(self, address: str, listener: socket.socket) -> asyncio.AbstractServer:
        make = partial(Connection, self, address)
        return await asyncio.get_running_loop().create_server(make, sock=listener, backlog=BACKLOG)

    def close_departed(self, fleet: Fleet) -> None:
        """Listen no more for VMs that have left the fleet."""
        wanted = set(fleet.listeners())
        for address in [address for address in self._of_vms if address not in wanted]:
            self._of_vms.pop(address).close()

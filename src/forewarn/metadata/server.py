"""The metadata service: its listeners, its connections, and the state they share."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from forewarn.clock import real_seconds
from forewarn.errors import CannotListen, SameAddress, shown
from forewarn.metadata.callers import Callers, PollStatistics
from forewarn.metadata.counters import RequestCounters
from forewarn.metadata.delivery_tracking import DeliveryTracker
from forewarn.metadata.faults import InjectedFaults
from forewarn.metadata.limits import MetadataLimits
from forewarn.metadata.long_poll import LongPolls
from forewarn.metadata.protocol import MetadataConnection
from forewarn.metadata.proxy_protocol import ProxiedConnection
from forewarn.metadata.rendered_documents import RenderedDocuments
from forewarn.metadata.rendered_responses import CommonHeaders
from forewarn.metadata.request import EVENTS_PATH, parse_target
from forewarn.metadata.routes import Routes
from forewarn.system.access_log import log_access
from forewarn.system.addresses import read_host_port
from forewarn.system.connections import Connections
from forewarn.system.logs import get_logger
from forewarn.system.sockets import address_of, open_socket, overlap, release, start_listening
from forewarn.wire.versions import available_versions

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from forewarn.core.fleet import Fleet
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults
    from forewarn.metadata.callers import Caller
    from forewarn.metadata.request import MetadataRequest
    from forewarn.metadata.routes import MetadataOptions, Result

_log = get_logger(__name__)

BACKLOG = 2048
SWEEP_BATCH_SIZE = 500
"""Connections swept per turn of the event loop, so that polls are served in between."""


class MetadataServer:
    """The metadata service, on its own address and on the addresses of single VMs."""

    def __init__(
        self,
        engine: Engine,
        listener: socket.socket,
        options: MetadataOptions,
        limits: MetadataLimits | None = None,
        faults: Faults | None = None,
        *,
        own_listeners: Mapping[str, socket.socket] | None = None,
        all_addresses_needed: bool = True,
    ) -> None:
        """`own_listeners`: listeners of the service itself, by the setting that names their address.

        `all_addresses_needed`: each address of a VM must be opened. With several nodes, each opens those of its own
        machine.
        """
        self.engine = engine
        self.listener = listener
        self.limits = limits or MetadataLimits()
        self.versions = available_versions(preview=options.preview_versions)
        self.callers = Callers(engine, options.rate_limit)
        self.limited = options.rate_limit > 0
        self.has_access_log = options.access_log
        self.long_polls = LongPolls(engine)
        self.counters = RequestCounters(self.versions)
        self.common_headers = CommonHeaders(engine.clock)
        self.delivery_tracker = DeliveryTracker(engine)
        self.routes = Routes(engine, RenderedDocuments(engine), self.long_polls, options, self.versions)
        self._faults = InjectedFaults(engine, faults, self.routes) if faults is not None and faults.allowed else None
        if faults is not None:
            faults.on_change = self._start_epoch
        self.polled = engine.polled
        self.epoch = 0
        """Incremented with every change of a document, the fleet or the faults. Cached responses are valid for one."""
        # The targets that nearly all clients send are parsed once.
        self.targets = {
            target: parse_target(target)
            for target in (f"{EVENTS_PATH}?api-version={name}".encode() for name in self.versions)
        }
        self.connections: Connections[MetadataConnection] = Connections("metadata service", self.limits)
        self._server: asyncio.Server | None = None
        self._all_addresses_needed = all_addresses_needed
        self._own_listeners = own_listeners or {}
        self._vm_listeners: dict[str, asyncio.AbstractServer] = {}
        self._extra_servers: list[asyncio.AbstractServer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.applying = asyncio.Lock()
        """Held while a fleet is applied: two fleets could reserve the same address."""
        engine.subscribe(lambda _: self._start_epoch())
        engine.last_seen.long_polling = self.long_polls.by_scope

    # --- For connections ------------------------------------------------------------------------------

    def respond(self, request: MetadataRequest) -> Result:
        return self.routes.respond(request) if self._faults is None else self._faults.respond(request)

    def has_fault(self, caller: Caller) -> bool:
        """Whether a fault matches this caller's next poll."""
        return self._faults is not None and self._faults.find(caller, "GET") is not None

    def count(self, request: MetadataRequest, status: int) -> None:
        if not request.target.is_document:
            return
        if request.method == "GET":
            self.counters.poll(request.target.query.get("api-version", ""), status).count += 1
            if request.caller is not None and not request.is_held:  # a held poll was counted when it arrived
                request.caller.polls.add(self.engine.clock)
        elif request.method == "POST":
            self.counters.approval(status).count += 1

    def log_access(self, request: MetadataRequest, address: str, status: int, size: int) -> None:
        """Log a request with the size of the body of its response."""
        caller = request.caller.vm if request.caller is not None else ""
        seconds = real_seconds() - request.started_at
        log_access("metadata", caller, address, request.method, request.target.path, status, size, seconds)

    def poll_statistics(self, vm: str) -> PollStatistics:
        """Return how often a VM polls."""
        polls = self.callers.polls(vm)
        if polls is None:
            return PollStatistics()
        polls.note(self.engine.clock)
        return polls.statistics()

    def _start_epoch(self) -> None:
        self.epoch += 1

    # --- Starting and stopping ------------------------------------------------------------------------

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        start_listening(self.listener, BACKLOG)
        # Not for the addresses of single VMs: there, the listener says who calls.
        make = ProxiedConnection if self.limits.proxy_protocol.networks else MetadataConnection
        self._server = await loop.create_server(partial(make, self), sock=self.listener, backlog=BACKLOG)
        self._tasks = [asyncio.create_task(self.common_headers.keep()), asyncio.create_task(self._sweep_forever())]

    async def stop(self) -> None:
        """Accept no new requests, and complete those in progress, including long polls."""
        for task in self._tasks:
            task.cancel()
        for server in (self._server, *self._vm_listeners.values(), *self._extra_servers):
            if server is not None:
                server.close()
        self.listener.close()
        # Every connection is notified first, so that its last response can have `Connection: close`.
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
                if not number % SWEEP_BATCH_SIZE:
                    await asyncio.sleep(0)

    # --- The addresses of single VMs ------------------------------------------------------------------

    def reserve(self, fleet: Fleet) -> dict[str, socket.socket]:
        """Open sockets for VM addresses without a listener: all of them, or raise an error."""
        reserved: dict[str, socket.socket] = {}
        try:
            for address in fleet.listeners():
                if address not in self._vm_listeners:
                    self._reject_own_address(fleet, address)
                    try:
                        reserved[address] = open_socket(address)
                    except CannotListen as error:
                        if self._all_addresses_needed:
                            raise
                        _log.info("address_not_opened", "Another node may serve it.", error=str(error))
        except (CannotListen, SameAddress):
            release(reserved)
            raise
        return reserved

    def _reject_own_address(self, fleet: Fleet, address: str) -> None:
        """Raise SameAddress, with the setting, if the service itself listens on this address."""
        vm = fleet.at_listener(address)
        for setting, listener in self._own_listeners.items():
            if overlap(read_host_port(address), listener.getsockname()):
                where = f"listen = {shown(address)} of VM {shown(vm.name)}" if vm is not None else address
                raise SameAddress(first=where, second=f"the setting {setting}")

    async def listen(self, fleet: Fleet, reserved: dict[str, socket.socket]) -> None:
        """Listen on exactly the addresses that VMs of this fleet declare. Others of the reserved ones are released."""
        self.close_departed(fleet)
        for address, listener in reserved.items():
            if fleet.at_listener(address) is None:  # its VM has left already
                listener.close()
                continue
            self._vm_listeners[address] = await self._listen_on(address, listener)
            self._count_listeners()

    async def listen_for_vm(self, vm: str) -> str:
        """Listen for this VM on a free port, independent of the fleet file. Return the address."""
        listener = open_socket("127.0.0.1:0")
        address = address_of(listener)
        self.callers.extra_listeners[address] = vm
        self._extra_servers.append(await self._listen_on(address, listener))
        self._count_listeners()
        return address

    async def _listen_on(self, address: str, listener: socket.socket) -> asyncio.AbstractServer:
        start_listening(listener, BACKLOG)
        make = partial(MetadataConnection, self, address)
        return await asyncio.get_running_loop().create_server(make, sock=listener, backlog=BACKLOG)

    def close_departed(self, fleet: Fleet) -> None:
        """Close the listeners of VMs that have left the fleet."""
        addresses = set(fleet.listeners())
        for address in [address for address in self._vm_listeners if address not in addresses]:
            self._vm_listeners.pop(address).close()
        self._count_listeners()

    def _count_listeners(self) -> None:
        """A listener needs a file descriptor, as a connection does."""
        self.connections.used_places = len(self._vm_listeners) + len(self._extra_servers)

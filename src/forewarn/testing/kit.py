"""The whole service in this process, on free ports, in virtual time: what its two faces have in common."""

from __future__ import annotations

import asyncio
import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.assembly import Assembly
from forewarn.core.event import Status
from forewarn.core.faults import FaultOrder
from forewarn.core.fleet import Fleet
from forewarn.core.operations import Request
from forewarn.core.requests import request as ask_for
from forewarn.errors import NeverStarted, NobodyTold, NotSpot, Unavailable
from forewarn.testing.choices import read_fleet, read_settings
from forewarn.testing.entries import add_group, add_vm
from forewarn.testing.event import OPERATOR, Event
from forewarn.testing.reach import Reach
from forewarn.testing.thread import LoopThread
from forewarn.testing.vm import VM, Group
from forewarn.wire.reading import ToldDocument, read_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from forewarn.engine import Engine

T = TypeVar("T")


class Kit(Reach):
    """A service that lives as long as a test."""

    def __init__(self, fleet: str | Path | None = None, *, listening: bool = True, **settings: Any) -> None:
        """Like `forewarn up` with these settings, but in memory, in virtual time and on free ports unless they say
        otherwise. `fleet` is a fleet file, or the text of one. Without `listening` nobody is told before it asks."""
        self._fleet = fleet
        self._listening = listening
        self._values = read_settings(settings)
        self._loop: LoopThread | None = None
        self._service: Assembly | None = None
        self._token = ""
        self._token_file = ""
        self._doors: dict[str, str] = {}
        self._told_priority: set[str] = set()

    # --- Life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it; `with` does that, too."""
        self._loop = LoopThread()
        try:
            self._service = self._loop.run(self._started())
        except BaseException:
            self._loop.stop()
            self._loop = None
            raise

    def stop(self) -> None:
        """Stop it, and leave nothing behind."""
        loop, self._loop = self._loop, None
        if loop is not None and self._service is not None:
            loop.run(self._service.stop())
            loop.stop()
        if self._token_file:
            Path(self._token_file).unlink(missing_ok=True)
            self._token_file = ""

    async def _started(self) -> Assembly:
        service = Assembly(self._values)

        async def prepare() -> None:
            if self._fleet is not None:
                await self._apply(service, read_fleet(self._fleet))

        service.witness.keep_documents()
        await service.start(prepare, "", self._keep_token)
        return service

    def _keep_token(self, token: str) -> None:
        self._token = token

    @property
    def _running(self) -> Assembly:
        if self._service is None or self._loop is None:
            raise Unavailable(problem="the service does not run: use it within `with Service() as forewarn:`")
        return self._service

    @property
    def loop(self) -> LoopThread:
        """Where it runs."""
        if self._loop is None:
            raise Unavailable(problem="the service does not run: use it within `with Service() as forewarn:`")
        return self._loop

    def look(self, at: Callable[[Engine], T]) -> T:
        """Read something of the engine, in its own thread."""
        return self.loop.call(at, self._running.engine)

    # --- The ways in ----------------------------------------------------------------------------------

    @property
    def metadata_url(self) -> str:
        return self._running.metadata_url

    @property
    def control_url(self) -> str:
        return self._running.control_url

    @property
    def token(self) -> str:
        return self._token

    @property
    def environment(self) -> dict[str, str]:
        if not self._token_file:
            number, self._token_file = tempfile.mkstemp(prefix="forewarn-token-")  # for the owner alone
            with os.fdopen(number, "w") as file:
                file.write(self.token)
        return {"FOREWARN_SERVER": self.control_url, "FOREWARN_TOKEN_FILE": self._token_file}

    # --- The fleet ------------------------------------------------------------------------------------

    def vm(self, name: str, **keys: Any) -> VM:
        """The VM of that name; made, with the keys of a [[vm]] in a fleet file, if there is none. It counts as
        listening at once."""
        if keys or not self.has_vm(name):
            fleet = self.look(lambda engine: add_vm(engine.fleet, name, keys))
            if "priority" in keys:
                self._told_priority.add(name)
            self.loop.run(self._apply(self._running, fleet))
        return VM(self, name)

    def group(self, name: str, vms: int = 0, kind: str = "availability-set", **keys: Any) -> Group:
        """The group of that name; made with so many VMs if `vms` is given. Keys are those of a [[group]] and of a
        [[vm]] in a fleet file."""
        if vms:
            fleet = self.look(lambda engine: add_group(engine.fleet, name, vms, kind, keys))
            if "priority" in keys:
                self._told_priority.update(fleet.members(name))
            self.loop.run(self._apply(self._running, fleet))
        return self.look(self._group(name))

    def _group(self, name: str) -> Callable[[Engine], Group]:
        def find(engine: Engine) -> Group:
            engine.fleet.known_group(name)
            return Group(name, tuple(VM(self, member) for member in engine.fleet.members(name)))

        return find

    @property
    def vms(self) -> list[VM]:
        """All VMs of the fleet."""
        return [VM(self, name) for name in self.look(lambda engine: list(engine.fleet.vms))]

    def has_vm(self, name: str) -> bool:
        """Whether the fleet has it: it may have been deleted."""
        return self.look(lambda engine: name in engine.fleet.vms)

    async def _apply(self, service: Assembly, fleet: Fleet) -> None:
        # VMs are reached by a port of their own that is free: what a file says may be taken by another test.
        fleet = Fleet(
            [vm._replace(listen="") for vm in fleet.vms.values()], fleet.groups.values(), fleet.hosts.values()
        )
        known = set(service.engine.fleet.vms)
        await service.engine.apply_fleet(fleet, OPERATOR)
        if self._listening:
            groups = dict.fromkeys(vm.group for vm in fleet.vms.values() if vm.name not in known)
            await asyncio.gather(*(service.engine.enable(group, by=OPERATOR) for group in groups))

    def endpoint_of(self, name: str) -> str:
        """The URL at which every caller is this VM."""
        if name not in self._doors:
            self.look(lambda engine: engine.fleet.vm(name))  # or it says which there are
            self._doors[name] = f"http://{self.loop.run(self._running.metadata.open_door(name))}"
        return self._doors[name]

    def make_spot(self, name: str) -> None:
        """See to it that the VM can be evicted, unless a test has said what it is."""
        fleet = self.look(lambda engine: engine.fleet)
        vm = fleet.vm(name)
        if vm.priority == "spot":
            return
        if name in self._told_priority:
            raise NotSpot(vm=name, priority=vm.priority)
        changed = {**fleet.vms, name: vm._replace(priority="spot")}
        self.loop.run(self._apply(self._running, Fleet(changed.values(), fleet.groups.values(), fleet.hosts.values())))

    # --- What happens ---------------------------------------------------------------------------------

    def ask(self, cause: str, *vms: VM | str, **options: Any) -> list[Event]:
        """Have anything happen that has a cause (docs/reference.md); the events that it makes, perhaps none."""
        asked = Request(cause, tuple(map(_name, vms)), **options)
        operations = self.loop.run(self._running.engine.order(ask_for, asked, OPERATOR))
        return [self.event(event_id) for operation in operations for event_id in operation.events]

    def ask_for_one(self, asked: Request, vm: str) -> Event:
        """The same of which one VM is to be told; an error, and nothing happens, if it would not be."""
        operations, changes = self.look(lambda engine: engine.preview(ask_for, asked, OPERATOR))
        if not any(vm in event.resources for event in changes.events.values()):
            why = "; ".join(why for operation in operations for _, why in operation.unnoticed)
            raise NobodyTold(vm=vm, cause=asked.cause, problem=why or "it is on no such host")
        operations = self.loop.run(self._running.engine.order(ask_for, asked, OPERATOR))
        events = [self.event(event_id) for operation in operations for event_id in operation.events]
        return next(event for event in events if vm in event.vms)

    def event(self, event_id: str) -> Event:
        """An event by its id, in any letter case."""
        return Event(self._running.engine, self.loop, event_id.lower())

    @property
    def events(self) -> list[Event]:
        """All that are told now."""
        return [self.event(event_id) for event_id in self.look(lambda engine: [e.id for e in engine.live_events()])]

    def fault(
        self,
        kind: str,
        vm: VM | str = "",
        *,
        on: str = "GET",
        count: int | None = None,
        seconds: float | None = None,
        delay: float | None = None,
    ) -> None:
        """Have the endpoint fail on purpose (docs/faults.md), for one VM or for all: so many times, or for so many
        seconds of the service's time; once if neither is said. `delay` is in real seconds."""
        order = FaultOrder(kind, _name(vm), on, count, _seconds(seconds), _seconds(delay))
        self.loop.run(self._running.faults.add(order, OPERATOR))

    def clear_faults(self) -> None:
        """The endpoint is well again."""
        self.loop.run(self._running.faults.clear(None, OPERATOR))

    # --- Time -----------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """What time it is for the service."""
        return self.look(lambda engine: engine.clock.now())

    async def _advance(self, length: timedelta, seen_by: Iterable[str], limit: float) -> datetime:
        service = self._running
        names = list(seen_by)
        if not names:
            return await service.engine.advance(length)
        with service.witness.audience(names, timedelta(seconds=limit)) as audience:
            return await service.engine.advance(length, audience)

    async def _advance_to_start(self, event: Event, seen_by: Iterable[str], limit: float) -> datetime:
        engine = self._running.engine
        now = await event.look()
        if now.status is Status.SCHEDULED:
            left = max(now.not_before - engine.clock.now(), timedelta(0))
            await self._advance(left, seen_by, limit)
            now = await event.look()
        if now.started_at is None:
            raise NeverStarted(event_id=event.id, status=now.status.lower())
        return engine.clock.now()

    # --- What was seen --------------------------------------------------------------------------------

    def documents_seen_by(self, vm: VM | str) -> list[ToldDocument]:
        """Every document that the VM was given, in order; what it was given several times in a row is there once."""
        name = _name(vm)
        given = self.loop.call(self._running.witness.documents, name)
        bodies = [one.body for one in given]
        return [read_document(body) for body, before in zip(bodies, [b"", *bodies], strict=False) if body != before]

    def times_asked_by(self, vm: VM | str) -> int:
        """How often the VM has asked for its document."""
        return self.loop.call(self._running.witness.asks, _name(vm))


def _name(vm: VM | str) -> str:
    return vm if isinstance(vm, str) else vm.name


def _seconds(number: float | None) -> timedelta | None:
    return None if number is None else timedelta(seconds=number)


def names_of(vms: VM | str | Iterable[VM | str]) -> list[str]:
    """The names of VMs, of one or of several."""
    return [_name(vms)] if isinstance(vms, (VM, str)) else [_name(vm) for vm in vms]

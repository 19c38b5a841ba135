"""The fleet of a test: made as it is asked for."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from forewarn.core.fleet import Fleet
from forewarn.errors import NotSpot
from forewarn.testing.choices import read_fleet
from forewarn.testing.entries import add_group, add_vm, said
from forewarn.testing.event import OPERATOR
from forewarn.testing.happening import Happening
from forewarn.testing.names import name_of
from forewarn.testing.vm import VM, Group

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.assembly import Assembly
    from forewarn.engine.engine import Engine


class Making(Happening):
    """Makes VMs and groups, and finds those that are there."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._doors: dict[str, str] = {}
        self._told_priority: set[str] = set()
        self._changing = threading.RLock()
        """Of the fleet, one at a time: a test may have threads."""

    def _forget(self) -> None:
        super()._forget()
        self._doors.clear()
        self._told_priority.clear()

    async def _prepare(self, service: Assembly) -> None:
        if self._fleet is not None:
            await self._apply(service, read_fleet(self._fleet))

    def vm(self, name: VM | str, **keys: Any) -> VM:
        """The VM of that name; made, with the keys of a [[vm]] in a fleet file, if there is none. It counts as
        listening at once. A key that is None is not said."""
        name, keys = name_of(name), said(keys)
        with self._changing:
            if keys or not self.has_vm(name):
                fleet = self.look(lambda engine: add_vm(engine.fleet, name, keys))
                if "priority" in keys:
                    self._told_priority.add(name)
                self.loop.run(self._apply(self._running, fleet))
        return VM(self, name)

    def group(self, name: str, vms: int = 0, kind: str = "availability-set", **keys: Any) -> Group:
        """The group of that name; made with so many VMs if `vms` is given. Keys are those of a [[group]] and of a
        [[vm]] in a fleet file; one that is None is not said."""
        keys = said(keys)
        with self._changing:
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
        if self._listening and not self._values["first_get_delay"]:  # who wants to see it wait has to be the first
            groups = dict.fromkeys(vm.group for vm in fleet.vms.values() if vm.name not in known)
            await asyncio.gather(*(service.engine.enable(group, by=OPERATOR) for group in groups))

    def endpoint_of(self, name: str) -> str:
        """The URL at which every caller is this VM."""
        with self._changing:
            if name not in self._doors:
                self.look(lambda engine: engine.fleet.vm(name))  # or it says which there are
                self._doors[name] = f"http://{self.loop.run(self._running.metadata.open_door(name))}"
            return self._doors[name]

    def make_spot(self, name: str) -> None:
        """See to it that the VM can be evicted, unless a test has said what it is."""
        with self._changing:
            fleet = self.look(lambda engine: engine.fleet)
            vm = fleet.vm(name)
            if vm.priority == "spot":
                return
            if name in self._told_priority:
                raise NotSpot(vm=name, priority=vm.priority)
            vms = {**fleet.vms, name: vm._replace(priority="spot")}
            changed = Fleet(vms.values(), fleet.groups.values(), fleet.hosts.values())
            self.loop.run(self._apply(self._running, changed))

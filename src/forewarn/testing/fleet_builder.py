"""The fleet of a test, which grows as the test names VMs and groups."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forewarn.core.durations import format_duration
from forewarn.core.fleet import Fleet, SetMode
from forewarn.errors import NotSpot, SpotTerminateNotice, UnreadableFile
from forewarn.files.fleet_file import parse_fleet
from forewarn.testing.event import OPERATOR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forewarn.assembly import Assembly
    from forewarn.core import fleet as core
    from forewarn.testing.running_service import RunningService

__tracebackhide__ = True


class FleetBuilder:
    """Adds VMs and groups to the fleet of a running service, and finds existing ones. It knows VMs by name."""

    def __init__(self, running: RunningService, first: str | Path | None, *, enable: bool) -> None:
        """`first` is the fleet at the start: a file, or its text. `enable` enables events for new VMs at once."""
        self._running = running
        self._first = first
        self._enable = enable
        self._endpoints: dict[str, str] = {}
        self._given_priority: set[str] = set()
        self._changing = threading.RLock()
        """Held while the fleet changes, because a test can have threads."""

    async def prepare(self, assembly: Assembly) -> None:
        """Apply the first fleet to a starting service."""
        if self._first is not None:
            await self.apply(assembly, read_fleet(self._first))

    def reset(self) -> None:
        """Forget everything about a service that has stopped."""
        self._endpoints.clear()
        self._given_priority.clear()

    async def apply(self, assembly: Assembly, fleet: Fleet) -> None:
        """Make this the fleet of the service. Call it in the loop of the service."""
        # Each VM gets a free port of its own: another test may use the port that a file gives.
        fleet = Fleet(
            [vm._replace(listen="") for vm in fleet.vms.values()], fleet.groups.values(), fleet.hosts.values()
        )
        known = set(assembly.engine.fleet.vms)
        await assembly.engine.apply_fleet(fleet, OPERATOR)
        if self._enable:
            fleet = assembly.engine.fleet
            scopes = dict.fromkeys(fleet.scope_of(vm) for vm in fleet.vms.values() if vm.name not in known)
            await asyncio.gather(*(assembly.engine.enable(scope, by=OPERATOR) for scope in scopes))

    def _change(self, fleet: Fleet) -> None:
        self._running.loop.run(self.apply(self._running.assembly, fleet))

    # --- VMs --------------------------------------------------------------------------------------

    def ensure_vm(self, name: str, keys: Mapping[str, Any]) -> None:
        """Add the VM, or change it if keys are given."""
        given = without_none(keys)
        with self._changing:
            if given or not self.has_vm(name):
                fleet = self._running.read(lambda engine: add_vm(engine.fleet, name, given))
                if "priority" in given:
                    self._given_priority.add(name)
                self._change(fleet)

    def has_vm(self, name: str) -> bool:
        return self._running.read(lambda engine: name in engine.fleet.vms)

    def events_enabled(self, name: str) -> bool:
        """Return whether events are enabled for the VM."""
        return self._running.read(lambda engine: engine.document(engine.fleet.scope_of(engine.fleet.vm(name))).enabled)

    def vm(self, name: str) -> core.VM:
        """Return the current state of the VM."""
        return self._running.read(lambda engine: engine.fleet.vm(name))

    def vms(self) -> list[str]:
        """Return the names of all VMs."""
        return self._running.read(lambda engine: list(engine.fleet.vms))

    def endpoint(self, name: str) -> str:
        """Return the URL at which every caller is this VM."""
        with self._changing:
            if name not in self._endpoints:
                self.vm(name)  # an unknown VM is an error that names the nearest
                address = self._running.loop.run(self._running.assembly.metadata.listen_for_vm(name))
                self._endpoints[name] = f"http://{address}"
            return self._endpoints[name]

    def make_spot(self, name: str) -> None:
        """Make it a Spot VM, which can be evicted. If the test has set another priority, that is an error."""
        with self._changing:
            fleet = self._running.read(lambda engine: engine.fleet)
            vm = fleet.vm(name)
            if vm.priority == "spot":
                return
            if name in self._given_priority:
                raise NotSpot(vm=name, priority=vm.priority)
            if fleet.group(vm.group).terminate_notice is not None:
                raise SpotTerminateNotice(group=vm.group, vm=name)
            vms = {**fleet.vms, name: vm._replace(priority="spot")}
            self._change(Fleet(vms.values(), fleet.groups.values(), fleet.hosts.values()))

    # --- Groups -----------------------------------------------------------------------------------

    def add_group(self, name: str, vms: int, kind: str, keys: Mapping[str, Any]) -> None:
        """Add a group with this number of VMs."""
        given = without_none(keys)
        with self._changing:
            fleet = self._running.read(lambda engine: add_group(engine.fleet, name, vms, kind, given))
            if "priority" in given:
                self._given_priority.update(fleet.members(name))
            self._change(fleet)

    def members(self, group: str) -> list[str]:
        """Return the names of its VMs."""

        def find(fleet: Fleet) -> list[str]:
            fleet.known_group(group)
            return list(fleet.members(group))

        return self._running.read(lambda engine: find(engine.fleet))


# --- Fleet files ----------------------------------------------------------------------------------


def read_fleet(fleet: str | Path) -> Fleet:
    """Read a fleet from a file, or from text: a path has no line break."""
    if isinstance(fleet, str) and ("[[" in fleet or "\n" in fleet):
        return parse_fleet(fleet, "fleet")
    try:
        return parse_fleet(Path(fleet).read_text("utf-8-sig"), str(fleet))
    except (OSError, UnicodeError) as error:
        raise UnreadableFile(path=fleet, problem=getattr(error, "strerror", None) or "it is not UTF-8") from error


# The arguments of a test become entries of a fleet file, so the same rules and messages apply.


def without_none(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that have a value. A fleet file has no None."""
    return {key: value for key, value in keys.items() if value is not None}


def add_vm(fleet: Fleet, name: str, keys: Mapping[str, Any]) -> Fleet:
    """Return the fleet with this VM, and with the host that it names."""
    text = _hosts(fleet, keys) + _entry("vm", {"name": name, **keys})
    return parse_fleet(text, f"vm({name!r})", beside=fleet)


GROUP_KEYS = (
    *("update_domains", "fault_domains", "auto_approve", "terminate_notice", "windows", "os_image_notice"),
    *("mode", "visibility", "approve_when_down"),
)


def add_group(fleet: Fleet, name: str, vms: int, kind: str, keys: Mapping[str, Any]) -> Fleet:
    """Return the fleet with this group and its VMs. GROUP_KEYS apply to the group, all other keys to its VMs."""
    of_group = {key: value for key, value in keys.items() if key in GROUP_KEYS}
    of_vms = {key: value for key, value in keys.items() if key not in GROUP_KEYS}
    # Azure prescribes the names of scale sets and cloud services.
    names = {"scale-set": {}, "cloud-service": {"name": name}}.get(kind, {"name": f"{name}-{{n}}"})
    if of_group.get("mode") == SetMode.FLEXIBLE:
        names = {"name": f"{name}_{{n}}"}
    text = _entry("group", {"name": name, "kind": kind, **of_group})
    text += _hosts(fleet, of_vms) + _entry("vm", {**names, "group": name, "count": vms, **of_vms})
    return parse_fleet(text, f"group({name!r})", beside=fleet)


def _hosts(fleet: Fleet, keys: Mapping[str, Any]) -> str:
    named = [keys["host"]] if isinstance(keys.get("host"), str) else []
    if isinstance(keys.get("hosts"), (list, tuple)):
        named += [host for host in keys["hosts"] if isinstance(host, str)]
    return "".join(_entry("host", {"name": name}) for name in dict.fromkeys(named) if name not in fleet.hosts)


def _entry(table: str, keys: Mapping[str, Any]) -> str:
    lines = [f"{json.dumps(key, ensure_ascii=False)} = {_value(value)}" for key, value in keys.items()]
    return "\n".join((f"[[{table}]]", *lines, ""))


def _value(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, timedelta):
        return json.dumps(format_duration(value))
    if isinstance(value, dict):
        pairs = without_none(value).items()
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_value(inner)}" for key, inner in pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)

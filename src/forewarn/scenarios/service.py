"""What a run needs of the service: requests to its control API, and the VMs of the run."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from forewarn.core.fleet import VM, Fleet, Group
from forewarn.core.operations import UNKNOWN, UNKNOWN_DURATION
from forewarn.core.scenarios import select_vms
from forewarn.errors import NotFound
from forewarn.files.policy import parse_terminate_notice

if TYPE_CHECKING:
    from forewarn.core.scenarios import RunOptions, Scenario


class ControlAPI(Protocol):
    """Sends requests to the control API. An error response is raised as an error of the same family."""

    def get(self, *path: str, **query: str) -> Any: ...

    def all(self, name: str, *path: str, **query: str) -> dict[str, list[Any]]:
        """Return a complete list, read page by page."""

    def post(self, *path: str, body: dict[str, Any] | None = None) -> Any: ...

    def delete(self, *path: str) -> Any: ...


def select(client: ControlAPI, scenario: Scenario, options: RunOptions) -> list[dict[str, Any]]:
    """Return the VMs of a run. The error says what the scenario needs."""
    if options.vms and not options.group:
        found = [client.get("vms", name) for name in options.vms]
    else:
        query = {"group": options.group} if options.group else {}
        found = client.all("vms", **query)["vms"]
    fleet = Fleet(map(read_vm, found), map(_read_group, client.all("groups")["groups"]))
    names = select_vms(fleet, scenario, options)
    by_name = {vm["name"]: vm for vm in found}
    return [by_name[name] for name in names]


def find_vm(client: ControlAPI, name: str) -> VM | None:
    """Return a VM as it is now; None: it has left the fleet."""
    try:
        return read_vm(client.get("vms", name))
    except NotFound:
        return None


def read_vm(vm: dict[str, Any]) -> VM:
    return VM(
        vm["name"],
        vm["group"],
        vm["host"],
        update_domain=vm["update_domain"],
        priority=vm["priority"],
        deallocated=vm["state"] == "deallocated",
    )


def _read_group(group: dict[str, Any]) -> Group:
    notice = group["terminate_notice"]
    return Group(
        group["name"],
        group["kind"],
        group["update_domains"],
        group["fault_domains"],
        terminate_notice=parse_terminate_notice(notice) if notice else None,
    )


def members(**given: Any) -> dict[str, Any]:
    """Return those members of a request that have a value. Durations become texts."""
    return {name: _text(value) for name, value in given.items() if value not in (None, ())}


def _text(value: Any) -> Any:
    if not isinstance(value, timedelta):
        return value
    return UNKNOWN if value == UNKNOWN_DURATION else f"{value.total_seconds():f}s"

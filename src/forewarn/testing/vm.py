"""VMs and groups of a test, and how a test names a VM."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from forewarn.core.operations import CauseRequest
from forewarn.errors import BadOption
from forewarn.system.http_client import origin_of
from forewarn.testing.client import EVENTS_PATH, NEWEST_VERSION, Unexpected, send
from forewarn.testing.durations import Length, length_of
from forewarn.wire.document_reader import EventsDocument, ScheduledEvent, read_document, start_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.core import fleet as core
    from forewarn.testing.event import Event
    from forewarn.testing.fleet_builder import FleetBuilder
    from forewarn.testing.requests import Requests


_LOOPBACK = "127.0.0.1,localhost"


class VM:
    """A machine of the fleet, with an endpoint of its own."""

    def __init__(self, fleet: FleetBuilder, requests: Requests, name: str) -> None:
        self._fleet = fleet
        self._requests = requests
        self.name = name

    @property
    def group(self) -> str:
        """The name of its group, whose VMs are notified together."""
        return self._now().group

    @property
    def host(self) -> str:
        """The name of the host that it is on."""
        return self._now().host

    @property
    def running(self) -> bool:
        """Whether it exists and is not deallocated."""
        return self._fleet.has_vm(self.name) and not self._now().deallocated

    def _now(self) -> core.VM:
        return self._fleet.vm(self.name)

    # --- For the application under test -----------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """A URL at which every caller counts as this VM, in place of Azure's http://169.254.169.254."""
        return self._fleet.endpoint(self.name)

    @property
    def url(self) -> str:
        """The whole address of its document, in the newest version."""
        return f"{self.endpoint}{EVENTS_PATH}?api-version={NEWEST_VERSION}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a program needs to act as this VM. They exclude it from proxies."""
        through = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        past = f"{through},{_LOOPBACK}" if through else _LOOPBACK
        return {
            "FOREWARN_ENDPOINT": self.endpoint,
            "FOREWARN_VM_NAME": self.name,
            "NO_PROXY": past,
            "no_proxy": past,
        }

    # --- As this VM -------------------------------------------------------------------------------

    def poll(self, version: str = NEWEST_VERSION) -> EventsDocument:
        """Ask for the document over the network, as the application does."""
        target = f"{EVENTS_PATH}?api-version={version}"
        answer = send(origin_of(self.endpoint), "GET", target, {"Metadata": "true"})
        if answer.status != 200:
            raise Unexpected(f"{self.name} was answered {answer.status}: {answer.body.decode(errors='replace')}")
        return read_document(answer.body)

    def approve(self, event: Event | ScheduledEvent | str) -> None:
        """Approve an event, itself or by its id, over the network as the application does."""
        event_id = event if isinstance(event, str) else getattr(event, "id", None)
        if not isinstance(event_id, str):
            raise BadOption(name="event", value=event, problem="pass an event or an event id.")
        target = f"{EVENTS_PATH}?api-version={NEWEST_VERSION}"
        answer = send(origin_of(self.endpoint), "POST", target, {"Metadata": "true"}, start_requests(event_id))
        if answer.status != 200:
            raise Unexpected(f"{self.name} was answered {answer.status}: {answer.body.decode(errors='replace')}")

    # --- What can happen to it --------------------------------------------------------------------

    def restart(self) -> Event:
        """A user restarts it: Reboot."""
        return self._request(CauseRequest("restart", (self.name,)))

    def redeploy(self) -> Event:
        """A user moves it to another host: Redeploy."""
        return self._request(CauseRequest("redeploy", (self.name,)))

    def freeze(self, seconds: Length = 9) -> Event:
        """Its host is updated: Freeze, of all VMs on that host."""
        return self._request(
            CauseRequest("host-update", host=self.host, type="Freeze", duration=length_of("seconds", seconds))
        )

    def migrate(self, seconds: Length = 5) -> Event:
        """It is moved to another host while it runs: Freeze."""
        return self._request(CauseRequest("live-migration", (self.name,), duration=length_of("seconds", seconds)))

    def evict(self) -> Event:
        """Its capacity is needed: Preempt. A VM whose priority the test has not given becomes a Spot VM."""
        self._fleet.make_spot(self.name)
        return self._request(CauseRequest("eviction", (self.name,)))

    def delete(self) -> Event:
        """A user deletes it from its scale set: Terminate, where the set has a `terminate_notice`."""
        return self._request(CauseRequest("delete", (self.name,)))

    def degrade(self) -> Event:
        """Its host is expected to fail: Redeploy, a week ahead."""
        return self._request(CauseRequest("degraded-hardware", host=self.host))

    def fail(self) -> Event:
        """Its host has failed: Redeploy, started at once."""
        return self._request(CauseRequest("hardware-failure", host=self.host))

    def fault(
        self,
        kind: str | int,
        *,
        on: str = "GET",
        count: int | None = None,
        seconds: Length | None = None,
        delay: Length | None = None,
    ) -> None:
        """Make the endpoint fail on purpose for requests of this VM: as Service.fault."""
        self._requests.fault(kind, self, on, count, seconds, delay)

    def _request(self, asked: CauseRequest) -> Event:
        return self._requests.event_for(self.name, asked)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VM) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<VM {self.name}>"


class Group:
    """VMs that are notified together."""

    def __init__(self, name: str, vms: tuple[VM, ...]) -> None:
        self.name = name
        self.vms = vms

    def __iter__(self) -> Iterator[VM]:
        return iter(self.vms)

    def __getitem__(self, number: int) -> VM:
        return self.vms[number]

    def __len__(self) -> int:
        return len(self.vms)

    def __repr__(self) -> str:
        return f"<Group {self.name}: {', '.join(vm.name for vm in self.vms)}>"


# --- Names of VMs ---------------------------------------------------------------------------------


def name_of(vm: object) -> str:
    """The name of a VM that a test gives as itself or by its name."""
    name = vm if isinstance(vm, str) else getattr(vm, "name", None)
    if not isinstance(name, str):
        raise BadOption(name="vm", value=vm, problem='pass the name of a VM, as in "web-0", or the VM itself.')
    return name


def one_name(vm: VM | str) -> str:
    """The same where an empty name would mean all VMs."""
    name = name_of(vm)
    if not name:
        raise BadOption(name="vm", value=name, problem="the name of a VM must not be empty.")
    return name


def names_of(vms: VM | str | Iterable[VM | str] | None) -> list[str]:
    """The names of one VM or of several; None means no VM."""
    if vms is None:
        return []
    if isinstance(vms, Iterable) and not isinstance(vms, str):
        return [name_of(vm) for vm in vms]
    return [name_of(vms)]

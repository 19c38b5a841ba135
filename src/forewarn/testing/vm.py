"""VMs and groups of a test, and the ways to name a VM."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from forewarn.core.operations import CauseRequest
from forewarn.errors import BadOption
from forewarn.system.http_client import origin_of
from forewarn.testing.client import EVENTS_PATH, NEWEST_VERSION, expect_status, send
from forewarn.testing.durations import Duration, read_interruption, read_optional_duration
from forewarn.wire.document_reader import EventsDocument, ScheduledEvent, read_document, start_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.core import fleet as core
    from forewarn.testing.event import Event
    from forewarn.testing.fleet_builder import FleetBuilder
    from forewarn.testing.requests import Requests

__tracebackhide__ = True

_LOOPBACK = "127.0.0.1,localhost"


class VM:
    """A machine of the fleet, with an endpoint of its own."""

    def __init__(self, fleet: FleetBuilder, requests: Requests, name: str) -> None:
        self._fleet = fleet
        self._requests = requests
        self.name = name

    @property
    def group(self) -> str:
        """The name of its group. All VMs of a group see the same events."""
        return self._now().group

    @property
    def host(self) -> str:
        """The name of its host."""
        return self._now().host

    @property
    def running(self) -> bool:
        """Whether it exists and is not deallocated."""
        return self._fleet.has_vm(self.name) and not self._now().deallocated

    @property
    def events_enabled(self) -> bool:
        """Whether events are enabled for it: by its first poll, or by the test kit."""
        return self._fleet.events_enabled(self.name)

    def _now(self) -> core.VM:
        return self._fleet.vm(self.name)

    # --- For the application under test -----------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """A URL at which every caller is this VM. It replaces Azure's http://169.254.169.254."""
        return self._fleet.endpoint(self.name)

    @property
    def url(self) -> str:
        """The URL of its document, with the newest api-version."""
        return f"{self.endpoint}{EVENTS_PATH}?api-version={NEWEST_VERSION}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a program act as this VM, without a proxy."""
        inherited = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        no_proxy = f"{inherited},{_LOOPBACK}" if inherited else _LOOPBACK
        return {
            "FOREWARN_ENDPOINT": self.endpoint,
            "FOREWARN_VM_NAME": self.name,
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
        }

    # --- As this VM -------------------------------------------------------------------------------

    def poll(self, version: str = NEWEST_VERSION) -> EventsDocument:
        """Poll the document over HTTP, as the application does."""
        target = f"{EVENTS_PATH}?api-version={version}"
        response = send(origin_of(self.endpoint), "GET", target, {"Metadata": "true"})
        return read_document(expect_status(response, 200, self.name).body)

    def approve(self, event: Event | ScheduledEvent | str) -> None:
        """Approve an event, or the event with this id, over HTTP as the application does."""
        event_id = event if isinstance(event, str) else getattr(event, "id", None)
        if not isinstance(event_id, str):
            raise BadOption(name="event", value=event, problem="pass an event or an event id.")
        target = f"{EVENTS_PATH}?api-version={NEWEST_VERSION}"
        response = send(origin_of(self.endpoint), "POST", target, {"Metadata": "true"}, start_requests(event_id))
        expect_status(response, 200, self.name)

    # --- What can happen to it --------------------------------------------------------------------

    def restart(self) -> Event:
        """Request a restart by a user: a Reboot."""
        return self._request(CauseRequest("restart", (self.name,)))

    def reboot(self) -> Event:
        """The same as `restart`, by the name of the event type."""
        return self.restart()

    def redeploy(self) -> Event:
        """Request a move to another host by a user: a Redeploy."""
        return self._request(CauseRequest("redeploy", (self.name,)))

    def freeze(self, seconds: Duration = 9) -> Event:
        """Request an update of its host: a Freeze of all VMs on that host. Its duration can be 0 or "unknown"."""
        return self._request(
            CauseRequest("host-update", host=self.host, type="Freeze", duration=read_interruption("seconds", seconds))
        )

    def migrate(self, seconds: Duration = 5) -> Event:
        """Request a live migration to another host: a Freeze."""
        duration = read_interruption("seconds", seconds)
        return self._request(CauseRequest("live-migration", (self.name,), duration=duration))

    def evict(self, *, notice: Duration | None = None) -> Event:
        """Request its eviction: a Preempt. The VM becomes a Spot VM, unless the test has set its priority.

        The `notice` can be shorter than the minimum of 30 seconds. With 0, the event is Started at once.
        """
        self._fleet.make_spot(self.name)
        length = read_optional_duration("notice", notice)
        return self._request(CauseRequest("eviction", (self.name,), notice=length, overrides=("notice",)))

    def rebalance(self) -> Event:
        """Recommend that it moves its work: an advisory, which only the preview api-version shows (setting
        `preview_versions`). The VM becomes a Spot VM, unless the test has set its priority."""
        self._fleet.make_spot(self.name)
        return self._request(CauseRequest("rebalance", (self.name,)))

    def delete(self) -> Event:
        """Request its deletion by a user: a Terminate, if it or its scale set has a `terminate_notice`."""
        return self._request(CauseRequest("delete", (self.name,)))

    def reimage(self) -> Event:
        """Request a new OS disk by a user: a Reboot, if its scale set has an `os_image_notice`."""
        return self._request(CauseRequest("reimage", (self.name,)))

    def upgrade_image(self) -> Event:
        """Request a new OS disk by its scale set: a Reboot, if the scale set has an `os_image_notice`."""
        return self._request(CauseRequest("image-upgrade", (self.name,)))

    def scale_in(self) -> Event:
        """Let its scale set remove it: a Terminate, if the scale set has a `terminate_notice`."""
        return self._request(CauseRequest("scale-in", (self.name,)))

    def replace(self) -> Event:
        """Let its scale set replace it as unhealthy: a Terminate, if the scale set has a `terminate_notice`."""
        return self._request(CauseRequest("instance-repair", (self.name,)))

    def start(self) -> None:
        """Start it after an eviction. There is no event."""
        self._requests.operations("start", [self.name], {})

    def repair_host(self) -> Event:
        """Request an urgent repair of its host: a Reboot of all VMs on that host."""
        return self._request(CauseRequest("emergency-repair", host=self.host))

    def degrade(self) -> Event:
        """Report that its host is expected to fail: a Freeze with a week of notice, for a live migration."""
        return self._request(CauseRequest("degraded-hardware", host=self.host))

    def fail(self) -> Event:
        """Report that its host has failed: a Reboot that starts at once, on another host."""
        return self._request(CauseRequest("hardware-failure", host=self.host))

    def fault(
        self,
        kind: str | int,
        *,
        method: str = "GET",
        count: int | None = None,
        duration: Duration | None = None,
        delay: Duration | None = None,
    ) -> None:
        """Let the endpoint fail for requests of this VM. See Service.fault."""
        self._requests.fault(kind, self, method, count, duration, delay)

    def _request(self, requested: CauseRequest) -> Event:
        return self._requests.event_for(self.name, requested)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VM) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<VM {self.name}>"


class Group:
    """A group of VMs. All of them see the same events."""

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
    """Return the name of a VM. A test passes the VM or its name."""
    name = vm if isinstance(vm, str) else getattr(vm, "name", None)
    if not isinstance(name, str):
        raise BadOption(name="vm", value=vm, problem='pass the name of a VM, as in "web-0", or the VM itself.')
    return name


def one_name(vm: VM | str) -> str:
    """Return the name of a VM, where an empty name would mean all VMs."""
    name = name_of(vm)
    if not name:
        raise BadOption(name="vm", value=name, problem="the name of a VM must not be empty.")
    return name


def names_of(vms: VM | str | Iterable[VM | str] | None) -> list[str]:
    """Return the names of one VM or several. None means no VM."""
    if vms is None:
        return []
    if isinstance(vms, Iterable) and not isinstance(vms, str):
        return [name_of(vm) for vm in vms]
    return [name_of(vms)]

"""VMs and groups, as a test has things happen to them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forewarn.core.operations import Request
from forewarn.errors import BadOption
from forewarn.testing.lengths import Length, length_of
from forewarn.testing.reach import EVENTS_PATH, NEWEST_VERSION, Unexpected, address_in, send
from forewarn.wire.document_reader import ToldDocument, ToldEvent, read_document, start_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.core import fleet as core
    from forewarn.testing.event import Event
    from forewarn.testing.making import Making

_LOOPBACK = "127.0.0.1,localhost"


class VM:
    """A machine of the fleet, with an endpoint of its own."""

    def __init__(self, kit: Making, name: str) -> None:
        self._kit = kit
        self.name = name

    @property
    def group(self) -> str:
        """The name of the group that it is told with."""
        return self._now().group

    @property
    def host(self) -> str:
        """The name of the host that it is on."""
        return self._now().host

    @property
    def running(self) -> bool:
        """Whether it is there and not deallocated."""
        return self._kit.has_vm(self.name) and not self._now().deallocated

    def _now(self) -> core.VM:
        return self._kit.look(lambda engine: engine.fleet.vm(self.name))

    # --- For the application under test ---------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """A URL at which every caller is this VM: in the place of Azure's http://169.254.169.254."""
        return self._kit.endpoint_of(self.name)

    @property
    def url(self) -> str:
        """The whole address of its document, in the newest version."""
        return f"{self.endpoint}{EVENTS_PATH}?api-version={NEWEST_VERSION}"

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to be this VM, as variables. A proxy must not come in between."""
        through = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        past = f"{through},{_LOOPBACK}" if through else _LOOPBACK
        return {
            "FOREWARN_ENDPOINT": self.endpoint,
            "FOREWARN_VM_NAME": self.name,
            "NO_PROXY": past,
            "no_proxy": past,
        }

    # --- As this VM -----------------------------------------------------------------------------------

    def poll(self, version: str = NEWEST_VERSION) -> ToldDocument:
        """Ask for the document over the network, as the application does."""
        target = f"{EVENTS_PATH}?api-version={version}"
        answer = send(address_in(self.endpoint), "GET", target, {"Metadata": "true"})
        if answer.status != 200:
            raise Unexpected(f"{self.name} was answered {answer.status}: {answer.body.decode(errors='replace')}")
        return read_document(answer.body)

    def approve(self, event: Event | ToldEvent | str) -> None:
        """Approve an event, itself or by its id, over the network as the application does."""
        event_id = event if isinstance(event, str) else getattr(event, "id", None)
        if not isinstance(event_id, str):
            raise BadOption(name="event", value=event, problem="give an event, or the id of one.")
        target = f"{EVENTS_PATH}?api-version={NEWEST_VERSION}"
        answer = send(address_in(self.endpoint), "POST", target, {"Metadata": "true"}, start_requests(event_id))
        if answer.status != 200:
            raise Unexpected(f"{self.name} was answered {answer.status}: {answer.body.decode(errors='replace')}")

    # --- What can happen to it ------------------------------------------------------------------------

    def restart(self) -> Event:
        """A user restarts it: Reboot."""
        return self._ask(Request("restart", (self.name,)))

    def redeploy(self) -> Event:
        """A user has it moved to another host: Redeploy."""
        return self._ask(Request("redeploy", (self.name,)))

    def freeze(self, seconds: Length = 9) -> Event:
        """Its host is updated: Freeze, of all VMs on that host."""
        return self._ask(Request("host-update", host=self.host, type="Freeze", duration=length_of("seconds", seconds)))

    def migrate(self, seconds: Length = 5) -> Event:
        """It is moved to another host while it runs: Freeze."""
        return self._ask(Request("live-migration", (self.name,), duration=length_of("seconds", seconds)))

    def evict(self) -> Event:
        """Its room is needed: Preempt. A VM for which no priority was asked becomes one of Spot."""
        self._kit.make_spot(self.name)
        return self._ask(Request("eviction", (self.name,)))

    def delete(self) -> Event:
        """A user deletes it from its scale set: Terminate, where the set has a `terminate_notice`."""
        return self._ask(Request("delete", (self.name,)))

    def degrade(self) -> Event:
        """Its host is expected to fail: Redeploy, a week ahead."""
        return self._ask(Request("degraded-hardware", host=self.host))

    def fail(self) -> Event:
        """Its host has failed: Redeploy, started at once."""
        return self._ask(Request("hardware-failure", host=self.host))

    def fault(
        self,
        kind: str | int,
        *,
        on: str = "GET",
        count: int | None = None,
        seconds: Length | None = None,
        delay: Length | None = None,
    ) -> None:
        """Have the endpoint fail on purpose when this VM asks: as Service.fault."""
        self._kit.fault(kind, self, on=on, count=count, seconds=seconds, delay=delay)

    def _ask(self, asked: Request) -> Event:
        return self._kit.ask_for_one(asked, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VM) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<VM {self.name}>"


class Group:
    """VMs that are told together."""

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

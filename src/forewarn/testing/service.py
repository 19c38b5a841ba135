"""Service for ordinary tests and AsyncService for asynchronous ones. They differ where a test has to wait."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from forewarn.core.events import EventStatus
from forewarn.core.scenarios import RunOptions, RunStatus
from forewarn.errors import EventDidNotStart
from forewarn.files.fleet_file import parse_fleet
from forewarn.scenarios import library
from forewarn.testing.client import Reachable
from forewarn.testing.durations import Length, distance, limit_of
from forewarn.testing.event import OPERATOR
from forewarn.testing.fleet_builder import FleetBuilder
from forewarn.testing.requests import Requests
from forewarn.testing.running_service import RunningService, read_settings
from forewarn.testing.vm import VM, Group, name_of, names_of
from forewarn.wire.document_reader import EventsDocument, read_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime
    from pathlib import Path
    from typing import Self

    from forewarn.core.scenarios import Run
    from forewarn.testing.event import Event


class BaseService:
    """The part of Service and AsyncService that is the same in both: all that returns at once.

    The requests over the network are those of Reachable. What waits is here as coroutines, for the service's own loop.
    """

    def __init__(self, fleet: str | Path | None = None, *, listening: bool = True, **settings: Any) -> None:
        """Like `forewarn up` with these settings, but in memory, in virtual time and on free ports unless they say
        otherwise. `fleet` is a fleet file, or the text of one. Without `listening` no VM is notified before its first
        poll."""
        values = read_settings(settings)
        self._running = RunningService(values)
        # With a delay of the first poll, a test wants to see that poll: the VM must not be enabled before.
        self._fleet = FleetBuilder(self._running, fleet, enable=listening and not values["first_get_delay"])
        self._requests = Requests(self._running)

    def start(self) -> None:
        """Start it; `with` does that, too."""
        self._running.start(self._fleet.prepare)

    def stop(self) -> None:
        """Stop it, and leave nothing behind."""
        try:
            self._running.stop()
        finally:
            self._fleet.reset()

    # --- Addresses and credentials ----------------------------------------------------------------

    @property
    def metadata_url(self) -> str:
        return self._running.metadata_url

    @property
    def control_url(self) -> str:
        return self._running.control_url

    @property
    def token(self) -> str:
        return self._running.token

    @property
    def certificate(self) -> str:
        return self._running.certificate

    @property
    def environment(self) -> dict[str, str]:
        return self._running.environment

    # --- The fleet --------------------------------------------------------------------------------

    def vm(self, name: VM | str, **keys: Any) -> VM:
        """The VM of that name. It is added, with the keys of a [[vm]] in a fleet file, if there is none. It counts as
        listening at once. A key that is None counts as not given."""
        name = name_of(name)
        self._fleet.ensure_vm(name, keys)
        return self._vm(name)

    def group(self, name: str, vms: int = 0, kind: str = "availability-set", **keys: Any) -> Group:
        """The group of that name. It is added with this number of VMs if `vms` is given. Keys are those of a [[group]]
        and of a [[vm]] in a fleet file; a key that is None counts as not given."""
        if vms:
            self._fleet.add_group(name, vms, kind, keys)
        return Group(name, tuple(map(self._vm, self._fleet.members(name))))

    @property
    def vms(self) -> list[VM]:
        """All VMs of the fleet."""
        return [self._vm(name) for name in self._fleet.vms()]

    def has_vm(self, name: str) -> bool:
        """Whether the fleet has it: it may have been deleted."""
        return self._fleet.has_vm(name)

    def endpoint_of(self, name: str) -> str:
        """The URL at which every caller counts as this VM."""
        return self._fleet.endpoint(name)

    def _vm(self, name: str) -> VM:
        return VM(self._fleet, self._requests, name)

    # --- Operations, events and faults ------------------------------------------------------------

    def ask(self, cause: str, *vms: VM | str, **options: Any) -> list[Event]:
        """Request an operation of any cause (docs/reference/events.md); the events that it makes, perhaps none.

        Options are host, type, duration, notice, postpone_deadline, overrides and speed. A duration is a number of
        seconds, a text like "9s", or a timedelta.
        """
        return self._requests.operations(cause, vms, options)

    def event(self, event_id: str) -> Event:
        """An event by its id, in any letter case."""
        return self._requests.event(event_id)

    @property
    def events(self) -> list[Event]:
        """The events that VMs see now."""
        return self._requests.live_events()

    def fault(
        self,
        kind: str | int,
        vm: VM | str | None = None,
        *,
        on: str = "GET",
        count: int | None = None,
        seconds: Length | None = None,
        delay: Length | None = None,
    ) -> None:
        """Make the endpoint fail on purpose (docs/how-to/faults.md), for one VM or for all.

        It fails `count` times, or for that many `seconds` of the service's time. The default is once.
        `delay` is in real seconds.
        """
        self._requests.fault(kind, vm, on, count, seconds, delay)

    def clear_faults(self) -> None:
        """Remove all faults of the endpoint."""
        self._requests.clear_faults()

    # --- Time -------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The service's time."""
        return self._running.read(lambda engine: engine.clock.now())

    async def _advance(self, length: timedelta, seen_by: list[str], limit: Length | None) -> datetime:
        assembly = self._running.assembly
        allowed = limit_of(limit, seen_by)
        if not seen_by:
            return await assembly.engine.advance(length)
        with assembly.metadata.delivery_tracker.barrier(seen_by, allowed) as barrier:
            return await assembly.engine.advance(length, barrier)

    async def _advance_to_start(self, event: Event | str, seen_by: list[str], limit: Length | None) -> datetime:
        engine = self._running.assembly.engine
        event = self.event(event) if isinstance(event, str) else event
        now = await event.look()
        if now.status is EventStatus.SCHEDULED:
            left = max(now.not_before - engine.clock.now(), timedelta(0))
            await self._advance(left, seen_by, limit)
            now = await event.look()
        if now.started_at is None:
            raise EventDidNotStart(event_id=event.id, status=now.status.lower())
        return engine.clock.now()

    async def _play(self, name: str | Path, vms: Iterable[str], group: str, seen_by: Iterable[str]) -> Run:
        assembly = self._running.assembly
        scenario, _ = library.find(str(name))
        if not assembly.engine.fleet.vms and scenario.fleet:
            await self._fleet.apply(assembly, parse_fleet(scenario.fleet, f"the fleet of {scenario.name}"))
        options = RunOptions(vms=tuple(vms), group=group, seen_by=tuple(seen_by))
        started = await assembly.scenario_runs.start(scenario, options, OPERATOR)
        run = await assembly.scenario_runs.finished(started.id)
        if run.status is not RunStatus.PASSED:
            raise ScenarioFailed(run)
        return run

    # --- What was seen ----------------------------------------------------------------------------

    def documents_seen_by(self, vm: VM | str) -> list[EventsDocument]:
        """Every document that the VM received, in order. A document that it received several times in a row is there
        once."""
        name = self._once_known(vm)
        received = self._running.loop.call(self._running.assembly.metadata.delivery_tracker.documents, name)
        return [read_document(one.body) for one in received]

    def times_asked_by(self, vm: VM | str) -> int:
        """How often the VM has polled its document."""
        name = self._once_known(vm)
        return self._running.loop.call(self._running.assembly.metadata.delivery_tracker.polls, name)

    def _once_known(self, vm: VM | str) -> str:
        """The name of a VM that exists, or that has polled while it existed."""
        name = name_of(vm)
        if not self._running.loop.call(self._running.assembly.metadata.delivery_tracker.polls, name):
            self._fleet.vm(name)  # an unknown VM is an error that names the nearest
        return name


class Service(BaseService, Reachable):
    """The whole service, for `with Service() as forewarn:` and the fixture `forewarn`."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def advance(
        self,
        length: timedelta | str | None = None,
        *,
        seen_by: VM | str | Iterable[VM | str] | None = (),
        limit: Length | None = None,
        **units: float,
    ) -> datetime:
        """Move the clock on, by `minutes=15` or "15m"; returns when everything due by then is done.

        It waits for an application only if `seen_by` names VMs. Then it moves from deadline to deadline, and at each
        one it waits until each of these VMs has received its document and has polled again. If that takes a VM longer
        than `limit`, 30 seconds of real time by default, it is an error, and the clock stays at that deadline.
        """
        return self._running.loop.run(self._advance(distance(length, units), names_of(seen_by), limit))

    def advance_to_start(
        self, event: Event | str, *, seen_by: VM | str | Iterable[VM | str] | None = (), limit: Length | None = None
    ) -> datetime:
        """Move the clock to the start of the event. An approval may have started it before."""
        return self._running.loop.run(self._advance_to_start(event, names_of(seen_by), limit))

    def play(
        self,
        scenario: str | Path,
        vms: VM | str | Iterable[VM | str] | None = (),
        *,
        group: str = "",
        seen_by: VM | str | Iterable[VM | str] | None = (),
    ) -> Run:
        """Run a scenario to its end (docs/how-to/scenarios.md), one that comes with Forewarn, or your own by its path.

        If no VM is named, it takes VMs that fit; if the fleet is empty, it adds its own fleet. If a step fails, an
        AssertionError says which.
        """
        return self._running.loop.run(self._play(scenario, names_of(vms), group, names_of(seen_by)))


class AsyncService(BaseService, Reachable):
    """The whole service, for `async with AsyncService() as forewarn:`.

    It runs in a thread of its own. Methods that only request something return at once and are not awaited. Methods
    that wait for the application under test, which may run in this loop, are awaited.
    """

    async def __aenter__(self) -> Self:
        try:
            await _run_in_thread(self.start)
        except asyncio.CancelledError:
            await _run_in_thread(self.stop)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await _run_in_thread(self.stop)

    async def advance(
        self,
        length: timedelta | str | None = None,
        *,
        seen_by: VM | str | Iterable[VM | str] | None = (),
        limit: Length | None = None,
        **units: float,
    ) -> datetime:
        """As Service.advance."""
        return await asyncio.wrap_future(
            self._running.loop.submit(self._advance(distance(length, units), names_of(seen_by), limit))
        )

    async def advance_to_start(
        self, event: Event | str, *, seen_by: VM | str | Iterable[VM | str] | None = (), limit: Length | None = None
    ) -> datetime:
        """As Service.advance_to_start."""
        return await asyncio.wrap_future(
            self._running.loop.submit(self._advance_to_start(event, names_of(seen_by), limit))
        )

    async def play(
        self,
        scenario: str | Path,
        vms: VM | str | Iterable[VM | str] | None = (),
        *,
        group: str = "",
        seen_by: VM | str | Iterable[VM | str] | None = (),
    ) -> Run:
        """As Service.play."""
        return await asyncio.wrap_future(
            self._running.loop.submit(self._play(scenario, names_of(vms), group, names_of(seen_by)))
        )


async def _run_in_thread(work: Callable[[], None]) -> None:
    """Run it in a thread to its end. A thread cannot be cancelled, so a cancellation is raised after that."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        running.exception()  # it has been seen
        raise cancelled
    running.result()


class ScenarioFailed(AssertionError):
    """A scenario did not go as expected. `run` has every step."""

    def __init__(self, run: Run) -> None:
        self.run = run
        lines = [f"{run.scenario.name} {run.status}:"]
        for step in run.steps:
            problem = f": {step.error}" if step.error else ""
            lines.append(f"  {step.status:<8}{step.title}{problem}")
        super().__init__("\n".join(lines))

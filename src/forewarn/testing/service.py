"""Service for ordinary tests and AsyncService for asynchronous ones. They differ in the methods that wait."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from forewarn.core.events import EventStatus
from forewarn.core.scenarios import RunOptions, RunStatus
from forewarn.errors import EventDidNotStart, EventIsAdvisory
from forewarn.files.fleet_file import parse_fleet
from forewarn.scenarios import library
from forewarn.scenarios.run import ScenarioRun
from forewarn.testing.client import ControlRequests, ServiceClient
from forewarn.testing.durations import Duration, read_step, read_timeout
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

    from forewarn.assembly import FixedLimits
    from forewarn.core.scenarios import Run
    from forewarn.testing.event import Event

__tracebackhide__ = True


class BaseService:
    """The common part of Service and AsyncService: all methods that return at once.

    ServiceClient has the requests over the network. Methods that wait are coroutines here, for the loop of the service.
    """

    def __init__(
        self,
        fleet: str | Path | None = None,
        *,
        enable_groups: bool = True,
        limits: FixedLimits | None = None,
        **settings: Any,
    ) -> None:
        """Create a service like `forewarn up` with these settings. The defaults are data in memory, a virtual clock and
        free ports. `fleet` is a fleet file, or its text. With `enable_groups=False` a VM gets no notices before its
        first poll. `limits` replaces limits that are not settings; the tests of Forewarn use it."""
        values = read_settings(settings)
        self._running = RunningService(values, limits)
        # A test of the first poll's delay needs that poll to enable events.
        self._fleet = FleetBuilder(self._running, fleet, enable=enable_groups and not values["first_get_delay"])
        self._requests = Requests(self._running)

    def start(self) -> None:
        """Start it. A `with` block does the same."""
        self._running.start(self._fleet.prepare)

    def stop(self) -> None:
        """Stop it, and remove all its files."""
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
        """Return the VM with this name. If there is none, add it with these keys of a [[vm]] in a fleet file.

        A key with the value None is ignored.
        """
        name = name_of(name)
        self._fleet.ensure_vm(name, keys)
        return self._vm(name)

    def group(self, name: str, vms: int = 0, kind: str = "availability-set", **keys: Any) -> Group:
        """Return the group with this name. If `vms` is given, add it with that number of VMs. Keys are those of a
        [[group]] and of a [[vm]] in a fleet file. A key with the value None is ignored."""
        if vms:
            self._fleet.add_group(name, vms, kind, keys)
        return Group(name, tuple(map(self._vm, self._fleet.members(name))))

    @property
    def vms(self) -> list[VM]:
        """All VMs of the fleet."""
        return [self._vm(name) for name in self._fleet.vms()]

    def has_vm(self, name: str) -> bool:
        """Return whether the VM exists. An operation can have deleted it."""
        return self._fleet.has_vm(name)

    def endpoint_of(self, name: str) -> str:
        """Return the URL at which every caller is this VM."""
        return self._fleet.endpoint(name)

    def _vm(self, name: str) -> VM:
        return VM(self._fleet, self._requests, name)

    # --- Operations, events and faults ------------------------------------------------------------

    def request_operation(self, cause: str, *vms: VM | str, **options: Any) -> list[Event]:
        """Request an operation of any cause (docs/reference/events.md). Return its events, perhaps none.

        Options are host, type, duration, notice, postpone_deadline, overrides, description and speed. A duration is a
        number of seconds, a text like "9s", or a timedelta. The duration of a Freeze can also be "unknown".
        """
        return self._requests.operations(cause, vms, options)

    def event(self, event_id: str) -> Event:
        """Return the event with this id, in any letter case."""
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
        method: str = "GET",
        count: int | None = None,
        duration: Duration | None = None,
        delay: Duration | None = None,
    ) -> None:
        """Let the endpoint fail (docs/how-to/faults.md), for one VM or for all.

        It fails `count` times, or for a `duration` of the service's time. The default is once. `delay` is in real time.
        A duration or delay given as a number is in seconds.
        """
        self._requests.fault(kind, vm, method, count, duration, delay)

    def clear_faults(self) -> None:
        """Remove all faults of the endpoint."""
        self._requests.clear_faults()

    # --- Time -------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The service's time."""
        return self._running.read(lambda engine: engine.clock.now())

    async def _advance(self, duration: timedelta, seen_by: list[str], step_timeout: Duration | None) -> datetime:
        assembly = self._running.assembly
        wait_at_most = read_timeout(step_timeout, seen_by)
        if not seen_by:
            return await assembly.engine.advance(duration)
        with assembly.metadata.delivery_tracker.barrier(seen_by, wait_at_most) as barrier:
            return await assembly.engine.advance(duration, barrier)

    async def _advance_to_start(
        self, event: Event | str, seen_by: list[str], step_timeout: Duration | None
    ) -> datetime:
        engine = self._running.assembly.engine
        event = self.event(event) if isinstance(event, str) else event
        current = await event.load()
        if current.status is EventStatus.SCHEDULED:
            remaining = max(current.not_before - engine.clock.now(), timedelta(0))
            await self._advance(remaining, seen_by, step_timeout)
            current = await event.load()
        if current.status is EventStatus.ADVISORY:
            raise EventIsAdvisory(event_id=current.id)
        if current.started_at is None:
            raise EventDidNotStart(event_id=current.id, status=current.status.lower())
        return engine.clock.now()

    def _run_scenario(
        self,
        client: ControlRequests,
        name: str | Path,
        options: RunOptions,
        on_start: Callable[[ScenarioRun], None] = lambda run: None,
    ) -> Run:
        scenario, _ = library.find(str(name))
        if not self.vms and scenario.fleet:
            fleet = parse_fleet(scenario.fleet, f"fleet of {scenario.name}")
            self._running.loop.run(self._fleet.apply(self._running.assembly, fleet))
        scenario_run = ScenarioRun(client, scenario, options)
        on_start(scenario_run)
        run = scenario_run.run_to_end()
        if run.status is not RunStatus.PASSED:
            raise ScenarioFailed(run)
        return run

    # --- Polls and documents ----------------------------------------------------------------------------

    def documents_seen_by(self, vm: VM | str) -> list[EventsDocument]:
        """Return every document that the VM received, in order, without consecutive duplicates."""
        name = self._known_name(vm)
        received = self._running.loop.call(self._running.assembly.metadata.delivery_tracker.documents, name)
        return [read_document(one.body) for one in received]

    def poll_count(self, vm: VM | str) -> int:
        """Return how often the VM has polled its document."""
        name = self._known_name(vm)
        return self._running.loop.call(self._running.assembly.metadata.delivery_tracker.polls, name)

    def _known_name(self, vm: VM | str) -> str:
        """Return the name of a VM that exists, or that polled before it was deleted."""
        name = name_of(vm)
        if not self._running.loop.call(self._running.assembly.metadata.delivery_tracker.polls, name):
            self._fleet.vm(name)  # an unknown VM is an error that names the nearest
        return name


class Service(BaseService, ServiceClient):
    """The whole service, for `with Service() as forewarn:` and the fixture `forewarn`."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def advance(
        self,
        duration: timedelta | str | None = None,
        *,
        seen_by: VM | str | Iterable[VM | str] | None = (),
        timeout: Duration | None = None,
        **units: float,
    ) -> datetime:
        """Move the clock, by `minutes=15` or "15m". It returns when everything due is done.

        It waits for an application only if `seen_by` names VMs. Then it moves from deadline to deadline. At each one it
        waits until each of these VMs has received its document and has polled again. If a VM needs more than `timeout`
        (default: 30 seconds of real time), it raises an error, and the clock stays at that deadline.
        """
        return self._running.loop.run(self._advance(read_step(duration, units), names_of(seen_by), timeout))

    def advance_to_start(
        self, event: Event | str, *, seen_by: VM | str | Iterable[VM | str] | None = (), timeout: Duration | None = None
    ) -> datetime:
        """Move the clock to the start of the event. If it has started already, the clock does not move."""
        return self._running.loop.run(self._advance_to_start(event, names_of(seen_by), timeout))

    def run_scenario(
        self,
        scenario: str | Path,
        vms: VM | str | Iterable[VM | str] | None = (),
        *,
        group: str = "",
        seen_by: VM | str | Iterable[VM | str] | None = (),
    ) -> Run:
        """Run a scenario to its end (docs/how-to/scenarios.md): a built-in one by its name, or your own by its path.

        Without `vms` it selects VMs that fit. In an empty fleet it creates its own fleet. If a step fails, an
        AssertionError names the step.
        """
        options = RunOptions(tuple(names_of(vms)), group, seen_by=tuple(names_of(seen_by)))
        return self._run_scenario(ControlRequests(self), scenario, options)


class AsyncService(BaseService, ServiceClient):
    """The whole service, for `async with AsyncService() as forewarn:`.

    It runs in its own thread. Methods that only send a request return at once and are not awaited. Methods that can
    wait for the application under test are awaited, because the application can run in the same loop.
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
        duration: timedelta | str | None = None,
        *,
        seen_by: VM | str | Iterable[VM | str] | None = (),
        timeout: Duration | None = None,  # noqa: ASYNC109 - as in Service; it limits each step
        **units: float,
    ) -> datetime:
        """See Service.advance."""
        return await self._running.loop.run_async(self._advance(read_step(duration, units), names_of(seen_by), timeout))

    async def advance_to_start(
        self,
        event: Event | str,
        *,
        seen_by: VM | str | Iterable[VM | str] | None = (),
        timeout: Duration | None = None,  # noqa: ASYNC109 - as in Service; it limits each step
    ) -> datetime:
        """See Service.advance_to_start."""
        return await self._running.loop.run_async(self._advance_to_start(event, names_of(seen_by), timeout))

    async def run_scenario(
        self,
        scenario: str | Path,
        vms: VM | str | Iterable[VM | str] | None = (),
        *,
        group: str = "",
        seen_by: VM | str | Iterable[VM | str] | None = (),
    ) -> Run:
        """See Service.run_scenario."""
        options = RunOptions(tuple(names_of(vms)), group, seen_by=tuple(names_of(seen_by)))
        runs: list[ScenarioRun] = []
        try:
            return await asyncio.to_thread(self._run_scenario, ControlRequests(self), scenario, options, runs.append)
        except asyncio.CancelledError:
            for run in runs:
                run.pace.stop()
            raise


async def _run_in_thread(work: Callable[[], None]) -> None:
    """Run the work in a thread to its end. A thread cannot be cancelled, so a cancellation is raised afterwards."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        running.exception()  # mark it as retrieved, so that asyncio does not log it
        raise cancelled
    running.result()


class ScenarioFailed(AssertionError):
    """A step of a scenario failed. `run` has all steps."""

    def __init__(self, run: Run) -> None:
        self.run = run
        lines = [f"{run.scenario.name} {run.status}:"]
        for step in run.steps:
            problem = f": {step.error}" if step.error else ""
            lines.append(f"  {step.status:<8}{step.title}{problem}")
        super().__init__("\n".join(lines))

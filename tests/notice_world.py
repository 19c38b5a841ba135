"""A whole service in this process with a fabric that takes time, VMs that poll, and the checker of notices.

A step is a name with arguments, and `World.do` executes it: a request, a fleet file, a restart, time that passes. So a
test can write a list of steps, or draw it at random. The service is `forewarn up` in this process. It is driven over
HTTP. The checker gets only what is visible from outside (notice_checker.py).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from forewarn.cli.up import ForegroundService
from forewarn.clock import SystemClock
from forewarn.errors import ForewarnError, WorkFailed
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.settings import resolve
from forewarn.system.service_files import FILE, TOKEN_FILE
from forewarn.testing.client import DOCUMENT, address_in
from forewarn.testing.loop_thread import LoopThread
from forewarn.wire.document_reader import start_requests
from notice_checker import NoticeChecker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Self

    from forewarn.engine.engine import Engine
    from forewarn.ports import Clock, MachineState, WorkOrder

Step = tuple[Any, ...]
HOSTS = ("A", "B", "C")
VMS = ("x", "sp", "y", "web-0", "web-1", "set_0", "quiet")
NEW_VMS = ("n-0", "n-1", "web-2")
FLEET: dict[str, dict[str, Any]] = {
    "x": {"host": "A"},
    "sp": {"host": "A", "priority": "spot", "eviction_policy": "deallocate"},
    "y": {"host": "B"},
    "web-0": {"group": "web", "host": "A", "update_domain": 0},
    "web-1": {"group": "web", "host": "B", "update_domain": 1},
    "set_0": {"group": "set", "host": "B"},
    "quiet": {"host": "A"},
}
"""The VMs of the first fleet. `quiet` does not poll until a step lets it."""
GROUPS = """
[[group]]
name = "web"
kind = "availability-set"

[[group]]
name = "set"
kind = "scale-set"
terminate_notice = "PT5M"
"""
START = datetime(2041, 5, 6, 7, 8, 9, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MAX_SUBSTEPS = 400
MAX_ORDERS = 100
"""At the same time."""
LONGEST_WAIT_SECONDS = 60


class Variant(NamedTuple):
    """What kind of fabric and clock a world has."""

    spares: bool = True
    """The fabric can add hosts."""
    chooses: bool = False
    """The fabric chooses hosts itself, and reports them."""
    real_clock: bool = False
    """The service uses the system clock of a machine whose time the test moves: it also passes while the service is
    down. Work takes no time then."""


class Refused(Exception):
    """The service has refused a step."""


class RecordingFabric(SimulatedFabric):
    """Tells the world when each order begins and ends. What it knows survives restarts of the service."""

    def __init__(self, clock: Clock, world: World) -> None:
        super().__init__(clock)
        self._world = world
        self._done, self._machines = world.done, world.machines
        self.makes_hosts = world.variant.spares
        self.delay = world.delay

    async def _execute(
        self, order: WorkOrder, change: Callable[[MachineState], MachineState], *, permanent: bool = False
    ) -> None:
        world = self._world
        if order.operation in self._done:
            return
        try:
            loop = asyncio.get_running_loop()  # not the threads of the service, which needs them to start
            await loop.run_in_executor(world.threads, world.work_started, order, self._clock.now())
        except Exception as error:  # a mistake of the test, not of the fabric
            world.mistakes.append(error)
            raise WorkFailed(problem=repr(error)) from error
        try:
            await super()._execute(order, change, permanent=permanent)
        except WorkFailed:
            world.work_ended(order, self._clock.now())
            raise
        except asyncio.CancelledError:
            if not world.stopping:  # an operator has reported the result
                world.work_ended(order, self._clock.now())
            raise

    async def _and_end(self, order: WorkOrder, work: Awaitable[object], *, places: bool = False) -> Any:
        known = order.operation in self._done
        await work
        hosts = self._world.choose_hosts(order) if places and self._world.variant.chooses else {}
        if not known:
            self._world.work_ended(order, self._clock.now(), hosts)
        return hosts or None

    async def freeze(self, order: WorkOrder) -> Any:
        return await self._and_end(order, super().freeze(order))

    async def migrate(self, order: WorkOrder) -> Any:
        return await self._and_end(order, super().migrate(order), places=True)

    async def reboot(self, order: WorkOrder) -> Any:
        return await self._and_end(order, super().reboot(order))

    async def redeploy(self, order: WorkOrder) -> Any:
        return await self._and_end(order, super().redeploy(order), places=True)

    async def reimage(self, order: WorkOrder) -> Any:
        return await self._and_end(order, super().reimage(order))

    async def deallocate(self, order: WorkOrder) -> Any:
        return await self._and_end(order, super().deallocate(order))

    async def start(self, order: WorkOrder) -> Any:
        return await self._and_end(order, super().start(order))

    async def delete(self, order: WorkOrder) -> Any:
        return await self._and_end(order, super().delete(order))


class Connection:
    """Requests on one connection, which is opened again when it was closed."""

    def __init__(self, address: tuple[str, int], source: str = "") -> None:
        self._connection = http.client.HTTPConnection(
            *address, timeout=60, source_address=(source, 0) if source else None
        )

    def send(self, method: str, path: str, body: bytes | str | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        for attempt in (1, 2):
            try:
                self._connection.request(method, path, body, dict(headers))
                with self._connection.getresponse() as response:
                    return response.status, response.read()
            except (OSError, http.client.HTTPException):
                self._connection.close()
                if attempt == 2:
                    raise
        raise AssertionError

    def close(self) -> None:
        self._connection.close()


class World:
    """The service, its fabric and its VMs."""

    def __init__(self, variant: Variant | None = None) -> None:
        self.variant = variant or Variant()
        self.checker = NoticeChecker(slack=2 * SECOND if self.variant.real_clock else timedelta(0))
        self.done: dict[str, None] = {}
        self.machines: dict[str, MachineState] = {}
        self.delay: timedelta | None = None if self.variant.real_clock else timedelta(minutes=3)
        self.stopping = False
        self.mistakes: list[Exception] = []
        """Of this test, while it looked at an order."""
        self._serving = threading.Event()
        """Whether the service answers, or never will. A fabric gets its first orders before that."""
        self.log: list[str] = []
        """What was done, for people."""
        self._fleet = {name: dict(keys) for name, keys in FLEET.items()}
        self._listening = {*VMS, *NEW_VMS} - {"quiet"}
        self._lock = threading.RLock()
        self.threads = ThreadPoolExecutor(MAX_ORDERS, "orders")
        """For the looks at orders."""
        memory = Path("/dev/shm")  # noqa: S108 - in memory where there is such a place
        self._root = Path(tempfile.mkdtemp(prefix="forewarn-notices-", dir=memory if memory.is_dir() else None))
        self._lives = 0
        self._service: ForegroundService | None = None
        self._loop = LoopThread()
        self._fabric: RecordingFabric
        self._control: dict[int, Connection] = {}
        self._vms: dict[str, Connection] = {}
        self._token = ""
        self._elapsed = 0.0
        """Of the machine's clocks, if the service uses them."""
        self._broken: set[str] = set()
        """Hosts that the fabric knows as broken, from its orders."""
        self.now = START
        self._next_due: datetime | None = None

    def __enter__(self) -> Self:
        try:
            self._write_file()
            self._start()
            self._do_advance(1)  # nothing is requested at the time of a first poll
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            if self._service is not None:
                self._stop()
        finally:
            self._forget_connections()
            self._loop.stop()
            self.threads.shutdown()
            shutil.rmtree(self._root, ignore_errors=True)

    # --- The service ------------------------------------------------------------------------------------

    @property
    def _folder(self) -> Path:
        return self._root / str(self._lives)

    def _start(self) -> None:
        options = {
            "data": str(self._folder),
            "clock": "system" if self.variant.real_clock else "virtual",
            "metadata": "127.0.0.1:0",
            "control": "127.0.0.1:0",
            "rate_limit": "0",
            "inactivity_timeout": "3660d",
            "fleet": str(self._root / "fleet.toml"),
            "name": "notices-" + self._root.name[-8:],
        }
        values = {name: value.value for name, value in resolve(options, {}, os.devnull).items()}

        async def start() -> ForegroundService:
            service = ForegroundService(values, {})
            await service.start()
            return service

        # A fabric is the part of a service that its operator provides; this one is the test's. So are the clocks of the
        # machine.
        self._serving.clear()
        with (
            patch("forewarn.assembly.build_fabric", lambda _values, clock, _settings: self._make_fabric(clock)),
            patch("forewarn.assembly.SystemClock", self._machine_clock),
        ):
            self.stopping = False
            try:
                self._service = self._loop.run(start())
            except BaseException:
                self.stopping = True
                self._serving.set()
                raise
        self._token = (self._folder / TOKEN_FILE).read_text().strip()
        self._serving.set()
        self._settle()
        self._observe()

    def _make_fabric(self, clock: Clock) -> RecordingFabric:
        if not self._lives and not self.variant.real_clock:
            clock.resume(START)  # type: ignore[attr-defined]
        self._fabric = RecordingFabric(clock, self)
        return self._fabric

    def _machine_clock(self) -> SystemClock:
        return SystemClock(lambda: START.timestamp() + self._elapsed, lambda: 1000.0 + self._elapsed, "boot")

    def _stop(self, *, kill: bool = False) -> None:
        """Stop the service. After a kill, the next one has only what this one has on disk now."""
        service, self._service = self._service, None
        assert service is not None
        self.stopping = True
        self._serving.clear()
        if kill:
            shutil.copytree(self._folder, self._root / str(self._lives + 1))
        self._loop.run(service.stop())
        if kill:
            shutil.rmtree(self._folder)
            self._lives += 1
        self._forget_connections()

    def _forget_connections(self) -> None:
        for connection in (*self._control.values(), *self._vms.values()):
            connection.close()
        self._control.clear()
        self._vms.clear()

    def _urls(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / FILE).read_text())
        return found

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the control API."""
        thread = threading.get_ident()
        if thread not in self._control:
            self._control[thread] = Connection(address_in(self._urls()["control"]))
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}"}
        status, answer = self._control[thread].send(method, path, content, headers)
        if status >= 400:
            assert status < 500, (method, path, body, status, answer)
            raise Refused(f"{status} {json.loads(answer).get('detail', answer)}")
        return json.loads(answer)

    def _poll(self, vm: str, method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
        if vm not in self._vms:
            self._vms[vm] = Connection(address_in(self._urls()["metadata"]), self._address(vm))
        status, answer = self._vms[vm].send(method, DOCUMENT, body, {"Metadata": "true"})
        return status, json.loads(answer) if answer else None

    def _address(self, vm: str) -> str:
        return f"127.0.1.{10 + [*VMS, *NEW_VMS].index(vm)}"

    def _advance_clock(self, seconds: float) -> None:
        """Advance a virtual clock. It returns when all work is done, or waits for the clock."""
        self._note_time(self.request("POST", "/v1/clock/advance", {"by": f"{seconds:f}s"}))

    def _note_time(self, shown: Mapping[str, Any]) -> None:
        self.now, due = datetime.fromisoformat(shown["now"]), shown["next_due"]
        self._next_due = datetime.fromisoformat(due["time"]) if due is not None else None

    @property
    def _engine(self) -> Engine:
        """To move a system clock. Nothing else looks into the service."""
        assert self._service is not None
        return self._service._engine

    def _settle(self) -> None:
        """Wait until all work is done, or waits for the clock."""
        if not self.variant.real_clock:
            self._advance_clock(0)
            return
        engine = self._engine

        async def process_due() -> None:
            async with asyncio.timeout(LONGEST_WAIT_SECONDS):
                await process()

        async def process() -> None:
            while True:
                await engine.tick()
                while len(engine._executor):
                    engine._executor.changed.clear()
                    await engine._executor.changed.wait()
                due = engine._timers.next_time()
                if due is None or due > engine.clock.now():
                    return

        self._loop.run(process_due())
        self.now = datetime.fromisoformat(self.request("GET", "/v1/clock")["now"])
        item = engine.next_due()
        self._next_due = item.time if item is not None else None

    # --- What the checker sees --------------------------------------------------------------------------

    def work_started(self, order: WorkOrder, now: datetime) -> None:
        """Called by the fabric, in a thread."""
        self._serving.wait()
        if self.stopping:
            return
        operation = self.request("GET", f"/v1/operations/{order.operation}")
        vms = self.request("GET", "/v1/vms?limit=1000")["vms"]
        with self._lock:
            self.log.append(f"{now:%d %H:%M:%S}   work: {order.cause} {order.host} {order.vms} {dict(order.moves)}")
            if order.cause in ("hardware-failure", "degraded-hardware"):
                self._broken.add(order.host)
            self.checker.operation(operation)
            self.checker.places(vms, now)
            self.checker.work_started(order.operation, order.cause, order.host, order.vms, dict(order.moves), now)

    def work_ended(self, order: WorkOrder, now: datetime, hosts: Mapping[str, str] | None = None) -> None:
        with self._lock:
            placed = f", placed {dict(hosts)}" if hosts else ""
            self.log.append(f"{now:%d %H:%M:%S}   done: {order.cause} {order.host} {order.vms}{placed}")
            self.checker.work_ended(order.operation, now, hosts)

    def choose_hosts(self, order: WorkOrder) -> dict[str, str]:
        """Choose hosts as a fabric that does not ask: the last one that it knows as neither broken nor at work."""
        moves = dict(order.moves)
        unfit, chosen = self._broken | self.checker.hosts_at_work(), {}
        for vm in order.vms:
            free = [host for host in HOSTS if host not in unfit and host != self.checker.host_of(vm)]
            other = [host for host in free if host != moves.get(vm)]
            if free:
                chosen[vm] = (other or free)[-1]
        return chosen

    def _observe(self) -> None:
        """Look at the places, poll as each VM that listens, and look at hosts out of service."""
        vms = self.request("GET", "/v1/vms?limit=1000")["vms"]
        with self._lock:
            self.checker.places(vms, self.now)
        for vm in vms:
            if vm["name"] in self._listening and vm["state"] == "running":
                status, document = self._poll(vm["name"])
                assert status == 200, (vm["name"], status, document)
                with self._lock:
                    self.checker.document(vm["name"], document, self.now)
        hosts = self.request("GET", "/v1/hosts?limit=1000")["hosts"]
        for name, (state, _) in self.checker.vms_out_of_service(hosts).items():
            operations = self.request("GET", f"/v1/operations?all=true&limit=1000&vm={name}")["operations"]
            self.checker.judge_out_of_service(name, state, operations)

    # --- Steps --------------------------------------------------------------------------------------------

    def do(self, step: Step) -> bool:
        """Execute a step. Return False if the service refuses it."""
        name, *arguments = step
        self.log.append(f"{self.now:%d %H:%M:%S} {name} {' '.join(map(str, arguments))}")
        try:
            getattr(self, f"_do_{name.replace(' ', '_')}")(*arguments)
        except Refused as error:
            self.log[-1] += f": {error}"
            done = False
        else:
            done = True
        if name != "advance":
            self._settle()
            self._observe()
        if self.mistakes:
            raise self.mistakes[0]
        return done

    def run(self, steps: Sequence[Step]) -> list[str]:
        """Execute steps, let all work end, and return the violations."""
        for step in steps:
            self.do(step)
        return [str(violation) for violation in self.checker.violations]

    def _do_advance(self, seconds: int) -> None:
        """Let time pass, from one due time to the next. VMs poll at each."""
        until = self.now + timedelta(seconds=seconds)
        for _ in range(MAX_SUBSTEPS):
            left = (min(self._next_due or until, until) - self.now).total_seconds()
            if self.variant.real_clock:
                self._elapsed += max(left, 0)
                self._settle()
            else:
                self._advance_clock(left)
            self._observe()
            if self.now >= until:
                return
        raise AssertionError("the clock does not get there")

    def _do_request(self, cause: str, target: str, options: Mapping[str, Any] | None = None) -> None:
        where = {"host": target} if target in HOSTS or target.startswith("spare") else {"vms": [target]}
        self.request("POST", "/v1/operations", {"cause": cause, **where, **(options or {})})

    def _do_rollout(self, *hosts: str) -> None:
        body = {"hosts": hosts, "type": "Reboot", "max_unavailable": 3, "pause": "0s"}
        self.request("POST", "/v1/rollouts", body)

    def _do_return(self, host: str) -> None:
        self.request("POST", f"/v1/hosts/{host}/return", {})
        self._broken.discard(host)

    def _do_listen(self, vm: str) -> None:
        """Let a VM poll from now on. Its first poll has a time of its own."""
        self._do_advance(1)
        self._listening.add(vm)
        self._observe()
        self._do_advance(1)

    def _live(self, number: int) -> dict[str, Any] | None:
        events = [event for event in self.request("GET", "/v1/events")["events"] if event["status"] == "scheduled"]
        return events[number % len(events)] if events else None

    def _do_approve(self, number: int) -> None:
        event = self._live(number)
        for vm in event["vms"] if event is not None else ():
            if event is not None and vm in self._listening:
                with self._lock:  # before it is sent, because work can start before the answer is here
                    self.checker.approved(event["id"])
                status, answer = self._poll(vm, "POST", start_requests(event["id"]))
                if status != 200:
                    with self._lock:
                        self.checker.approved(event["id"], rejected=True)
                    raise Refused(f"{status} {answer}")
                return

    def _do_cancel(self, number: int) -> None:
        if (event := self._live(number)) is not None:
            self.request("POST", f"/v1/events/{event['id']}/cancel", {})

    def _do_postpone(self, number: int, by: str) -> None:
        if (event := self._live(number)) is not None:
            self.request("POST", f"/v1/events/{event['id']}/postpone", {"by": by})

    def _do_work_takes(self, minutes: int) -> None:
        if not self.variant.real_clock:
            self.delay = self._fabric.delay = timedelta(minutes=minutes) if minutes else None

    def _do_fabric_fails(self, count: int) -> None:
        if not self.variant.real_clock:  # the retry would wait in real time
            self._fabric.failures = count

    def _do_restart(self, down_seconds: int = 0) -> None:
        self._stop()
        self._pass_down(down_seconds)
        self._start()

    def _do_kill(self, down_seconds: int = 0) -> None:
        self._stop(kill=True)
        self._pass_down(down_seconds)
        self._start()

    def _pass_down(self, seconds: int) -> None:
        if self.variant.real_clock and seconds:
            self._elapsed += seconds
            self.checker.down(self.now, self.now + timedelta(seconds=seconds))

    # --- Fleet files --------------------------------------------------------------------------------------

    def _do_file(self, way: str, edit: str, vm: str, keys: Mapping[str, Any] | None = None) -> None:
        """Change the fleet file, and apply it: with `fleet apply`, at the next `forewarn up`, or by a reload.

        The way `part` leaves the file as it is, and changes this VM only.
        """
        before = {name: dict(each) for name, each in self._fleet.items()}
        if edit == "remove":
            self._fleet.pop(vm, None)
        else:
            placed = {"host": None, "hosts": None} if keys and {"host", "hosts"} & keys.keys() else {}
            self._fleet[vm] = {**self._fleet.get(vm, {}), **placed, **(keys or {})}
            self._fleet[vm] = {key: value for key, value in self._fleet[vm].items() if value is not None}
        text = self._write_file() if way != "part" else ""
        try:
            if way == "apply":
                self.request("PUT", "/v1/fleet?force=true", text.encode())
            elif way == "part" and edit == "remove":
                self.request("POST", "/v1/fleet/remove", {"vms": [vm], "force": True})
            elif way == "part":
                self.request("PATCH", "/v1/fleet?force=true", self._entry(vm, self._fleet[vm]).encode())
            elif way == "reload":
                self._reload()
            else:
                self._stop()
                self._start_with_file(before)
        except Refused:
            self._fleet = before
            if way != "part":
                self._write_file()
            raise

    def _reload(self) -> None:
        assert self._service is not None
        before = self.request("GET", "/v1/vms?limit=1000")["vms"]
        self._loop.run(self._service.reload())
        if self.request("GET", "/v1/vms?limit=1000")["vms"] == before:
            raise Refused("the reload has changed nothing")

    def _start_with_file(self, before: dict[str, dict[str, Any]]) -> None:
        try:
            self._start()
        except (ForewarnError, Refused) as error:  # a fleet file that is wrong ends the start
            self._fleet = before
            self._write_file()
            self._start()
            raise Refused(str(error)) from error

    def _entry(self, name: str, keys: Mapping[str, Any]) -> str:
        values = {"name": name, "address": self._address(name), **keys}
        if "hosts" in keys:  # a set of one VM
            stem, _, number = name.rpartition("-")
            del values["address"]
            values |= {"name": stem + "-{n}", "first": int(number), "count": 1, "addresses": self._address(name)}
        return "\n".join(["[[vm]]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())])

    def _write_file(self) -> str:
        tables = [GROUPS]
        tables += [f'[[host]]\nname = "{host}"\n' for host in HOSTS]
        tables += [self._entry(name, keys) for name, keys in self._fleet.items()]
        text = "\n".join(tables) + "\n"
        (self._root / "fleet.toml").write_text(text)
        return text

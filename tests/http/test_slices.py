"""Large work of requests: in slices, in turns, and only while somebody waits for it."""

from __future__ import annotations

import asyncio
import json
import select
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from starlette.requests import ClientDisconnect, Request

from forewarn.clock import VirtualClock
from forewarn.control.api import Control
from forewarn.control.metrics import Metrics
from forewarn.control.paging import SHAPES_AT_ONCE, Paging, page_of_names
from forewarn.control.schema import properties_of
from forewarn.control.slices import MAX_PLANS, Slices
from forewarn.core.limits import OperatorLimits
from forewarn.core.steps import SLICE_COST
from forewarn.engine.engine import Engine
from forewarn.errors import ServiceBusy, ServiceStopping, UnknownVM
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.stores.sqlite import SqliteStore
from forewarn.system.worker import Worker
from forewarn.testing import ServiceProcess
from golden.exchange import Line, request, stop_cleanly

if TYPE_CHECKING:
    from pathlib import Path

    from forewarn.core.steps import Steps

HOSTS = [f"host-{number}" for number in range(5000)]
FLEET = f"""
[[group]]
name = "web"
kind = "availability-set"
update_domains = 5
[[vm]]
name = "web-{{n}}"
group = "web"
count = {len(HOSTS)}
hosts = {json.dumps(HOSTS)}
""" + "".join(f'[[host]]\nname = "{name}"\n' for name in HOSTS)
LONG_PLAN = json.dumps({"hosts": ["*"], "max_unavailable": 1, "dry_run": True}).encode()


class Client:
    """A client that sends a request and may disconnect."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.request = Request({"type": "http"}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


class Turns:
    """Counts the steps of each iteration of the event loop."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.steps: list[str] = []
        self.largest = 0

    async def watch(self) -> None:
        """Like a client that polls: it gets its turn in every iteration."""
        while True:
            seen = len(self.steps)
            await asyncio.sleep(0)
            self.largest = max(self.largest, len(self.steps) - seen)

    def take_step(self, name: str) -> str:
        self.begun.set()
        self.steps.append(name)
        return name

    def work(self, name: str, count: int) -> Steps[str]:
        for _ in range(count):
            self.take_step(name)
            yield 1
        return name


async def test_all_requests_together_do_one_slice_in_an_iteration() -> None:
    slices, turns, clients = Slices(), Turns(), [Client() for _ in range(20)]
    watcher = asyncio.create_task(turns.watch())
    plans = [slices.plan(client.request, turns.work("plan", 5 * SLICE_COST)) for client in clients[:MAX_PLANS]]
    others = [slices.run(client.request, turns.work("map", 2 * SLICE_COST)) for client in clients[MAX_PLANS:]]
    pages = [slices.collect(map(str, range(1000))) for _ in range(20)]
    found = await asyncio.gather(*plans, *others, *pages)
    watcher.cancel()
    assert found[:MAX_PLANS] == ["plan"] * MAX_PLANS
    assert found[-1] == list(map(str, range(1000)))
    assert turns.largest == SLICE_COST


async def test_one_request_begins_in_an_iteration_however_many_arrive_at_once() -> None:
    slices, turns = Slices(), Turns()

    async def app(scope: Any, _: Any, __: Any) -> None:
        turns.take_step(scope["path"])

    unused: Any = None  # the application above receives and sends nothing
    begin, watcher = slices.begin_in_turn(app), asyncio.create_task(turns.watch())
    await asyncio.gather(*(begin({"type": "http", "path": f"/{each}"}, unused, unused) for each in range(100)))
    watcher.cancel()
    assert turns.steps == [f"/{each}" for each in range(100)], "in their order"
    assert turns.largest == 1


async def test_one_request_goes_on_in_an_iteration_however_many_bodies_end_at_once() -> None:
    slices, turns, complete = Slices(), Turns(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        await complete.wait()
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def app(_: Any, receive: Any, __: Any) -> None:
        await receive()
        turns.take_step("decode the body")

    unused: Any = None  # the application above sends nothing
    begin, watcher = slices.begin_in_turn(app), asyncio.create_task(turns.watch())
    tasks = [asyncio.ensure_future(begin({"type": "http"}, receive, unused)) for _ in range(100)]
    for _ in range(1000):
        await asyncio.sleep(0)
    complete.set()
    await asyncio.gather(*tasks)
    watcher.cancel()
    assert turns.largest == 1


async def test_a_map_does_not_wait_for_plans() -> None:
    """The plans together have as many turns as the map."""
    slices, turns = Slices(), Turns()
    clients = [Client() for _ in range(MAX_PLANS + 1)]
    plans = [
        asyncio.create_task(slices.plan(client.request, turns.work("plan", 100 * SLICE_COST)))
        for client in clients[:MAX_PLANS]
    ]
    await asyncio.sleep(0)
    await slices.run(clients[-1].request, turns.work("map", 10 * SLICE_COST))
    for plan in plans:
        plan.cancel()
    assert turns.steps.count("plan") <= 12 * SLICE_COST


async def test_a_page_yields_to_others_while_its_items_are_computed() -> None:
    slices, turns = Slices(), Turns()
    watcher = asyncio.create_task(turns.watch())
    await slices.collect(map(turns.take_step, ["item"] * 1000), 10)
    watcher.cancel()
    assert turns.largest == 10


async def test_a_list_computes_a_few_items_at_a_time_and_leaves_out_what_has_left_the_fleet() -> None:
    turns, client, names = Turns(), Client(), [f"vm-{number:04}" for number in range(2000)]
    client.request.state.query = Paging(limit=1000)

    def shape(name: str) -> Paging:
        if turns.take_step(name) == "vm-0500":
            raise UnknownVM(name=name, hint="")
        return Paging(cursor=name)

    watcher = asyncio.create_task(turns.watch())
    page = await page_of_names(client.request, Slices(), "vms", names, shape)
    watcher.cancel()
    assert turns.largest == SHAPES_AT_ONCE + 1, "the VM that has left, too"
    assert [each["cursor"] for each in json.loads(bytes(page.body))["vms"]] == [
        name for name in names[:1000] if name != "vm-0500"
    ]


async def test_the_description_of_the_api_is_made_once() -> None:
    clock = VirtualClock()
    engine = Engine(clock, SqliteStore(), SimulatedFabric(clock), OperatorLimits())
    unused: Any = None  # no request arrives here
    control = Control(engine, unused, Metrics(engine), unused, unused, preview_versions=False, proof_key="")
    first = await control.openapi(Client().request)
    kinds = properties_of.cache_info()
    second = await control.openapi(Client().request)
    assert properties_of.cache_info() == kinds
    assert second.body == first.body == msgspec.json.encode(control.description())


async def test_work_ends_when_its_client_disconnects() -> None:
    slices, turns, client = Slices(), Turns(), Client()
    plan = asyncio.create_task(slices.plan(client.request, turns.work("plan", 10**9)))
    await turns.begun.wait()
    client.gone.set()
    with pytest.raises(ClientDisconnect):
        await plan
    done = len(turns.steps)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(turns.steps) == done


async def test_work_ends_when_the_service_stops() -> None:
    slices, turns, clients = Slices(), Turns(), [Client() for _ in range(MAX_PLANS)]
    plans = [asyncio.create_task(slices.plan(client.request, turns.work("plan", 10**9))) for client in clients]
    await turns.begun.wait()
    slices.stop()
    assert [type(each) for each in await asyncio.gather(*plans, return_exceptions=True)] == [ServiceStopping] * 8
    with pytest.raises(ServiceStopping):
        await slices.plan(Client().request, turns.work("late", 1))


async def test_more_plans_than_places_are_rejected_and_places_are_given_back() -> None:
    slices, turns = Slices(), Turns()
    clients = [Client() for _ in range(MAX_PLANS)]
    plans = [asyncio.create_task(slices.plan(client.request, turns.work("plan", 10**9))) for client in clients]
    await asyncio.sleep(0)
    with pytest.raises(ServiceBusy, match="8 plans at a time"):
        await slices.plan(Client().request, turns.work("one more", 1))
    clients[0].gone.set()
    with pytest.raises(ClientDisconnect):
        await plans[0]
    assert await slices.plan(Client().request, turns.work("next", 1)) == "next"
    slices.stop()
    await asyncio.gather(*plans, return_exceptions=True)


async def test_an_error_of_a_step_is_the_error_of_the_request() -> None:
    def steps() -> Steps[None]:
        yield 1
        raise KeyError("no such host")

    with pytest.raises(KeyError, match="no such host"):
        await Slices().plan(Client().request, steps())


# --- The worker -----------------------------------------------------------------------------------------


async def test_the_worker_has_one_thread_also_if_its_callers_give_up() -> None:
    worker, started, release = Worker(), threading.Semaphore(0), threading.Event()
    running: list[str] = []

    def work(name: str) -> str:
        running.append(name)
        started.release()
        assert release.wait(60)
        return name

    first = asyncio.create_task(worker.run(work, "first"))
    await asyncio.to_thread(started.acquire)
    first.cancel()
    given_up, second = (
        asyncio.create_task(worker.run(work, "given up")),
        asyncio.create_task(worker.run(work, "second")),
    )
    await asyncio.sleep(0)
    given_up.cancel()
    assert running == ["first"]
    release.set()
    assert await second == "second"
    assert running == ["first", "second"]


async def test_an_error_of_the_worker_is_the_error_of_the_caller() -> None:
    worker = Worker()
    with pytest.raises(ValueError, match="invalid literal"):
        await worker.run(int, "x")
    assert await worker.run(int, "1") == 1


# --- A whole service ------------------------------------------------------------------------------------


@pytest.fixture
def service(tmp_path: Path) -> ServiceProcess:
    (tmp_path / "fleet.toml").write_text(FLEET)
    return ServiceProcess(tmp_path).start("--fleet", str(tmp_path / "fleet.toml"), "--clock", "virtual")


def test_plans_delay_neither_other_requests_nor_the_stop(service: ServiceProcess) -> None:
    token = ("Authorization", f"Bearer {service.token}")
    plan = request("POST", "/v1/rollouts", (token,), LONG_PLAN)
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(service, address=service.control_address)) for _ in range(MAX_PLANS + 1)]
        for line in lines[:-1]:
            line.send(plan)
        busy = lines[-1].exchange(plan)
        assert json.loads(busy.body)["type"] == "urn:forewarn:ServiceBusy"
        assert busy.header("retry-after") == "2"
        for path in ("/v1/map", "/v1/overview", "/v1/vms?limit=1000"):
            assert lines[-1].exchange(request("GET", path, (token,))).status == 200
        answered, _, _ = select.select([line.socket for line in lines[:-1]], [], [], 0)
        assert not answered
        stop_cleanly(service)
        problems = [json.loads(line.read_response().body)["type"] for line in lines[:-1]]
    assert problems == ["urn:forewarn:ServiceStopping"] * MAX_PLANS


def test_a_plan_ends_when_its_client_disconnects(service: ServiceProcess) -> None:
    token = ("Authorization", f"Bearer {service.token}")
    plan = request("POST", "/v1/rollouts", (token,), LONG_PLAN)
    with Line(service, address=service.control_address) as other:
        for _ in range(3 * MAX_PLANS):  # each takes a place, and gives it back
            with Line(service, address=service.control_address) as line:
                line.send(plan)
                assert other.exchange(request("GET", "/v1/fleet", (token,))).status == 200
        short = LONG_PLAN.replace(b'"*"', b'"host-1"')
        assert other.exchange(request("POST", "/v1/rollouts", (token,), short)).status == 200
    stop_cleanly(service)

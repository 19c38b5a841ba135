"""kill -9 in the middle of everything that can happen to a VM: nothing is lost, and nothing happens twice.

All causes are at work in one service, each twice, in groups and zones of their own. After a kill all is seen as before,
and the whole course is the same as without kills. The fabrics `manual` and `command` hold the work back, so that kills
fall between its start and its end too.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import select
import shutil
import signal
import sqlite3
import threading
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from acceptance.causes import PREVIEW, VIRTUAL_TIME, act_on_event, advance_to, events, get, request
from watched_process import WatchedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from forewarn.testing import ServiceProcess

    Act = Callable[[], object]
    MakeStage = Callable[..., "Stage"]


class Case(NamedTuple):
    """A cause, and what must be true in the end."""

    name: str
    cause: str
    ends: str
    """Where the VMs are then: same (host), elsewhere, deallocated, or gone."""
    vms: int = 0
    """How many are named; 0: their host is."""
    type: str = ""
    host: str = "in-service"
    kind: str = "availability-set"
    priority: str = "regular"


CASES = (
    Case("restart", "restart", "same", 1),
    Case("redeploy", "redeploy", "elsewhere", 2),
    Case("start", "start", "same", 1, priority="spot"),
    Case("freeze", "host-update", "same"),
    Case("reboot", "host-update", "same", type="Reboot"),
    Case("migration", "live-migration", "elsewhere", 2),
    Case("degraded", "degraded-hardware", "elsewhere", host="degraded"),
    Case("failure", "hardware-failure", "elsewhere", host="failed"),
    Case("failed", "hardware-failure", "elsewhere", type="Redeploy", host="failed"),
    Case("repair", "emergency-repair", "same"),
    Case("eviction", "eviction", "deallocated", 1, priority="spot"),
    Case("evicted", "eviction", "gone", 1, kind="scale-set", priority="spot"),
    Case("advice", "rebalance", "deallocated", 1, priority="spot"),
    Case("reimage", "reimage", "same", 2, kind="scale-set"),
    Case("images", "image-upgrade", "same", 2, kind="scale-set"),
    Case("delete", "delete", "gone", 2, kind="scale-set"),
    Case("scalein", "scale-in", "gone", 1, kind="scale-set"),
    Case("ill", "instance-repair", "gone", 1, kind="scale-set"),
)
EARLY, DUE = "early", "due"
SCENES = {f"{case.name}-{course}": case for case in CASES for course in (EARLY, DUE)}
SPEAKERS = {name: f"127.1.{number}.3" for number, name in enumerate(SCENES)}
"""One VM of each group, on a host to which nothing happens, speaks for it; and so does the neighbour of its others."""
SPEAKERS |= {f"{name}-next": f"{address[:-1]}9" for name, address in SPEAKERS.items()}
EARLY_ONES = [name for name in SPEAKERS if EARLY in name]
TARGET = f"/metadata/scheduledevents?api-version={PREVIEW}"
LONGEST_WAIT_SECONDS = 30


def table(what: str, **fields: Any) -> str:
    """A piece of a fleet file."""
    return "\n".join((f"[[{what}]]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items()), ""))


def has_room(name: str) -> bool:
    """Whether a host of the scene fits those that must leave. Where none does the simulated fabric adds one."""
    return name.endswith(EARLY) or SCENES[name].cause == "live-migration"


def part_of_fleet(number: int, name: str, case: Case) -> str:
    """Two VMs and a neighbour of another zone on host a, the group's other domain on b, and room for them on c."""
    hosts = [f"{name}-{letter}" for letter in ("abc" if has_room(name) else "ab")]
    vms: dict[str, Any] = {"group": name, "zone": name, "priority": case.priority}
    vms |= {} if case.kind == "scale-set" else {"name": f"{name}_{{n}}"}
    first = {"count": 3, "hosts": [hosts[0], hosts[0], hosts[1]], "addresses": f"127.1.{number}.1-127.1.{number}.3"}
    fourth = {"first": 3, "count": 1, "hosts": hosts[2:], "update_domain": 0, "fault_domain": 0}
    policy = {"terminate_notice": "PT10M", "os_image_notice": "PT15M"} if case.kind == "scale-set" else {}
    if policy and case.priority == "spot":
        policy = {"eviction_policy": "delete"}
    parts = [table("group", name=name, kind=case.kind, update_domains=2, **policy), table("vm", **vms, **first)]
    parts += [table("host", name=host) for host in hosts]
    parts += [table("vm", **vms, **fourth)] if has_room(name) else []
    neighbour = {"name": f"{name}-next", "zone": f"{name}-next", "address": f"127.1.{number}.9"}
    return "".join((*parts, table("vm", host=hosts[0], **neighbour)))


class Stage:
    """A service that can be killed, and comes again."""

    def __init__(self, folder: Path, fleet: Path, *arguments: str) -> None:
        self._arguments = ("--fleet", str(fleet), *arguments)
        folder.mkdir(exist_ok=True)
        self.service = WatchedProcess(folder).start(*self._arguments)
        if "virtual" in arguments:
            self.service.advance("1s")

    def again(self, meanwhile: Act = lambda: None) -> None:
        self.service.kill()
        meanwhile()
        self.service.start(*self._arguments)

    def kill_and_compare(self, speakers: dict[str, str] = SPEAKERS) -> dict[str, Any]:
        """After a kill everything is as it was seen before."""
        before = seen(self.service, speakers)
        self.again()
        assert seen(self.service, speakers) == before
        return before

    def kill_in_the_middle(self, act: Act, wait: Act) -> None:
        """Send a request, wait, and kill the service before it responds."""

        def attempt() -> None:
            with suppress(OSError, http.client.HTTPException):
                act()

        thread = threading.Thread(target=attempt)
        thread.start()
        wait()
        self.again(thread.join)

    def end(self) -> None:
        if self.service.process is not None:
            try:
                self.service.check_notices()
            finally:
                self.service.kill()


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The common setup: every group has polled, and the VMs to start are deallocated."""
    folder = tmp_path_factory.mktemp("past")
    parts = (part_of_fleet(number, *scene) for number, scene in enumerate(SCENES.items()))
    (folder / "fleet.toml").write_text("".join(parts))
    stage = Stage(folder, folder / "fleet.toml", *VIRTUAL_TIME)
    try:
        request(stage.service, "eviction", *(f"{name}_0" for name in SCENES if name.startswith("start-")))
        stage.service.advance("2m")
        seen(stage.service, SPEAKERS)
        assert stage.service.stop() == 0
    finally:
        stage.end()
    return folder


@pytest.fixture
def make_stage(past: Path, tmp_path: Path) -> Iterator[MakeStage]:
    stages = []

    def make(name: str, *arguments: str) -> Stage:
        shutil.copytree(past, tmp_path / name)
        stages.append(Stage(tmp_path / name, past / "fleet.toml", *VIRTUAL_TIME, *arguments))
        return stages[-1]

    yield make
    for stage in stages:
        stage.end()


# --- What is seen ---------------------------------------------------------------------------------------


def seen(service: ServiceProcess, speakers: dict[str, str]) -> dict[str, Any]:
    """Everything that a client can see, and everything that the database contains of history."""
    found = {path: get(service, path)[path] for path in ("vms", "hosts", "groups")}
    found |= {path: get(service, f"{path}?all=true")[path] for path in ("operations", "events", "rollouts")}
    for one in (*found["vms"], *(scope for group in found["groups"] for scope in group["scopes"])):
        del one["last_seen_at"]  # it is written within a minute, not at once
    for host in found["hosts"]:
        host["vms"].sort()
    answers = {name: service.request(target=TARGET, source=address) for name, address in speakers.items()}
    found["documents"] = {name: (answer.headers["etag"], answer.json()) for name, answer in answers.items()}
    return found | {"now": get(service, "clock")["now"], "history": history(service)}


def history(service: ServiceProcess) -> list[dict[str, Any]]:
    """Every row there is: none is missing, and none is out of order."""
    database = sqlite3.connect(f"file:{service.data}/forewarn.db?mode=ro", uri=True)
    database.row_factory = sqlite3.Row
    try:
        rows = [dict(row) for row in database.execute("SELECT * FROM history ORDER BY sequence")]
    finally:
        database.close()
    assert [row.pop("sequence") for row in rows] == list(range(1, len(rows) + 1))
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    return rows


def without_random_names(view: dict[str, Any]) -> list[str]:
    """What is seen, without what is random: ids, and which spare host a VM got."""
    names: dict[str, str] = {}
    for number, operation in enumerate(reversed(view["operations"])):
        names[operation["id"]] = f"operation {number}"
        names |= {event["id"]: f"operation {number} for {event['group']}" for event in operation["events"]}
    things = [thing for name in ("vms", "hosts", "operations", "events", "history") for thing in view[name]]
    things = [thing for thing in things if thing.get("kind") != "spare-host-added"]
    lines = [json.dumps(thing, sort_keys=True) for thing in (*things, *view["documents"].items(), view["now"])]
    uuid = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
    return sorted(re.sub("spare-[0-9]+", "spare", uuid.sub(lambda m: names[m[0].lower()], line)) for line in lines)


def check_end(view: dict[str, Any], *, simulated: bool) -> None:
    """Check that every VM is where it should be, and that each history row was written once."""
    vms = {vm["name"]: vm for vm in view["vms"]}
    hosts = {host["name"]: host for host in view["hosts"]}

    def ending(vm: str, host: str) -> str:
        if vm not in vms or vms[vm]["state"] == "deallocated":
            return "deallocated" if vm in vms else "gone"
        return "same" if vms[vm]["host"] == host else "elsewhere"

    for name, case in SCENES.items():
        unmoved = case.ends == "elsewhere" and not simulated and not has_room(name)
        expected = "same" if unmoved or name == f"advice-{EARLY}" else case.ends
        assert {ending(f"{name}_{number}", f"{name}-a") for number in range(case.vms or 2)} == {expected}, name
        assert ending(f"{name}-next", f"{name}-a") == (case.ends if simulated and not case.vms else "same"), name
        assert hosts[f"{name}-a"]["state"] == case.host, name
    spare = [bool(host["vms"]) for host in hosts.values() if host["spare"]]
    assert spare == [True for row in view["history"] if row["kind"] == "spare-host-added"], "each once, and none empty"
    assert bool(spare) == simulated
    check_once(view)


SOMETIMES = {"spare-host-added", "not-notified", "postponed", "approved", "cancelled", "healthy", "unhealthy"}
"""What may be written of an operation or an event, or not."""


def check_once(view: dict[str, Any]) -> None:
    """Check that every operation has ended, and that each of its history rows was written once."""
    ids = {operation["id"] for operation in view["operations"]}
    about = [row for row in view["history"] if row["operation"] in ids]
    rows = Counter((row["operation"], row["event"], row["kind"]) for row in about if row["kind"] != "spare-host-added")
    twice = {operation_id for (operation_id, _, _), count in rows.items() if count > 1}
    assert not twice, "\n".join(str([*row.values()]) for row in about if row["operation"] in twice)
    # VMs of two zones do not share a host, so one operation may add two: but each for a VM of its own.
    spares = [(row["operation"], *row["vms"]) for row in about if row["kind"] == "spare-host-added"]
    assert len(spares) == len(set(spares))
    kinds_of: dict[str, set[str]] = {}
    for operation_id, event_id, what in rows:
        kinds_of.setdefault(event_id or operation_id, set()).add(what)
    for operation in view["operations"]:
        work = {"done": {"executed"}, "failed": {"failed"}, "cancelled": set()}[operation["status"]]
        if operation["status"] == "done" and not operation["executed_at"]:
            work = set()  # its last VM left the fleet during the work, so nothing is waited for
            assert not operation["vms"], operation
        assert kinds_of[operation["id"]] - SOMETIMES == {"requested"} | work
        for event in operation["events"]:
            steps = {"started", "completed"} if event["status"] == "completed" else set()
            assert kinds_of[event["id"]] - SOMETIMES == {"scheduled"} | steps
            assert ("approved" in kinds_of[event["id"]]) == bool(event["approved_at"])
            assert ("cancelled" in kinds_of[event["id"]]) == (event["status"] == "cancelled")


# --- The course of everything ---------------------------------------------------------------------------


def requests(service: ServiceProcess) -> Iterator[Act]:
    for name, case in SCENES.items():
        target = {"vms": [f"{name}_{number}" for number in range(case.vms)]} if case.vms else {"host": f"{name}-a"}
        yield partial(request, service, case.cause, **target, **({"type": case.type} if case.type else {}))


def approvals(service: ServiceProcess, scopes: Iterable[str], most: int | None = None) -> Iterator[Act]:
    """A VM of each scope approves its events that have not started: all, or at most this number."""
    for address in map(SPEAKERS.__getitem__, scopes):
        scheduled = [event for event in events(service, address, PREVIEW) if event["EventStatus"] != "Started"]
        if ids := [event["EventId"] for event in scheduled][:most]:
            yield partial(service.approve, *ids, source=address)


def advice(service: ServiceProcess) -> Iterator[Act]:
    """One recommendation is cancelled, and the VM of the other is evicted."""
    for event in events(service, SPEAKERS[f"advice-{EARLY}"], PREVIEW):
        yield partial(act_on_event, service, event["EventId"].lower(), "cancel")
    yield partial(request, service, "eviction", f"advice-{DUE}_0")


def script(service: ServiceProcess) -> Iterator[list[Act]]:
    """The actions at each time. The times are those at which an event starts or ends."""
    start = service.now
    yield list(requests(service))
    yield [partial(advance_to, service, start + timedelta(seconds=10))]
    yield list(approvals(service, EARLY_ONES, most=1))
    yield list(approvals(service, EARLY_ONES))
    for seconds in (30, 70, 90, 310, 600, 610, 660, 900, 1200, 1500):
        yield [partial(advance_to, service, start + timedelta(seconds=seconds))]
    yield list(advice(service))
    for length in (timedelta(seconds=1530), timedelta(days=7), timedelta(days=7, minutes=10)):
        yield [partial(advance_to, service, start + length)]


def walk(stage: Stage, rng: random.Random | None = None) -> list[dict[str, Any]]:
    """What is seen after each step. With `rng`, kills fall between the steps, into them, and after them."""
    views = []
    for acts in script(stage.service):
        deadly = {len(acts) - 1, rng.randrange(len(acts))} if rng and len(acts) > 1 else set()
        if rng and len(acts) == 1:
            polls = rng.randrange(4)
            stage.kill_in_the_middle(acts[0], lambda: [get(stage.service, "clock") for _ in range(polls)])  # noqa: B023
        for number, act in enumerate(acts):
            act()
            if number in deadly:
                stage.again()
        stage.service.advance("0s")
        views.append(stage.kill_and_compare() if rng else seen(stage.service, SPEAKERS))
    return views


@pytest.mark.deep
def test_the_events_are_the_same_with_and_without_kills(make_stage: MakeStage) -> None:
    calm = walk(make_stage("calm"))
    killed = walk(make_stage("killed"), random.Random(4))  # noqa: S311
    for without, with_kills in zip(calm, killed, strict=True):
        assert without_random_names(with_kills) == without_random_names(without)
    check_end(killed[-1], simulated=True)


# --- Work that is held back -----------------------------------------------------------------------------


def do(*acts: Act) -> None:
    for act in acts:
        act()


def all_started(view: dict[str, Any]) -> bool:
    """Whether everything but advice has started, and nothing is carried out."""
    live = [operation for operation in view["operations"] if not operation["ended_at"]]
    waiting = {operation["cause"] for operation in live if operation["status"] == "pending"}
    return waiting == {"rebalance"} and all(operation["executed_at"] is None for operation in live)


def test_a_manual_operation_stays_started_across_kills_until_it_is_marked_done(make_stage: MakeStage) -> None:
    stage = make_stage("manual", "--fabric", "manual")
    service = stage.service

    def say_done(every: int) -> None:
        live = [operation for operation in get(service, "operations")["operations"] if operation["started_at"]]
        for operation in live[::every]:
            assert service.control("POST", f"/v1/operations/{operation['id']}/done").status == 200

    do(*requests(service))
    stage.kill_and_compare()
    do(*approvals(service, EARLY_ONES))
    for length in ("0s", "16m", "7d"):
        service.advance(length)
        view = stage.kill_and_compare()
    assert all_started(view)
    for every in (2, 1):
        say_done(every)
        stage.kill_and_compare()
    do(*advice(service), service.poll_all)
    service.advance("30s")
    say_done(1)
    check_end(stage.kill_and_compare(), simulated=False)


def test_work_on_a_host_waits_across_kills_for_a_vm_on_its_way_there(tmp_path: Path) -> None:
    speakers = {"moves": "127.1.99.1", "stays": "127.1.99.2"}
    vms = (table("vm", name=name, host=f"{name}-here", address=address) for name, address in speakers.items())
    (tmp_path / "fleet.toml").write_text("".join((*(table("host", name=f"{name}-here") for name in speakers), *vms)))
    stage = Stage(tmp_path / "service", tmp_path / "fleet.toml", *VIRTUAL_TIME, "--fabric", "manual")
    service = stage.service

    def advance(length: str) -> None:
        stage.kill_and_compare(speakers)
        service.advance(length)

    try:
        seen(service, speakers)
        service.advance("1s")
        (move,) = request(service, "redeploy", "moves")
        advance("10m")
        assert get(service, f"operations/{move['id']}")["moves"] == {"moves": "stays-here"}
        (update,) = request(service, "host-update", host="stays-here", type="Reboot")
        advance("1h")
        assert service.control("POST", f"/v1/operations/{move['id']}/done").status == 200
        for _ in range(2):
            advance("15m")
        assert get(service, f"operations/{update['id']}")["status"] == "started"
    finally:
        stage.end()


class Program:
    """An operator's program: it records each order, and exits with the requested code."""

    def __init__(self, folder: Path, *, waits: bool = True) -> None:
        self._folder, self.path = folder, folder / "program"
        self.path.write_text(
            f"""#!/bin/sh
cd "{folder}" && read -r order && test "$1" != inspect || {{ cat health; exit; }}
operation=${{order#*'"operation": "'}}
operation=${{operation%%'"'*}}
test -p "$operation" || mkfifo "$operation"
echo "$order" >>ran
{"" if waits else "exit"}
echo "$operation $$" >here
read -r code <"$operation"
exit "$code"
"""
        )
        self.path.chmod(0o755)
        os.mkfifo(folder / "here")
        self._here = os.open(folder / "here", os.O_RDWR)
        self.pids: dict[str, int] = {}

    def arrivals(self, count: int) -> None:
        """Wait until so many more have come to the point where they wait."""
        said = b""
        while said.count(b"\n") < count:
            assert select.select([self._here], [], [], LONGEST_WAIT_SECONDS)[0], "the program did not start"
            said += os.read(self._here, 4096)
        self.pids |= {operation: int(pid) for operation, pid in map(str.split, said.decode().splitlines())}

    def let_go(self, operation: str, code: int = 0) -> None:
        (self._folder / operation).write_text(f"{code}\n")

    def kill(self, operation: str) -> None:
        """With the shell around it, as if the machine had gone down."""
        watched = os.pidfd_open(self.pids[operation])
        os.killpg(os.getpgid(self.pids[operation]), signal.SIGKILL)
        assert select.select([watched], [], [], LONGEST_WAIT_SECONDS)[0]
        os.close(watched)

    def ran(self) -> Counter[tuple[str, bool]]:
        """How often it was run for each operation, for the first time or again."""
        orders = map(json.loads, (self._folder / "ran").read_text().splitlines())
        return Counter((order["operation"], order["again"]) for order in orders)

    def end(self) -> None:
        """Release the waiting programs."""
        for path in self._folder.iterdir():
            with suppress(OSError):  # it is no gate, or nobody waits there
                if path.is_fifo():
                    gate = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                    os.write(gate, b"1\n")
                    os.close(gate)
        os.close(self._here)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    found = Program(tmp_path)
    yield found
    found.end()


def test_a_running_program_survives_kills_runs_once_and_its_result_is_used(
    make_stage: MakeStage, program: Program
) -> None:
    stage = make_stage("command", "--fabric", "command", "--fabric-command", str(program.path))
    service = stage.service
    do(*requests(service))
    do(*approvals(service, SPEAKERS))
    found = [operation for operation in get(service, "operations")["operations"] if operation["cause"] != "rebalance"]
    program.arrivals(len(found))
    assert all_started(stage.kill_and_compare())
    named = {operation["vms"][0]: operation["id"] for operation in found}
    failing, later = named["restart-early_0"], named["repair-early_0"]
    ids = [operation["id"] for operation in found if operation["id"] not in (failing, later)]
    killed, gone, going = ids[::3], [*ids[1::3], failing, later], ids[2::3]

    def meanwhile() -> None:
        for operation in killed:
            program.kill(operation)
        for operation in gone:
            program.let_go(operation, {failing: 1, later: os.EX_TEMPFAIL}.get(operation, 0))

    stage.again(meanwhile)
    program.arrivals(len(killed) + 1)
    for operation in (*killed, *going, later):
        program.let_go(operation)
    service.advance("0s")
    once, again = {(operation["id"], False): 1 for operation in found}, {(name, True): 1 for name in (*killed, later)}
    assert program.ran() == once | again, "a run that ended, or goes on, is not repeated"
    stage.kill_and_compare()
    service.advance("10m")
    do(*advice(service))
    do(*approvals(service, [f"advice-{DUE}"]))
    program.arrivals(1)
    stage.again(lambda: program.let_go(next(reversed(program.pids))))
    service.advance("1m")
    view = stage.kill_and_compare()
    check_end(view, simulated=False)
    assert [operation["id"] for operation in view["operations"] if operation["status"] == "failed"] == [failing]
    assert len(program.ran()) == len(once | again) + 1

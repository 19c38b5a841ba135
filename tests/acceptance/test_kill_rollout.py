"""kill -9 in the middle of rollouts, of what policy has decided, and of everything at once."""

from __future__ import annotations

import http.client
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.causes import VIRTUAL_TIME, act_on_event, advance_to, events, get, request
from acceptance.test_kill import Witness
from acceptance.test_kill_causes import Program, Stage, check_once, seen, table
from depth import amount
from forewarn.core.event_types import Verb
from forewarn.core.operations import CAUSES, CauseTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from forewarn.testing import ServiceProcess

BUDGET = 2
HOSTS = [f"rack-{number:02}" for number in range(12)]
GROUPS = {"red": (3, HOSTS[:6]), "blue": (4, HOSTS[4:]), "green": (5, HOSTS[2:9])}
"""How many update domains each has, and a VM of it on which hosts."""
SPEAKERS = {group: f"127.2.{number}.1" for number, group in enumerate(GROUPS)}
FLEET = "".join(
    (
        *(table("host", name=host) for host in HOSTS),
        *(table("group", name=name, kind="availability-set", update_domains=GROUPS[name][0]) for name in GROUPS),
        *(
            table("vm", group=name, name=f"{name}-{{n}}", count=len(hosts), hosts=hosts, addresses=SPEAKERS[name])
            for name, (_, hosts) in GROUPS.items()
        ),
    )
)
WELL, ILL = '{"running": true}', '{"running": false}'


class Rollout:
    """A rollout over all hosts whose work is held back by a program, and who looks at it."""

    def __init__(self, folder: Path) -> None:
        (folder / "fleet.toml").write_text(FLEET)
        self.program, self.folder = Program(folder), folder
        command = ("--fabric", "command", "--fabric-command", str(self.program.path))
        self.stage = Stage(folder / "service", folder / "fleet.toml", *VIRTUAL_TIME, *command)
        self.service = self.stage.service
        self.kills: Counter[str] = Counter()
        self.health(WELL)
        for address in SPEAKERS.values():
            events(self.service, address)
        self.service.advance("1s")
        settings = {
            "hosts": ["rack-*"],
            "max_unavailable": BUDGET,
            "notice": "1h",
            "pause": "5m",
            "health_timeout": "15m",
        }
        self.id = self.service.control("POST", "/v1/rollouts", settings).json()["id"]

    def health(self, word: str) -> None:
        (self.folder / "health").write_text(word)

    def __getitem__(self, name: str) -> Any:
        return get(self.service, f"rollouts/{self.id}")[name]

    def turn(self, word: str) -> None:
        assert self.service.control("POST", f"/v1/rollouts/{self.id}/{word}").status == 200

    def live(self) -> list[dict[str, Any]]:
        """What is announced or out: within the budget, and of each group one update domain at most."""
        found: list[dict[str, Any]] = get(self.service, "operations")["operations"]
        domains: dict[str, set[int]] = {}
        for vm in get(self.service, "vms")["vms"]:
            if any(vm["name"] in operation["vms"] for operation in found):
                domains.setdefault(vm["group"], set()).add(vm["update_domain"])
        assert len(found) <= BUDGET
        assert all(len(numbers) == 1 for numbers in domains.values()), domains
        return found

    def approve(self, operation: dict[str, Any]) -> None:
        for event in operation["events"]:
            assert self.service.approve(event["id"], source=SPEAKERS[event["group"]]).status == 200

    def kill(self, when: str) -> None:
        self.kills[when] += 1
        self.stage.kill_and_compare(SPEAKERS)
        self.live()


@pytest.fixture
def rollout(tmp_path: Path) -> Iterator[Rollout]:
    found = Rollout(tmp_path)
    yield found
    found.stage.end()
    found.program.end()


def run_a_wave(rollout: Rollout, may_kill: Callable[[str], None]) -> None:
    """From the announcement to the pause after it."""
    service, program = rollout.service, rollout.program
    may_kill("announced")
    first, *others = rollout.live()
    rollout.approve(first)
    program.arrivals(1)
    may_kill("half of it started")
    for operation in others:
        rollout.approve(operation)
    program.arrivals(len(others))
    may_kill("all of it started")
    rollout.health(ILL)
    for operation in (first, *others):
        program.let_go(operation["id"])
    service.advance("25s")
    assert {operation["health"] for operation in rollout.live()} == {None}
    may_kill("looked at")
    rollout.health(WELL)
    service.advance("10s")
    assert {operation["health"] for operation in rollout.live()} == {"good"}
    may_kill("settling")
    service.advance("10m")
    assert rollout.live() == []


@pytest.mark.deep
def test_a_rollout_with_kills_at_every_stage_updates_each_host_once(rollout: Rollout) -> None:
    rng = random.Random(5)  # noqa: S311

    def may_kill(when: str) -> None:
        if not rollout.kills[when] or rng.random() < 0.3:
            rollout.kill(when)

    while rollout["status"] == "running":
        run_a_wave(rollout, may_kill)
        if rollout["status"] == "running":
            may_kill("in the pause")
            if rng.random() < 0.4 or not rollout.kills["paused"]:
                rollout.turn("pause")
                rollout.service.advance("1h")
                rollout.kill("paused")
                assert (rollout["status"], rollout.live()) == ("paused", [])
                rollout.turn("resume")
            else:
                rollout.service.advance("5m")
    rollout.kill("done")
    assert rollout.kills.total() >= 15
    view = seen(rollout.service, SPEAKERS)
    check_once(view)
    assert (rollout["status"], sorted(rollout["done"]), rollout["skipped"]) == ("done", HOSTS, [])
    updated = {operation["host"]: operation for operation in view["operations"]}
    assert (sorted(updated), len(view["operations"])) == (HOSTS, len(HOSTS))
    assert {(operation["status"], operation["health"]) for operation in updated.values()} == {("done", "good")}
    assert rollout.program.ran() == {(operation["id"], False): 1 for operation in updated.values()}
    row_counts = Counter((row["kind"], row["reason"]) for row in view["history"] if row["operation"] == rollout.id)
    assert all(
        count == 1 for (what, _), count in row_counts.items() if what not in ("rollout-paused", "rollout-resumed")
    )


@pytest.mark.parametrize("way", ["somebody says so", "its program fails", "its VMs do not come back"])
def test_a_stopped_rollout_stays_stopped_and_its_scheduled_events_are_cancelled_once(
    rollout: Rollout, way: str
) -> None:
    service, program = rollout.service, rollout.program
    bad, withdrawn = rollout.live()
    rollout.approve(bad)
    program.arrivals(1)
    rollout.kill("started")
    if way == "somebody says so":
        assert service.control("POST", f"/v1/operations/{bad['id']}/failed", {"reason": "no"}).status == 200
    elif way == "its program fails":
        rollout.stage.again(lambda: program.let_go(bad["id"], 1))
    else:
        rollout.health(ILL)
        program.let_go(bad["id"])
        service.advance("14m59s")
        rollout.kill("looked at")
        service.advance("1s")
    if way != "somebody says so":
        service.advance("0s")
    rollout.kill("stopped")
    service.advance("1d")
    rollout.kill("a day later")
    assert (rollout["status"], rollout["done"], rollout.live()) == ("stopped", [], [])
    view = seen(service, SPEAKERS)
    check_once(view)
    over = {operation["id"]: operation["status"] for operation in view["operations"]}
    assert over == {bad["id"]: "done" if way == "its VMs do not come back" else "failed", withdrawn["id"]: "cancelled"}


def test_a_rollout_stays_paused_or_cancelled_and_starts_due_waves_across_kills(rollout: Rollout) -> None:
    service, program = rollout.service, rollout.program
    rollout.turn("pause")
    rollout.kill("paused")
    run_a_wave(rollout, rollout.kill)
    service.advance("1d")
    rollout.kill("paused for a day")
    assert (rollout["status"], rollout["wave"], rollout.live()) == ("paused", 1, [])
    rollout.turn("resume")
    rollout.kill("resumed")
    rollout.stage.kill_in_the_middle(lambda: service.advance("1h"), lambda: program.arrivals(BUDGET))
    assert [operation["status"] for operation in rollout.live()] == ["started"] * BUDGET
    for operation in rollout.live():
        program.let_go(operation["id"])
    service.advance("15m")
    going, withdrawn = rollout.live()
    rollout.approve(going)
    program.arrivals(1)
    rollout.turn("cancel")
    rollout.kill("cancelled")
    assert [operation["id"] for operation in rollout.live()] == [going["id"]]
    program.let_go(going["id"])
    service.advance("1d")
    rollout.kill("a day later")
    assert (rollout["status"], rollout["wave"], rollout.live()) == ("cancelled", 3, [])
    view = seen(service, SPEAKERS)
    check_once(view)
    assert Counter(operation["status"] for operation in view["operations"]) == {"done": 5, "cancelled": 1}
    done = [operation["id"] for operation in view["operations"] if operation["id"] != withdrawn["id"]]
    assert program.ran() == {(operation, False): 1 for operation in done}


# --- What policy has decided ----------------------------------------------------------------------------

HOST_OF = {"web-0": "left", "web-1": "right", "web-2": "left"}
VMS = (*HOST_OF, "night", "quiet", "late", "spot", "set_0")
ADDRESSES = {name: f"127.3.0.{number}" for number, name in enumerate(VMS, 1)}
POLICIES = {
    "web": {"auto_approve": ["reboot"]},
    "night": {"windows": ["daily 02:00 4h UTC"]},
    "quiet": {"windows": ["daily 02:00 4h UTC"]},
    "set": {"terminate_notice": "PT15M"},
}


def policy_fleet() -> str:
    parts = [table("host", name=name) for name in ("left", "right", "empty")]
    parts += [table("group", name=name, kind="availability-set") for name in ("web", "night", "quiet")]
    parts += [table("group", name="set", kind="scale-set")]
    for name in VMS:
        group = name.partition("-")[0].partition("_")[0]
        fields = {"group": group} if group in POLICIES else {"priority": "spot"}
        fields |= {"host": HOST_OF[name]} if name in HOST_OF else {}
        parts += [table("vm", name=name, address=ADDRESSES[name], **fields)]
    return "".join(parts)


def test_policy_postponement_windows_and_the_state_of_vms_and_hosts_survive_kills(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(policy_fleet())
    stage = Stage(tmp_path / "service", tmp_path / "fleet.toml", *VIRTUAL_TIME)
    service = stage.service
    speakers = {name: address for name, address in ADDRESSES.items() if name not in ("quiet", "set_0", "web-1")}

    def approved(cause: str, vm: str) -> None:
        (operation,) = request(service, cause, vm)
        act_on_event(service, operation["events"][0]["id"], "approve")
        service.advance("0s")

    def progress(operation: dict[str, Any]) -> str:
        return str(get(service, f"operations/{operation['id']}")["status"])

    def started_at(moment: datetime, *operations: dict[str, Any]) -> None:
        advance_to(service, moment - timedelta(seconds=1))
        stage.kill_and_compare(speakers)
        assert {progress(operation) for operation in operations} == {"pending"}
        advance_to(service, moment)
        assert {progress(operation) for operation in operations} == {"started"}

    try:
        seen(service, {**speakers, "set_0": ADDRESSES["set_0"]})
        noon = service.now.replace(hour=12, minute=0, second=0) + timedelta(days=1)
        advance_to(service, noon)
        for group, policy in POLICIES.items():
            assert service.control("POST", f"/v1/groups/{group}/policy", policy).status == 200
        request(service, "degraded-hardware", host="empty")
        approved("redeploy", "web-0")
        approved("eviction", "spot")
        late, night, quiet = (
            request(service, "host-update", host=f"{vm}-host")[0] for vm in ("late", "night", "quiet")
        )
        act_on_event(service, late["events"][0]["id"], "postpone", by="2h")
        view = stage.kill_and_compare(speakers)
        assert [host["state"] for host in view["hosts"] if host["name"] == "empty"] == ["degraded"]
        (restart,) = request(service, "restart", "web-1")
        assert restart["status"] == "started", "reboots are approved automatically"
        (deletion,) = request(service, "delete", "set_0")
        approved("redeploy", "web-2")
        request(service, "start", "spot")
        service.poll_all()
        service.advance("0s")
        view = stage.kill_and_compare(speakers)
        vms = {vm["name"]: vm for vm in view["vms"]}
        assert (vms["web-0"]["host"], vms["web-2"]["host"], vms["spot"]["state"]) == ("spare-1", "spare-1", "running")
        assert [host["name"] for host in view["hosts"] if host["spare"]] == ["spare-1"]
        started_at(noon + timedelta(minutes=15), deletion)
        started_at(noon + timedelta(hours=2, minutes=15), late)
        started_at(noon + timedelta(hours=14), night, quiet)
        service.advance("10m")
        check_once(stage.kill_and_compare(speakers))
    finally:
        stage.end()


# --- Everything at once, in real time -------------------------------------------------------------------

KILLS = amount(10, 3)
RACKS = [f"rack-{number}" for number in range(6)]
HIT = [f"hit_{number}" for number in range(40)]
DELETED = [f"set_{number}" for number in range(20)]
ROLLOUT = {"hosts": ["rack-*"], "max_unavailable": 3, "pause": "5m", "health_timeout": "10h"}
LISTENERS = {"127.4.0.1": "hit", "127.4.0.2": "seer", "127.4.0.3": "set"}
REAL_FLEET = "".join(
    (
        *(table("host", name=rack) for rack in RACKS),
        table("group", name="hit", kind="scale-set", eviction_policy="delete", update_domains=5),
        table("group", name="set", kind="scale-set", terminate_notice="PT5M", update_domains=5),
        table("vm", group="set", count=len(DELETED), hosts=RACKS[:5]),
        table("vm", group="set", first=len(DELETED), count=1, hosts=RACKS[:1], addresses="127.4.0.3"),
        table("vm", group="hit", count=len(HIT), hosts=RACKS[:5], priority="spot"),
        table("vm", group="hit", first=len(HIT), count=1, hosts=RACKS[:1], addresses="127.4.0.1"),
        table("vm", name="seer", host=RACKS[5], address="127.4.0.2"),
    )
)


def client(service: ServiceProcess, witness: Witness, rng: random.Random) -> None:
    """Send random requests, polls and approvals until the service is killed."""
    with suppress(OSError, http.client.HTTPException):
        while True:
            if rng.random() < 0.4:
                ask_for_anything(service, witness, rng)
            source, group = rng.choice(list(LISTENERS.items()))
            answer = service.request(source=source)
            witness.document(group, answer.headers["etag"], answer.body)
            for event in answer.json()["Events"][:2]:
                if rng.random() < 0.5 and service.approve(event["EventId"], source=source).status == 200:
                    witness.approval(event["EventId"])


def ask_for_anything(service: ServiceProcess, witness: Witness, rng: random.Random) -> None:
    cause = rng.choice([name for name in CAUSES if name != "rebalance"])
    if rng.random() < 0.2:
        service.control("POST", f"/v1/hosts/{rng.choice(RACKS)}/return")
    if rng.random() < 0.1:
        service.control("POST", "/v1/rollouts", ROLLOUT)
    at_host = CAUSES[cause].target in (CauseTarget.HOST, CauseTarget.TENANTS)
    names = DELETED if CAUSES[cause].verb is Verb.DELETE else HIT
    target = {"host": rng.choice(RACKS)} if at_host else {"vms": [rng.choice(names)]}
    notice = {"notice": "15m"} if cause == "degraded-hardware" else {}
    answer = service.control("POST", "/v1/operations", {"cause": cause, **target, **notice})
    assert answer.status in (201, 404, 409), answer  # it was deleted, or does not run, or runs
    for operation in answer.json()["operations"] if answer.status == 201 else ():
        witness.operation(operation)


def check(service: ServiceProcess, witness: Witness) -> None:
    """What was promised is known, and no incarnation has gone back."""
    known = {event["id"]: event for event in get(service, "events?all=true")["events"]}
    for event_id, promised in witness.events.items():
        event = known[event_id]
        assert all(event[name] == promised[name] for name in ("operation", "vms", "type", "created_at", "not_before"))
        # An approval after the end has no effect, but is acknowledged.
        ended = event["status"] == "cancelled"
        assert event_id not in witness.approved or event["approved_at"] or event["started_at"] or ended
    for source, group in LISTENERS.items():
        answer = service.request(source=source)
        ((enabled, (latest, body)),) = [item for item in witness.documents.items() if item[0][0] == group]
        assert answer.headers["etag"].strip('"').partition(".")[0] == enabled[1]
        assert answer.json()["DocumentIncarnation"] >= latest
        assert answer.json()["DocumentIncarnation"] != latest or answer.body == body


def kill_amid_clients(stage: Stage, witness: Witness, rng: random.Random) -> None:
    witness.expect(rng.randint(1, 80))
    with ThreadPoolExecutor() as pool:
        lots = [random.Random(rng.random()) for _ in range(4)]  # noqa: S311
        clients = [pool.submit(client, stage.service, witness, lot) for lot in lots]
        enough = witness.enough.wait(timeout=60)
        stage.again(lambda: wait(clients))
    for done in clients:
        done.result()
    assert enough, "the service answers nothing"


@pytest.mark.parametrize("fabric", [pytest.param("simulated", marks=pytest.mark.deep), "command"])
def test_in_real_time_nothing_is_lost_and_nothing_is_done_twice(tmp_path: Path, fabric: str) -> None:
    (tmp_path / "fleet.toml").write_text(REAL_FLEET)
    (tmp_path / "health").write_text(WELL)
    program, witness, rng = Program(tmp_path, waits=False), Witness(), random.Random(6)  # noqa: S311
    command = ("--fabric", "command", "--fabric-command", str(program.path)) if fabric == "command" else ()
    stage = Stage(tmp_path / "service", tmp_path / "fleet.toml", *command, "--speed", "600")
    try:
        for source, group in LISTENERS.items():
            answer = stage.service.request(source=source)
            witness.document(group, answer.headers["etag"], answer.body)
        assert stage.service.control("POST", "/v1/rollouts", ROLLOUT).status == 201
        for _ in range(KILLS):
            kill_amid_clients(stage, witness, rng)
            check(stage.service, witness)
        ends = time.monotonic() + 150
        while (live := get(stage.service, "operations")["operations"]) or get(stage.service, "rollouts")["rollouts"]:
            assert time.monotonic() < ends, "something does not end"
            stage.service.poll_all()
            for operation in live:  # a VM that has landed on a degraded host has a week
                for event in operation["events"] if operation["cause"] == "degraded-hardware" else ():
                    stage.service.control("POST", f"/v1/events/{event['id']}/approve")
        stage.again()
        view = seen(stage.service, {})
        assert {event["operation"] for event in witness.events.values()} <= {one["id"] for one in view["operations"]}
        check_once(view)
        carried_out = {one["id"]: 1 for one in view["operations"] if one["executed_at"]}
        if fabric == "command":
            ran = Counter(name for name, _ in program.ran().elements())
            assert max(ran.values()) == 1
            assert carried_out.keys() <= ran.keys() <= {one["id"] for one in view["operations"]}
            ended = {one["id"] for one in view["operations"] if one["executed_at"] or not one["vms"]}
            assert ran.keys() <= ended, "only work whose last VM left the fleet is not waited for"
    finally:
        stage.end()
        program.end()

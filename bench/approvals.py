"""Approvals per second, each on disk when it is answered, against plain SQLite commits of the same rows.

Every approval is the first of its own event. The service writes more for each: a little later, together with
others, that the fabric has carried the restart out. Plain SQLite commits the approval alone.
"""

from __future__ import annotations

import json
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.processes import LOAD_CORE, SERVER_CORE
from bench.report import Outcome, Row, at_least, spread
from bench.service import POLLER, Service, fleet_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.stage import Stage

CLIENTS = 64
OF_ONE_CLIENT = 200
OF_EACH_OF_MANY = 8
CONTROL_CONNECTIONS = 16

Plan = list[tuple[str, list[str]]]
"""Each client's address, and the events that it approves one after the other."""


def measure(stage: Stage) -> Outcome:
    """One client, then 64 that are 64 VMs, each with plain commits of what it wrote right after it."""
    service = Service(stage.processes, stage.folder("approvals"), _fleet())
    service.start()
    for number in range(CLIENTS):
        service.poll(_address(number))
    rounds = [_round(stage, service, number) for number in range(stage.rounds)]
    service.stop()
    of_one, of_many = ([found[which]["ratio"] for found in rounds] for which in ("one", "many"))
    return Outcome(_rows(rounds), {"rounds": rounds, "of_one": spread(of_one), "of_many": spread(of_many)})


def _round(stage: Stage, service: Service, number: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for which, plan in (("one", _plan_of_one(service)), ("many", _plan_of_many(service))):
        before = _copy(service, f"{which}-{number}")
        os.sync()  # what the copy left to be written must not slow down whoever comes first
        approved = _approve(stage, service, plan)
        os.sync()
        plain = _commit_plainly(stage, service, before, [event for _, ids in plan for event in ids])
        found[which] = {"approved": approved, "plain": plain, "ratio": approved["per_second"] / plain["per_second"]}
        before.unlink()
        rates = f"{approved['per_second']:,.0f}/s, plain commits {plain['per_second']:,.0f}/s"
        stage.say(f"approvals of {which}: {rates}")
    return found


def _fleet() -> str:
    vms = (f'\n[[vm]]\nname = "client-{number}"\naddress = "{_address(number)}"\n' for number in range(CLIENTS))
    return fleet_text(1) + "".join(vms)


def _address(number: int) -> str:
    return f"127.0.1.{number + 1}"


def _make_events(service: Service, vms: Sequence[str]) -> dict[str, list[str]]:
    """One restart for each name, over several connections: what arrives together is committed together."""

    def make(names: Sequence[str]) -> list[tuple[str, str]]:
        with closing(service.control()) as control:
            return [(name, control.restart(name)) for name in names]

    made: dict[str, list[str]] = {name: [] for name in vms}
    with ThreadPoolExecutor(CONTROL_CONNECTIONS) as pool:
        for part in pool.map(make, (vms[start::CONTROL_CONNECTIONS] for start in range(CONTROL_CONNECTIONS))):
            for name, event_id in part:
                made[name].append(event_id)
    return made


def _plan_of_one(service: Service) -> Plan:
    return [("127.0.0.1", _make_events(service, [POLLER] * OF_ONE_CLIENT)[POLLER])]


def _plan_of_many(service: Service) -> Plan:
    made = _make_events(service, [f"client-{number}" for number in range(CLIENTS)] * OF_EACH_OF_MANY)
    return [(_address(number), made[f"client-{number}"]) for number in range(CLIENTS)]


def _approve(stage: Stage, service: Service, plan: Plan) -> dict[str, Any]:
    given = json.dumps({"address": service.metadata, "plan": plan}).encode()
    printed = stage.processes.output_of(stage.processes.module("approval_load"), LOAD_CORE, given)
    found: dict[str, Any] = json.loads(printed)
    return found


def _copy(service: Service, name: str) -> Path:
    """The service's database as it is before the approvals."""
    path = service.folder / f"plain-{name}.db"
    with closing(sqlite3.connect(service.data / "forewarn.db")) as source, closing(sqlite3.connect(path)) as copy:
        source.backup(copy)
    return path


def _commit_plainly(stage: Stage, service: Service, before: Path, events: list[str]) -> dict[str, Any]:
    given = json.dumps({"source": str(service.data / "forewarn.db"), "target": str(before), "events": events}).encode()
    found: dict[str, Any] = json.loads(
        stage.processes.output_of(stage.processes.module("plain_commits"), SERVER_CORE, given)
    )
    return found


def _rows(rounds: list[dict[str, Any]]) -> list[Row]:
    def middle(which: str, whose: str) -> str:
        return f"{median(found[which][whose]['per_second'] for found in rounds):,.0f}"

    one, many = (median(found[which]["ratio"] for found in rounds) for which in ("one", "many"))
    plain = {which: f"SQLite {middle(which, 'plain')}" for which in ("one", "many")}
    return [
        at_least("approvals/s, one client", middle("one", "approved"), plain["one"], one, 0.5),
        Row("approvals/s, 64 clients", middle("many", "approved"), plain["many"], f"{many:.2f}", "≥ 1.5", many >= 1.5),
    ]

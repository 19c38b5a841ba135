"""Approvals per second, each on disk when it is answered, against plain SQLite commits of the same rows.

Every approval is the first of its own event. The service commits twice for each: the approval itself,
and a little later that the fabric has carried the restart out. Plain SQLite commits the first alone.
"""

from __future__ import annotations

import json
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
OF_ONE_CLIENT = 400
OF_EACH_OF_MANY = 15
MOST_ROUNDS = 5
CONTROL_CONNECTIONS = 16

Plan = list[tuple[str, list[str]]]
"""Each client's address, and the events that it approves one after the other."""


def measure(stage: Stage) -> Outcome:
    """One client, then 64 that are 64 VMs, then plain commits of what the 64 wrote; several rounds of it."""
    service = Service(stage.processes, stage.folder("approvals"), _fleet())
    service.start()
    for number in range(CLIENTS):
        service.poll(_address(number))
    rounds = []
    for number in range(min(stage.rounds, MOST_ROUNDS)):
        one, many = _plan_of_one(service), _plan_of_many(service)
        before = _copy(service, number)
        found = {
            "one": _approve(stage, service, one),
            "many": _approve(stage, service, many),
            "plain": _commit_plainly(stage, service, before, [event for _, ids in many for event in ids]),
        }
        rounds.append(found)
        rates = ", ".join(f"{name} {figures['per_second']:,.0f}/s" for name, figures in found.items())
        stage.say(f"approvals: {rates}")
    service.stop()
    return Outcome(
        _rows(rounds), {"rounds": rounds, "of_one": _ratio(rounds, "one"), "of_many": _ratio(rounds, "many")}
    )


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


def _copy(service: Service, number: int) -> Path:
    """The service's database as it is before the approvals."""
    path = service.folder / f"plain-{number}.db"
    with closing(sqlite3.connect(service.data / "forewarn.db")) as source, closing(sqlite3.connect(path)) as copy:
        source.backup(copy)
    return path


def _commit_plainly(stage: Stage, service: Service, before: Path, events: list[str]) -> dict[str, Any]:
    given = json.dumps({"source": str(service.data / "forewarn.db"), "target": str(before), "events": events}).encode()
    found: dict[str, Any] = json.loads(
        stage.processes.output_of(stage.processes.module("plain_commits"), SERVER_CORE, given)
    )
    return found


def _ratio(rounds: list[dict[str, Any]], which: str) -> dict[str, float]:
    return spread([found[which]["per_second"] / found["plain"]["per_second"] for found in rounds])


def _rows(rounds: list[dict[str, Any]]) -> list[Row]:
    rates = {name: median(found[name]["per_second"] for found in rounds) for name in ("one", "many", "plain")}
    of_one, of_many = _ratio(rounds, "one")["median"], _ratio(rounds, "many")["median"]
    plain = f"SQLite {rates['plain']:,.0f}"
    return [
        at_least("approvals/s, one client", f"{rates['one']:,.0f}", plain, of_one, 0.5),
        Row("approvals/s, 64 clients", f"{rates['many']:,.0f}", plain, f"{of_many:.2f}", "> 1", of_many > 1),
    ]

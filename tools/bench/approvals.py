"""Approvals per second, compared with plain SQLite commits of the same rows. Each approval is on disk before its 200.

Each approval is the first of its event. The service also writes, a little later and in batches, that the fabric has
executed each restart. The plain SQLite commits do not include that.
"""

from __future__ import annotations

import json
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING, Any

from tools.bench.processes import LOAD_CORE, SERVER_CORE
from tools.bench.report import Outcome, Row, at_least, spread
from tools.bench.service import POLLER, Service

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tools.bench.context import Context

CLIENTS = 64
APPROVALS_OF_ONE_CLIENT = 200
APPROVALS_PER_CLIENT = 8
CONTROL_CONNECTIONS = 16

Plan = list[tuple[str, list[str]]]
"""The source address of each client, and the events that it approves one after the other."""


def measure(context: Context) -> Outcome:
    """Measure one client, then 64 clients that are 64 VMs. Plain commits of the same rows follow each of the two."""
    service = Service(context.processes, context.folder("approvals"), _fleet())
    service.start()
    for number in range(CLIENTS):
        service.poll(_address(number))
    rounds = [_round(context, service, number) for number in range(context.rounds)]
    service.stop()
    one, many = ([results[clients]["ratio"] for results in rounds] for clients in ("one", "many"))
    return Outcome(_rows(rounds), {"rounds": rounds, "ratio_one": spread(one), "ratio_many": spread(many)})


def _round(context: Context, service: Service, number: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for clients, plan in (("one", _plan_for_one(service)), ("many", _plan_for_many(service))):
        before = _copy_database(service, f"{clients}-{number}")
        os.sync()  # otherwise the pending writes of the copy slow down the approvals
        approvals = _approve(context, service, plan)
        os.sync()
        sqlite = _commit_to_sqlite(context, service, before, [event for _, ids in plan for event in ids])
        ratio = approvals["per_second"] / sqlite["per_second"]
        results[clients] = {"approvals": approvals, "sqlite": sqlite, "ratio": ratio}
        before.unlink()
        rates = f"{approvals['per_second']:,.0f}/s, SQLite {sqlite['per_second']:,.0f}/s"
        context.log(f"approvals, {len(plan)} {'client' if len(plan) == 1 else 'clients'}: {rates}")
    return results


def _fleet() -> str:
    """Return a fleet with a group for each client. Its first VM is the client."""
    groups = [_group(POLLER, "127.0.0.1", APPROVALS_OF_ONE_CLIENT)]
    groups += [_group(f"client-{number}", _address(number), APPROVALS_PER_CLIENT) for number in range(CLIENTS)]
    return "".join(groups)


def _group(name: str, address: str, vms: int) -> str:
    client = f'[[vm]]\nname = "{name}-0"\ngroup = "{name}"\naddress = "{address}"\n'
    others = f'[[vm]]\nname = "{name}-{{n}}"\ngroup = "{name}"\nfirst = 1\ncount = {vms - 1}\n'
    return f'[[group]]\nname = "{name}"\nkind = "availability-set"\n{client}{others}'


def _address(number: int) -> str:
    return f"127.0.1.{number + 1}"


def _create_events(service: Service, groups: Sequence[str], vms: int) -> dict[str, list[str]]:
    """Schedule a restart of each VM of the groups: a VM can have only one. Return the events of each group.

    Several connections let the service commit many of them together.
    """

    def create(targets: Sequence[tuple[str, int]]) -> list[tuple[str, str]]:
        with closing(service.control()) as control:
            return [(group, control.restart(f"{group}-{number}")) for group, number in targets]

    targets = [(group, number) for number in range(vms) for group in groups]
    events: dict[str, list[str]] = {group: [] for group in groups}
    with ThreadPoolExecutor(CONTROL_CONNECTIONS) as pool:
        for part in pool.map(create, (targets[start::CONTROL_CONNECTIONS] for start in range(CONTROL_CONNECTIONS))):
            for group, event_id in part:
                events[group].append(event_id)
    return events


def _plan_for_one(service: Service) -> Plan:
    return [("127.0.0.1", _create_events(service, [POLLER], APPROVALS_OF_ONE_CLIENT)[POLLER])]


def _plan_for_many(service: Service) -> Plan:
    events = _create_events(service, [f"client-{number}" for number in range(CLIENTS)], APPROVALS_PER_CLIENT)
    return [(_address(number), events[f"client-{number}"]) for number in range(CLIENTS)]


def _approve(context: Context, service: Service, plan: Plan) -> dict[str, Any]:
    arguments = json.dumps({"address": service.metadata, "plan": plan}).encode()
    processes = context.processes
    result: dict[str, Any] = json.loads(processes.output_of(processes.module("approval_clients"), LOAD_CORE, arguments))
    return result


def _copy_database(service: Service, name: str) -> Path:
    """Copy the service's database before the approvals."""
    path = service.folder / f"sqlite-{name}.db"
    with closing(sqlite3.connect(service.data / "forewarn.db")) as source, closing(sqlite3.connect(path)) as copy:
        source.backup(copy)
    return path


def _commit_to_sqlite(context: Context, service: Service, before: Path, events: list[str]) -> dict[str, Any]:
    paths = {"source": str(service.data / "forewarn.db"), "target": str(before)}
    arguments = json.dumps({**paths, "events": events}).encode()
    processes = context.processes
    result: dict[str, Any] = json.loads(processes.output_of(processes.module("sqlite_commits"), SERVER_CORE, arguments))
    return result


def _rows(rounds: list[dict[str, Any]]) -> list[Row]:
    def rate(clients: str, system: str) -> str:
        return f"{median(results[clients][system]['per_second'] for results in rounds):,.0f}"

    one, many = (median(results[clients]["ratio"] for results in rounds) for clients in ("one", "many"))
    return [
        at_least("approvals/s, one client", rate("one", "approvals"), f"SQLite {rate('one', 'sqlite')}", one, 0.5),
        at_least("approvals/s, 64 clients", rate("many", "approvals"), f"SQLite {rate('many', 'sqlite')}", many, 1.5),
    ]

"""What clients saw of a service in other processes and in real time, for the checker of notices.

The clients only collect. In the end `violations` replays everything in the order of its times: documents of the polls,
orders from the log of the operator's program, and places. Nobody can look at all places at every moment, so they are
those of the first look, changed by the operations that the service has executed; the last look must be equal.

A fabric without such a log, or in virtual time, has no times of its own. Then work on an operation lasts as long as
the service says: from the row `started` in history to the row `executed` or `failed`.
"""

from __future__ import annotations

import math
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from notice_checker import NoticeChecker
from order_log import LoggedOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from forewarn.testing.client import ServiceClient
    from order_log import OrderLog

Step = tuple[datetime, float, "Callable[[], None]"]
LATE = timedelta(seconds=0.7)
"""How much later than the service a client can see an event, on a busy machine."""


class NoticeWitness:
    """Collects what clients see. Threads may share it."""

    def __init__(self) -> None:
        self._checker = NoticeChecker()
        self.slack = LATE
        """How much later than the service a client can see an event."""
        self.orders: OrderLog | None = None
        """If the service uses this program."""
        self._first: list[dict[str, Any]] = []
        self._first_at = datetime.max.replace(tzinfo=UTC)
        self._names: dict[str, str] = {}
        self._documents: list[tuple[datetime, str, dict[str, Any]]] = []
        self._lock = threading.Lock()

    def first_look(self, vms: list[dict[str, Any]], at: datetime) -> None:
        """The VMs before anything has happened."""
        self._first, self._first_at = vms, at
        self._names = {vm["address"]: vm["name"] for vm in vms if vm["address"]}

    @property
    def has_looked(self) -> bool:
        return bool(self._names)

    def document(self, address: str, document: dict[str, Any], at: datetime | None = None) -> None:
        """The VM with this address got this document, now or at this time of the service."""
        with self._lock:
            self._documents.append((at or datetime.now(UTC), self._names.get(address, ""), document))

    def approving(self, event_id: str) -> None:
        """A client sends an approval. If the outcome is not known, it may have had its effect."""
        with self._lock:
            self._checker.approved(event_id)

    def down(self, since: datetime, until: datetime) -> None:
        """The service was down, in real time."""
        self._checker.down(since, until)

    def violations(self, service: ServiceClient) -> list[str]:
        """Judge everything, with all operations that ever existed."""
        self._checker.slack = self.slack
        checker = self._checker
        known, history, shown_vms = _state(service)
        checker.policies(service.list_all("/v1/groups"), service.get_json("/v1/clock")["speed"])
        for operation in known:
            checker.operation(operation)
        places = {vm["name"]: dict(vm) for vm in self._first}
        checker.places(places.values(), self._first_at)
        begun = {row["operation"]: row["sequence"] for row in reversed(history) if row["kind"] == "started"}
        ended = {row["operation"]: row["sequence"] for row in history if row["kind"] in ("executed", "failed")}
        orders = self.orders.read() if self.orders is not None else _orders(known, ended | begun, ended)
        # At the same time: first what was polled, then work in the order of history.
        steps: list[Step] = [
            *((at, 0, partial(checker.document, vm, document, at)) for at, vm, document in self._documents),
            *((at, ended.get(one["id"], 0), partial(self._effect, places, one, at)) for at, one in _effects(known)),
            *((logged.at, logged.sequence, partial(self._order, logged)) for logged in orders),
        ]
        for at, _, act in sorted(steps, key=lambda step: step[:2]):
            if at >= self._first_at:
                act()
        found = [str(violation) for violation in checker.violations]
        for shown in shown_vms:
            name, end = shown["name"], places.get(shown["name"])
            if end is not None and (end["host"], end["state"]) != (shown["host"], shown["state"]):
                expected = f"{end['state']} on {end['host']}"
                found.append(f"{name} is {shown['state']} on {shown['host']}, and its operations left it {expected}")
        return found

    def _effect(self, places: dict[str, dict[str, Any]], operation: dict[str, Any], at: datetime) -> None:
        """What finished work has changed."""
        for name in operation["vms"]:
            if name not in places:
                continue
            match operation["verb"]:
                case "deallocate":
                    places[name]["state"] = "deallocated"
                case "start":
                    places[name]["state"] = "running"
                case "delete":
                    del places[name]
                    continue
            places[name]["host"] = operation["moves"].get(name, places[name]["host"])
        self._checker.places([dict(vm) for vm in places.values()], at)

    def _order(self, logged: LoggedOrder) -> None:
        order = logged.order
        if order is None:
            self._checker.work_ended(logged.operation, logged.at)
            return
        self._checker.work_started(
            logged.operation, order["cause"], order["host"] or "", order["vms"], order["moves"], logged.at
        )


def _state(service: ServiceClient) -> tuple[list[Any], list[Any], list[Any]]:
    """Return operations, history and VMs of one moment: no work was done while they were read."""
    known = service.list_all("/v1/operations?all=true")
    while True:
        history, vms = service.list_all("/v1/history"), service.list_all("/v1/vms")
        before, known = known, service.list_all("/v1/operations?all=true")
        if known == before:
            return known, history, vms


def _effects(operations: Iterable[dict[str, Any]]) -> Iterator[tuple[datetime, dict[str, Any]]]:
    """Yield the operations that changed places, each with the time of the change."""
    for operation in operations:
        time = operation["ended_at"] if operation["verb"] == "delete" else operation["executed_at"]
        if time and operation["status"] != "failed":
            yield datetime.fromisoformat(time), operation


def _orders(
    operations: Iterable[dict[str, Any]], begun: Mapping[str, int], ended: Mapping[str, int]
) -> Iterator[LoggedOrder]:
    """Yield when the work on each operation began and ended, as the service says."""
    for operation in operations:
        name, end = operation["id"], operation["executed_at"] or operation["ended_at"]
        if operation["started_at"] and operation["verb"]:
            yield LoggedOrder(
                datetime.fromisoformat(operation["started_at"]), name, operation, begun.get(name, math.inf)
            )
            if end:
                yield LoggedOrder(datetime.fromisoformat(end), name, None, ended.get(name, math.inf))

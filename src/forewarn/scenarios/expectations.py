"""Follows the events of a run in history, and compares them with the expectations of its scenario."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.core.durations import format_duration, from_text
from forewarn.core.events import EventStatus
from forewarn.core.history import ENGINE
from forewarn.core.scenarios import ExpectedVMState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from forewarn.core.fleet import VM
    from forewarn.core.scenarios import Expectation


class EventSnapshot(NamedTuple):
    """An event with one status, as its document shows it."""

    type: str
    status: str
    source: str
    description: str
    duration: int
    vms: tuple[str, ...]
    notice: timedelta
    """Time between its creation and its NotBefore."""

    @classmethod
    def of(cls, event: dict[str, Any]) -> EventSnapshot:
        seconds = event["duration_seconds"]
        return cls(
            event["type"],
            event["status"].capitalize(),
            event["source"].capitalize(),
            event["description"],
            -1 if seconds is None else round(seconds),
            tuple(event["vms"]),
            from_text(event["not_before"]) - from_text(event["created_at"]),
        )


class EventObserver:
    """Keeps each event of a run with each status that it had."""

    def __init__(self, vms: Mapping[str, VM]) -> None:
        self._vms = vms
        self.events: dict[str, dict[str, Any]] = {}
        """By id, each event as it is now."""
        self._observed: dict[str, dict[str, EventSnapshot]] = {}
        """For each event id, the event with each status that it had."""
        self._causes: dict[str, str] = {}
        """For each event id, the id of its operation or rollout."""
        self._started_domains: set[frozenset[tuple[str, str, int]]] = set()
        """Sets of update domains that were Started at the same time, each with the cause and the group."""

    def record(self, event: dict[str, Any], cause: str) -> None:
        """Record an event of a row of history. The rows must come in their order."""
        event_id, snapshot = event["id"], EventSnapshot.of(event)
        self.events[event_id] = event
        self._causes[event_id] = cause
        if not EventStatus(snapshot.status).live:
            return
        by_status = self._observed.setdefault(event_id, {})
        by_status[snapshot.status] = snapshot
        if snapshot.status != EventStatus.STARTED:
            return
        if event["started_at"] == event["created_at"] and event["approved_by"] in (None, ENGINE):
            by_status.pop(EventStatus.SCHEDULED.value, None)  # no document has shown it as Scheduled
        self._started_domains.add(
            frozenset(
                (self._causes[each["id"]], self._vms[name].group, self._vms[name].update_domain)
                for each in self.events.values()
                if each["status"] == EventStatus.STARTED.lower()
                for name in each["vms"]
                if name in self._vms
            )
        )

    def domains_at_once(self, causes: Collection[str]) -> int:
        """Return the maximum number of update domains of a group that the causes had Started at the same time."""
        found = [0]
        for started in self._started_domains:
            domains = {(group, domain) for cause, group, domain in started if cause in causes}
            groups = [group for group, _ in domains]
            found += map(groups.count, groups)
        return max(found)

    def observed_events(self, causes: Collection[str], vm: str) -> list[dict[str, EventSnapshot]]:
        """Return each event of the causes that named this VM, by the statuses that it had."""
        return [
            by_status
            for event_id, by_status in self._observed.items()
            if self._causes[event_id] in causes and vm in self.events[event_id]["vms"]
        ]

    def events_of(self, causes: Collection[str], vms: Collection[str]) -> list[dict[str, Any]]:
        """Return all events of the causes that name one of these VMs, as they are now."""
        return [
            event
            for event_id, event in self.events.items()
            if self._causes[event_id] in causes and not set(vms).isdisjoint(event["vms"])
        ]

    def is_visible(self, causes: Collection[str], vms: Collection[str]) -> bool:
        """Return whether a document now has an event of the causes that names one of these VMs."""
        return any(EventStatus(event["status"].capitalize()).live for event in self.events_of(causes, vms))


# --- Expectations ---------------------------------------------------------------------------------


_STATUSES = (EventStatus.STARTED.value, EventStatus.SCHEDULED.value, EventStatus.ADVISORY.value)


def check_events(
    expected: Expectation,
    vm: str,
    events: Sequence[dict[str, EventSnapshot]],
    quicken: Callable[[timedelta], timedelta],
) -> str:
    """Return why no event of a VM meets the expectation, or an empty string. One matching event is enough."""
    problems = [_check_event(expected, by_status, quicken) for by_status in events]
    if not problems:
        return f"{vm}: expected {_describe(expected)}, got no event"
    return "" if "" in problems else f"{vm}: {problems[-1]}"


def _check_event(
    expected: Expectation, by_status: dict[str, EventSnapshot], quicken: Callable[[timedelta], timedelta]
) -> str:
    newest = next(by_status[status] for status in _STATUSES if status in by_status)
    event = by_status.get(expected.status) if expected.status else newest
    if event is None:
        return f"expected status {expected.status}, got {newest.status}"
    for field, value, actual in (
        ("type", expected.type, event.type),
        ("source", expected.source, event.source),
        ("description", expected.description, event.description),
        ("duration", expected.duration, event.duration),
        ("vms", expected.vms, len(event.vms)),
    ):
        if value is not None and value != actual:
            return f"expected {field} {value!r}, got {actual!r}"
    if expected.notice is not None:
        scheduled = by_status.get(EventStatus.SCHEDULED.value)
        notice = scheduled.notice if scheduled is not None else timedelta(0)
        minimum = quicken(expected.notice)
        if notice < minimum:
            return f"expected a notice of at least {format_duration(minimum)}, got {format_duration(notice)}"
    return ""


def _describe(expected: Expectation) -> str:
    """Describe the expected event."""
    return " ".join(filter(None, (expected.type, expected.status))) or "an event"


_SPECIAL_CASES = {
    ExpectedVMState.RUNNING: (ExpectedVMState.MOVED,),
    ExpectedVMState.EVICTED: (ExpectedVMState.DEALLOCATED, ExpectedVMState.DELETED),
}
"""Other states that also meet an expectation."""


def check_vm(expected: ExpectedVMState, name: str, vm: VM | None, old_host: str) -> str:
    """Return why the state of a VM does not meet the expectation, or an empty string. `old_host`: its host before."""
    if vm is None:
        actual = ExpectedVMState.DELETED.value
    elif vm.deallocated:
        actual = ExpectedVMState.DEALLOCATED.value
    else:
        actual = ExpectedVMState.MOVED.value if vm.host != old_host else ExpectedVMState.RUNNING.value
    fits = expected == actual or actual in _SPECIAL_CASES.get(expected, ())
    where = f" on {vm.host}" if vm is not None and not vm.deallocated else ""
    return "" if fits else f"{name}: expected VM state {expected.value}, got {actual}{where}"

"""Observes the events of a run, and compares them with the expectations of its scenario."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import format_duration
from forewarn.core.events import EventStatus
from forewarn.core.scenarios import ExpectedVMState
from forewarn.errors import NotFound
from forewarn.wire.document import render
from forewarn.wire.document_reader import ScheduledEvent, read_document

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from forewarn.core.events import Event
    from forewarn.core.fleet import VM
    from forewarn.core.scenarios import Expectation
    from forewarn.engine.engine import Engine
    from forewarn.wire.versions import ApiVersion


class EventSnapshot(NamedTuple):
    """An event with one status, as a VM sees it."""

    event: ScheduledEvent
    notice: timedelta | None
    """Time between its creation and its NotBefore; None once it has started."""


class EventObserver:
    """Records the documents of some scopes whenever they change."""

    def __init__(self, engine: Engine, version: ApiVersion, scopes: Collection[str]) -> None:
        self._engine = engine
        self._version = version
        self.scopes = frozenset(scopes)
        self._observed: dict[str, dict[str, EventSnapshot]] = {}
        """For each event id, the event with each status that it had."""
        self._causes: dict[str, str] = {}
        """For each event id, the id of its operation or rollout."""
        self._visible: dict[str, set[str]] = {}
        """For each scope, the ids of the events in its current document."""
        self._started_domains: set[frozenset[tuple[str, int]]] = set()
        """Sets of update domains that were Started at the same time in a group, each with the cause."""

    def update(self, scopes: Collection[str]) -> None:
        """Record the current documents of the observed scopes."""
        draft = self._engine.draft()
        for scope in self.scopes & frozenset(scopes):
            document = self._engine.document(scope)
            events = {event.id: event for event in document.events}
            for event in document.events:
                if event.id not in self._causes:
                    operation = draft.operation(event.operation)
                    rollout = operation.request.rollout if operation is not None else ""
                    self._causes[event.id] = rollout or event.operation
            try:
                data = render(document, self._version, self._engine.fleet.group_of(scope).kind)
            except NotFound:  # the last VM of the scope has left the fleet
                shown = {}
            else:  # read the same bytes that a VM gets
                shown = {event.id.lower(): event for event in read_document(data).events}
            for event_id, seen in shown.items():
                self._observed.setdefault(event_id, {})[seen.status] = _snapshot(seen, events[event_id])
            self._visible[scope] = set(shown)
            self._record_started_domains(shown)

    def _record_started_domains(self, shown: dict[str, ScheduledEvent]) -> None:
        vms = self._engine.fleet.vms
        self._started_domains.add(
            frozenset(
                (self._causes[event_id], vms[name].update_domain)
                for event_id, event in shown.items()
                if event.status == EventStatus.STARTED
                for name in event.resources
                if name in vms
            )
        )

    def domains_at_once(self, causes: Collection[str]) -> int:
        """Return the maximum number of update domains of a group that the causes had Started at the same time."""
        sets = ({domain for cause, domain in started if cause in causes} for started in self._started_domains)
        return max(map(len, sets), default=0)

    def observed_events(self, causes: Collection[str], vm: str) -> list[dict[str, EventSnapshot]]:
        """Return each event of the causes that named this VM, by the statuses that it had."""
        return [
            by_status
            for event_id, by_status in self._observed.items()
            if self._causes[event_id] in causes and _names(by_status, [vm])
        ]

    def events(self, causes: Collection[str], vms: Collection[str]) -> list[str]:
        """Return the ids of all events of the causes that named one of these VMs."""
        return [
            event_id
            for event_id, by_status in self._observed.items()
            if self._causes[event_id] in causes and _names(by_status, vms)
        ]

    def is_visible(self, causes: Collection[str], vm: str | None = None) -> bool:
        """Return whether a document now has an event of the causes; with `vm`, one that names this VM."""
        for found in self._visible.values():
            for event_id in found:
                is_named = vm is None or _names(self._observed[event_id], [vm])
                if is_named and self._causes[event_id] in causes:
                    return True
        return False


def _names(by_status: dict[str, EventSnapshot], vms: Collection[str]) -> bool:
    """Return whether the event named one of these VMs, with any status."""
    return any(not set(vms).isdisjoint(observed.event.resources) for observed in by_status.values())


def _snapshot(shown: ScheduledEvent, event: Event) -> EventSnapshot:
    return EventSnapshot(shown, shown.not_before - event.created_at if shown.not_before is not None else None)


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
    observed = by_status.get(expected.status) if expected.status else newest
    if observed is None:
        return f"expected status {expected.status}, got {newest.event.status}"
    event = observed.event
    for field, value, actual in (
        ("type", expected.type, event.type),
        ("source", expected.source, event.source),
        ("description", expected.description, event.description),
        ("duration", expected.duration, event.duration_seconds),
        ("vms", expected.vms, len(event.resources)),
    ):
        if value is not None and value != actual:
            return f"expected {field} {value!r}, got {actual!r}"
    if expected.notice is not None:
        scheduled = by_status.get(EventStatus.SCHEDULED.value)
        notice = scheduled.notice if scheduled is not None and scheduled.notice is not None else timedelta(0)
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

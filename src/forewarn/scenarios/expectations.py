"""What the groups of a run were notified of, and whether that is what was expected."""

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


class EventForm(NamedTuple):
    """An event in one of its forms."""

    told: ScheduledEvent
    notice: timedelta | None
    """How long before its NotBefore it came about; None once it has started."""


class EventObserver:
    """Looks at the documents of some groups whenever they change."""

    def __init__(self, engine: Engine, version: ApiVersion, groups: Collection[str]) -> None:
        self._engine = engine
        self._version = version
        self.groups = frozenset(groups)
        self._event_forms: dict[str, dict[str, EventForm]] = {}
        """By event, each form in which it was told."""
        self._causes: dict[str, str] = {}
        """By event, the operation or the rollout behind it."""
        self._now: dict[str, set[str]] = {}
        """By group, the events in its document now."""
        self._out: set[frozenset[tuple[str, int]]] = set()
        """Of a group, which update domains were out together, each with the cause; every such set that there was."""

    def look(self, groups: Collection[str]) -> None:
        """Take in the documents of those groups that are of interest."""
        draft = self._engine.draft()
        for group in self.groups & frozenset(groups):
            document = self._engine.document(group)
            events = {event.id: event for event in document.events}
            for event in document.events:
                if event.id not in self._causes:
                    operation = draft.operation(event.operation)
                    rollout = operation.request.rollout if operation is not None else ""
                    self._causes[event.id] = rollout or event.operation
            try:
                whole = render(document, self._version, self._engine.fleet.group(group).kind)
            except NotFound:  # its last VM has left the fleet
                shown = {}
            else:  # the very bytes that a VM is answered with, read as a VM reads them
                shown = {told.id.lower(): told for told in read_document(whole).events}
            for event_id, told in shown.items():
                self._event_forms.setdefault(event_id, {})[told.status] = _event_form(told, events[event_id])
            self._now[group] = set(shown)
            self._note_out(shown)

    def _note_out(self, shown: dict[str, ScheduledEvent]) -> None:
        vms = self._engine.fleet.vms
        self._out.add(
            frozenset(
                (self._causes[event_id], vms[name].update_domain)
                for event_id, told in shown.items()
                if told.status == EventStatus.STARTED
                for name in told.resources
                if name in vms
            )
        )

    def domains_at_once(self, causes: Collection[str]) -> int:
        """How many update domains of a group the causes had out at one time, at most."""
        return max((len({domain for cause, domain in out if cause in causes}) for out in self._out), default=0)

    def event_forms(self, causes: Collection[str], vm: str) -> list[dict[str, EventForm]]:
        """Of each event that named this VM and is of one of the causes, its forms."""
        return [
            forms
            for event_id, forms in self._event_forms.items()
            if self._causes[event_id] in causes and any(vm in form.told.resources for form in forms.values())
        ]

    def events(self, causes: Collection[str], vms: Collection[str]) -> list[str]:
        """The ids of all events of the causes that named one of these VMs."""
        return [
            event_id
            for event_id, forms in self._event_forms.items()
            if self._causes[event_id] in causes
            and any(not set(vms).isdisjoint(form.told.resources) for form in forms.values())
        ]

    def is_told(self, causes: Collection[str], vm: str | None = None) -> bool:
        """Whether anything of the causes is in a document now; with a VM, anything that names it."""
        for found in self._now.values():
            for event_id in found:
                named = vm is None or any(vm in form.told.resources for form in self._event_forms[event_id].values())
                if named and self._causes[event_id] in causes:
                    return True
        return False


def _event_form(told: ScheduledEvent, event: Event) -> EventForm:
    return EventForm(told, told.not_before - event.created_at if told.not_before is not None else None)


# --- What was expected ----------------------------------------------------------------------------


_FORMS = (EventStatus.STARTED.value, EventStatus.SCHEDULED.value)


def judge_events(
    expected: Expectation, vm: str, events: Sequence[dict[str, EventForm]], quicken: Callable[[timedelta], timedelta]
) -> str:
    """What is wrong with what a VM was told; empty: nothing. One event that fits is enough."""
    problems = [_judge_event(expected, forms, quicken) for forms in events]
    if not problems:
        return f"{vm}: expected {_wanted(expected)}, and nothing was told"
    return "" if "" in problems else f"{vm}: {problems[-1]}"


def _judge_event(expected: Expectation, forms: dict[str, EventForm], quicken: Callable[[timedelta], timedelta]) -> str:
    newest = next(forms[form] for form in _FORMS if form in forms)
    form = forms.get(expected.status) if expected.status else newest
    if form is None:
        return f"expected status {expected.status}, and it came as {newest.told.status}"
    told = form.told
    for what, wanted, came in (
        ("type", expected.type, told.type),
        ("source", expected.source, told.source),
        ("description", expected.description, told.description),
        ("duration", expected.duration, told.duration_seconds),
        ("vms", expected.vms, len(told.resources)),
    ):
        if wanted is not None and wanted != came:
            return f"expected {what} {wanted!r}, and it is {came!r}"
    if expected.notice is not None:
        scheduled = forms.get(EventStatus.SCHEDULED.value)
        notice = scheduled.notice if scheduled is not None and scheduled.notice is not None else timedelta(0)
        least = quicken(expected.notice)
        if notice < least:
            return f"expected a notice of at least {format_duration(least)}, and it is {format_duration(notice)}"
    return ""


def _wanted(expected: Expectation) -> str:
    """An event in words."""
    words = [word for word in (expected.type, expected.status) if word]
    return " ".join(["an event", *words]) if not words else " ".join(words)


def judge_vm(expected: ExpectedVMState, name: str, vm: VM | None, home: str) -> str:
    """What is wrong with what became of a VM; `home` is the host on which it was before."""
    if vm is None:
        came = ExpectedVMState.DELETED.value
    elif vm.deallocated:
        came = ExpectedVMState.DEALLOCATED.value
    else:
        came = ExpectedVMState.MOVED.value if vm.host != home else ExpectedVMState.RUNNING.value
    fits = expected == came or (expected is ExpectedVMState.RUNNING and came == ExpectedVMState.MOVED)
    where = f" on {vm.host}" if vm is not None and not vm.deallocated else ""
    return "" if fits else f"{name}: expected to be {expected.value}, and it is {_still(came)}{where}"


def _still(came: str) -> str:
    return "still running" if came == ExpectedVMState.RUNNING else came

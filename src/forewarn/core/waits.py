"""The conditions that the start of an event waits for."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import format_time
from forewarn.core.events import Event, EventStatus
from forewarn.core.operations import CAUSES, Operation
from forewarn.core.windows import closes_at, format_window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forewarn.core.state import Draft, ServiceState

TERMINATE = "Terminate"
MAX_OPEN_WAITS = 10
"""How many conditions a history row lists. A host can have hundreds of groups, and each of them gets a row."""


class Wait(NamedTuple):
    """A condition that an operation or a rollout waits for, or has waited for."""

    kind: str
    """approval, window, deletion, arrival, fabric, gate or settling; of a rollout: resume, operation, pause, host or
    rollout."""
    done: bool
    group: str = ""
    """The group that the condition is about; empty: several groups, or none."""
    scope: str = ""
    """The scope that has to approve; empty: it has the name of its group."""
    by: str = ""
    """Who approved."""
    time: datetime | None = None
    """When the condition was met."""
    until: datetime | None = None
    """When the wait ends at the latest."""
    text: str = ""


def open_waits(draft: Draft, operation: Operation, event: Event) -> tuple[Wait, ...]:
    """Return what the start of an event still waits for: its own conditions first, then those of other groups."""
    if event.status is not EventStatus.SCHEDULED:
        return ()
    if event.approved_at is not None and operation.events == (event.id,) and _starts_alone(draft, operation):
        return ()  # a shortcut: most approvals are of this kind, and many come at once
    return tuple(islice(_open_waits(draft, operation, event), MAX_OPEN_WAITS))


def _starts_alone(draft: Draft, operation: Operation) -> bool:
    waits = operation.holds_until is not None or any(arrivals(draft, operation))
    return operation.type != TERMINATE and not waits


def _open_waits(draft: Draft, operation: Operation, event: Event) -> Iterator[Wait]:
    if event.approved_at is None:
        yield _approval(event)
        yield from _window(draft, operation, event)
    else:  # other deletions matter only after its own approval, and finding them takes time
        yield from (wait for wait in _deletions(draft, event) if not wait.done)
    yield from waits_without_notice(operation)
    yield from waits_for_arrivals(draft, operation)
    for event_id in operation.events:
        other = draft.event(event_id)
        if other is not None and other.approved_at is None and other.id != event.id:
            yield _approval(other)


def waits_of_event(draft: Draft, operation: Operation, event: Event) -> Iterator[Wait]:
    """Yield all conditions of one event, met or not. An advisory has none."""
    if event.status is EventStatus.ADVISORY:
        return
    yield _approval(event)
    yield from _deletions(draft, event)
    yield from _window(draft, operation, event)


def _approval(event: Event) -> Wait:
    scope = event.scope if event.scope != event.group else ""
    if event.approved_at is not None:
        return Wait("approval", True, event.group, scope, by=event.approved_by or "", time=event.approved_at)
    return Wait("approval", False, event.group, scope, until=event.not_before)


def _deletions(draft: Draft, event: Event) -> Iterator[Wait]:
    for other in coupled_deletions(draft, event):
        text = f"deletions of a scale set wait for each other: {', '.join(other.resources)}"
        done = other.approved_at is not None
        yield Wait("deletion", done, group=event.group, until=other.not_before, text=text)


def _window(draft: Draft, operation: Operation, event: Event) -> Iterator[Wait]:
    if event.approved_at is None and keeps_to_windows(operation):
        windows = draft.fleet.group(event.group).windows
        if windows:
            closes = closes_at(windows, event.not_before)
            until = f", which closes at {format_time(closes)}" if closes is not None else ""
            text = "; ".join(map(format_window, windows)) + until
            yield Wait("window", done=False, group=event.group, until=event.not_before, text=text)


def waits_without_notice(operation: Operation) -> Iterator[Wait]:
    """Yield what the operation waits for because of groups that get no notice."""
    if operation.holds_until is not None:
        text = "a group that gets no notice"
        yield Wait("window", done=False, until=operation.holds_until, text=text)


def waits_for_arrivals(draft: Draft | ServiceState, operation: Operation) -> Iterator[Wait]:
    """Yield the moves and starts that must end before the work on their destination."""
    for other in arrivals(draft, operation):
        vms = first_names([name for name, host in other.moves if host == operation.host])
        yield Wait("arrival", done=False, text=f"{vms}, on the way to {operation.host} (operation {other.id})")


def arrivals(draft: Draft | ServiceState, operation: Operation) -> list[Operation]:
    """Return the started moves and starts that are bound for the host that an operation works on."""
    return arrivals_at(draft, operation.host) if operation.is_on_host else []


def arrivals_at(draft: Draft | ServiceState, host: str) -> list[Operation]:
    """Return the started moves and starts that are bound for a host."""
    return draft.operations_bound_for(host)


def coupled_deletions(draft: Draft | ServiceState, event: Event) -> list[Event]:
    """Return the other deletions of the scope that have not started."""
    if event.type != TERMINATE:
        return []
    return [
        other
        for other in draft.events_of(event.scope)
        if other.type == TERMINATE and other.status is EventStatus.SCHEDULED and other.id != event.id
    ]


def first_names(names: Sequence[str]) -> str:
    """List the first names, and count the others."""
    shown = 5
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more}"


def keeps_to_windows(operation: Operation) -> bool:
    """Return whether the operation waits for the maintenance windows of its groups."""
    return CAUSES[operation.cause].routine and "windows" not in operation.request.overrides

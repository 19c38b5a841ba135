"""What can be ordered, decided on a draft. Pure: `now` and new ids are handed in.

Each function either writes its whole outcome to the draft or raises and leaves it to be dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core.durations import format_duration
from forewarn.core.ledger import Delivery, Draft, Entry, Ledger
from forewarn.core.lifecycle import Trigger, due, may_start, step
from forewarn.core.operations import (
    CAUSES,
    Operation,
    Progress,
    approved_from_the_start,
    cause_named,
    plan_events,
)
from forewarn.errors import NothingToDo, UnknownEvent, UnknownStartRequest, UnknownVM, VMHasLiveEvent, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from forewarn.core.event import Event
    from forewarn.core.fleet import Fleet, FleetChange

ENGINE = "forewarn"
"""Who did what nobody asked for: time, policy, the fabric's reports."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast notices, settle times and silence run; the clock itself stays true."""

    speed: float = 1.0
    silence: timedelta = timedelta(hours=24)

    def quicken(self, length: timedelta) -> timedelta:
        return length / self.speed


def request(
    draft: Draft,
    now: datetime,
    pace: Pace,
    cause: str,
    vms: Sequence[str],
    by: str,
    new_id: Callable[[], str],
) -> Operation:
    """Begin an operation: tell every group that listens, and start at once where nobody must be waited for."""
    cause_named(cause)
    names = tuple(dict.fromkeys(draft.fleet.vm(name).name for name in vms))
    if not names:
        raise NothingToDo
    groups = list(dict.fromkeys(draft.fleet.vm(name).group for name in names))
    unnoticed = {group: why for group in groups if (why := why_no_notice(draft, group, now, pace))}
    operation = Operation(
        id=new_id(),
        cause=cause,
        vms=names,
        requested_by=by,
        requested_at=now,
        unnoticed=tuple(unnoticed.items()),
    )
    events = plan_events(
        operation, draft.fleet, [group for group in groups if group not in unnoticed], now, pace.speed, new_id
    )
    operation = operation._replace(events=tuple(event.id for event in events))
    draft.note(Entry(at=now, what="requested", by=by, operation=operation.id, vms=names, why=cause))
    of_group: dict[str, list[str]] = {group: [] for group in groups}
    for name in names:
        of_group[draft.fleet.vm(name).group].append(name)
    for group, why in unnoticed.items():
        vms_of_group = tuple(of_group[group])
        entry = Entry(
            at=now, what="not told", by=ENGINE, group=group, operation=operation.id, vms=vms_of_group, why=why
        )
        draft.note(entry)
    for event in events:
        _note(draft, now, "scheduled", by, event, f"not before {event.not_before:%Y-%m-%d %H:%M:%S} UTC")
        if approved_from_the_start(operation, draft.fleet, event.group):
            event = step(event, Trigger.APPROVE, now, by=ENGINE)
            _note(draft, now, "approved", ENGINE, event, "automatic approval")
        draft.put_event(event)
    draft.put_operation(operation)
    return move(draft, now, pace, operation.id) or operation


def why_no_notice(draft: Draft, group: str, now: datetime, pace: Pace) -> str:
    """Why the group would not be told; empty when it listens."""
    delivery, heard_at = draft.delivery(group), draft.heard_at(group)
    if delivery is None or heard_at is None:
        return f"{group} has never asked: no notice"
    if not delivery.enabled or now >= heard_at + pace.quicken(pace.silence):
        return f"{group} has not asked for {format_duration(now - heard_at)}: no notice"
    return ""


def approve(draft: Draft, now: datetime, pace: Pace, ids: Sequence[str], by: str, group: str | None = None) -> None:
    """Let the events start early: all of them or, when one is unknown, none.

    With a group, only its own events are known: another scope's id is as good as a made-up one.
    """
    events = []
    for event_id in dict.fromkeys(ids):
        event = draft.event(event_id)
        if event is None or (group is not None and event.group != group):
            raise UnknownStartRequest(event_id=event_id) if group is not None else _unknown(draft, event_id)
        events.append(event)
    for event in events:
        after = step(event, Trigger.APPROVE, now, by=by)
        if after is not event:
            draft.put_event(after)
            _note(draft, now, "approved", by, after)
            move(draft, now, pace, event.operation)


def cancel(draft: Draft, now: datetime, event_id: str, by: str, why: str = "") -> Event:
    """Withdraw the operation behind an event that has not started; all its events disappear."""
    event = draft.event(event_id)
    if event is None:
        raise _unknown(draft, event_id)
    operation = _operation_of(draft, event)
    for told in _events_of(draft, operation):
        draft.put_event(step(told, Trigger.CANCEL, now))
        _note(draft, now, "cancelled", by, told, why)
    draft.put_operation(operation._replace(progress=Progress.CANCELLED, ended_at=now))
    return draft.changes.events[event_id]


def move(draft: Draft, now: datetime, pace: Pace, operation_id: str) -> Operation | None:
    """Take an operation as far as it may go now: start it when every group may, end it when it has settled."""
    operation = draft.operation(operation_id)
    if operation is None or not operation.progress.live:
        return None
    events = _events_of(draft, operation)
    if operation.progress is Progress.PENDING and all(may_start(event, now) for event in events):
        settles_at = now + pace.quicken(CAUSES[operation.cause].settle)
        operation = operation._replace(progress=Progress.STARTED, started_at=now, settles_at=settles_at)
        for event in events:
            draft.put_event(step(event, Trigger.START, now))
            _note(
                draft,
                now,
                "started",
                ENGINE,
                event,
                "approved" if event.approved_at else "not before reached",
            )
        draft.put_operation(operation)
    elif (
        operation.progress is Progress.STARTED
        and operation.carried_out_at is not None
        and operation.settles_at is not None
        and now >= operation.settles_at
    ):
        for event in events:
            draft.put_event(step(event, Trigger.FINISH, now))
            _note(draft, now, "completed", ENGINE, event)
        operation = operation._replace(progress=Progress.DONE, ended_at=now)
        draft.put_operation(operation)
    return operation


def carried_out(draft: Draft, now: datetime, pace: Pace, operation_id: str) -> None:
    """The fabric has done the work of a started operation."""
    operation = draft.operation(operation_id)
    if operation is None or operation.progress is not Progress.STARTED or operation.carried_out_at is not None:
        return
    draft.put_operation(operation._replace(carried_out_at=now))
    draft.note(
        Entry(
            at=now,
            what="carried out",
            by=ENGINE,
            operation=operation.id,
            vms=operation.vms,
            why=operation.cause,
        )
    )
    move(draft, now, pace, operation_id)


def when_due(draft: Draft | Ledger, operation: Operation) -> datetime | None:
    """When time alone moves an operation on."""
    if operation.progress is Progress.PENDING:
        moments = [moment for event in _events_of(draft, operation) if (moment := due(event))]
        return max(moments, default=None)
    if operation.progress is Progress.STARTED and operation.carried_out_at is not None:
        return operation.settles_at
    return None


def enable(draft: Draft, now: datetime, group: str, by: str, enabling: str) -> None:
    """A group's first GET, or its first after a day of silence: the incarnation starts anew.

    Each event that is still live counts as one that has just been added, so that a client which
    takes 0 for "nothing yet" does not pass over it.
    """
    delivery = draft.delivery(group)
    if delivery is not None and delivery.enabled:
        return
    if not draft.fleet.members(group):  # it has left the fleet since it asked
        raise UnknownVM(name=group, hint="")
    draft.put_delivery(Delivery(group, True, enabling, len(draft.events_of(group))), now)
    draft.note(Entry(at=now, what="enabled", by=by, group=group))


def disable_if_silent(draft: Draft, now: datetime, pace: Pace, group: str) -> None:
    """Stop telling a group that has not asked for a day."""
    delivery, heard_at = draft.delivery(group), draft.heard_at(group)
    if delivery is None or not delivery.enabled or heard_at is None:
        return
    if now >= heard_at + pace.quicken(pace.silence):
        draft.put_delivery(delivery._replace(enabled=False), heard_at)
        why = f"no request for {format_duration(now - heard_at)}"
        draft.note(Entry(at=now, what="disabled", by=ENGINE, group=group, why=why))


def apply_fleet(
    draft: Draft, now: datetime, fleet: Fleet, change: FleetChange, by: str, *, force: bool, why: str
) -> None:
    """Replace the fleet. A VM with a live event may only leave, or change group, by force."""
    # What costs time with a large fleet is in the change already: it was made aside (fleet.difference).
    leaving = change.leaving
    touched = [event for event in draft.live_events() if not leaving.isdisjoint(event.resources)]
    if touched and not force:
        vms = sorted({name for event in touched for name in event.resources if name in leaving})
        raise VMHasLiveEvent(vms=", ".join(vms), events=", ".join(event.id for event in touched))
    for event in touched:
        _end(draft, now, _operation_of(draft, event), by, "its VM left the fleet")
    for declared in change.groups:
        before = draft.fleet.groups.get(declared.name)
        if before is not None and before.kind != declared.kind and draft.events_of(declared.name):
            draft.count_change(declared.name)  # names may be written otherwise from now on
    draft.put_fleet(fleet, change)
    for group in draft.deliveries_among(change.vacated):
        draft.forget_delivery(group)
    summary = f"{len(change.added)} added, {len(change.changed)} changed, {len(change.removed)} removed"
    draft.note(Entry(at=now, what="fleet applied", by=by, why=f"{why}: {summary}" if why else summary))


def _end(draft: Draft, now: datetime, operation: Operation, by: str, why: str) -> None:
    """End an operation whatever its state: withdrawn if it was only scheduled, over if it had started."""
    if not operation.progress.live:
        return
    started = operation.progress is Progress.STARTED
    for event in _events_of(draft, operation):
        draft.put_event(step(event, Trigger.FINISH if started else Trigger.CANCEL, now))
        _note(draft, now, "completed" if started else "cancelled", by, event, why)
    progress = Progress.DONE if started else Progress.CANCELLED
    draft.put_operation(operation._replace(progress=progress, ended_at=now))


def _events_of(draft: Draft | Ledger, operation: Operation) -> list[Event]:
    return [event for event_id in operation.events if (event := draft.event(event_id)) is not None]


def _operation_of(draft: Draft, event: Event) -> Operation:
    operation = draft.operation(event.operation)
    if operation is None:  # pragma: no cover - a live event without its operation cannot be committed
        raise _unknown(draft, event.id)
    return operation


def _unknown(draft: Draft, event_id: str) -> UnknownEvent:
    return UnknownEvent(event_id=event_id, hint=nearest(event_id, (event.id for event in draft.live_events())))


def _note(draft: Draft, now: datetime, what: str, by: str, event: Event, why: str = "") -> None:
    draft.note(
        Entry(
            at=now,
            what=what,
            by=by,
            group=event.group,
            event=event.id,
            operation=event.operation,
            vms=event.resources,
            why=why,
        )
    )

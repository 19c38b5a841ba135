"""Asking for something to happen: what it is aimed at, who is told, and when at the earliest it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.core import effects, records
from forewarn.core.causes import CAUSES, Cause, Target, cause_named
from forewarn.core.durations import format_duration, whole_second_up
from forewarn.core.event import Event, Status
from forewarn.core.fleet import GroupKind
from forewarn.core.ledger import Entry
from forewarn.core.lifecycle import Trigger, step
from forewarn.core.listening import why_no_notice
from forewarn.core.operations import OVERRIDES, Operation, Request
from forewarn.core.progress import TERMINATE, keeps_to_windows, move
from forewarn.core.requirements import fill_in, least_notice, refuse_unfit
from forewarn.core.windows import next_common
from forewarn.errors import BadOption, NoCommonWindow, NothingToDo, TooMany

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from forewarn.core.draft import Draft
    from forewarn.core.fleet import Fleet, Group
    from forewarn.core.terms import Terms

MOST_VMS = 1000
"""How many VMs one request may name: what happens to more is better done by a rollout, a part at a time."""


def request(draft: Draft, now: datetime, terms: Terms, asked: Request, by: str) -> list[Operation]:
    """Begin what is asked for: tell every group that listens, and start at once where nobody must be waited for."""
    cause = cause_named(asked.cause)
    asked = fill_in(asked, cause, now)
    parts = _parts(draft.fleet, cause, asked)
    if asked.cause in effects.HOST_STATES:
        state = effects.HOST_STATES[asked.cause]
        effects.set_host_state(draft, asked.host, state)
        draft.note(Entry(at=now, what=f"host {state}", by=by, why=asked.host, host=asked.host))
    operations = []
    for part in parts:
        refuse_unfit(draft, terms, part)  # one after the other: each may be what is too much for the next
        operations.append(_begin(draft, now, terms, part, by))
    return operations


def _parts(fleet: Fleet, cause: Cause, asked: Request) -> list[Request]:
    """One request for each operation: the smallest sets that must be hit together."""
    if cause.target in (Target.HOST, Target.TENANTS):
        running = tuple(name for name in fleet.on_host(asked.host) if not fleet.vms[name].deallocated)
        if cause.target is Target.HOST:
            return [asked._replace(vms=running)]
        return [asked._replace(vms=(name,)) for name in running]
    names = list(dict.fromkeys(fleet.vm(name).name for name in asked.vms))
    if not names:
        raise NothingToDo
    if len(names) > MOST_VMS:
        raise TooMany(
            count=len(names),
            things="VMs",
            what="request",
            most=MOST_VMS,
            remedy="Name fewer, or have a rollout walk their hosts.",
        )
    if cause.target is Target.VM:
        return [asked._replace(vms=(name,)) for name in names]
    by_host: dict[str, list[str]] = {}
    for name in names:
        by_host.setdefault(fleet.vm(name).host, []).append(name)
    return [asked._replace(host=host, vms=tuple(together)) for host, together in by_host.items()]


def _begin(draft: Draft, now: datetime, terms: Terms, asked: Request, by: str) -> Operation:
    operation = Operation(id=draft.new_id(), request=asked, vms=asked.vms, requested_by=by, requested_at=now)
    of_group: dict[str, list[str]] = {}
    for name in asked.vms:
        of_group.setdefault(draft.fleet.vm(name).group, []).append(name)
    unnoticed = {}
    if asked.type:
        unnoticed = {group: why for group in of_group if (why := _why_untold(draft, now, terms, operation, group))}
    earliest = _earliest(draft.fleet, now, terms, operation, list(of_group))
    events = [
        _event(draft, now, terms, operation, group, tuple(names), earliest)
        for group, names in of_group.items()
        if group not in unnoticed and asked.type
    ]
    operation = operation._replace(
        request=asked._replace(vms=(), deadline=_deadline(terms, asked, earliest)),
        events=tuple(event.id for event in events),
        unnoticed=tuple(unnoticed.items()),
        holds_until=_holds_until(draft.fleet, operation, list(unnoticed), earliest),
    )
    records.note_operation(draft, now, "requested", by, operation, _in_words(terms, operation))
    for group, why in unnoticed.items():
        vms = tuple(of_group[group])
        untold = Entry(now, "not told", records.ENGINE, group=group, operation=operation.id, vms=vms, why=why)
        draft.note(untold._replace(host=operation.host))
    for event in events:
        _tell(draft, now, by, operation, event)
    draft.put_operation(operation)
    move(draft, now, terms, operation.id)
    return draft.changes.operations[operation.id]


def _tell(draft: Draft, now: datetime, by: str, operation: Operation, event: Event) -> None:
    records.note_event(draft, now, "scheduled", by, event, f"not before {event.not_before:%Y-%m-%d %H:%M:%S} UTC")
    word = CAUSES[operation.cause].auto_approve
    if word and word in draft.fleet.group(event.group).auto_approve:
        event = step(event, Trigger.APPROVE, now, by=records.ENGINE)
        records.note_event(draft, now, "approved", records.ENGINE, event, "automatic approval")
    draft.put_event(event)


def _why_untold(draft: Draft, now: datetime, terms: Terms, operation: Operation, group: str) -> str:
    """Why the group gets no notice; empty when it does."""
    if operation.type == TERMINATE and not tells_of_deletion(draft.fleet.group(group)):
        return f"{group} has no terminate notices: no notice"
    return why_no_notice(draft, group, now, terms)


def tells_of_deletion(group: Group) -> bool:
    return group.kind == GroupKind.SCALE_SET and group.terminate_notice is not None


# --- When ---------------------------------------------------------------------------------------------


def _notice(terms: Terms, asked: Request) -> timedelta:
    cause = CAUSES[asked.cause]
    notice = asked.notice if asked.notice is not None else cause.notice
    return terms.at(asked.speed).quicken(notice if notice is not None else least_notice(asked.type))


def _earliest(fleet: Fleet, now: datetime, terms: Terms, operation: Operation, groups: list[str]) -> datetime:
    """The end of the notice; for work that keeps to windows, the first moment then that is in every group's."""
    notice = _notice(terms, operation.request)
    if not notice:  # it has happened already, or is only advice
        return now.replace(microsecond=0)
    moment = whole_second_up(now + notice)
    if not keeps_to_windows(operation):
        return moment
    common = next_common([fleet.group(group).windows for group in groups], moment)
    if common is None:
        windowed = [group for group in groups if fleet.group(group).windows]
        raise NoCommonWindow(groups=", ".join(windowed), host=operation.host)
    return common


def _event(
    draft: Draft,
    now: datetime,
    terms: Terms,
    operation: Operation,
    group: str,
    names: tuple[str, ...],
    earliest: datetime,
) -> Event:
    cause, asked = CAUSES[operation.cause], operation.request
    terminate_notice = draft.fleet.group(group).terminate_notice
    if operation.type == TERMINATE and terminate_notice is not None:
        earliest = whole_second_up(now + terms.at(asked.speed).quicken(terminate_notice))
    return Event(
        id=draft.new_id(),
        operation=operation.id,
        group=group,
        type=operation.type,
        status=Status.SCHEDULED,
        resources=names,
        not_before=earliest,
        description=cause.description,
        source=cause.source,
        duration=asked.duration,
        created_at=now,
    )


def _holds_until(fleet: Fleet, operation: Operation, untold: list[str], earliest: datetime) -> datetime | None:
    """Groups that are not told have their windows all the same."""
    if keeps_to_windows(operation) and any(fleet.group(group).windows for group in untold):
        return earliest
    return None


def _deadline(terms: Terms, asked: Request, earliest: datetime) -> datetime | None:
    """Up to when it may be postponed."""
    if not CAUSES[asked.cause].routine:
        return None
    if asked.deadline is None:
        return earliest + terms.at(asked.speed).quicken(terms.postponement)
    if asked.rollout:
        return max(asked.deadline, earliest)
    if asked.deadline < earliest:
        raise BadOption(
            name="postpone_until",
            value=f"{asked.deadline:%Y-%m-%d %H:%M:%S} UTC",
            problem=f"it may not start before {earliest:%Y-%m-%d %H:%M:%S} UTC anyway. Write a later one.",
        )
    return asked.deadline


def _in_words(terms: Terms, operation: Operation) -> str:
    """The cause, its host, and what was insisted on, for history."""
    asked = operation.request
    words = asked.cause + (f" of {asked.host}" if asked.host else "")
    if asked.notice is not None:
        words += f", notice {format_duration(_notice(terms, asked))}"
    if asked.speed != 1:
        words += f", {asked.speed:g} times faster"
    return words + "".join(f"; override: {OVERRIDES[name]}" for name in asked.overrides)

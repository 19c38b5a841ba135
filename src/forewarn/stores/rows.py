"""Values of the core as rows of a table, and back."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from forewarn.core.durations import from_text, to_text, to_text_if_any
from forewarn.core.event import Event, Source, Status
from forewarn.core.fleet import VM, Group, Host
from forewarn.core.ledger import Delivery, Entry
from forewarn.core.operations import Operation, Progress

if TYPE_CHECKING:
    from datetime import datetime

Row = tuple[Any, ...]

_EMPTY = "[]"
"""Most VMs have no tags and no policy: they share one empty tuple instead of parsing it each time."""


def _listed(names: tuple[str, ...]) -> str:
    """Names as JSON."""
    return _single(names[0]) if len(names) == 1 else json.dumps(names)


@lru_cache(256)
def _single(name: str) -> str:
    """Remembered, because an operation, its event and its history name the same VM, mostly one."""
    return json.dumps([name])


def _moment(text: str | None) -> datetime | None:
    return from_text(text) if text else None


def vm_to_row(vm: VM) -> Row:
    return (
        *vm[:-2],
        json.dumps(vm.tags) if vm.tags else _EMPTY,
        json.dumps(vm.auto_approve) if vm.auto_approve else _EMPTY,
    )


def vm_from_row(row: Row) -> VM:
    tags, auto_approve = row[-2:]
    if tags == _EMPTY and auto_approve == _EMPTY:
        return VM._make((*row[:-2], (), ()))
    pairs = tuple((key, value) for key, value in json.loads(tags))
    return VM._make((*row[:-2], pairs, tuple(json.loads(auto_approve))))


def group_to_row(group: Group) -> Row:
    return (*group[:-1], json.dumps(group.auto_approve))


def group_from_row(row: Row) -> Group:
    return Group._make((*row[:-1], tuple(json.loads(row[-1]))))


def host_from_row(row: Row) -> Host:
    return Host._make(row)


def delivery_to_row(delivery: Delivery, heard_at: datetime | None) -> dict[str, Any]:
    return delivery._asdict() | {"heard_at": to_text_if_any(heard_at)}


def operation_to_row(operation: Operation) -> Row:
    return (
        operation.id,
        operation.cause,
        _listed(operation.vms),
        operation.requested_by,
        to_text(operation.requested_at),
        operation.progress.value,
        _listed(operation.events),
        json.dumps(dict(operation.unnoticed)) if operation.unnoticed else "{}",
        to_text_if_any(operation.started_at),
        to_text_if_any(operation.carried_out_at),
        to_text_if_any(operation.settles_at),
        to_text_if_any(operation.ended_at),
    )


def operation_from_row(row: Row) -> Operation:
    return Operation(
        id=row[0],
        cause=row[1],
        vms=tuple(json.loads(row[2])),
        requested_by=row[3],
        requested_at=from_text(row[4]),
        progress=Progress(row[5]),
        events=tuple(json.loads(row[6])),
        unnoticed=tuple(json.loads(row[7]).items()),
        started_at=_moment(row[8]),
        carried_out_at=_moment(row[9]),
        settles_at=_moment(row[10]),
        ended_at=_moment(row[11]),
    )


def event_to_row(event: Event) -> Row:
    return (
        event.id,
        event.operation,
        event.group,
        event.type,
        event.status.value,
        _listed(event.resources),
        to_text(event.not_before),
        event.description,
        event.source.value,
        None if event.duration is None else event.duration.total_seconds(),
        to_text(event.created_at),
        to_text_if_any(event.approved_at),
        event.approved_by,
        to_text_if_any(event.started_at),
        to_text_if_any(event.ended_at),
    )


def event_from_row(row: Row) -> Event:
    return Event(
        id=row[0],
        operation=row[1],
        group=row[2],
        type=row[3],
        status=Status(row[4]),
        resources=tuple(json.loads(row[5])),
        not_before=from_text(row[6]),
        description=row[7],
        source=Source(row[8]),
        duration=None if row[9] is None else timedelta(seconds=row[9]),
        created_at=from_text(row[10]),
        approved_at=_moment(row[11]),
        approved_by=row[12],
        started_at=_moment(row[13]),
        ended_at=_moment(row[14]),
    )


def entry_to_row(entry: Entry) -> Row:
    return (
        entry.sequence,
        to_text(entry.at),
        entry.what,
        entry.by,
        entry.group,
        entry.event,
        entry.operation,
        _listed(entry.vms),
        entry.why,
    )


def entry_from_row(row: Row) -> Entry:
    return Entry(
        at=from_text(row[0]),
        what=row[1],
        by=row[2],
        sequence=row[3],
        group=row[4],
        event=row[5],
        operation=row[6],
        vms=tuple(json.loads(row[7])),
        why=row[8],
    )

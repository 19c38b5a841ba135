"""Values of the core as rows of a table, and back."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from forewarn.core.access import Kept, Role, Token
from forewarn.core.durations import from_text, to_text, to_text_if_any
from forewarn.core.events import Event, Source, Status
from forewarn.core.fleet import VM, Group, Host, HostState
from forewarn.core.operations import Health, Operation, Progress, Request
from forewarn.core.rollouts import Course, Rollout, Stage
from forewarn.core.state import Delivery, Entry
from forewarn.core.webhooks import Webhook
from forewarn.core.windows import format_window, parse_window

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


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


def _length(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def vm_to_row(vm: VM) -> Row:
    return (
        *vm[:-4],
        json.dumps(vm.tags) if vm.tags else _EMPTY,
        json.dumps(vm.auto_approve) if vm.auto_approve else _EMPTY,
        int(vm.deallocated),
        vm.home,
    )


def vm_from_row(row: Row) -> VM:
    tags, auto_approve, deallocated, home = row[-4:]
    if tags == _EMPTY and auto_approve == _EMPTY:
        return VM._make((*row[:-4], (), (), bool(deallocated), home))
    pairs = tuple((key, value) for key, value in json.loads(tags))
    return VM._make((*row[:-4], pairs, tuple(json.loads(auto_approve)), bool(deallocated), home))


def group_to_row(group: Group) -> Row:
    windows = [format_window(window) for window in group.windows]
    return (*group[:4], json.dumps(group.auto_approve), _seconds(group.terminate_notice), json.dumps(windows))


def group_from_row(row: Row) -> Group:
    auto_approve, terminate_notice, windows = row[4:]
    policy = (
        tuple(json.loads(auto_approve)),
        _length(terminate_notice),
        tuple(map(parse_window, json.loads(windows))),
    )
    return Group._make((*row[:4], *policy))


def host_to_row(host: Host) -> Row:
    return (host.name, host.state.value, int(host.spare))


def host_from_row(row: Row) -> Host:
    return Host(row[0], HostState(row[1]), bool(row[2]))


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
        _asked(operation.request),
        json.dumps(operation.moves) if operation.moves else _EMPTY,
        to_text_if_any(operation.holds_until),
        operation.health.value,
        operation.outcome,
    )


def operation_from_row(row: Row) -> Operation:
    return Operation(
        id=row[0],
        request=_request(row[12]),
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
        moves=tuple((name, host) for name, host in json.loads(row[13])),
        holds_until=_moment(row[14]),
        health=Health(row[15]),
        outcome=row[16],
    )


@lru_cache(256)
def _asked(request: Request) -> str:
    """Only what differs from a plain request. Remembered, because most that come together ask for the same."""
    return json.dumps(_plain(request, Request("")))


def _request(text: str) -> Request:
    return Request(**_rich(json.loads(text)))


def _plain(value: Request | Course, usual: Request | Course) -> dict[str, Any]:
    """The fields that are not as usual, as JSON takes them."""
    fields = {name: field for name, field in value._asdict().items() if field != getattr(usual, name)}
    for name, field in fields.items():
        if isinstance(field, timedelta):
            fields[name] = field.total_seconds()
        elif name == "deadline":
            fields[name] = to_text(field)
    return fields


def _rich(fields: dict[str, Any]) -> dict[str, Any]:
    for name in ("duration", "notice", "health_time", "pause"):
        if fields.get(name) is not None:
            fields[name] = timedelta(seconds=fields[name])
    if "deadline" in fields:
        fields["deadline"] = from_text(fields["deadline"])
    if "overrides" in fields:
        fields["overrides"] = tuple(fields["overrides"])
    return fields


def rollout_to_row(rollout: Rollout) -> Row:
    return (
        rollout.id,
        json.dumps(rollout.patterns),
        json.dumps(_plain(rollout.course, Course())),
        rollout.requested_by,
        to_text(rollout.requested_at),
        rollout.stage.value,
        rollout.wave,
        json.dumps(rollout.waiting),
        json.dumps(rollout.under_way),
        json.dumps(rollout.done),
        json.dumps(rollout.skipped),
        to_text_if_any(rollout.next_at),
        rollout.outcome,
        to_text_if_any(rollout.ended_at),
    )


def rollout_from_row(row: Row) -> Rollout:
    return Rollout(
        id=row[0],
        patterns=tuple(json.loads(row[1])),
        course=Course(**_rich(json.loads(row[2]))),
        requested_by=row[3],
        requested_at=from_text(row[4]),
        stage=Stage(row[5]),
        wave=row[6],
        waiting=tuple(json.loads(row[7])),
        under_way=tuple((host, operation) for host, operation in json.loads(row[8])),
        done=tuple(json.loads(row[9])),
        skipped=tuple((host, why) for host, why in json.loads(row[10])),
        next_at=_moment(row[11]),
        outcome=row[12],
        ended_at=_moment(row[13]),
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
        _seconds(event.duration),
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
        duration=_length(row[9]),
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
        entry.host,
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
        host=row[9],
    )


# --- Tokens and kept answers ----------------------------------------------------------------------


def token_to_row(token: Token) -> Row:
    return (
        token.name,
        token.role.value,
        token.group,
        token.hash,
        token.created_by,
        to_text(token.created_at),
        to_text_if_any(token.expires_at),
    )


def token_from_row(row: Row) -> Token:
    name, role, group, digest, created_by, created_at, expires_at = row
    return Token(
        name=name,
        role=Role(role),
        hash=digest,
        created_by=created_by,
        created_at=from_text(created_at),
        group=group,
        expires_at=from_text(expires_at) if expires_at else None,
    )


def kept_to_row(kept: Kept) -> Row:
    return (kept.key, kept.fingerprint, to_text(kept.at), kept.status, kept.body)


def kept_from_row(row: Row) -> Kept:
    key, fingerprint, at, status, body = row
    return Kept(key, fingerprint, from_text(at), status, body)


# --- Webhooks -------------------------------------------------------------------------------------


def webhook_to_row(webhook: Webhook) -> Row:
    lists = (json.dumps(webhook.groups), json.dumps(webhook.kinds))
    return (*webhook[:4], to_text(webhook.created_at), *lists, webhook.cursor)


def webhook_from_row(row: Row) -> Webhook:
    *texts, created_at, groups, kinds, cursor = row
    return Webhook._make((*texts, from_text(created_at), tuple(json.loads(groups)), tuple(json.loads(kinds)), cursor))

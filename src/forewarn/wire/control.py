"""The control API's shapes: values of the core as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.core.durations import to_text_if_any
from forewarn.core.operations import CAUSES
from forewarn.core.windows import format_window
from forewarn.wire.policy import format_terminate_notice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from forewarn.core.access import Token
    from forewarn.core.events import Document, Event
    from forewarn.core.explain import Explanation
    from forewarn.core.fleet import VM, Fleet, FleetChange, Group
    from forewarn.core.operations import Operation
    from forewarn.core.state import Entry


def vm_shape(vm: VM, group: Group, document: Document, heard_at: datetime | None) -> dict[str, Any]:
    """A VM with what it is being told."""
    return {
        "name": vm.name,
        "group": group.name,
        "kind": group.kind,
        "host": vm.host,
        "home": vm.home or None,
        "state": "deallocated" if vm.deallocated else "running",
        "update_domain": vm.update_domain,
        "fault_domain": vm.fault_domain,
        "address": vm.address or None,
        "listen": vm.listen or None,
        "hostname": vm.hostname or vm.name,
        "priority": vm.priority,
        "size": vm.size or None,
        "zone": vm.zone or None,
        "tags": dict(vm.tags),
        "auto_approve": list(group.auto_approve),
        "listening": document.enabled,
        "last_heard_at": to_text_if_any(heard_at),
        "incarnation": document.incarnation,
        "events": [event.id for event in document.events if vm.name in event.resources],
    }


def event_shape(event: Event) -> dict[str, Any]:
    """An event with all that is known of it."""
    return {
        "id": event.id,
        "operation": event.operation,
        "group": event.group,
        "type": event.type,
        "status": event.status.lower(),
        "vms": list(event.resources),
        "not_before": to_text_if_any(event.not_before),
        "description": event.description,
        "source": event.source.lower(),
        "duration_seconds": seconds(event.duration),
        "created_at": to_text_if_any(event.created_at),
        "approved_at": to_text_if_any(event.approved_at),
        "approved_by": event.approved_by,
        "started_at": to_text_if_any(event.started_at),
        "ended_at": to_text_if_any(event.ended_at),
    }


def operation_shape(operation: Operation, events: Sequence[Event]) -> dict[str, Any]:
    """An operation with its events."""
    asked = operation.request
    return {
        "id": operation.id,
        "cause": operation.cause,
        "type": operation.type or None,
        "host": operation.host or None,
        "vms": list(operation.vms),
        "requested_by": operation.requested_by,
        "requested_at": to_text_if_any(operation.requested_at),
        "notice_seconds": seconds(asked.notice),
        "postpone_until": to_text_if_any(asked.deadline),
        "overrides": list(asked.overrides),
        "rollout": asked.rollout or None,
        "progress": operation.progress.value,
        "health": operation.health.value or None,
        "outcome": operation.outcome or None,
        "events": [event_shape(event) for event in events],
        "not_told": dict(operation.unnoticed),
        "moves": dict(operation.moves),
        "holds_until": to_text_if_any(operation.holds_until),
        "started_at": to_text_if_any(operation.started_at),
        "carried_out_at": to_text_if_any(operation.carried_out_at),
        "settles_at": to_text_if_any(operation.settles_at),
        "ended_at": to_text_if_any(operation.ended_at),
    }


def explanation_shape(operation: Operation, found: Explanation) -> dict[str, Any]:
    """Why an operation waits."""
    return {
        "operation": operation.id,
        "cause": operation.cause,
        "meaning": CAUSES[operation.cause].meaning,
        "requested_by": operation.requested_by,
        "requested_at": to_text_if_any(operation.requested_at),
        "host": operation.host or None,
        "rollout": operation.request.rollout or None,
        "progress": operation.progress.value,
        "postpone_until": to_text_if_any(operation.request.deadline),
        "not_told": dict(operation.unnoticed),
        "waits": [
            {
                "what": wait.what,
                "over": wait.over,
                "group": wait.group or None,
                "by": wait.by or None,
                "at": to_text_if_any(wait.at),
                "until": to_text_if_any(wait.until),
                "words": wait.words or None,
            }
            for wait in found.waits
        ],
        "next": found.next,
        "latest": to_text_if_any(found.latest),
    }


def host_shape(fleet: Fleet, name: str, operations: Sequence[Operation]) -> dict[str, Any]:
    """A host with what is on it, and what is being done to it."""
    host = fleet.host(name)
    return {
        "name": host.name,
        "state": host.state.value,
        "spare": host.spare,
        "vms": list(fleet.on_host(name)),
        "operations": [
            {"id": operation.id, "cause": operation.cause, "progress": operation.progress.value}
            for operation in operations
        ],
    }


def seconds(length: timedelta | None) -> float | None:
    """A length of time as a number."""
    return None if length is None else length.total_seconds()


def entry_shape(entry: Entry) -> dict[str, Any]:
    """A row of history."""
    return {
        "sequence": entry.sequence,
        "at": to_text_if_any(entry.at),
        "what": entry.what,
        "by": entry.by,
        "group": entry.group or None,
        "event": entry.event or None,
        "operation": entry.operation or None,
        "host": entry.host or None,
        "vms": list(entry.vms),
        "why": entry.why or None,
    }


_REASONS_FOR_TENANTS = frozenset(("scheduled", "approved", "started", "enabled", "disabled", "policy changed"))
"""Rows whose reason names nobody else. Others may say which host is well again, or whose VM did not come back."""


def as_tenants_see(entry: Entry) -> Entry:
    """The row without what is not a tenant's to know: hosts, and what happened to others."""
    return entry._replace(host="", why=entry.why if entry.what in _REASONS_FOR_TENANTS else "")


def group_shape(group: Group, members: int) -> dict[str, Any]:
    """A declared group."""
    return {
        "name": group.name,
        "kind": group.kind,
        "update_domains": group.update_domains,
        "fault_domains": group.fault_domains,
        "auto_approve": list(group.auto_approve),
        "terminate_notice": format_terminate_notice(group.terminate_notice),
        "windows": [format_window(window) for window in group.windows],
        "vms": members,
    }


def fleet_change_shape(change: FleetChange) -> dict[str, Any]:
    """What an applied fleet file has done."""
    return {
        "added": [vm.name for vm in change.added],
        "changed": [vm.name for vm in change.changed],
        "removed": [vm.name for vm in change.removed],
        "groups": [group.name for group in change.groups],
        "groups_removed": list(change.groups_removed),
        "hosts": [host.name for host in change.hosts],
        "hosts_removed": list(change.hosts_removed),
    }


def token_shape(token: Token) -> dict[str, Any]:
    """What is known of a token; not what it is."""
    return {
        "name": token.name,
        "role": token.role.value,
        "group": token.group or None,
        "created_by": token.created_by,
        "created_at": to_text_if_any(token.created_at),
        "expires_at": to_text_if_any(token.expires_at),
    }

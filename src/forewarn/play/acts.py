"""What a step does: asks for something, or answers what is there. Orders, decided on a draft."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import approvals, rollout_commands
from forewarn.core.events import Status
from forewarn.core.fleet_commands import return_host
from forewarn.core.operations import CAUSES, Progress, Request, Target
from forewarn.core.requests import request
from forewarn.core.rollouts import Course
from forewarn.core.scenarios import APPROVE, CANCEL, ROLLOUT
from forewarn.play.pace import GRACE

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from forewarn.core.events import Event
    from forewarn.core.limits import Terms
    from forewarn.core.operations import Operation
    from forewarn.core.scenarios import Options
    from forewarn.core.state import Draft


class Asked:
    """What a run has asked for last: to which VMs, and what came of it."""

    def __init__(self, vms: Sequence[str], causes: Sequence[str] = ()) -> None:
        self.vms = tuple(vms)
        self.causes = tuple(causes)
        """Ids of operations, or of a rollout."""

    def operations(self, draft: Draft) -> list[Operation]:
        """Those that are live."""
        found = [operation for cause in self.causes if (operation := draft.operation(cause)) is not None]
        for cause in self.causes:
            if (rollout := draft.rollout(cause)) is not None:
                under_way = (draft.operation(operation_id) for _, operation_id in rollout.under_way)
                found += [operation for operation in under_way if operation is not None]
        return found

    def is_live(self, draft: Draft) -> bool:
        return bool(self.operations(draft)) or any(draft.rollout(cause) is not None for cause in self.causes)


def ask(
    draft: Draft, now: datetime, terms: Terms, what: str, vms: Sequence[str], how: Options, speed: float, by: str
) -> list[str]:
    """Have a cause, or a rollout, happen to the VMs; the ids of what comes of it."""
    hosts = list(dict.fromkeys(draft.fleet.vm(name).host for name in vms))
    if what == ROLLOUT:
        return [rollout_commands.start(draft, now, terms, hosts, _course(how, speed), by).id]
    plain = Request(what, type=how.type, duration=how.duration, notice=how.notice, overrides=how.overrides, speed=speed)
    if CAUSES[what].target in (Target.HOST, Target.TENANTS):
        wanted = [plain._replace(host=host) for host in hosts]
    else:
        wanted = [plain._replace(vms=tuple(vms))]
    return [operation.id for each in wanted for operation in request(draft, now, terms, each, by)]


def _course(how: Options, speed: float) -> Course:
    usual = Course()
    return Course(
        type=how.type,
        duration=how.duration,
        notice=how.notice,
        overrides=how.overrides,
        budget=how.budget or usual.budget,
        pause=how.pause or usual.pause,
        # However fast it goes, machines are looked at in real time.
        health_time=max(usual.health_time, GRACE * speed) if speed != 1 else usual.health_time,
        speed=speed,
    )


class Said(NamedTuple):
    """What is said to events that are there."""

    what: str
    vms: Collection[str]
    by: str
    why: str
    later: timedelta


def answer(draft: Draft, now: datetime, terms: Terms, asked: Asked, said: Said) -> bool:
    """Approve, cancel or postpone what is still to come for these VMs; False when it is too late for that."""
    if said.what == CANCEL:
        return _cancel(draft, now, terms, asked, said)
    events = [event for event in _events(draft, asked, said.vms) if event.status is Status.SCHEDULED]
    if said.what == APPROVE:
        approvals.approve(draft, now, terms, [event.id for event in events], said.by)
        return bool(events)
    # One of each operation: it is put off for all whom it touches.
    open_ = {event.operation: event for event in events if event.approved_at is None}
    for event in open_.values():
        approvals.postpone(draft, now, terms, event.id, said.by, event.not_before + said.later)
    return bool(open_)


def _events(draft: Draft, asked: Asked, vms: Collection[str]) -> list[Event]:
    found = [draft.event(event_id) for operation in asked.operations(draft) for event_id in operation.events]
    return [event for event in found if event is not None and set(event.resources) & set(vms)]


def _cancel(draft: Draft, now: datetime, terms: Terms, asked: Asked, said: Said) -> bool:
    done = False
    for cause in asked.causes:
        if draft.rollout(cause) is not None:
            rollout_commands.cancel(draft, now, terms, cause, said.by)
            done = True
    for operation in asked.operations(draft):
        if operation.progress is Progress.PENDING and set(operation.vms) & set(said.vms):
            approvals.cancel_operation(draft, now, terms, operation.id, said.by, said.why)
            done = True
    return done


def withdraw(draft: Draft, now: datetime, terms: Terms, everything: Sequence[Asked], by: str, why: str) -> None:
    """A run ends before its end: what it caused and is only scheduled does not happen."""
    for asked in everything:
        _cancel(draft, now, terms, asked, Said(CANCEL, asked.vms, by, why, timedelta(0)))


def return_hosts(draft: Draft, now: datetime, terms: Terms, hosts: Sequence[str], by: str) -> None:
    """Take hosts back into use that have failed, or were to."""
    for host in hosts:
        if draft.fleet.has_host(host):
            return_host(draft, now, terms, host, by)

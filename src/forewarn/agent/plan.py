"""Plans what the agent would do about one event, and when. Pure: the time is an argument, and nothing is executed.

The decisions are those of `forewarn agent run`, in simulated time.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import deadline_of, has_started, is_advisory
from forewarn.agent.decisions import (
    HANDLER_FAILED,
    HAS_STARTED,
    IS_ADVISORY,
    NO_LONGER_ADVISED,
    NO_PEER_RESPONSE,
    NOT_BEFORE_UNKNOWN,
    RULE_NEVER_APPROVES,
    ApproveEvent,
    DecisionContext,
    FinishWork,
    GiveUp,
    RunHandler,
    approval_due_at,
    approval_problem,
    due_at,
    limit_seconds,
    next_instructions,
    with_outcome,
)
from forewarn.agent.document_decisions import JUST_BOOTED_SECONDS, DocumentContext, apply_document
from forewarn.agent.explain import describe_approval, describe_failure
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy import SELF, listed
from forewarn.core.durations import format_duration, format_relative_time, format_time, to_text, to_text_if_any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forewarn.agent.policy import Config, PeersSettings, Rule
    from forewarn.agent.state import EventWork
    from forewarn.wire.document_reader import ScheduledEvent


class PlannedStep(NamedTuple):
    """The run of one handler."""

    handler: str
    kind: str
    does: str
    """What the handler would do, as text that follows "would"; empty: nothing."""
    earliest: datetime | None
    """Start time if earlier handlers take no time; None: when the event is over."""
    latest: datetime | None
    """End time if every handler takes its whole time limit."""
    limit: timedelta


class PlannedApproval(NamedTuple):
    """Whether and when the event would be approved."""

    mode: str
    at: datetime | None
    """The earliest time; None: never."""
    text: str


class AgentPlan(NamedTuple):
    """What the agent would do about an event."""

    event: ScheduledEvent
    now: datetime
    me: str
    """The entry in the event's Resources that is this machine; empty: there is none."""
    rule: Rule | None
    steps: tuple[PlannedStep, ...]
    approval: PlannedApproval | None
    undo: tuple[PlannedStep, ...]
    undo_when: str
    reasons: tuple[str, ...]
    """Why nothing is done, or what to be aware of."""


def plan(config: Config, event: ScheduledEvent, now: datetime, me: str) -> AgentPlan:
    """Return what an agent with this config would do if it saw only this event, now."""
    context = DocumentContext(config.rules, lambda _: me or None, now, "", JUST_BOOTED_SECONDS, is_first=False)
    works = apply_document({}, [event], context).works
    if not works:
        return AgentPlan(event, now, me, None, (), None, (), "", tuple(_ignored_reasons(config, event, now, me)))
    rule = works[event.key].rule
    leader_problems = {} if config.peers is None else {event.key: _leader_problem(config.peers, event, me)}
    quick = _simulate(config, works, now, leader_problems, slow=False)
    slow = _simulate(config, works, now, leader_problems, slow=True)
    started = apply_document(quick.works, [event._replace(status="Started", not_before=None)], context).works
    over = _simulate(config, apply_document(started, [], context).works, now).runs
    cancelled = _simulate(config, apply_document(quick.works, [], context).works, now).runs
    ends = {run.handler: run.end for run in slow.runs}
    # A handler that did not run, because the rule's timeout had passed, failed when the last one ended.
    steps = tuple(
        _step(config, run.handler, PREPARE, run.begin, ends.get(run.handler, slow.runs[-1].end)) for run in quick.runs
    )
    undo_when = "is over or cancelled" if cancelled == over else "is over"
    if is_advisory(event):
        over, undo_when = cancelled, NO_LONGER_ADVISED  # it never starts
    undo = tuple(step for run in over if (step := _step(config, run.handler, UNDO)).does)
    approval = _approval(rule, event, now, quick)
    return AgentPlan(event, now, me, rule, steps, approval, undo, undo_when, tuple(_remarks(rule, event, steps)))


def _ignored_reasons(config: Config, event: ScheduledEvent, now: datetime, me: str) -> list[str]:
    if not me:
        return [f"it affects {listed(event.resources, 'and') or 'no VM'}, not this VM"]
    reasons = [f"{rule.name}: {'; '.join(rule.mismatches(event, now))}" for rule in config.rules]
    return reasons or ["there are no rules"]


# --- The decisions of `run`, in simulated time ----------------------------------------------------


class _HandlerRun(NamedTuple):
    """One run of a handler."""

    handler: str
    begin: datetime
    end: datetime


class _Simulation(NamedTuple):
    """The result of simulating all decisions until nothing is left to do."""

    works: Mapping[str, EventWork]
    runs: list[_HandlerRun]
    approved_at: datetime | None
    """When the event would be approved. The simulation ends there."""
    problem: str
    """Why the event would not be approved."""


def _simulate(
    config: Config,
    works: Mapping[str, EventWork],
    now: datetime,
    leader_problems: Mapping[str, str] | None = None,
    slow: bool = False,
) -> _Simulation:
    """Simulate with handlers that succeed at once, or (slow) at their time limit. Advance time to each due time."""
    works, time = dict(works), now
    runs: list[_HandlerRun] = []
    begun_at: dict[str, float] = {}
    while works:
        seconds = (time - now).total_seconds()
        context = DecisionContext(time, seconds, leader_problems=leader_problems or {}, begun_at=begun_at)
        instruction = next(iter(next_instructions(works, context)), None)
        if isinstance(instruction, FinishWork):
            break
        if isinstance(instruction, ApproveEvent):
            return _Simulation(works, runs, time, "")
        if instruction is None:
            due_times = [due for work in works.values() for due in (due_at(work), approval_due_at(work))]
            later = [due for due in due_times if due is not None and due > time]
            if not later:
                (work,) = works.values()
                return _Simulation(works, runs, None, approval_problem(work, context))
            time = min(later)
            continue
        works[instruction.work.id] = instruction.work
        if isinstance(instruction, GiveUp):
            return _Simulation(works, runs, None, HANDLER_FAILED)
        if isinstance(instruction, RunHandler):
            handler = instruction.work.steps[instruction.step].handler
            begun = begun_at.setdefault(instruction.work.id, seconds)
            took = limit_seconds(instruction, config.handlers[handler].timeout, begun, seconds) if slow else 0.0
            begin, time = time, _after(time, timedelta(seconds=took))
            runs.append(_HandlerRun(handler, begin, time))
            works.update(
                (work.id, work)
                for work in with_outcome(works, instruction.work.id, instruction.step, instruction.action)
            )
    return _Simulation(works, runs, None, "")


def _after(time: datetime, duration: timedelta) -> datetime:
    """Return a later time, at most the maximum of datetime."""
    try:
        return time + duration
    except OverflowError:
        return datetime.max.replace(tzinfo=time.tzinfo)


def _leader_problem(peers: PeersSettings, event: ScheduledEvent, me: str) -> str:
    """Assume that all VMs are ready and respond. Return why still none may approve; empty if one of them may."""
    from forewarn.agent.peers.messages import READY, PeerEventStatus, StatusMessage, digest, key
    from forewarn.agent.peers.readiness import Readiness

    first = (me, *(name for name in dict.fromkeys(event.resources) if key(name) != key(me)))
    readiness = Readiness(peers, 0.0)
    readiness.report(event.id, first, READY, me, 0.0)
    for name in first[1:]:
        status = PeerEventStatus(event.id, digest(first), READY)
        readiness.record_response(name, StatusMessage(name, readiness.timing.fresh, (status,)), 0.0, 0.0)
    found = readiness.decide(event.id, 0.0)
    return "" if found.allowed else found.reason


# --- The plan -------------------------------------------------------------------------------------


def _step(
    config: Config, name: str, action: str, earliest: datetime | None = None, latest: datetime | None = None
) -> PlannedStep:
    named = config.handlers[name]
    return PlannedStep(name, named.kind, named.does(action), earliest, latest, named.timeout)


def _approval(rule: Rule, event: ScheduledEvent, now: datetime, simulation: _Simulation) -> PlannedApproval:
    at, text = simulation.approved_at, describe_approval(rule)
    if at is None:
        text = _no_approval_reason(rule, event, simulation.problem)
    elif event.not_before is not None and at >= event.not_before > now:
        at, text = None, "no: the event starts at its NotBefore before it could be approved"
    return PlannedApproval(rule.approve, at, text)


def _no_approval_reason(rule: Rule, event: ScheduledEvent, problem: str) -> str:
    if is_advisory(event):
        return f"never: {IS_ADVISORY}"
    if problem == RULE_NEVER_APPROVES:
        return describe_approval(rule)
    if problem == HAS_STARTED:
        return "no: the event has started"
    if problem == NOT_BEFORE_UNKNOWN:
        return "no: its NotBefore is unknown"
    if problem == NO_PEER_RESPONSE:
        return 'no: approve = "leader" needs a [peers] table'
    if rule.approve == SELF:
        return f"no: the event affects {listed(event.resources, 'and')}, not only this VM"
    return f"no: {problem}"


def _remarks(rule: Rule, event: ScheduledEvent, steps: tuple[PlannedStep, ...]) -> list[str]:
    found = []
    if has_started(event):
        found.append("the event has already started")
    latest = steps[-1].latest if steps else None
    deadline = deadline_of(event)
    if latest is not None and deadline is not None and latest > deadline:
        over = format_duration(latest - deadline)
        found.append(f"if all handlers take their whole time limit, they end {over} after NotBefore")
    if steps:
        found.append(f"if a handler fails, {describe_failure(rule)}")
    return found


def plan_lines(found: AgentPlan) -> list[str]:
    """Return the plan as text."""
    event = found.event
    unknown = "has started" if has_started(event) else "its NotBefore is unknown"
    starts = unknown if event.not_before is None else f"starts at {_format_time(event.not_before, found.now)} or later"
    starts = "never starts" if is_advisory(event) else starts
    lines = [f"{event.type} {event.key}, {listed(event.resources, 'and')}: {event.status}, {starts}"]
    if found.rule is None:
        return [*lines, "  ignored:", *(f"    {reason}" for reason in found.reasons)]
    lines.append(f"  rule: {found.rule.name}")
    for index, step in enumerate(found.steps):
        when = "then" if index or step.earliest is None else _format_time(step.earliest, found.now)
        would = step.does or "do nothing"
        lines.append(f"  {when}: {step.handler} would {would} (at most {format_duration(step.limit)})")
    if found.approval is not None:
        at = found.approval.at
        when = "" if at is None else f", earliest at {_format_time(at, found.now)}:"
        lines.append(f"  approval ({found.approval.mode}){when or ':'} {found.approval.text}")
    lines += [f"  when the event {found.undo_when}: {step.handler} would {step.does}" for step in found.undo]
    return [*lines, *(f"  note: {reason}" for reason in found.reasons)]


def _format_time(time: datetime, now: datetime) -> str:
    return f"{format_time(time)} ({format_relative_time(time, now)})"


def plan_json(found: AgentPlan) -> dict[str, Any]:
    """Return the plan as JSON."""
    approval = found.approval
    return {
        "event": found.event.key,
        "type": found.event.type,
        "status": found.event.status,
        "resources": list(found.event.resources),
        "not_before": to_text_if_any(deadline_of(found.event)),
        "now": to_text(found.now),
        "mine": bool(found.me),
        "rule": None if found.rule is None else found.rule.name,
        "prepare": [_step_json(step) for step in found.steps],
        "approval": None
        if approval is None
        else {"mode": approval.mode, "at": to_text_if_any(approval.at), "text": approval.text},
        "undo": [_step_json(step) for step in found.undo],
        "reasons": list(found.reasons),
    }


def _step_json(step: PlannedStep) -> dict[str, Any]:
    return {
        "handler": step.handler,
        "kind": step.kind,
        "does": step.does,
        "earliest": to_text_if_any(step.earliest),
        "latest": to_text_if_any(step.latest),
        "timeout_seconds": step.limit.total_seconds(),
    }

"""What would be done about one event, and when. Pure: the moment is an argument, and nothing is done.

The decisions are those of `forewarn agent run`. Here they are followed in simulated time.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import has_started
from forewarn.agent.decisions import (
    HAS_STARTED,
    JUST_BOOTED_SECONDS,
    NO_MOMENT,
    NOBODY_HEARD,
    SAYS_NEVER,
    Approve,
    DecisionContext,
    DocumentContext,
    Finish,
    Run,
    approval_due_at,
    approval_problem,
    due_at,
    limit_seconds,
    next_instructions,
    take_in,
    with_outcome,
)
from forewarn.agent.explain import approval_of, failure_of
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy import SELF, listed
from forewarn.core.durations import format_duration, format_relative_time, format_time, to_text, to_text_if_any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forewarn.agent.policy import Config, PeersSettings, Rule
    from forewarn.agent.state import Work
    from forewarn.wire.document_reader import ToldEvent


class Step(NamedTuple):
    """One handler's part."""

    handler: str
    kind: str
    does: str
    """In words that follow 'would'; empty: nothing."""
    earliest: datetime | None
    """When it begins if the ones before it take no time; None: when the event is over."""
    latest: datetime | None
    """When it has ended, if every one takes all the time that it has."""
    limit: timedelta


class Approval(NamedTuple):
    """Whether it would be approved."""

    mode: str
    at: datetime | None
    """At the earliest; None: not at all."""
    words: str


class Plan(NamedTuple):
    """What would be done about an event."""

    event: ToldEvent
    now: datetime
    me: str
    """The entry in its Resources that is this machine; empty: there is none."""
    rule: Rule | None
    steps: tuple[Step, ...]
    approval: Approval | None
    undo: tuple[Step, ...]
    undo_when: str
    reasons: tuple[str, ...]
    """Why nothing is done; or what to be aware of."""


def plan(config: Config, event: ToldEvent, now: datetime, me: str) -> Plan:
    """What an agent with this config would do if it saw the event now, and no other event."""
    around = DocumentContext(config.rules, lambda _: me or None, now, "", JUST_BOOTED_SECONDS, is_first=False)
    works = take_in({}, [event], around).works
    if not works:
        return Plan(event, now, me, None, (), None, (), "", tuple(_why_left_alone(config, event, now, me)))
    rule = works[event.id].rule
    leading = {} if config.peers is None else {event.id: _peers_problem(config.peers, event, me)}
    quick = _follow(config, works, now, leading, slow=False)
    slow = _follow(config, works, now, leading, slow=True)
    started = take_in(quick.works, [event._replace(status="Started", not_before=None)], around).works
    over = _follow(config, take_in(started, [], around).works, now).turns
    cancelled = _follow(config, take_in(quick.works, [], around).works, now).turns
    ends = {turn.handler: turn.end for turn in slow.turns}
    # What has no turn, since the rule's limit was over, has failed at the end of the last turn.
    steps = tuple(
        _step(config, turn.handler, PREPARE, turn.begin, ends.get(turn.handler, slow.turns[-1].end))
        for turn in quick.turns
    )
    undo = tuple(step for turn in over if (step := _step(config, turn.handler, UNDO)).does)
    undo_when = "over or cancelled" if cancelled == over else "over"
    approval = _approval(rule, event, now, quick)
    return Plan(event, now, me, rule, steps, approval, undo, undo_when, tuple(_remarks(rule, event, steps)))


def _why_left_alone(config: Config, event: ToldEvent, now: datetime, me: str) -> list[str]:
    if not me:
        return [f"it is about {listed(event.resources, 'and') or 'no machine'}, not about this machine"]
    why = [f"{rule.name}: {'; '.join(rule.misfits(event, now))}" for rule in config.rules]
    return why or ["there are no rules"]


# --- The decisions of `run`, in simulated time ----------------------------------------------------


class _Turn(NamedTuple):
    """A handler has prepared or undone."""

    handler: str
    begin: datetime
    end: datetime


class _Course(NamedTuple):
    """What came of following the decisions until there was nothing left to do."""

    works: Mapping[str, Work]
    turns: list[_Turn]
    approved_at: datetime | None
    """When it would be approved: that is the end of the course."""
    problem: str
    """Why it would not be approved."""


def _follow(
    config: Config,
    works: Mapping[str, Work],
    now: datetime,
    leading: Mapping[str, str] | None = None,
    slow: bool = False,
) -> _Course:
    """Every handler succeeds, at once or (slow) when its time is up; the clock moves to each moment that is due."""
    works, moment = dict(works), now
    turns: list[_Turn] = []
    begun_at: dict[str, float] = {}
    while works:
        seconds = (moment - now).total_seconds()
        context = DecisionContext(moment, seconds, leading=leading or {}, begun_at=begun_at)
        instruction = next(iter(next_instructions(works, context)), None)
        if isinstance(instruction, Finish):
            break
        if isinstance(instruction, Approve):
            return _Course(works, turns, moment, "")
        if instruction is None:
            moments = [due for work in works.values() for due in (due_at(work), approval_due_at(work))]
            later = [due for due in moments if due is not None and due > moment]
            if not later:
                (work,) = works.values()
                return _Course(works, turns, None, approval_problem(work, context))
            moment = min(later)
            continue
        works[instruction.work.id] = instruction.work
        if isinstance(instruction, Run):
            handler = instruction.work.steps[instruction.step].handler
            begun = begun_at.setdefault(instruction.work.id, seconds)
            took = limit_seconds(instruction, config.handlers[handler].timeout, begun, seconds) if slow else 0.0
            begin, moment = moment, _after(moment, timedelta(seconds=took))
            turns.append(_Turn(handler, begin, moment))
            works.update(
                (work.id, work)
                for work in with_outcome(works, instruction.work.id, instruction.step, instruction.action)
            )
    return _Course(works, turns, None, "")


def _after(moment: datetime, length: timedelta) -> datetime:
    """So long after a moment; at the end of all time, then."""
    try:
        return moment + length
    except OverflowError:
        return datetime.max.replace(tzinfo=moment.tzinfo)


def _peers_problem(peers: PeersSettings, event: ToldEvent, me: str) -> str:
    """Why no machine may approve once all are ready and answer; empty: the first of them may."""
    from forewarn.agent.peers.messages import READY, EventStatus, StatusMessage, digest, key
    from forewarn.agent.peers.readiness import Readiness

    first = (me, *(name for name in dict.fromkeys(event.resources) if key(name) != key(me)))
    readiness = Readiness(peers, 0.0)
    readiness.report(event.id, first, READY, me, 0.0)
    for name in first[1:]:
        status = EventStatus(event.id, digest(first), READY)
        readiness.take(name, StatusMessage(name, readiness.timing.fresh, (status,)), 0.0, 0.0)
    found = readiness.decide(event.id, 0.0)
    return "" if found.may else found.why


# --- What comes of it -----------------------------------------------------------------------------


def _step(
    config: Config, name: str, action: str, earliest: datetime | None = None, latest: datetime | None = None
) -> Step:
    named = config.handlers[name]
    return Step(name, named.kind, named.does(action), earliest, latest, named.timeout)


def _approval(rule: Rule, event: ToldEvent, now: datetime, course: _Course) -> Approval:
    at, words = course.approved_at, approval_of(rule)
    if at is None:
        words = _why_not(rule, event, course.problem)
    elif event.not_before is not None and at >= event.not_before > now:
        at, words = None, "not before NotBefore, when it starts by itself"
    return Approval(rule.approve, at, words)


def _why_not(rule: Rule, event: ToldEvent, problem: str) -> str:
    if problem == SAYS_NEVER:
        return approval_of(rule)
    if problem == HAS_STARTED:
        return "not any more: the event has started"
    if problem == NO_MOMENT:
        return "not as long as nobody knows its NotBefore"
    if problem == NOBODY_HEARD:
        return "not without [peers]: nobody could know when the others are ready"
    if rule.approve == SELF:
        return f"not by this machine alone: it is about {listed(event.resources, 'and')}"
    return f"not at all: {problem}"


def _remarks(rule: Rule, event: ToldEvent, steps: tuple[Step, ...]) -> list[str]:
    found = []
    if has_started(event):
        found.append("the event has started already")
    latest = steps[-1].latest if steps else None
    if latest is not None and event.not_before is not None and latest > event.not_before:
        over = format_duration(latest - event.not_before)
        found.append(f"if the handlers take all the time they have, they end {over} after NotBefore")
    if steps:
        found.append(f"if a handler fails, {failure_of(rule)}")
    return found


def plan_lines(found: Plan) -> list[str]:
    """The plan for people."""
    event = found.event
    unknown = "has started" if has_started(event) else "nobody knows when it starts"
    starts = unknown if event.not_before is None else f"starts at {_moment(event.not_before, found.now)} or later"
    lines = [f"{event.type} {event.id}, {listed(event.resources, 'and')}: {event.status}, {starts}"]
    if found.rule is None:
        return [*lines, "  left alone:", *(f"    {reason}" for reason in found.reasons)]
    lines.append(f"  taken by {found.rule.name}")
    for index, step in enumerate(found.steps):
        when = "then" if index or step.earliest is None else _moment(step.earliest, found.now)
        would = step.does or "do nothing"
        lines.append(f"  {when}: {step.handler} would {would} (at most {format_duration(step.limit)})")
    if found.approval is not None:
        at = found.approval.at
        when = "" if at is None else f" at {_moment(at, found.now)} at the earliest:"
        lines.append(f"  approval ({found.approval.mode}){when or ':'} {found.approval.words}")
    lines += [f"  when it is {found.undo_when}: {step.handler} would {step.does}" for step in found.undo]
    return [*lines, *(f"  note: {reason}" for reason in found.reasons)]


def _moment(moment: datetime, now: datetime) -> str:
    return f"{format_time(moment)} ({format_relative_time(moment, now)})"


def plan_json(found: Plan) -> dict[str, Any]:
    """The plan for programs."""
    approval = found.approval
    return {
        "event": found.event.id,
        "type": found.event.type,
        "status": found.event.status,
        "resources": list(found.event.resources),
        "not_before": to_text_if_any(found.event.not_before),
        "now": to_text(found.now),
        "mine": bool(found.me),
        "rule": None if found.rule is None else found.rule.name,
        "prepare": [_step_json(step) for step in found.steps],
        "approval": None
        if approval is None
        else {"mode": approval.mode, "at": to_text_if_any(approval.at), "words": approval.words},
        "undo": [_step_json(step) for step in found.undo],
        "reasons": list(found.reasons),
    }


def _step_json(step: Step) -> dict[str, Any]:
    return {
        "handler": step.handler,
        "kind": step.kind,
        "does": step.does,
        "earliest": to_text_if_any(step.earliest),
        "latest": to_text_if_any(step.latest),
        "timeout_seconds": step.limit.total_seconds(),
    }

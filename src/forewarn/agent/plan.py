"""What would be done about one event, and when. Pure: the moment is an argument, and nothing is done."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import has_started
from forewarn.agent.explain import approval_of, failure_of, listed, misfits, undo_order
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy import LEADER, NEVER, SELF, before, choose_rule
from forewarn.core.durations import format_duration, to_text, to_text_if_any

if TYPE_CHECKING:
    from forewarn.agent.policy import Config, Rule
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
    reasons: tuple[str, ...]
    """Why nothing is done; or what to be aware of."""


def plan(config: Config, event: ToldEvent, now: datetime, me: str) -> Plan:
    """What an agent with this config would do if it saw the event now."""
    if not me:
        names = listed(event.resources, "and") or "no machine"
        return _left_alone(event, now, me, f"it is about {names}, not about this machine")
    rule = choose_rule(config.rules, event, now)
    if rule is None:
        why = [f"{each.name}: {'; '.join(misfits(each, event, now))}" for each in config.rules]
        return _left_alone(event, now, me, *(why or ["there are no rules"]))
    begin = _begin(rule, event, now)
    steps = _prepare_steps(config, rule, begin)
    return Plan(
        event,
        now,
        me,
        rule,
        steps,
        _approval(rule, event, begin, now, config),
        _undo_steps(config, rule),
        tuple(_remarks(rule, event, steps)),
    )


def _left_alone(event: ToldEvent, now: datetime, me: str, *reasons: str) -> Plan:
    return Plan(event, now, me, None, (), None, (), reasons)


def _begin(rule: Rule, event: ToldEvent, now: datetime) -> datetime:
    if rule.lead is None or event.not_before is None:
        return now
    return max(now, before(event.not_before, rule.lead))


def _after(moment: datetime, length: timedelta) -> datetime:
    """So long after a moment; at the end of all time, then."""
    try:
        return moment + length
    except OverflowError:
        return datetime.max.replace(tzinfo=moment.tzinfo)


def _prepare_steps(config: Config, rule: Rule, begin: datetime) -> tuple[Step, ...]:
    steps: list[Step] = []
    latest = begin
    end = None if rule.timeout is None else _after(begin, rule.timeout)
    for name in rule.prepare:
        named = config.handlers[name]
        latest = _after(latest, named.timeout)
        latest = latest if end is None else min(latest, end)
        does = named.does(PREPARE)
        steps.append(Step(name, named.kind, does, begin, latest, named.timeout))
    return tuple(steps)


def _undo_steps(config: Config, rule: Rule) -> tuple[Step, ...]:
    named = [config.handlers[name] for name in undo_order(rule)]
    described = [(each, each.does(UNDO)) for each in named]
    return tuple(Step(each.name, each.kind, does, None, None, each.timeout) for each, does in described if does)


def _approval(rule: Rule, event: ToldEvent, begin: datetime, now: datetime, config: Config) -> Approval:
    others = len(set(event.resources)) > 1
    if rule.approve == NEVER:
        return Approval(NEVER, None, approval_of(rule))
    if has_started(event):
        return Approval(rule.approve, None, "not any more: the event has started")
    if rule.approve == SELF and others:
        return Approval(SELF, None, f"not by this machine alone: it is about {listed(event.resources, 'and')}")
    if rule.approve == LEADER and others and config.peers is None:
        return Approval(LEADER, None, "not without [peers]: nobody could know when the others are ready")
    at = begin
    if rule.approve_lead is not None:
        if event.not_before is None:
            return Approval(rule.approve, None, "not as long as nobody knows its NotBefore")
        at = max(begin, before(event.not_before, rule.approve_lead))
    if event.not_before is not None and at >= event.not_before > now:
        return Approval(rule.approve, None, "not before NotBefore, when it starts by itself")
    return Approval(rule.approve, at, approval_of(rule))


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
    lines += [f"  when it is over or cancelled: {step.handler} would {step.does}" for step in found.undo]
    return [*lines, *(f"  note: {reason}" for reason in found.reasons)]


def _moment(moment: datetime, now: datetime) -> str:
    away = moment - now
    far = "now" if abs(away) < timedelta(seconds=1) else f"in {format_duration(away)}"
    if away <= -timedelta(seconds=1):
        far = f"{format_duration(-away)} ago"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC ({far})"


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

"""What a rule is for and does, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.agent.policy.rule import APPROVE, CONTINUE, LEADER, SELF, notice_of
from forewarn.core.durations import format_duration, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from forewarn.agent.policy.rule import Rule
    from forewarn.wire.document_reader import ToldEvent


def listed(words: Sequence[str], joint: str) -> str:
    """`a, b or c`."""
    return f" {joint} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def events_of(rule: Rule) -> str:
    """For which events it is."""
    parts = [listed(rule.on, "or") or "any event"]
    if rule.source:
        parts.append(f"from {rule.source}")
    if rule.description:
        quoted = [f'"{word}"' for word in rule.description]
        parts.append(f"described with {listed(quoted, 'or')}")
    if rule.max_duration is not None:
        parts.append(f"interrupting for at most {format_duration(rule.max_duration)}")
    if rule.min_notice is not None:
        parts.append(f"with at least {format_duration(rule.min_notice)} of notice")
    return ", ".join(parts)


def misfits(rule: Rule, event: ToldEvent, now: datetime) -> list[str]:
    """Why the rule is not for this event, every reason; none: it is."""
    found = []
    if rule.on and event.type.casefold() not in {kind.casefold() for kind in rule.on}:
        found.append(f"it is for {listed(rule.on, 'or')}, not for {event.type}")
    if rule.source and (event.source or "").casefold() != rule.source.casefold():
        found.append(f"it is for events from {rule.source}, and this one {_from(event.source)}")
    said = (event.description or "").casefold()
    if rule.description and not any(word.casefold() in said for word in rule.description):
        quoted = [f'"{word}"' for word in rule.description]
        found.append(f"the description has {'not' if len(quoted) == 1 else 'none of'} {listed(quoted, 'and')}")
    if rule.max_duration is not None:
        longest, seconds = format_duration(rule.max_duration), event.duration_seconds
        if seconds is None or seconds < 0:
            found.append(f"it is for interruptions of at most {longest}, and nobody knows how long this one is")
        elif seconds > rule.max_duration.total_seconds():
            found.append(f"it is for interruptions of at most {longest}, and this one is {format_seconds(seconds)}")
    if rule.min_notice is not None and (notice := notice_of(event, now)) < rule.min_notice:
        least = format_duration(rule.min_notice)
        found.append(f"it needs {least} of notice, and there are {format_duration(notice)}")
    return found


def _from(source: str | None) -> str:
    return f"is from {source}" if source else "does not say where it is from"


def begin_of(rule: Rule) -> str:
    """When preparing begins."""
    if rule.lead is None:
        return "as soon as the event is seen"
    return f"{format_duration(rule.lead)} before NotBefore, or at once when less is left"


def failure_of(rule: Rule) -> str:
    """What a handler that fails leads to."""
    if rule.on_failure == APPROVE:
        return "the others are run all the same, and it is approved all the same"
    if rule.on_failure == CONTINUE:
        return "the others are run all the same, and nothing is approved"
    return "the others are not run, and nothing is approved"


def approval_of(rule: Rule) -> str:
    """Who approves, and when."""
    if rule.approve not in (SELF, LEADER):
        return "never: the event starts at its NotBefore"
    ready = "all is prepared" if rule.prepare else "the event is seen"
    at = (
        f"as soon as {ready}"
        if rule.approve_lead is None
        else f"{format_duration(rule.approve_lead)} before NotBefore, once {ready}"
    )
    if rule.approve == SELF:
        return f"{at}, if no other machine is affected"
    return f"{at} on every affected machine, by the first of them"

"""What a config allows, and is yet probably not meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy.rule import LEADER, NEVER
from forewarn.core.event_types import EVENT_TYPES
from forewarn.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from forewarn.agent.policy.config import Config, NamedHandler
    from forewarn.agent.policy.rule import Rule


def doubts_about(config: Config) -> list[str]:
    """What somebody should look at again, each thing once."""
    found = [
        *_unknown_types(config.rules),
        *_never_reached(config.rules),
        *_unprepared(config.rules, config.handlers),
        *_leaderless(config),
        *_unused(config.rules, config.handlers),
    ]
    return list(dict.fromkeys(found))


def _unknown_types(rules: Sequence[Rule]) -> Iterator[str]:
    known = {name.casefold() for name in EVENT_TYPES}
    for rule in rules:
        for kind in rule.on:
            if kind.casefold() not in known:
                yield f"{rule.name}: no type of event is called {kind!r} so far.{nearest(kind, EVENT_TYPES)}"


def _never_reached(rules: Sequence[Rule]) -> Iterator[str]:
    for index, rule in enumerate(rules):
        taken: dict[str, str] = {}
        for kind in rule.on or ("",):
            earlier = next((other for other in rules[:index] if _covers(other, rule, kind)), None)
            if earlier is not None:
                taken[kind] = earlier.name
        if taken and len(taken) == len(rule.on or ("",)):
            by = " and ".join(dict.fromkeys(taken.values()))
            yield f"{rule.name} is never reached: all that it is for goes to {by} before."
        else:
            for kind, name in taken.items():
                yield f"{rule.name} is never reached for {kind}: that goes to {name} before."


def _covers(earlier: Rule, later: Rule, kind: str) -> bool:
    """Whether all events of this type ("": of any) that fit the later rule fit the earlier one."""
    if earlier.on and kind.casefold() not in {each.casefold() for each in earlier.on}:
        return False
    if earlier.source and earlier.source.casefold() != later.source.casefold():
        return False
    # A description that has the longer word has every word in it too.
    if earlier.description and not (
        later.description
        and all(any(short.casefold() in word.casefold() for short in earlier.description) for word in later.description)
    ):
        return False
    if earlier.max_duration is not None and (later.max_duration is None or later.max_duration > earlier.max_duration):
        return False
    return earlier.min_notice is None or (later.min_notice is not None and later.min_notice >= earlier.min_notice)


def _unprepared(rules: Sequence[Rule], handlers: Mapping[str, NamedHandler]) -> Iterator[str]:
    for rule in rules:
        if rule.approve == NEVER and rule.approve_lead is not None:
            yield f"{rule.name}: approve_when has no meaning without approve."
        for name in rule.prepare:
            if name in handlers and not handlers[name].does(PREPARE):
                yield f"{rule.name}: handler {name} has nothing to prepare."
        for name in rule.undo or ():
            if name in handlers and not handlers[name].does(UNDO):
                yield f"{rule.name}: handler {name} has nothing to undo."
        if rule.undo is not None:
            for name in rule.prepare:
                if name not in rule.undo and name in handlers and handlers[name].does(UNDO):
                    yield f"{rule.name} prepares {name} and does not undo it."


def _leaderless(config: Config) -> Iterator[str]:
    led = [rule.name for rule in config.rules if rule.approve == LEADER]
    if config.peers is None:
        for name in led:
            yield f"{name}: a leader approves, and without [peers] there is none."
    elif not led:
        yield 'There is a [peers], and no rule has approve = "leader".'


def _unused(rules: Sequence[Rule], handlers: Mapping[str, NamedHandler]) -> Iterator[str]:
    used = {name for rule in rules for name in (*rule.prepare, *(rule.undo or ()))}
    for name in handlers:
        if name not in used:
            yield f"handler {name} is used by no rule."

"""A config in words: what an agent with it will do, and what in it is probably a mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy import APPROVE, CONTINUE, LEADER, NEVER, SELF, listed
from forewarn.core.durations import format_duration
from forewarn.core.event_types import EVENT_TYPES
from forewarn.errors import nearest
from forewarn.system.addresses import show_host_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from forewarn.agent.policy import Config, NamedHandler, Rule


# --- A rule in words ------------------------------------------------------------------------------


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


# --- Probable mistakes ----------------------------------------------------------------------------


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


# --- The whole config -----------------------------------------------------------------------------


_NOTHING = "nothing"


def explain(config: Config) -> list[str]:
    """Each rule: which events, what is prepared in which order when, who approves when, what is undone; then doubts."""
    lines = [
        f"{config.source}: {_count(config.rules, 'rule')}, {_count(config.handlers, 'handler')}.",
        *_explain_place(config),
    ]
    for number, rule in enumerate(config.rules, 1):
        lines += ["", *_explain_rule(config, rule, number)]
    lines += ["", _about_others(config)]
    if config.peers is not None:
        members = ", ".join(member.vm for member in config.peers.members)
        timeout = format_duration(config.peers.timeout)
        lines.append(f"Peers: {members}. A peer without a response for {timeout} is unreachable.")
    doubts = doubts_about(config)
    return [*lines, "", *(f"warning: {doubt}" for doubt in doubts)] if doubts else lines


def _explain_place(config: Config) -> list[str]:
    """What [agent] says, if it does."""
    lines = []
    if config.endpoint:
        lines.append(f"Events are asked for at {config.endpoint}.")
    if config.vm_name:
        lines.append(f"This machine is {config.vm_name}.")
    if config.state:
        lines.append(f"State is kept in {config.state}.")
    if config.listen is not None:
        lines.append(f"Serving metrics and health at {_listen(config)}.")
    return lines


def _listen(config: Config) -> str | None:
    if config.listen is None:
        return None
    return show_host_port(*config.listen)


def _about_others(config: Config) -> str:
    if not config.rules:
        return "Events are logged and left alone."
    return "The first rule that fits is taken. An event that fits none is logged and left alone."


def _count(things: Sequence[object] | dict[str, Any], word: str) -> str:
    return f"{len(things)} {word}" if len(things) == 1 else f"{len(things)} {word}s"


def _explain_rule(config: Config, rule: Rule, number: int) -> list[str]:
    lines = [f"{number}. {rule.name}: {events_of(rule)}"]
    if rule.prepare:
        limit = "" if rule.timeout is None else f", all of it within {format_duration(rule.timeout)}"
        lines.append(f"   prepare  {begin_of(rule)}{limit}:")
        lines += [f"     {index}. {step}" for index, step in enumerate(_steps(config, rule.prepare, PREPARE), 1)]
        lines.append(f"   failure  if one fails, {failure_of(rule)}")
    else:
        lines.append(f"   prepare  {_NOTHING}")
    lines.append(f"   approve  {approval_of(rule)}")
    undone = _steps(config, rule.undo_order, UNDO)
    if undone:
        lines.append(f"   undo     when the event is over{', or is cancelled' if rule.prepare else ''}:")
        lines += [f"     {index}. {step}" for index, step in enumerate(undone, 1)]
    else:
        lines.append(f"   undo     {_NOTHING}")
    return lines


def _steps(config: Config, names: Sequence[str], action: str) -> list[str]:
    steps = []
    for name in names:
        named = config.handlers[name]
        does = named.does(action)
        if does or action == PREPARE:
            steps.append(f"{name} ({named.kind}, at most {format_duration(named.timeout)}): {does or _NOTHING}")
    return steps


def as_json(config: Config) -> dict[str, Any]:
    """The same for programs."""
    return {
        "config": config.source,
        "endpoint": config.endpoint or None,
        "vm_name": config.vm_name or None,
        "state": config.state or None,
        "listen": _listen(config),
        "rules": [
            {
                "name": rule.name,
                "events": events_of(rule),
                "begin": begin_of(rule),
                "timeout_seconds": None if rule.timeout is None else rule.timeout.total_seconds(),
                "prepare": _facts(config, rule.prepare, PREPARE),
                "failure": failure_of(rule),
                "approve": rule.approve,
                "approval": approval_of(rule),
                "undo": _facts(config, rule.undo_order, UNDO),
            }
            for rule in config.rules
        ],
        "warnings": doubts_about(config),
    }


def _facts(config: Config, names: Sequence[str], action: str) -> list[dict[str, Any]]:
    return [
        {
            "handler": name,
            "kind": config.handlers[name].kind,
            "timeout_seconds": config.handlers[name].timeout.total_seconds(),
            "does": config.handlers[name].does(action),
        }
        for name in names
    ]

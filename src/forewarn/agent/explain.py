"""Describes a config: what an agent with it will do, and its probable mistakes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from forewarn.agent.changes import ADVISORY_TYPES
from forewarn.agent.decisions import IS_ADVISORY, NO_LONGER_ADVISED
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy import APPROVE, CONTINUE, LEADER, NEVER, SELF, SHORT_FREEZE, UNDO_NOW, listed
from forewarn.core.durations import format_duration
from forewarn.core.event_types import EVENT_TYPES
from forewarn.errors import nearest
from forewarn.system.addresses import show_host_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from forewarn.agent.policy import Config, NamedHandler, Rule


# --- One rule -------------------------------------------------------------------------------------


_ADVICE = [name for name in EVENT_TYPES if name.casefold() in ADVISORY_TYPES]


def describe_events(rule: Rule) -> str:
    """Return which events the rule matches."""
    parts = [listed(rule.on, "or") or f"any event except {listed(_ADVICE, 'and')}"]
    if rule.source:
        parts.append(f"from {rule.source}")
    if rule.description:
        quoted = [f'"{word}"' for word in rule.description]
        parts.append(f"with {listed(quoted, 'or')} in the description")
    if rule.max_duration is not None:
        parts.append(f"with an interruption of at most {format_duration(rule.max_duration)}")
    if rule.min_notice is not None:
        parts.append(f"with at least {format_duration(rule.min_notice)} of notice")
    return ", ".join(parts)


def describe_start(rule: Rule) -> str:
    """Return when preparation starts."""
    if rule.lead is None:
        return "at once"
    return f"{format_duration(rule.lead)} before NotBefore, or at once if less time is left"


def describe_failure(rule: Rule) -> str:
    """Return what happens when a handler fails."""
    if rule.on_failure == APPROVE:
        return "the other handlers still run, and the event is still approved"
    if rule.on_failure == CONTINUE:
        return "the other handlers still run; the event is not approved"
    if rule.on_failure == UNDO_NOW:
        return "the other handlers do not run, and those that have run are undone at once; the event is not approved"
    return "the other handlers do not run; the event is not approved"


def describe_approval(rule: Rule) -> str:
    """Return who approves, and when."""
    if rule.is_for_advice:
        return f"never: {IS_ADVISORY}"
    if rule.approve not in (SELF, LEADER):
        return "never: the event starts at its NotBefore"
    ready = "all handlers have prepared" if rule.prepare else "the event is seen"
    at = (
        f"as soon as {ready}"
        if rule.approve_lead is None
        else f"{format_duration(rule.approve_lead)} before NotBefore, once {ready}"
    )
    if rule.approve == SELF:
        return f"{at}, unless the event affects other VMs"
    return f"{at} on every affected VM; the first VM approves"


# --- Probable mistakes ----------------------------------------------------------------------------


def config_warnings(config: Config) -> list[str]:
    """Return probable mistakes, each once."""
    found = [
        *_unknown_types(config.rules),
        *_needs_notice(config.rules),
        *_never_reached(config.rules),
        *_useless_settings(config.rules, config.handlers),
        *_leader_mismatch(config),
        *_too_slow(config.rules, config.handlers),
        *_unused(config.rules, config.handlers),
    ]
    return list(dict.fromkeys(found))


def problems_here(config: Config) -> list[str]:
    """Return what would fail on this machine."""
    return [f"{name}: {problem}" for name, named in config.handlers.items() for problem in named.problems_here()]


def _unknown_types(rules: Sequence[Rule]) -> Iterator[str]:
    known = {name.casefold() for name in EVENT_TYPES}
    for rule in rules:
        for kind in rule.on:
            if kind.casefold() not in known:
                yield f"{rule.name}: unknown event type {kind!r}.{nearest(kind, EVENT_TYPES)}"


def _needs_notice(rules: Sequence[Rule]) -> Iterator[str]:
    for rule in rules:
        for kind in rule.on if rule.min_notice else ():
            if kind.casefold() in ADVISORY_TYPES:
                yield f"{rule.name} never applies to {kind}: a recommendation has no notice."


def _never_reached(rules: Sequence[Rule]) -> Iterator[str]:
    for index, rule in enumerate(rules):
        covered: dict[str, str] = {}
        for kind in rule.on or ("",):
            earlier = next((other for other in rules[:index] if _covers(other, rule, kind)), None)
            if earlier is not None:
                covered[kind] = earlier.name
        if covered and len(covered) == len(rule.on or ("",)):
            by = " and ".join(dict.fromkeys(covered.values()))
            yield f"{rule.name} never applies: earlier rules match all of its events ({by})."
        else:
            for kind, name in covered.items():
                yield f"{rule.name} never applies to {kind}: {name} matches it first."


def _covers(earlier: Rule, later: Rule, kind: str) -> bool:
    """Whether the earlier rule matches all events of this type ("": any type) that the later rule matches."""
    if not earlier.on and kind.casefold() in ADVISORY_TYPES:
        return False
    if earlier.on and kind.casefold() not in {each.casefold() for each in earlier.on}:
        return False
    if earlier.source and earlier.source.casefold() != later.source.casefold():
        return False
    # A description that contains a longer word also contains every word inside it.
    if earlier.description and not (
        later.description
        and all(any(short.casefold() in word.casefold() for short in earlier.description) for word in later.description)
    ):
        return False
    if earlier.max_duration is not None and (later.max_duration is None or later.max_duration > earlier.max_duration):
        return False
    return earlier.min_notice is None or (later.min_notice is not None and later.min_notice >= earlier.min_notice)


def _useless_settings(rules: Sequence[Rule], handlers: Mapping[str, NamedHandler]) -> Iterator[str]:
    for rule in rules:
        if rule.approve == NEVER and rule.approve_lead is not None:
            yield f"{rule.name}: approve_when has no effect without approve."
        if rule.is_for_advice and rule.approve != NEVER:
            yield f"{rule.name}: approve has no effect: {IS_ADVISORY}."
        if rule.is_for_advice and rule.lead is not None:
            yield f"{rule.name}: when has no effect: a recommendation has no deadline."
        for name in rule.prepare:
            if name in handlers and not handlers[name].does(PREPARE):
                yield f"{rule.name}: handler {name} does nothing on prepare."
        for name in rule.undo or ():
            if name in handlers and not handlers[name].does(UNDO):
                yield f"{rule.name}: handler {name} does nothing on undo."
        if rule.undo is not None:
            for name in rule.prepare:
                if name not in rule.undo and name in handlers and handlers[name].does(UNDO):
                    yield f"{rule.name} prepares {name} but does not undo it."


def _too_slow(rules: Sequence[Rule], handlers: Mapping[str, NamedHandler]) -> Iterator[str]:
    """Only for event types that the rule names: a rule for any event is not about a Preempt with 30 seconds."""
    known = {name.casefold(): kind for name, kind in EVENT_TYPES.items() if kind.starts}
    for rule in rules:
        limit = sum((handlers[name].timeout for name in rule.prepare if name in handlers), timedelta(0))
        limit = limit if rule.timeout is None else min(limit, rule.timeout)
        may_take = f"{rule.name}: its handlers may take {format_duration(limit)}"
        if rule.lead is not None and limit > rule.lead:
            yield f"{may_take}, but they start {format_duration(rule.lead)} before NotBefore."
        for kind in (known[name.casefold()] for name in rule.on if name.casefold() in known):
            notice = max(kind.min_notice, rule.min_notice or timedelta(0))
            if limit > notice:
                yield f"{may_take}, but the notice of a {kind.name} can be {format_duration(notice)}."


def _leader_mismatch(config: Config) -> Iterator[str]:
    led = [rule.name for rule in config.rules if rule.approve == LEADER]
    if config.peers is None:
        for name in led:
            yield f'{name}: approve = "leader" needs a [peers] table.'
    elif not led:
        yield 'There is a [peers] table, but no rule has approve = "leader".'


def _unused(rules: Sequence[Rule], handlers: Mapping[str, NamedHandler]) -> Iterator[str]:
    used = {name for rule in rules for name in (*rule.prepare, *(rule.undo or ()))}
    for name in handlers:
        if name not in used:
            yield f"No rule uses handler {name}."


# --- The whole config -----------------------------------------------------------------------------


_NOTHING = "nothing"


def explain(config: Config, here: Sequence[str] = ()) -> list[str]:
    """Describe each rule: its events, handlers, approval and undo. Then list the warnings, and those of `here`."""
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
    warnings = [*config_warnings(config), *here]
    return [*lines, "", *(f"warning: {warning}" for warning in warnings)] if warnings else lines


def _explain_place(config: Config) -> list[str]:
    """Describe the [agent] table."""
    lines = []
    if config.endpoint:
        lines.append(f"Endpoint: {config.endpoint}.")
    if config.vm_name:
        lines.append(f"VM name: {config.vm_name}.")
    if config.state:
        lines.append(f"State folder: {config.state}.")
    if config.listen is not None:
        lines.append(f"Metrics and health are served at {_listen(config)}.")
    if not config.preview_versions:
        lines.append("The agent requests no api-version that is a preview.")
    if config.short_freeze != SHORT_FREEZE:
        lines.append(f"/readyz returns 503 during a Freeze longer than {format_duration(config.short_freeze)}.")
    return lines


def _listen(config: Config) -> str | None:
    if config.listen is None:
        return None
    return show_host_port(*config.listen)


def _about_others(config: Config) -> str:
    if not config.rules:
        return "Without rules, the agent logs all events and ignores them."
    return "The first matching rule applies. The agent logs and ignores events that match no rule."


def _count(things: Sequence[object] | dict[str, Any], word: str) -> str:
    return f"{len(things)} {word}" if len(things) == 1 else f"{len(things)} {word}s"


def _explain_rule(config: Config, rule: Rule, number: int) -> list[str]:
    lines = [f"{number}. {rule.name}: {describe_events(rule)}"]
    if rule.prepare:
        limit = "" if rule.timeout is None else f", in at most {format_duration(rule.timeout)} together"
        lines.append(f"   prepare  {describe_start(rule)}{limit}:")
        lines += [f"     {index}. {step}" for index, step in enumerate(_steps(config, rule.prepare, PREPARE), 1)]
        lines.append(f"   failure  if one fails, {describe_failure(rule)}")
    else:
        lines.append(f"   prepare  {_NOTHING}")
    lines.append(f"   approve  {describe_approval(rule)}")
    undone = _steps(config, rule.undo_order, UNDO)
    if undone:
        when = NO_LONGER_ADVISED if rule.is_for_advice else f"is over{' or cancelled' if rule.prepare else ''}"
        lines.append(f"   undo     when the event {when}:")
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


def as_json(config: Config, here: Sequence[str] = ()) -> dict[str, Any]:
    """Return the same as JSON."""
    return {
        "config": config.source,
        "endpoint": config.endpoint or None,
        "vm_name": config.vm_name or None,
        "state": config.state or None,
        "listen": _listen(config),
        "preview_versions": config.preview_versions,
        "short_freeze_seconds": config.short_freeze.total_seconds(),
        "rules": [
            {
                "name": rule.name,
                "events": describe_events(rule),
                "begin": describe_start(rule),
                "timeout_seconds": None if rule.timeout is None else rule.timeout.total_seconds(),
                "prepare": _facts(config, rule.prepare, PREPARE),
                "failure": describe_failure(rule),
                "approve": rule.approve,
                "approval": describe_approval(rule),
                "undo": _facts(config, rule.undo_order, UNDO),
            }
            for rule in config.rules
        ],
        "warnings": [*config_warnings(config), *here],
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

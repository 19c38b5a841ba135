"""A config in words: what an agent with it will do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy.doubts import doubts_about
from forewarn.agent.policy.hosts import show_host_port
from forewarn.agent.policy.words import approval_of, begin_of, events_of, failure_of
from forewarn.core.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forewarn.agent.policy.config import Config
    from forewarn.agent.policy.rule import Rule

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
        silence = format_duration(config.peers.silence)
        lines.append(f"Agents that tell each other: {members}. Silent is who has not answered for {silence}.")
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
        lines.append(f"Metrics and health are served at {_listen(config)}.")
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
    undone = _steps(config, undo_order(rule), UNDO)
    if undone:
        lines.append("   undo     when the event is over, or is cancelled:")
        lines += [f"     {index}. {step}" for index, step in enumerate(undone, 1)]
    else:
        lines.append(f"   undo     {_NOTHING}")
    return lines


def undo_order(rule: Rule) -> tuple[str, ...]:
    """Which handlers undo, in this order, if all of them have prepared."""
    return rule.prepare[::-1] if rule.undo is None else rule.undo


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
                "undo": _facts(config, undo_order(rule), UNDO),
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

"""What is done about one event: values, and their form on disk."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from forewarn.agent.changes import has_started
from forewarn.agent.policy.rule import Rule
from forewarn.errors import UnreadableDocument
from forewarn.wire.document_reader import ToldEvent, read_event_if_possible

TO_DO, PREPARING, PREPARED, FAILED, SKIPPED, UNDOING, UNDONE = (
    "to do",
    "preparing",
    "prepared",
    "failed",
    "skipped",
    "undoing",
    "undone",
)
"""Skipped: it has failed before it was begun, so there is nothing to undo."""
BEGUN = frozenset((PREPARING, PREPARED, FAILED, UNDOING))
"""A handler in one of these may have changed the machine, and has not undone it."""

CANCELLED, OVER, CAME_BACK = "cancelled", "over", "came back"
"""Why work ends: the event was withdrawn, it has happened, or the machine was started anew by it."""


class Step(NamedTuple):
    """One handler's part."""

    handler: str
    state: str = TO_DO
    table: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """The handler's table in the config when it was begun."""
    memo: dict[str, Any] = {}  # noqa: RUF012
    """What it has remembered for its undo."""
    run: str = ""
    """Which run is under way or was the last: if the agent is killed in it, the next one takes up the same."""
    problem: str = ""
    seconds: float = 0.0


class Work(NamedTuple):
    """What is done about one event."""

    event: ToldEvent
    """As it was last told."""
    me: str
    """This machine, as the event names it."""
    rule: Rule
    steps: tuple[Step, ...]
    boot: str = ""
    """Which start of the machine it was begun in."""
    approved_at: str = ""
    ending: str = ""
    """Why it is to be undone; empty: it is not."""
    done: bool = False
    """Everything is undone; it is kept until the event is gone, so that it is not begun again."""

    @property
    def id(self) -> str:
        return self.event.id

    @property
    def is_begun(self) -> bool:
        """Whether anything was done for it."""
        return any(step.state not in (TO_DO, SKIPPED) for step in self.steps)

    @property
    def is_started(self) -> bool:
        """Whether the event has begun; its NotBefore is then empty."""
        return has_started(self.event)

    @property
    def is_prepared(self) -> bool:
        """Whether every step was done, or has failed where the rule does not mind."""
        fine = (PREPARED, FAILED, SKIPPED) if self.rule.on_failure == "approve" else (PREPARED,)
        return all(step.state in fine for step in self.steps)

    @property
    def has_failed(self) -> bool:
        return any(step.state in (FAILED, SKIPPED) for step in self.steps)

    def with_step(self, index: int, **changes: Any) -> Work:
        """The same with one step changed."""
        step = self.steps[index]._replace(**changes)
        return self._replace(steps=(*self.steps[:index], step, *self.steps[index + 1 :]))

    def held(self, handler: str) -> Step | None:
        """The step of a handler that it has prepared, or may have."""
        if self.done:
            return None
        return next((step for step in self.steps if step.handler == handler and step.state in BEGUN), None)


def begin(event: ToldEvent, me: str, rule: Rule, boot: str) -> Work:
    """Nothing is done yet."""
    return Work(event, me, rule, tuple(Step(name) for name in rule.prepare), boot)


# --- On disk ------------------------------------------------------------------------------------------

_LENGTHS = ("max_duration", "min_notice", "lead", "timeout", "approve_lead")
_TUPLES = ("on", "description", "prepare", "undo")


def to_json(work: Work) -> dict[str, Any]:
    """Plain values."""
    rule = work.rule._asdict()
    for name in _LENGTHS:
        rule[name] = None if rule[name] is None else rule[name].total_seconds()
    return {
        **work._asdict(),
        "event": work.event.raw,
        "rule": rule,
        "steps": [step._asdict() for step in work.steps],
    }


def _step(value: dict[str, Any]) -> Step:
    step = Step(**{name: value[name] for name in Step._fields if name in value})
    if not isinstance(step.memo, dict) or not isinstance(step.table, dict) or not isinstance(step.handler, str):
        raise TypeError("a step of it is not one")
    return step


def from_json(value: dict[str, Any]) -> Work:
    """The inverse. What another version of the agent has noted besides is passed over."""
    rule = {name: value["rule"][name] for name in Rule._fields if name in value["rule"]}
    for name in _LENGTHS:
        rule[name] = None if rule.get(name) is None else timedelta(seconds=rule[name])
    for name in _TUPLES:
        rule[name] = None if rule.get(name) is None else tuple(rule[name])
    steps = tuple(_step(step) for step in value["steps"])
    known = {name: value[name] for name in Work._fields if name in value}
    # As it was read when it was told: what was heard of then must not be forgotten now.
    event, problem = read_event_if_possible(value["event"])
    if event is None:
        raise UnreadableDocument(problem=problem)
    return Work(**{**known, "event": event, "rule": Rule(**rule), "steps": steps})

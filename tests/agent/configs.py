"""Configs for tests of the agent, as values."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.agent.handlers.handler import PREPARE, Handler
from forewarn.agent.policy import Config, NamedHandler

if TYPE_CHECKING:
    from forewarn.agent.handlers.handler import Job
    from forewarn.agent.policy import Rule
    from forewarn.files.toml_reader import TomlTable


class Words(Handler):
    """A handler that only says what it would do."""

    def __init__(self, options: TomlTable | None = None, *, prepare: str = "stop", undo: str = "start") -> None:
        self._does = {PREPARE: prepare}.get
        self._undo = undo

    def describe(self, action: str) -> str:
        return self._does(action, self._undo)

    def prepare(self, job: Job) -> None:
        raise NotImplementedError

    def undo(self, job: Job) -> None:
        raise NotImplementedError


def named(name: str, seconds: float = 60, *, prepare: str | None = None, undo: str | None = None) -> NamedHandler:
    words = Words(
        prepare=f"stop {name}" if prepare is None else prepare, undo=f"start {name}" if undo is None else undo
    )
    return NamedHandler(name, "command", timedelta(seconds=seconds), words, {})


def config(*rules: Rule, handlers: tuple[NamedHandler, ...] = ()) -> Config:
    """These rules, with a handler for every name in them."""
    known = {each.name: each for each in handlers}
    for rule in rules:
        for name in (*rule.prepare, *(rule.undo or ())):
            known.setdefault(name, named(name))
    return Config(source="agent.toml", rules=rules, handlers=known)

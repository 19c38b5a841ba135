"""What the agent has done about each event: the values, the file that outlives the agent, and the two kept equal."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import has_started
from forewarn.agent.policy import Rule
from forewarn.errors import ForewarnError, NotPermitted, StateInUse, UnreadableDocument
from forewarn.system.files import write_atomically
from forewarn.wire.document_reader import ToldEvent, read_event_if_possible

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

logger = logging.getLogger(__name__)


# --- Values ---------------------------------------------------------------------------------------


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


# --- As JSON --------------------------------------------------------------------------------------

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


# --- The file -------------------------------------------------------------------------------------


FILE, LOCK = "state.json", "agent.lock"
_VERSION = 1


class StateFile:
    """A folder, held for as long as this lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
            raise NotPermitted(action="write", path=folder, problem=problem, flag="--state") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StateInUse(folder=folder) from None

    def load(self) -> list[Work]:
        """What was begun and not undone. A file that cannot be read is put aside, not overwritten."""
        path = self.folder / FILE
        try:
            return read_works(path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise NotPermitted(action="read", path=path, problem=error.strerror, flag="--state") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ForewarnError) as error:
            names = (f".unreadable{number or ''}" for number in count())
            aside = next(path for path in map(path.with_suffix, names) if not path.exists())
            path.replace(aside)
            logger.critical(
                "%s cannot be read (%s). It is kept as %s; nothing in it will be undone.", path, error, aside
            )
            return []

    def save(self, works: Iterable[Work]) -> None:
        """On disk before this returns; a reader, and a kill, find the old file or the new one."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # somebody may have tidied up
        text = json.dumps({"version": _VERSION, "works": [to_json(work) for work in works]}, indent=1)
        write_atomically(self.folder / FILE, text.encode())

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._lock)


class NoFile:
    """What a rehearsal has instead: nothing is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> list[Work]:
        return []

    def save(self, works: Iterable[Work]) -> None:
        pass

    def close(self) -> None:
        pass


def read_works(path: Path) -> list[Work]:
    """What a state file says."""
    value: Any = json.loads(path.read_text("utf-8"))
    if value["version"] != _VERSION:
        raise ValueError(f"it is of version {value['version']!r}, this agent writes {_VERSION}")
    return [from_json(work) for work in value["works"]]


# --- In memory and on disk ------------------------------------------------------------------------


class WorkStore:
    """Every change is on disk before anybody acts on it. Used under the agent's lock."""

    def __init__(self, file: StateFile | NoFile) -> None:
        self._file = file
        self.works: dict[str, Work] = {work.id: work for work in file.load()}
        self._unsaved = False
        self._failing = False

    def keep(self, *works: Work) -> bool:
        """Whether it is on disk; if not, it is tried again with the next change or by `settle`."""
        for work in works:
            self.works[work.id] = work
        return self._save()

    def replace(self, works: dict[str, Work]) -> bool:
        """The same for all of them at once; what is as it was is not written again."""
        if works == self.works:
            return True
        self.works = works
        return self._save()

    def drop(self, event_id: str) -> None:
        if self.works.pop(event_id, None) is not None:
            self._save()

    def settle(self) -> bool:
        """Write what could not be written before."""
        return not self._unsaved or self._save()

    def close(self) -> None:
        self.settle()
        self._file.close()

    def _save(self) -> bool:
        try:
            self._file.save(self.works.values())
        except (OSError, ValueError, TypeError, RecursionError) as error:
            if not self._failing:
                logger.critical("What is done cannot be noted in %s (%s): nothing is begun.", self._file.folder, error)
            self._failing = self._unsaved = True
            return False
        if self._failing:
            logger.warning("What is done can be noted again in %s.", self._file.folder)
        self._failing = self._unsaved = False
        return True

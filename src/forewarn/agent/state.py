"""What the agent has done for each event: the values, the state file, and the store that keeps both equal."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import has_started
from forewarn.agent.policy import Rule
from forewarn.agent.protocol import RejectedVersion
from forewarn.core.durations import from_text, to_text
from forewarn.errors import ForewarnError, NotPermitted, StateInUse, UnreadableDocument
from forewarn.system.files import write_atomically
from forewarn.system.logs import get_logger
from forewarn.wire.document_reader import ScheduledEvent, id_key, read_event_leniently

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_log = get_logger(__name__)


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
"""Skipped: failed before it started, so there is nothing to undo."""
BEGUN = frozenset((PREPARING, PREPARED, FAILED, UNDOING))
"""In these states a handler may have changed the machine, and has not undone it."""

CANCELLED, OVER, CAME_BACK, POSTPONED, GAVE_UP = "cancelled", "over", "came back", "postponed", "gave up"
"""Why work is undone: the event was cancelled, it is over, it has restarted the machine, it comes much later, or a
handler has failed and the rule says to undo. Postponed work is prepared again."""


class HandlerStep(NamedTuple):
    """The state of one handler for an event."""

    handler: str
    state: str = TO_DO
    table: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """The handler's table in the config when it started."""
    memo: dict[str, Any] = {}  # noqa: RUF012
    """What the handler has stored for its undo."""
    run: str = ""
    """Id of the current or last run. After a kill during a run, the next agent repeats it with the same id."""
    problem: str = ""
    seconds: float = 0.0


class EventWork(NamedTuple):
    """What the agent does for one event. Its field names are keys of the state file."""

    event: ScheduledEvent
    """The event in the last document."""
    me: str
    """This machine's name in the event."""
    rule: Rule
    steps: tuple[HandlerStep, ...]
    boot: str = ""
    """Id of the boot in which the work started."""
    approved_at: str = ""
    ending: str = ""
    """Why the work is to be undone; empty: it is not."""
    done: bool = False
    """Everything is undone. The work is kept until the event is gone, so that it does not start again."""
    failure: str = ""
    """The handler that failed, and its problem, if the work was given up for it. Its step no longer has it."""
    first_id: str = ""
    """The event's id when the work began, if the endpoint has changed it since."""
    followed_by: str = ""
    """The eviction that follows a recommendation, which is gone: the preparation stays."""

    @property
    def id(self) -> str:
        """The id of this work: the event's first id, in the form for comparing."""
        return id_key(self.first_id or self.event.id)

    @property
    def is_begun(self) -> bool:
        """Whether any handler has started."""
        return any(step.state not in (TO_DO, SKIPPED) for step in self.steps)

    @property
    def is_started(self) -> bool:
        """Whether the event has started. Its NotBefore is then empty."""
        return has_started(self.event)

    @property
    def is_prepared(self) -> bool:
        """Whether every handler has prepared, or has failed and the rule allows that."""
        fine = (PREPARED, FAILED, SKIPPED) if self.rule.on_failure == "approve" else (PREPARED,)
        return all(step.state in fine for step in self.steps)

    @property
    def has_failed(self) -> bool:
        return any(step.state in (FAILED, SKIPPED) for step in self.steps)

    def with_step(self, index: int, **changes: Any) -> EventWork:
        """Return the work with one changed step."""
        step = self.steps[index]._replace(**changes)
        return self._replace(steps=(*self.steps[:index], step, *self.steps[index + 1 :]))

    def begun_step(self, handler: str) -> HandlerStep | None:
        """Return the handler's step if the handler has prepared, or may have."""
        if self.done:
            return None
        return next((step for step in self.steps if step.handler == handler and step.state in BEGUN), None)


def new_work(event: ScheduledEvent, me: str, rule: Rule, boot: str) -> EventWork:
    """Return the work for a new event: nothing is done yet."""
    return EventWork(event, me, rule, tuple(HandlerStep(name) for name in rule.prepare), boot)


# --- As JSON --------------------------------------------------------------------------------------

_DURATIONS = ("max_duration", "min_notice", "lead", "timeout", "approve_lead")
_TUPLES = ("on", "description", "prepare", "undo")


def to_json(work: EventWork) -> dict[str, Any]:
    """Return the work as JSON values."""
    rule = work.rule._asdict()
    for name in _DURATIONS:
        rule[name] = None if rule[name] is None else rule[name].total_seconds()
    return {
        **work._asdict(),
        "event": work.event.raw,
        "rule": rule,
        "steps": [step._asdict() for step in work.steps],
    }


def _step(value: dict[str, Any]) -> HandlerStep:
    step = HandlerStep(**{name: value[name] for name in HandlerStep._fields if name in value})
    if not isinstance(step.memo, dict) or not isinstance(step.table, dict) or not isinstance(step.handler, str):
        raise TypeError("a step has the wrong type")
    return step


def from_json(value: dict[str, Any]) -> EventWork:
    """Read the work from JSON values. Ignore fields of other versions of the agent."""
    rule = {name: value["rule"][name] for name in Rule._fields if name in value["rule"]}
    for name in _DURATIONS:
        rule[name] = None if rule.get(name) is None else timedelta(seconds=rule[name])
    for name in _TUPLES:
        rule[name] = None if rule.get(name) is None else tuple(rule[name])
    steps = tuple(_step(step) for step in value["steps"])
    known = {name: value[name] for name in EventWork._fields if name in value}
    # Read leniently, as when the event was received: an event with an error must not be lost.
    event, problem = read_event_leniently(value["event"])
    if event is None:
        raise UnreadableDocument(problem=problem)
    return EventWork(**{**known, "event": event, "rule": Rule(**rule), "steps": steps})


# --- The file -------------------------------------------------------------------------------------


FILE, LOCK = "state.json", "agent.lock"
_VERSION = 1


class StateFile:
    """The state folder, locked by this agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rejected_version: RejectedVersion | None = None
        self._saved: dict[str, tuple[EventWork, str]] = {}
        """The work in the file, each with its line."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
            raise NotPermitted(action="write", path=folder, problem=problem, flag="--state") from error
        import fcntl  # here: Windows has none, and other commands need this module

        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StateInUse(folder=folder) from None

    def load(self) -> list[EventWork]:
        """Return the saved work. If the file cannot be read, rename it and return nothing."""
        path = self.folder / FILE
        try:
            works, self.rejected_version = read_state(path)
            return works  # noqa: TRY300
        except FileNotFoundError:
            return []
        except OSError as error:
            raise NotPermitted(action="read", path=path, problem=error.strerror, flag="--state") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ForewarnError) as error:
            names = (f".unreadable{number or ''}" for number in count())
            aside = next(path for path in map(path.with_suffix, names) if not path.exists())
            path.replace(aside)
            _log.critical(
                "state_unreadable",
                "Cannot read the state file. It was renamed; nothing in it will be undone.",
                path=path,
                renamed_to=aside,
                error=str(error),
            )
            return []

    def save(self, works: Iterable[EventWork]) -> None:
        """Write the state file. It is on disk when this returns; a kill leaves the old file or the new one."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # the folder may have been deleted
        # One line for each work. Work that has not changed is not encoded again: there may be hundreds.
        self._saved = {work.id: self._encoded(work) for work in works}
        lines = ",\n".join(text for _, text in self._saved.values())
        rejected = _rejected_to_json(self.rejected_version)
        text = f'{{"version": {_VERSION}, "rejected_version": {rejected}, "works": [{lines}]}}\n'
        write_atomically(self.folder / FILE, text.encode())

    def _encoded(self, work: EventWork) -> tuple[EventWork, str]:
        known = self._saved.get(work.id)
        return known if known is not None and known[0] is work else (work, json.dumps(to_json(work)))

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._lock)


class DiscardedState:
    """Used by a dry run instead of a state file: saves nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rejected_version: RejectedVersion | None = None

    def load(self) -> list[EventWork]:
        return []

    def save(self, works: Iterable[EventWork]) -> None:
        pass

    def close(self) -> None:
        pass


class SavedState(NamedTuple):
    """The content of a state file."""

    works: list[EventWork]
    rejected_version: RejectedVersion | None


def read_state(path: Path) -> SavedState:
    """Read a state file."""
    value: Any = json.loads(path.read_text("utf-8"))
    if value["version"] != _VERSION:
        raise ValueError(f"it has version {value['version']!r}; this agent needs version {_VERSION}")
    works = [from_json(work) for work in value["works"]]
    return SavedState(works, _rejected_from_json(value.get("rejected_version")))


def _rejected_to_json(rejected: RejectedVersion | None) -> str:
    return json.dumps(None if rejected is None else {**rejected._asdict(), "at": to_text(rejected.at)})


def _rejected_from_json(value: Any) -> RejectedVersion | None:
    """Without a readable value, the agent requests the version again: work must not get lost for it."""
    try:
        return RejectedVersion(str(value["version"]), str(value["endpoint"]), from_text(value["at"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


# --- In memory and on disk ------------------------------------------------------------------------


class WorkStore:
    """Keeps the work in memory and on disk. A change is on disk before the agent acts on it. Used under the agent's
    lock."""

    def __init__(self, file: StateFile | DiscardedState) -> None:
        self._file = file
        self.works: dict[str, EventWork] = {work.id: work for work in file.load()}
        self._unsaved = False
        self._failing = False

    def keep(self, *works: EventWork, ended: Iterable[str] = ()) -> bool:
        """Save the work, and delete ended work, with one write. Return whether it is on disk; if not, the next change
        or `save_pending` tries again."""
        self.keep_for_later(*works)
        for event_id in ended:
            self.works.pop(event_id, None)
        return self._save()

    def keep_for_later(self, *works: EventWork) -> None:
        """Keep the work in memory. The next write, at the latest that of `save_pending`, saves it."""
        self.works.update((work.id, work) for work in works)
        self._unsaved = True

    def replace(self, works: dict[str, EventWork]) -> bool:
        """Save all work, if anything has changed."""
        if works == self.works:
            return True
        self.works = works
        return self._save()

    def save_pending(self) -> bool:
        """Write what could not be written before."""
        return not self._unsaved or self._save()

    @property
    def rejected_version(self) -> RejectedVersion | None:
        """The api-version that the endpoint has rejected."""
        return self._file.rejected_version

    def keep_rejected_version(self, rejected: RejectedVersion | None) -> None:
        """Save it, if it has changed."""
        if rejected != self._file.rejected_version:
            self._file.rejected_version = rejected
            self._save()

    def close(self) -> None:
        self.save_pending()
        self._file.close()

    def _save(self) -> bool:
        try:
            self._file.save(self.works.values())
        except (OSError, ValueError, TypeError, RecursionError) as error:
            if not self._failing:
                _log.critical(
                    "state_write_failed",
                    "Cannot write the state file. No handler starts until it can be written.",
                    folder=self._file.folder,
                    error=str(error),
                )
            self._failing = self._unsaved = True
            return False
        if self._failing:
            _log.warning("state_write_recovered", "The state file can be written again.", folder=self._file.folder)
        self._failing = self._unsaved = False
        return True

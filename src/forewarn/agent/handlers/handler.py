"""The interface of handlers, and a job as JSON or as environment variables.

A handler prepares one part of the VM for an event, and undoes that afterwards.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from forewarn.agent.changes import deadline_of
from forewarn.core.durations import to_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from forewarn.files.toml_reader import TomlTable
    from forewarn.wire.document_reader import ScheduledEvent


# --- The handler ----------------------------------------------------------------------------------


PREPARE, UNDO = "prepare", "undo"


class Job(Protocol):
    """One run of a handler: its event, and the services of the agent for it."""

    @property
    def event(self) -> ScheduledEvent: ...

    @property
    def vm(self) -> str:
        """The name of this VM in events."""

    @property
    def handler(self) -> str:
        """The handler's name in the config."""

    @property
    def action(self) -> str:
        """PREPARE or UNDO."""

    @property
    def run(self) -> str:
        """The id of the run. It stays the same if the agent was killed during the run and the next agent resumes it."""

    @property
    def folder(self) -> Path:
        """The agent's state folder. A handler may write files there, with its own name in theirs."""

    @property
    def memo(self) -> dict[str, Any]:
        """The facts that prepare has stored for undo."""

    def remember(self, **facts: Any) -> None:
        """Store facts (JSON values) in the memo. They are on disk when this returns."""

    def info(self, text: str, **fields: Any) -> None:
        """Log a line, with the event's id and the handler's name."""

    def warning(self, text: str, **fields: Any) -> None:
        """Log a warning."""

    def seconds_left(self) -> float:
        """Return the time until the timeout, at least 0. A handler that takes longer has failed."""

    def wait(self, seconds: float) -> bool:
        """Wait, at most until the timeout. True means stop at once: the event is gone, or the agent is stopping."""


class Handler(ABC):
    """A kind of handler. An instance has the options of one `[handler.NAME]`.

    The agent runs prepare and undo in a thread, one at a time. HandlerFailed, or any other exception, means that the
    handler has failed. After a kill of the agent, prepare and undo may run again: both must be idempotent.
    """

    @abstractmethod
    def __init__(self, options: TomlTable) -> None:
        """Read the options. Call `options.report(...)` for an invalid one: the agent then lists all mistakes of the
        file. If the handler cannot continue, raise `options.error(...)`.

        The agent reads `kind`, `file` and `timeout`; `options.reject_unknown({..., *COMMON})` allows them.
        """

    @abstractmethod
    def describe(self, action: str) -> str:
        """Return what the action does, as a phrase that follows "would": "run systemctl stop web". Empty: nothing."""

    def problems_here(self) -> Iterable[str]:
        """Return what would fail on this machine, for `check --here`, without changing anything."""
        return ()

    @abstractmethod
    def prepare(self, job: Job) -> None: ...

    @abstractmethod
    def undo(self, job: Job) -> None: ...


COMMON = ("kind", "file", "timeout")
"""Options of all handlers."""


# --- A job as JSON and as environment variables ---------------------------------------------------


_MAX_VARIABLE_LENGTH = 30_000
"""The operating system does not start a program with much longer variables."""


def as_json(job: Job, **more: Any) -> str:
    """Return the job as JSON, with the event as received."""
    return json.dumps({"action": job.action, "vm": job.vm, "handler": job.handler, **more, "event": job.event.raw})


def as_variables(job: Job) -> dict[str, str]:
    """Return the job as environment variables."""
    event = job.event
    not_before = deadline_of(event)
    values = {
        "ACTION": job.action,
        "HANDLER": job.handler,
        "VM_NAME": job.vm,
        "TIMEOUT_SECONDS": int(job.seconds_left()),
        "EVENT_ID": event.id,
        "EVENT_TYPE": event.type,
        "EVENT_STATUS": event.status,
        "EVENT_SOURCE": event.source or "",
        "EVENT_DESCRIPTION": event.description or "",
        "EVENT_DURATION_SECONDS": "" if event.duration_seconds is None else event.duration_seconds,
        "EVENT_RESOURCES": ",".join(event.resources),
        "EVENT_NOT_BEFORE": to_text(not_before, "seconds") if not_before else "",
    }
    return {f"FOREWARN_{name}": as_variable(value) for name, value in values.items()}


def as_variable(value: object) -> str:
    """Return a valid value of a variable: the endpoint may send characters that are not allowed."""
    return str(value).replace("\0", "")[:_MAX_VARIABLE_LENGTH].encode(errors="replace").decode()

"""What a handler is: it prepares a part of the machine for an event, and undoes that afterwards.

And a job as JSON or as environment variables, for programs, receivers and logs.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from forewarn.core.durations import to_text

if TYPE_CHECKING:
    from pathlib import Path

    from forewarn.files.toml_reader import TomlTable
    from forewarn.wire.document_reader import ToldEvent


# --- The handler ----------------------------------------------------------------------------------


PREPARE, UNDO = "prepare", "undo"


class Job(Protocol):
    """One run of a handler: what it is about, and what the handler may ask of the agent meanwhile."""

    @property
    def event(self) -> ToldEvent: ...

    @property
    def vm(self) -> str:
        """This machine's name, as events have it."""

    @property
    def handler(self) -> str:
        """The handler's name in the config."""

    @property
    def action(self) -> str:
        """PREPARE or UNDO."""

    @property
    def run(self) -> str:
        """Which run it is: the same again when an agent was killed in the middle of it and this one takes it up."""

    @property
    def folder(self) -> Path:
        """Where the agent keeps its state: a handler may have files there, named after itself."""

    @property
    def memo(self) -> dict[str, Any]:
        """What prepare has remembered, for undo to read. Empty if nothing was."""

    def remember(self, **facts: Any) -> None:
        """Put facts (of JSON) into the memo, on disk before this returns: they outlive a kill."""

    def say(self, text: str, **fields: Any) -> None:
        """A line in the log, with the event's id and the handler's name."""

    def warn(self, text: str, **fields: Any) -> None:
        """A line in the log that somebody should read."""

    def seconds_left(self) -> float:
        """Until the time limit; never below 0. A handler that takes longer has failed."""

    def wait(self, seconds: float) -> bool:
        """Wait so long, at most until the limit. True: stop at once, the event is gone or the agent is stopping."""


class Handler(ABC):
    """One kind of handler, with the options of one `[handler.NAME]`.

    Its parts are run one at a time, in a thread. It raises HandlerFailed when it could not do its part; any other
    exception counts as that too. Prepare and undo may each be run again after a kill: what is so already is fine.
    """

    @abstractmethod
    def __init__(self, options: TomlTable) -> None:
        """Read the options; `options.wrong(...)` makes the error that says what is wrong with one.

        `kind`, `file` and `timeout` are read by the agent; `options.refuse_unknown({..., *COMMON})` allows them.
        """

    @abstractmethod
    def describe(self, action: str) -> str:
        """What the action does, in words that follow 'would': 'run systemctl stop web'. Empty: nothing."""

    @abstractmethod
    def prepare(self, job: Job) -> None: ...

    @abstractmethod
    def undo(self, job: Job) -> None: ...


COMMON = ("kind", "file", "timeout")
"""The options that every handler has."""


# --- A job as JSON and as environment variables ---------------------------------------------------


_LONGEST = 30_000
"""Characters of one variable of the environment: the system refuses programs with much longer ones."""


def as_json(job: Job, **more: Any) -> str:
    """The event as it was sent, and what is done about it."""
    told = {"action": job.action, "vm": job.vm, "handler": job.handler, **more, "event": job.event.raw}
    return json.dumps(told)


def as_variables(job: Job) -> dict[str, str]:
    """The same as variables of an environment."""
    event = job.event
    moment = event.not_before
    told = {
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
        "EVENT_NOT_BEFORE": to_text(moment, "seconds") if moment else "",
    }
    return {f"FOREWARN_{name}": as_variable(value) for name, value in told.items()}


def as_variable(value: object) -> str:
    """A text that can be a variable: an endpoint may send what no variable can hold."""
    return str(value).replace("\0", "")[:_LONGEST].encode(errors="replace").decode()

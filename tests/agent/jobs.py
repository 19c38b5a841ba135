"""A job for a handler without an agent, and handlers from a config."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forewarn.agent.clock import real_seconds
from forewarn.agent.config_file import read_text
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.wire.document_reader import read_document

if TYPE_CHECKING:
    from forewarn.agent.handlers.handler import Handler
    from forewarn.wire.document_reader import ScheduledEvent

TIMEOUT_SECONDS = 60.0
RAW_EVENT = {
    "EventId": "4CAEA225-A741-474D-A72E-428C86FCD853",
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-0", "web-1"],
    "NotBefore": "Thu, 22 Jul 2021 04:50:17 GMT",
    "Description": "Virtual machine is going to be restarted.",
    "EventSource": "User",
    "DurationInSeconds": -1,
}


def sample_event(**changes: object) -> ScheduledEvent:
    """Return the event above with changes."""
    return read_document(json.dumps({"DocumentIncarnation": 1, "Events": [{**RAW_EVENT, **changes}]})).events[0]


class LoneJob:
    """Records the messages and the memo of a handler. The memo is a file, as in an agent, so it survives a kill."""

    def __init__(
        self,
        folder: Path,
        action: str = PREPARE,
        *,
        event: ScheduledEvent | None = None,
        seconds: float = TIMEOUT_SECONDS,
        handler: str = "it",
        run: str | None = None,
    ) -> None:
        self.event = event or sample_event()
        self.vm = "web-0"
        self.handler = handler
        self.action = action
        # Random for each job, as in an agent, unless a job resumes an earlier one.
        self.run = os.urandom(8).hex() if run is None else run
        self.folder = folder
        self.said: list[str] = []
        self.warned: list[str] = []
        self.stopped = threading.Event()
        self._news = threading.Condition()
        self._until = real_seconds() + seconds

    @property
    def memo(self) -> dict[str, Any]:
        path = self.folder / "memo.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def remember(self, **facts: Any) -> None:
        new = self.folder / "memo.new"
        new.write_text(json.dumps({**self.memo, **facts}))
        new.replace(self.folder / "memo.json")

    def info(self, text: str, **_: Any) -> None:
        with self._news:
            self.said.append(text)
            self._news.notify_all()

    def warning(self, text: str, **_: Any) -> None:
        with self._news:
            self.warned.append(text)
            self._news.notify_all()

    def seconds_left(self) -> float:
        return max(0.0, self._until - real_seconds())

    def wait(self, seconds: float) -> bool:
        return self.stopped.wait(min(seconds, self.seconds_left()))

    def until_said(self, text: str) -> None:
        """Wait until a message or warning of another thread contains the text."""
        with self._news:
            assert self._news.wait_for(
                lambda: any(text in line for line in [*self.said, *self.warned]), TIMEOUT_SECONDS
            ), f"{text!r} was never said, but {self.said} {self.warned}"


def then(job: LoneJob, action: str = UNDO, **options: Any) -> LoneJob:
    """The next job of the same handler about the same event."""
    return LoneJob(job.folder, action, event=job.event, handler=job.handler, **options)


def handler_of(text: str, folder: Path = Path("/nowhere")) -> Handler:
    """The handler of a `[handler.it]` with these options."""
    return read_text(f"[handler.it]\n{text}\n", "agent.toml", folder).handlers["it"].handler


def toml_list(*words: str | Path) -> str:
    """An array as TOML writes it, which is as JSON does."""
    return json.dumps([str(word) for word in words])

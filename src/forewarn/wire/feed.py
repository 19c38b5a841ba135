"""The feed as server-sent events: a row of history each, written and read.

An id without data is how this wire says that one has come so far: whoever is told of few rows need not ask for
the others again after an interruption. (HTML standard, 9.2.6: dispatching sets the last event ID first.)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.history import HAPPENINGS
from forewarn.wire.control import entry_shape

if TYPE_CHECKING:
    from forewarn.core.state import Entry

EVENT_STREAM = "text/event-stream"
RETRY_MILLISECONDS = 1000
"""After how long a client that was cut off is to come back."""

KINDS = {what.replace(" ", "-"): what for what in HAPPENINGS}
"""What history says, by its name on this wire, which is one word."""


def render(entry: Entry) -> bytes:
    """A row of history. JSON has no line breaks of its own."""
    data = json.dumps(entry_shape(entry), separators=(",", ":"), ensure_ascii=False)
    return f"id: {entry.sequence}\nevent: {entry.what.replace(' ', '-')}\ndata: {data}\n\n".encode()


def opening(position: int) -> bytes:
    """How a feed begins: what to go on from, should it end before the first row."""
    return f"retry: {RETRY_MILLISECONDS}\nid: {position}\n\n".encode()


def sign_of_life(position: int) -> bytes:
    """That the feed goes on, while there is nothing to tell."""
    return f": nothing new\nid: {position}\n\n".encode()


class Message(NamedTuple):
    """What is said between two blank lines."""

    id: str
    data: str
    """Empty: only how far it has come."""


class Listener:
    """Puts messages together from lines."""

    def __init__(self) -> None:
        self._id = ""
        self._data: list[str] = []

    def hear(self, line: str) -> Message | None:
        """The message that the line ends, if it does."""
        line = line.rstrip("\r\n")
        if not line:
            message = Message(self._id, "\n".join(self._data))
            self._data = []
            return message
        name, _, value = line.partition(":")
        if name == "id":
            self._id = value.removeprefix(" ")
        elif name == "data":
            self._data.append(value.removeprefix(" "))
        return None

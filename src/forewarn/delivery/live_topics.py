"""Live topics: states that a reader of the feed can follow besides history. Only the newest value of each matters.

Without a reader that includes a topic, a change of it costs one dictionary lookup.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from forewarn.clock import real_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from msgspec import Struct

    from forewarn.delivery.feed import FeedSubscriber


class LiveTopic(NamedTuple):
    """A kind of state. Several things can have such a state, each with its own key."""

    event: str
    """The name of its server-sent events."""
    current_keys: Callable[[], Iterable[str]]
    """Returns the keys of the states that a new reader gets."""
    read: Callable[[str], Struct | None]
    """Returns the current state of a key; None if there is none."""
    interval_seconds: float
    """Minimum time between two messages about the same key. The last state of this time is always sent."""


class LiveTopics:
    """The newest message of each state, and the readers that follow them."""

    def __init__(self) -> None:
        self._topics: dict[str, LiveTopic] = {}
        self._readers: dict[str, set[FeedSubscriber]] = {}
        self._number = 0
        """Counts the messages."""
        self._messages: dict[tuple[str, str], tuple[int, bytes]] = {}
        """The newest message by topic and key, with its number."""
        self._sent_at: dict[tuple[str, str], float] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def add(self, name: str, topic: LiveTopic) -> None:
        self._topics[name] = topic
        self._readers[name] = set()

    def stop(self) -> None:
        """Send nothing more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def join(self, reader: FeedSubscriber, names: Iterable[str]) -> tuple[bytes, int]:
        """Add a reader. Return its first message, with the current states, and the number of the newest message."""
        found = []
        for name in names:
            self._readers[name].add(reader)
            for key in self._topics[name].current_keys():
                self._publish(name, key)
                if (name, key) in self._messages:
                    found.append(self._messages[name, key][1])
        return b"".join(found), self._number

    def leave(self, reader: FeedSubscriber) -> None:
        for readers in self._readers.values():
            readers.discard(reader)

    def after(self, number: int, names: Iterable[str]) -> tuple[bytes, int]:
        """Return the messages of these topics after a number, and the number of the newest message."""
        if number == self._number:
            return b"", number
        wanted = frozenset(names)
        found = [data for (name, _), (at, data) in self._messages.items() if at > number and name in wanted]
        return b"".join(found), self._number

    def has_readers(self, name: str) -> bool:
        """Return whether anybody follows a topic."""
        return bool(self._readers.get(name))

    def changed(self, name: str, key: str = "") -> None:
        """Send the state of a key to the readers of its topic, now or when its interval is over."""
        if not self.has_readers(name) or (name, key) in self._timers:
            return
        rest = self._sent_at.get((name, key), 0.0) + self._topics[name].interval_seconds - real_seconds()
        if rest <= 0:
            self._publish(name, key)
        else:
            loop = asyncio.get_running_loop()
            self._timers[name, key] = loop.call_later(rest, self._publish, name, key)

    def _publish(self, name: str, key: str) -> None:
        if (timer := self._timers.pop((name, key), None)) is not None:
            timer.cancel()
        topic = self._topics[name]
        state = topic.read(key)
        before = self._messages.get((name, key))
        if state is None:
            self._messages.pop((name, key), None)
            self._sent_at.pop((name, key), None)
            return
        data = f"event: {topic.event}\ndata: {msgspec.json.encode(state).decode()}\n\n".encode()
        if before is not None and before[1] == data:
            return
        self._number += 1
        self._messages[name, key] = (self._number, data)
        self._sent_at[name, key] = real_seconds()
        for reader in self._readers[name]:
            reader.wake()

"""The circle of agents that decide together who approves: what the agent's loop has to do with."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from forewarn.agent.clock import real_seconds
from forewarn.agent.peers.asking import Line
from forewarn.agent.peers.book import Book
from forewarn.agent.peers.quorum import key
from forewarn.agent.peers.server import StatusServer, listen
from forewarn.agent.peers.word import STATES, write_word
from forewarn.errors import PeerTrouble

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from forewarn.agent.peers.quorum import Verdict
    from forewarn.agent.policy.config import PeersSettings

_log = logging.getLogger(__name__)


class Circle:
    """Says to its peers how far this machine is, and hears it from them. Safe to use from any thread.

    `wake` is called, from a thread of the circle, when a verdict may have changed. `listener` is a socket from
    `server.listen`, for whoever wants to know early that the address can be had.
    """

    def __init__(
        self, settings: PeersSettings, me: str, wake: Callable[[], None], listener: socket.socket | None = None
    ) -> None:
        self._settings = settings
        self._me = me
        self._wake = wake
        self._listener = listener
        self._lock = threading.Lock()
        self._book = Book(settings, me, real_seconds())
        self._server: StatusServer | None = None
        self._stopping = threading.Event()
        self._lines: dict[str, tuple[Line, threading.Thread]] = {}
        self._troubles: dict[str, str] = {}
        self._last: dict[str, Verdict] = {}

    def start(self) -> None:
        """Listen, and ask as soon as there is an event. PeersNotListening if the address cannot be had."""
        listener = self._listener or listen(*self._settings.listen)
        self._server = StatusServer(listener, self._settings.secret, self._answer)
        self._server.start()
        with self._lock:
            self._ask_who_is_needed()

    def stop(self) -> None:
        """Hear nobody and say nothing any more."""
        self._stopping.set()
        with self._lock:
            lines = list(self._lines.values())
        for line, _ in lines:
            line.hang_up()
        if self._server is not None:
            self._server.stop()
        for _, thread in lines:
            # One that is looking up a name cannot be hurried; it ends by itself.
            thread.join(self._book.patience.timeout)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._server.address if self._server is not None else self._settings.listen

    @property
    def fresh_seconds(self) -> float:
        """For how long another may act on what it has heard from here."""
        return self._book.patience.fresh

    def say(self, event_id: str, resources: Sequence[str], state: str, as_name: str | None = None) -> None:
        """How far this machine is with an event; `as_name`: what the event calls this machine."""
        if state not in STATES:
            raise ValueError(f"{state!r} is not one of {', '.join(STATES)}")
        with self._lock:
            self._book.say(event_id, resources, state, as_name or self._me, real_seconds())
            self._ask_who_is_needed()

    def forget(self, event_id: str) -> None:
        """The event is over."""
        with self._lock:
            self._book.forget(event_id)
            self._last.pop(key(event_id), None)

    def verdict(self, event_id: str) -> Verdict:
        """Whether this machine may approve, now. Ask right before approving: support does not last."""
        with self._lock:
            decided = self._book.decide(event_id, real_seconds())
            if decided.leader is not None:
                self._last[key(event_id)] = decided  # whoever knows it need not be woken for it
            return decided

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """How it stands with each peer. Nobody is silent while nobody is asked."""
        with self._lock:
            now = real_seconds()
            return {
                vm: {
                    "heard_seconds_ago": None if contact.heard_at is None else round(now - contact.heard_at, 3),
                    "silent": contact.silent,
                }
                for vm, contact in self._book.contacts(now).items()
            }

    def _answer(self, asker: str, asked: str) -> bytes | None:
        with self._lock:
            word = self._book.answer(asker, asked, real_seconds())
        return None if word is None else write_word(word)

    def _ask_who_is_needed(self) -> None:
        """Have a thread for each member that is in a live event. They end when it is over."""
        if self._server is None or self._stopping.is_set():
            return
        for member in self._book.to_ask():
            if key(member.vm) not in self._lines:
                line = Line(member, self._settings.secret, self._book.patience.timeout)
                thread = threading.Thread(target=self._ask, args=(line,), name=f"peers-{member.vm}", daemon=True)
                self._lines[key(member.vm)] = line, thread
                thread.start()

    def _ask(self, line: Line) -> None:
        vm = line.member.vm
        while not self._stopping.is_set():
            with self._lock:
                names = self._book.names_to_ask_as(vm)
                if not names:
                    del self._lines[key(vm)]
                    self._troubles.pop(vm, None)
                    return
            for name in names:
                self._ask_once(line, name)
            self._stopping.wait(self._book.patience.interval)

    def _ask_once(self, line: Line, name: str) -> None:
        vm = line.member.vm
        sent = real_seconds()
        try:
            word = line.ask(name)
        except PeerTrouble as trouble:
            if self._stopping.is_set():
                return
            # Said when it begins and when it becomes another, not each second.
            if self._troubles.get(vm) != str(trouble):
                self._troubles[vm] = str(trouble)
                _log.warning("%s", trouble)
        else:
            if self._troubles.pop(vm, None) is not None:
                _log.info("%s answers again.", vm)
            with self._lock:
                self._book.take(vm, name, word, sent, real_seconds())
        # After a failure too: that somebody has been silent for long enough is news as well.
        self._wake_on_news()

    def _wake_on_news(self) -> None:
        with self._lock:
            now = real_seconds()
            verdicts = {key(event_id): self._book.verdict(event_id, now) for event_id in self._book.events}
            news = verdicts != self._last
            self._last = verdicts
        if news:
            self._wake()

"""The group of agents that decide together which of them approves: what each one reported, and the threads that ask."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.agent.peers.messages import (
    GONE,
    STARTED,
    STATES,
    UNKNOWN,
    EventWord,
    Relay,
    Word,
    digest,
    draw,
    write_word,
)
from forewarn.agent.peers.network import PeerClient, StatusServer, listen
from forewarn.agent.peers.quorum import (
    Answer,
    Patience,
    Pledge,
    Standing,
    Statement,
    Verdict,
    add_statement,
    find_leader,
    is_silent,
    key,
    may_pledge,
    verdict,
)
from forewarn.errors import PeerTrouble

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence

    from forewarn.agent.policy import Member, PeersSettings

_log = logging.getLogger(__name__)


# --- What each peer has reported ------------------------------------------------------------------


_RATE = 0.999
"""No two clocks run quite alike: an age that another has counted may be this much less."""


class _Page:
    """One live event."""

    def __init__(self, event_id: str, me: str, resources: tuple[str, ...], state: str, since: float) -> None:
        self.id = event_id
        self.me = me
        self.resources = resources
        self.state = state
        self.since = since
        self.answers: dict[str, Answer] = {}
        self.words: dict[str, tuple[Statement, ...]] = {}
        self.direct: dict[str, Statement] = {}

    def concerns(self, name: str) -> bool:
        return key(name) in {key(resource) for resource in self.resources}


class Contact(NamedTuple):
    """When a machine last answered, and whether it is silent to some live event."""

    heard_at: float | None
    silent: bool


class Book:
    """All live events of one agent, from its start on."""

    def __init__(self, settings: PeersSettings, me: str, now: float) -> None:
        self.patience = Patience.of(settings.silence)
        self.members: dict[str, Member] = {key(member.vm): member for member in settings.members}
        self._me = me
        self._run = draw()
        self._version = 0
        self._quiet_until = now + self.patience.silence
        self._pages: dict[str, _Page] = {}
        # Kept when the event is forgotten: it may come back, and who was promised something relies on it.
        self._pledges: dict[str, Pledge] = {}
        self._heard_at: dict[str, float] = {}

    @property
    def events(self) -> list[str]:
        """The ids of all live events."""
        return [page.id for page in self._pages.values()]

    def say(self, event_id: str, resources: Sequence[str], state: str, me: str, now: float) -> bool:
        """From now on say this about an event. True: that is news."""
        machines = tuple(_each_once(resources))
        page = self._pages.get(key(event_id))
        if page is None:
            self._pages[key(event_id)] = _Page(event_id, me, machines, state, now)
        elif (page.me, page.resources, page.state) != (me, machines, state):
            page.me, page.resources, page.state = me, machines, state
        else:
            return False
        self._version += 1
        return True

    def forget(self, event_id: str) -> None:
        """Say nothing of an event any more."""
        if self._pages.pop(key(event_id), None) is not None:
            self._version += 1

    def names_to_ask_as(self, member: str) -> list[str]:
        """Under which names of this machine a member is to be asked; none: it is not needed."""
        pages = [page for page in self._pages.values() if page.concerns(member) and page.concerns(page.me)]
        return list({key(page.me): page.me for page in pages if key(page.me) != key(member)}.values())

    def to_ask(self) -> list[Member]:
        """All members that are to be asked."""
        return [member for member in self.members.values() if self.names_to_ask_as(member.vm)]

    def answer(self, asker: str, asked: str, now: float) -> Word | None:
        """What is said to a member that asks; None: this is not the machine that it asked for.

        Of each event it is told whether it is supported: from then on nobody else is, for a while. Whoever asks is told
        of the same events, since what was said in one version must be one thing, by whatever way it goes round.
        """
        if key(asked) not in {key(self._me), *(key(page.me) for page in self._pages.values())}:
            return None
        self._drop_old_pledges(now)
        told = tuple(self._tell(page, asker, now) for page in self._pages.values())
        return Word(asked, self._run, self._version, told)

    def _tell(self, page: _Page, asker: str, now: float) -> EventWord:
        standing = self._standing(page)
        leader = find_leader(standing, now, self.patience) or ""
        pledge = 0.0
        if key(leader) == key(asker) and page.state not in (STARTED, GONE) and may_pledge(standing, asker, now):
            pledge = self.patience.silence
            self._pledges[key(page.id)] = Pledge(key(asker), now + pledge)
        heard = tuple(
            Relay(name, said.run, said.version, said.state, max(0.0, now - said.latest))
            for name in page.resources
            if key(name) != key(asker) and (said := page.direct.get(key(name)))
        )
        return EventWord(page.id, digest(page.resources), page.state, leader, pledge, heard)

    def take(self, member: str, asker: str, word: Word, sent: float, got: float) -> None:
        """A member has answered to what it was asked under the name of `asker`."""
        self._heard_at[key(member)] = sent
        for page in self._pages.values():
            if not page.concerns(member) or key(page.me) != key(asker):
                continue
            told = word.event(page.id)
            statement = Statement(word.run, word.version, told.state if told else UNKNOWN, got, sent)
            self._note(page, member, statement)
            page.direct[key(member)] = statement
            agrees = told is None or told.resources == digest(page.resources)
            pledge = told.pledge if told and agrees else 0.0
            page.answers[key(member)] = Answer(sent, pledge, agrees)
            for relay in told.heard if told else ():
                if page.concerns(relay.vm) and key(relay.vm) not in (key(page.me), key(member)):
                    latest = got - relay.ago * _RATE
                    self._note(page, relay.vm, Statement(relay.run, relay.version, relay.state, latest))

    def _note(self, page: _Page, name: str, statement: Statement) -> None:
        page.words[key(name)] = add_statement(page.words.get(key(name), ()), statement)

    def verdict(self, event_id: str, now: float) -> Verdict:
        """Whether this machine may approve. Only looks."""
        page = self._pages.get(key(event_id))
        if page is None:
            return Verdict(False, None, "nothing is known of this event")
        return verdict(self._standing(page), self.members.keys(), now, self.patience)

    def decide(self, event_id: str, now: float) -> Verdict:
        """The same, to act upon: if it may, this machine supports itself from then on, and for a while nobody else."""
        decided = self.verdict(event_id, now)
        if decided.may:
            self._drop_old_pledges(now)
            page = self._pages[key(event_id)]
            self._pledges[key(event_id)] = Pledge(key(page.me), now + self.patience.silence)
        return decided

    def contacts(self, now: float) -> dict[str, Contact]:
        """How it stands with each other member."""
        mine = {key(self._me), *(key(page.me) for page in self._pages.values())}
        return {
            member.vm: Contact(self._heard_at.get(name), self._is_silent(member, now))
            for name, member in self.members.items()
            if name not in mine
        }

    def _is_silent(self, member: Member, now: float) -> bool:
        pages: Iterable[_Page] = (page for page in self._pages.values() if page.concerns(member.vm))
        return any(is_silent(self._standing(page), member.vm, now, self.patience) for page in pages)

    def _standing(self, page: _Page) -> Standing:
        return Standing(
            page.me,
            page.state,
            page.resources,
            page.since,
            page.answers,
            page.words,
            self._pledges.get(key(page.id)),
            self._quiet_until,
        )

    def _drop_old_pledges(self, now: float) -> None:
        for event_id in [name for name, pledge in self._pledges.items() if now >= pledge.until]:
            del self._pledges[event_id]


def _each_once(names: Iterable[str]) -> list[str]:
    """The names in their order; one that comes again, in whatever letter case, counts where it came first."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(key(name), name)
    return list(found.values())


# --- The group ------------------------------------------------------------------------------------


class Circle:
    """Says to its peers how far this machine is, and hears it from them. Safe to use from any thread.

    `wake` is called, from a thread of the circle, when a verdict may have changed. `listener` is a socket from
    `network.listen`, for a caller that must know early whether the address is free.
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
        self._lines: dict[str, tuple[PeerClient, threading.Thread]] = {}
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
            line.close()
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
                line = PeerClient(member, self._settings.secret, self._book.patience.timeout)
                thread = threading.Thread(target=self._ask, args=(line,), name=f"peers-{member.vm}", daemon=True)
                self._lines[key(member.vm)] = line, thread
                thread.start()

    def _ask(self, line: PeerClient) -> None:
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

    def _ask_once(self, line: PeerClient, name: str) -> None:
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

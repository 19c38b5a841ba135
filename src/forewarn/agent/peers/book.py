"""What an agent knows of its peers, event by event: what it says when it is asked, and what it makes of answers.

No threads and no clock here: `circle` keeps it behind a lock and gives it the seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
from forewarn.agent.peers.seal import draw
from forewarn.agent.peers.word import GONE, STARTED, UNKNOWN, EventWord, Relay, Word, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forewarn.agent.policy.config import Member, PeersSettings

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

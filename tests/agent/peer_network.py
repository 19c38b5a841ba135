"""A network of agents' books in seconds that a test counts: links are cut one way, messages are slow, agents die."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import NamedTuple

from forewarn.agent.peers.group import Book
from forewarn.agent.peers.messages import READY, Word, read_word, write_word
from forewarn.agent.policy import Member, PeersSettings

EVENT = "E-1"
TICK = 0.125
SLOW = (0.0, 0.0, 0.0, 0.125, 0.25, 0.5, 1.0, 1.75)
QUICK = (0.0, 0.125)


class May(NamedTuple):
    who: str
    at: float


class _Flight(NamedTuple):
    """A request on its way, or its answer."""

    sent: float
    due: float
    word: Word | None
    period: int
    """Which time of not being ready of the asked one the answer is of."""
    asker: Book
    """Whoever has died and come back does not get the answers of its earlier life."""


class Machine:
    """One VM and its agent, with a clock of its own."""

    def __init__(self, name: str, offset: float) -> None:
        self.name = name
        self.offset = offset
        self.book: Book | None = None
        self.born = 0.0
        self.state = ""
        self.unready_since = 0.0
        self.period = 0
        """How often it has ceased to be ready, or begun anew."""
        self.was_ready = False
        self.heard: dict[str, tuple[int, float]] = {}
        """Of others that said that they are not ready: of which period that was, and when it was first heard."""


class Network:
    """Moves on tick by tick, and remembers who might have approved when."""

    def __init__(self, count: int, seed: int, silence: float = 2.0) -> None:
        self.random = random.Random(seed)  # noqa: S311 - the same course for the same seed
        self.names = tuple(f"web-{number}" for number in range(count))
        members = tuple(Member(name, "127.0.0.1", 1) for name in self.names)
        self.settings = PeersSettings(("127.0.0.1", 0), b"", members, timedelta(seconds=silence))
        self.now = 0.0
        self.machines = {name: Machine(name, self.random.uniform(0, 1e6)) for name in self.names}
        self.cut: set[tuple[str, str]] = set()
        self.delays: tuple[float, ...] = SLOW
        self.flights: dict[tuple[str, str], _Flight] = {}
        self.next_ask = dict.fromkeys(((a, b) for a in self.names for b in self.names if a != b), 0.0)
        self.mays: list[May] = []
        for name in self.names:
            self.start(name)

    # What a test does to it.

    def start(self, name: str) -> None:
        machine = self.machines[name]
        if machine.book is None:
            machine.book = Book(self.settings, name, self.now + machine.offset)
            self.patience = machine.book.patience
            machine.born = self.now
            machine.heard = {}
            self._cease(machine, "")

    def crash(self, name: str) -> None:
        self.machines[name].book = None

    def say(self, name: str, state: str) -> None:
        machine = self.machines[name]
        if machine.book is not None:
            machine.book.say(EVENT, self.names, state, name, self.now + machine.offset)
            if state != READY and machine.state == READY:
                self._cease(machine, state)
            machine.state = state
            machine.was_ready |= state == READY

    def _cease(self, machine: Machine, state: str) -> None:
        machine.state, machine.unready_since = state, self.now
        machine.period += 1

    def heal(self) -> None:
        """All alive, all linked, all quick, all ready."""
        self.cut.clear()
        self.heal_but_links()

    def heal_but_links(self) -> None:
        self.delays = QUICK
        for name in self.names:
            self.start(name)
            self.say(name, READY)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.tick()

    # How it goes on.

    def tick(self) -> None:
        self.now += TICK
        pairs = list(self.next_ask)
        self.random.shuffle(pairs)
        for asker, asked in pairs:
            self._move(asker, asked)
        names = list(self.names)
        self.random.shuffle(names)
        for name in names:
            machine = self.machines[name]
            if machine.book is not None and machine.book.decide(EVENT, self.now + machine.offset).may:
                self._check_readiness(machine)
                self.mays.append(May(name, self.now))

    def _move(self, asker: str, asked: str) -> None:
        book = self.machines[asker].book
        flight = self.flights.get((asker, asked))
        if flight and (flight.asker is not book or self.now - flight.sent >= self.patience.timeout):
            flight = self.flights.pop((asker, asked)) and None
        is_time = self.now >= self.next_ask[asker, asked]
        if flight is None and book is not None and is_time and book.names_to_ask_as(asked):
            flight = _Flight(self.now, self.now + self.random.choice(self.delays), None, 0, book)
            self.flights[asker, asked] = flight
        if flight and flight.word is None and self.now >= flight.due:
            flight = self._reach(asker, asked, flight)
        if flight and flight.word is not None and self.now >= flight.due:
            self._return(asker, asked, flight)

    def _reach(self, asker: str, asked: str, flight: _Flight) -> _Flight | None:
        machine = self.machines[asked]
        if (asker, asked) in self.cut or machine.book is None:
            self.next_ask[asker, asked] = self.now + self.patience.interval
            self.flights.pop((asker, asked))
            return None
        word = machine.book.answer(asker, asked, self.now + machine.offset)
        assert word is not None
        due = self.now + self.random.choice(self.delays)
        flight = flight._replace(word=read_word(write_word(word)), due=due, period=machine.period)
        self.flights[asker, asked] = flight
        return flight

    def _return(self, asker: str, asked: str, flight: _Flight) -> None:
        machine = self.machines[asker]
        self.flights.pop((asker, asked))
        self.next_ask[asker, asked] = self.now + self.patience.interval
        # An answer goes back on the way on which the question came: that way may be cut by now.
        if (asker, asked) in self.cut or machine.book is None or flight.word is None:
            return
        machine.book.take(asked, asker, flight.word, flight.sent + machine.offset, self.now + machine.offset)
        told = flight.word.event(EVENT)
        if told is not None and told.state == READY:
            machine.heard.pop(asked, None)
        elif machine.heard.get(asked, (0, 0.0))[0] != flight.period:
            machine.heard[asked] = (flight.period, self.now)

    def _check_readiness(self, approver: Machine) -> None:
        """Whoever approves must know what a majority knew when it was asked last."""
        for other in self.machines.values():
            assert other.was_ready, f"{approver.name} would approve and {other.name} was never ready"
            if other.state == READY or other is approver:
                continue
            knowing = self._who_knows(other, self.now - self.patience.fresh)
            assert approver.name not in self._who_knows(other, self.now), f"{approver.name} knew of {other.name}"
            assert len(knowing) <= len(self.names) // 2, f"{approver.name} would approve; {knowing} know better"

    def _who_knows(self, unready: Machine, before: float) -> list[str]:
        """Who has known since before then that a machine is not ready any more, from itself."""
        return [
            machine.name
            for machine in self.machines.values()
            if machine.book is not None
            and (
                unready.unready_since <= before
                if machine is unready
                else unready.name in machine.heard
                and machine.heard[unready.name][0] == unready.period
                and machine.heard[unready.name][1] <= before
            )
        ]

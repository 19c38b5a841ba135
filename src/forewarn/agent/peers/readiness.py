"""Which machine approves, and when a handler may run. Pure: what was heard and the seconds are arguments.

A machine's word that it is ready counts for `fresh` seconds from when it was ASKED. The machine itself counts from when
it ANSWERED, which is later. So once it has given no such answer for `fresh` seconds, nobody acts on its word, and a
handler may run. No clocks are compared: each machine counts its own seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.peers.messages import APPROVED, READY, EventStatus, StatusMessage, digest, key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from forewarn.agent.policy import Member, PeersSettings

_LEAST_SILENCE = 1.0
_LONGEST_FRESH = 3.0
_LONGEST_TIMEOUT = 2.0
_CLOCK_RATE = 1.01
"""Two clocks do not run at quite the same speed: a machine waits this much longer for its own word."""


class Timing(NamedTuple):
    """All times in seconds. They follow from the setting `silence`."""

    silence: float
    """A machine that has not answered for this long is shown as silent."""
    fresh: float
    """For how long an answer counts, from the question on."""
    turn: float
    """How much later than the machine before it a machine approves."""
    interval: float
    """Between two questions. Half a turn, so that all machines know of a change before the second one's turn."""
    timeout: float

    @classmethod
    def of(cls, silence: timedelta) -> Timing:
        seconds = max(_LEAST_SILENCE, silence.total_seconds())
        fresh = min(_LONGEST_FRESH, seconds / 2)
        return cls(seconds, fresh, fresh / 3, fresh / 6, min(_LONGEST_TIMEOUT, fresh))


class Decision(NamedTuple):
    """Whether this machine may approve, and why."""

    may: bool
    why: str


class Contact(NamedTuple):
    """When a machine last answered, and whether a live event waits for it in vain."""

    heard_at: float | None
    silent: bool


class PeerStatus(NamedTuple):
    """The last answer of a peer about one event."""

    sent: float
    """When it was asked."""
    fresh: float
    state: str
    """Empty: it knows nothing of the event."""
    agrees: bool
    """Whether it sees the same machines in the event."""
    since: float
    """Since when it has said ready, without a gap."""

    def is_fresh(self, now: float) -> bool:
        return now - self.sent < self.fresh

    def is_ready(self, now: float) -> bool:
        return self.state in (READY, APPROVED) and self.agrees and self.is_fresh(now)


class _Event:
    """One live event: how far this machine is with it, and what the others have said."""

    def __init__(self, event_id: str, now: float) -> None:
        self.id = event_id
        self.begun = now
        self.me = self.state = ""
        self.resources: tuple[str, ...] = ()
        self.ready_since = now
        """Since when this machine has been ready and its rule has allowed to approve."""
        self.peers: dict[str, PeerStatus] = {}

    def concerns(self, name: str) -> bool:
        return key(name) in {key(resource) for resource in self.resources}

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.resources if key(name) != key(self.me))


class Readiness:
    """All live events of one agent, from its start on."""

    def __init__(self, settings: PeersSettings, now: float) -> None:
        self.timing = Timing.of(settings.timeout)
        self._members: dict[str, Member] = {key(member.vm): member for member in settings.members}
        self.me = ""
        """The name of this machine, where an event does not call it otherwise."""
        self._events: dict[str, _Event] = {}
        self._heard_at: dict[str, float] = {}
        # An earlier run of this agent may have said that the machine is ready just before it ended.
        self._counted_on_until = now + self.timing.fresh * _CLOCK_RATE

    # What this machine says of itself.

    def report(
        self, event_id: str, resources: Sequence[str], state: str, me: str, now: float, *, is_due: bool = True
    ) -> None:
        """How far this machine is with an event. `me` is its name in the event.

        `is_due`: its rule allows to approve already.
        """
        event = self._events.setdefault(key(event_id), _Event(event_id, now))
        if event.state != READY or state != READY or not is_due:
            event.ready_since = now
        machines: dict[str, str] = {}
        for name in resources:
            machines.setdefault(key(name), name)
        if tuple(machines.values()) != event.resources:
            event.peers.clear()  # what they said was about other machines
        event.me, event.resources, event.state = me, tuple(machines.values()), state

    def forget(self, event_id: str) -> None:
        """The event is over."""
        self._events.pop(key(event_id), None)

    def answer(self, asked: str, now: float) -> StatusMessage | None:
        """The answer to a member that asks; None: this is not the machine that it asked for."""
        if key(asked) not in self._names():
            return None
        if any(event.state == READY and event.others for event in self._events.values()):
            self._counted_on_until = now + self.timing.fresh * _CLOCK_RATE
        told = tuple(EventStatus(event.id, digest(event.resources), event.state) for event in self._events.values())
        return StatusMessage(asked, self.timing.fresh, told)

    def may_run_handler(self, now: float) -> bool:
        """Not as long as a machine may act on the word that this one is ready. First report that it is not."""
        return now >= self._counted_on_until

    # What the others say.

    def members_to_ask(self) -> list[Member]:
        """The members that this machine needs an answer of."""
        events = [event for event in self._events.values() if event.concerns(event.me)]
        return [
            member
            for name, member in self._members.items()
            if any(event.concerns(name) and key(event.me) != name for event in events)
        ]

    def take(self, member: str, message: StatusMessage, sent: float, now: float) -> None:
        """A member has answered a question of the moment `sent`."""
        self._heard_at[key(member)] = sent
        for event in self._events.values():
            if not event.concerns(member) or key(member) == key(event.me):
                continue
            told = message.event(event.id)
            before = event.peers.get(key(member))
            since = before.since if before is not None and before.is_ready(now) else now
            event.peers[key(member)] = PeerStatus(
                sent,
                min(message.fresh, self.timing.fresh),
                told.state if told else "",
                told is None or told.resources == digest(event.resources),
                since,
            )

    def contacts(self, now: float) -> dict[str, Contact]:
        """How it is with each other member."""
        mine = self._names()
        return {
            member.vm: Contact(
                self._heard_at.get(name),
                any(self._is_silent(event, name, now) for event in self._events.values() if event.concerns(name)),
            )
            for name, member in self._members.items()
            if name not in mine
        }

    # Who approves.

    def decide_all(self, now: float) -> dict[str, Decision]:
        return {name: self.decide(event.id, now) for name, event in self._events.items()}

    def decide(self, event_id: str, now: float) -> Decision:
        """Whether this machine may approve an event at this moment."""
        event = self._events.get(key(event_id))
        if event is None:
            return Decision(False, "nothing is known of this event")
        if not event.concerns(event.me):
            return Decision(False, f"{event.me} is not one of the machines of the event")
        others = event.others
        strangers = tuple(name for name in others if key(name) not in self._members)
        if strangers:
            verb = "is" if len(strangers) == 1 else "are"
            return Decision(False, f"{', '.join(strangers)} {verb} not among [peers] members")
        unready = {name: how for name in event.resources if (how := self._why_unready(event, name, now))}
        if unready:
            told = ", ".join(f"{name} ({how})" for name, how in unready.items())
            return Decision(False, f"waits for {told}")
        approver = next((name for name in others if event.peers[key(name)].state == APPROVED), "")
        if approver:
            return Decision(False, f"all are ready; {approver} has approved")
        rank = [key(name) for name in event.resources].index(key(event.me))
        since = max((event.ready_since, *(event.peers[key(name)].since for name in others)))
        if now < since + rank * self.timing.turn:
            return Decision(False, f"all are ready; {event.resources[0]} is to approve")
        if others:  # it acts on its own word: no handler runs meanwhile
            self._counted_on_until = max(self._counted_on_until, now + self.timing.fresh)
        return Decision(True, "all are ready" if others else "this machine is ready, and the only one")

    def _names(self) -> set[str]:
        return {key(self.me), *(key(event.me) for event in self._events.values())}

    def _is_silent(self, event: _Event, name: str, now: float) -> bool:
        """Whether a machine has not answered for too long. A machine is never silent to itself."""
        if key(name) == key(event.me):
            return False
        status = event.peers.get(key(name))
        return now - (event.begun if status is None else max(status.sent, event.begun)) >= self.timing.silence

    def _why_unready(self, event: _Event, name: str, now: float) -> str:
        """How far a machine is that is not ready, in words; empty if it is ready."""
        if key(name) == key(event.me):
            return "" if event.state == READY else event.state
        status = event.peers.get(key(name))
        if status is not None and status.is_ready(now):
            return ""
        silent = ", silent" if self._is_silent(event, name, now) else ""
        if status is None:
            return f"not heard{silent}"
        if not status.agrees:
            return f"sees other machines in the event{silent}"
        if status.state in (READY, APPROVED):
            return f"{status.state}{silent or ', no fresh answer'}"
        return f"{status.state or 'knows nothing of it'}{silent}"

"""Decides which VM approves, and when a handler may run. Pure: responses and times are arguments.

A peer's report that it is ready is valid for `fresh` seconds after the REQUEST was sent. The reporting VM counts from
its RESPONSE, which is later. So when it has sent no such report for `fresh` seconds, no peer acts on an earlier
one. Then a handler may run. Each VM counts its own seconds: no clocks are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.peers.messages import APPROVED, READY, PeerEventStatus, StatusMessage, digest, key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from forewarn.agent.policy import Member, PeersSettings

_MIN_PEER_TIMEOUT = 1.0
_MAX_FRESH = 3.0
_MAX_REQUEST_TIMEOUT = 2.0
_CLOCK_DRIFT = 1.01
"""Two clocks can run at slightly different speeds: a VM waits this much longer until its own report expires."""


class PeerTiming(NamedTuple):
    """Times in seconds, derived from the setting `timeout`."""

    peer_timeout: float
    """A peer without a response for this long is unreachable."""
    fresh: float
    """How long a response is valid, counted from its request."""
    turn: float
    """How much later than the VM before it a VM approves."""
    poll_interval: float
    """Between two requests. Half a turn, so that all VMs know of a change before the second VM's turn."""
    request_timeout: float

    @classmethod
    def of(cls, timeout: timedelta) -> PeerTiming:
        seconds = max(_MIN_PEER_TIMEOUT, timeout.total_seconds())
        fresh = min(_MAX_FRESH, seconds / 2)
        return cls(seconds, fresh, fresh / 3, fresh / 6, min(_MAX_REQUEST_TIMEOUT, fresh))


class ApprovalDecision(NamedTuple):
    """Whether this VM may approve, and why."""

    allowed: bool
    reason: str


class PeerContact(NamedTuple):
    """The last response of a peer, and whether it is unreachable while an event needs it."""

    last_response_at: float | None
    """When the request of that response was sent."""
    unreachable: bool


class PeerStatus(NamedTuple):
    """The last response of a peer about one event."""

    requested_at: float
    fresh: float
    state: str
    """Empty: the peer does not know the event."""
    agrees: bool
    """Whether the peer sees the same VMs in the event."""
    ready_since: float
    """Since when it has reported ready, without a gap."""

    def is_fresh(self, now: float) -> bool:
        return now - self.requested_at < self.fresh

    def is_ready(self, now: float) -> bool:
        return self.state in (READY, APPROVED) and self.agrees and self.is_fresh(now)


class _Event:
    """One active event: its state on this VM, and on the others."""

    def __init__(self, event_id: str, now: float) -> None:
        self.id = event_id
        self.first_reported_at = now
        self.me = self.state = ""
        self.resources: tuple[str, ...] = ()
        self.ready_since = now
        """Since when this VM has been ready and its rule has allowed approval."""
        self.peers: dict[str, PeerStatus] = {}

    def concerns(self, name: str) -> bool:
        return key(name) in {key(resource) for resource in self.resources}

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.resources if key(name) != key(self.me))


class Readiness:
    """All active events of one agent."""

    def __init__(self, settings: PeersSettings, now: float) -> None:
        self.timing = PeerTiming.of(settings.timeout)
        self._members: dict[str, Member] = {key(member.vm): member for member in settings.members}
        self.me = ""
        """The name of this VM, unless an event uses another."""
        self._events: dict[str, _Event] = {}
        self._last_response_at: dict[str, float] = {}
        # An earlier run of this agent may have reported "ready" just before it ended.
        self._report_expires_at = now + self.timing.fresh * _CLOCK_DRIFT

    # --- The state of this VM ---

    def report(
        self, event_id: str, resources: Sequence[str], state: str, me: str, now: float, *, is_due: bool = True
    ) -> None:
        """Report the state of an event on this VM. `me` is the VM's name in the event.

        `is_due`: the rule allows approval now.
        """
        event = self._events.setdefault(key(event_id), _Event(event_id, now))
        if event.state != READY or state != READY or not is_due:
            event.ready_since = now
        vms: dict[str, str] = {}
        for name in resources:
            vms.setdefault(key(name), name)
        if tuple(vms.values()) != event.resources:
            event.peers.clear()  # their responses were about other VMs
        event.me, event.resources, event.state = me, tuple(vms.values()), state

    def forget(self, event_id: str) -> None:
        """Drop an event that is over."""
        self._events.pop(key(event_id), None)

    def status_message(self, receiver: str, now: float) -> StatusMessage | None:
        """Return the response to a member's request; None if the request is for another VM."""
        if key(receiver) not in self._names():
            return None
        if any(event.state == READY and event.others for event in self._events.values()):
            self._report_expires_at = now + self.timing.fresh * _CLOCK_DRIFT
        events = tuple(
            PeerEventStatus(event.id, digest(event.resources), event.state) for event in self._events.values()
        )
        return StatusMessage(receiver, self.timing.fresh, events)

    def may_run_handler(self, now: float) -> bool:
        """Return False while a peer may still act on the report that this VM is ready. First report another state."""
        return now >= self._report_expires_at

    # --- The state of the others ---

    def members_to_poll(self) -> list[Member]:
        """Return the members whose status this VM needs."""
        events = [event for event in self._events.values() if event.concerns(event.me)]
        return [
            member
            for name, member in self._members.items()
            if any(event.concerns(name) and key(event.me) != name for event in events)
        ]

    def record_response(self, member: str, message: StatusMessage, requested_at: float, now: float) -> None:
        """Record a member's response to a request."""
        self._last_response_at[key(member)] = requested_at
        for event in self._events.values():
            if not event.concerns(member) or key(member) == key(event.me):
                continue
            reported = message.event(event.id)
            before = event.peers.get(key(member))
            ready_since = before.ready_since if before is not None and before.is_ready(now) else now
            event.peers[key(member)] = PeerStatus(
                requested_at,
                min(message.fresh, self.timing.fresh),
                reported.state if reported else "",
                reported is None or reported.resources == digest(event.resources),
                ready_since,
            )

    def contacts(self, now: float) -> dict[str, PeerContact]:
        """Return the last contact with each other member."""
        own_names = self._names()
        return {
            member.vm: PeerContact(
                self._last_response_at.get(name),
                any(self._is_unreachable(event, name, now) for event in self._events.values() if event.concerns(name)),
            )
            for name, member in self._members.items()
            if name not in own_names
        }

    # --- Who approves ---

    def decide_all(self, now: float) -> dict[str, ApprovalDecision]:
        return {name: self.decide(event.id, now) for name, event in self._events.items()}

    def decide(self, event_id: str, now: float) -> ApprovalDecision:
        """Decide whether this VM may approve an event now."""
        event = self._events.get(key(event_id))
        if event is None:
            return ApprovalDecision(False, "the event is unknown")
        if not event.concerns(event.me):
            return ApprovalDecision(False, f"{event.me} is not one of the event's VMs")
        others = event.others
        unknown = tuple(name for name in others if key(name) not in self._members)
        if unknown:
            verb = "is" if len(unknown) == 1 else "are"
            return ApprovalDecision(False, f"{', '.join(unknown)} {verb} not in [peers] members")
        unready = {name: state for name in event.resources if (state := self._unready_state(event, name, now))}
        if unready:
            waiting_for = ", ".join(f"{name} ({state})" for name, state in unready.items())
            return ApprovalDecision(False, f"waiting for {waiting_for}")
        approver = next((name for name in others if event.peers[key(name)].state == APPROVED), "")
        if approver:
            return ApprovalDecision(False, f"all VMs are ready; {approver} has approved")
        rank = [key(name) for name in event.resources].index(key(event.me))
        all_ready_since = max((event.ready_since, *(event.peers[key(name)].ready_since for name in others)))
        if now < all_ready_since + rank * self.timing.turn:
            return ApprovalDecision(False, f"all VMs are ready; {event.resources[0]} approves")
        if others:  # this VM acts on its own report: no handler may run until it expires
            self._report_expires_at = max(self._report_expires_at, now + self.timing.fresh)
        return ApprovalDecision(True, "all VMs are ready" if others else "this VM is ready, and the only one")

    def _names(self) -> set[str]:
        return {key(self.me), *(key(event.me) for event in self._events.values())}

    def _is_unreachable(self, event: _Event, name: str, now: float) -> bool:
        """Return whether a VM has not responded for too long. A VM is never unreachable to itself."""
        if key(name) == key(event.me):
            return False
        status = event.peers.get(key(name))
        since = event.first_reported_at if status is None else max(status.requested_at, event.first_reported_at)
        return now - since >= self.timing.peer_timeout

    def _unready_state(self, event: _Event, name: str, now: float) -> str:
        """Describe the state of a VM that is not ready; empty if it is ready."""
        if key(name) == key(event.me):
            return "" if event.state == READY else event.state
        status = event.peers.get(key(name))
        if status is not None and status.is_ready(now):
            return ""
        unreachable = ", unreachable" if self._is_unreachable(event, name, now) else ""
        if status is None:
            return f"no response{unreachable}"
        if not status.agrees:
            return f"sees other VMs in the event{unreachable}"
        if status.state in (READY, APPROVED):
            return f"{status.state}{unreachable or ', no fresh response'}"
        return f"{status.state or 'event unknown'}{unreachable}"

"""Connects the agent to its group of peers: reports the state of its work, and says what it may do.

An agent without peers loads no other module of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.agent.changes import is_advisory
from forewarn.agent.decisions import approval_due_at, is_approved
from forewarn.agent.policy import LEADER
from forewarn.agent.state import GAVE_UP, POSTPONED
from forewarn.agent.status import phase_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from forewarn.agent.peers.group import PeerGroup
    from forewarn.agent.policy import PeersSettings
    from forewarn.agent.state import EventWork


_STATES = {
    "waiting": "waiting",
    "preparing": "preparing",
    "prepared": "ready",
    "approved": "approved",
    "failed": "failed",
    "started": "started",
    "undoing": "gone",
    "done": "gone",
}
"""The reported state for each phase of the work."""


class Participation:
    """The agent's side of a peer group; without peers its methods do nothing."""

    def __init__(self, settings: PeersSettings | None, wake: Callable[[], None]) -> None:
        self._group: PeerGroup | None = None
        self._has_started = False
        self._reported: set[str] = set()
        if settings is not None:
            # Imported here to save memory in agents without peers. Opens the socket now: an agent that cannot listen
            # must not start.
            from forewarn.agent.peers.group import PeerGroup

            self._group = PeerGroup(settings, wake)

    def start(self, me: str) -> None:
        """Start the group once the name of this VM is known."""
        if self._group is not None and not self._has_started:
            self._has_started = True
            self._group.start(me)

    def report(self, works: Iterable[EventWork], now: datetime, *, busy: bool) -> None:
        """Report the state of each event. While any handler runs (`busy`), this VM is ready for no event."""
        if self._group is None or not self._has_started:
            return
        for work in works:
            if work.rule.approve == LEADER and not is_advisory(work.event):
                state = _STATES[phase_of(work)]
                if state == "failed" and work.is_prepared:  # the rule has on_failure = "approve"
                    state = "ready"
                if state == "approved" and not is_approved(work, now):
                    state = "ready"  # the event has not started: the group decides again who approves
                if work.ending == POSTPONED:
                    state = "waiting"
                if work.ending == GAVE_UP:
                    state = "failed"
                if busy and state == "ready":
                    state = "preparing"
                due = approval_due_at(work)
                is_due = work.rule.approve_lead is None or (due is not None and now >= due)
                self._group.report(work.id, work.event.resources, state, work.me, is_due=is_due)
                self._reported.add(work.id)

    def may_run_handler(self) -> bool:
        """Return False while another VM may still act on this VM's report that it is ready."""
        return self._group is None or self._group.may_run_handler()

    def forget(self, event_id: str) -> None:
        if self._group is not None and event_id in self._reported:
            self._reported.discard(event_id)
            self._group.forget(event_id)

    def problems(self) -> dict[str, str]:
        """Return for each event why this VM may not approve it; empty if it may."""
        if self._group is None:
            return {}
        decisions = {event_id: self._group.decide(event_id) for event_id in self._reported}
        return {event_id: "" if decision.allowed else decision.reason for event_id, decision in decisions.items()}

    def snapshot(self) -> dict[str, Any] | None:
        return self._group.snapshot() if self._group is not None and self._has_started else None

    def stop(self) -> None:
        if self._group is not None:
            self._group.stop()

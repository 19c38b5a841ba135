"""The agent's part in its group of peers: what it reports of its work, and what it may do.

An agent without peers loads nothing else of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.agent.decisions import approval_due_at
from forewarn.agent.policy import LEADER
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
"""What is reported, by the phase of the work."""


class Participation:
    """Does nothing where there are no peers."""

    def __init__(self, settings: PeersSettings | None, wake: Callable[[], None]) -> None:
        self._group: PeerGroup | None = None
        self._has_begun = False
        self._reported: set[str] = set()
        if settings is not None:
            # Here, so that an agent without peers has no server in memory. An address that cannot be had is an error
            # before anything begins.
            from forewarn.agent.peers.group import PeerGroup

            self._group = PeerGroup(settings, wake)

    def begin(self, me: str) -> None:
        """Once the name of this machine is known."""
        if self._group is not None and not self._has_begun:
            self._has_begun = True
            self._group.start(me)

    def report(self, works: Iterable[EventWork], now: datetime, *, busy: bool) -> None:
        """How far this machine is. While a handler runs, for whatever event, it is ready for none."""
        if self._group is None or not self._has_begun:
            return
        for work in works:
            if work.rule.approve == LEADER:
                state = _STATES[phase_of(work)]
                if state == "failed" and work.is_prepared:  # the rule has on_failure = "approve"
                    state = "ready"
                if busy and state == "ready":
                    state = "preparing"
                due = approval_due_at(work)
                is_due = work.rule.approve_lead is None or (due is not None and now >= due)
                self._group.report(work.id, work.event.resources, state, work.me, is_due=is_due)
                self._reported.add(work.id)

    def may_run_handler(self) -> bool:
        """Not as long as another machine may act on the word that this one is ready."""
        return self._group is None or self._group.may_run_handler()

    def forget(self, event_id: str) -> None:
        if self._group is not None and event_id in self._reported:
            self._reported.discard(event_id)
            self._group.forget(event_id)

    def problems(self) -> dict[str, str]:
        """For each event: why this machine may not approve it. Empty: it may."""
        if self._group is None:
            return {}
        decisions = {event_id: self._group.decide(event_id) for event_id in self._reported}
        return {event_id: "" if decision.may else decision.why for event_id, decision in decisions.items()}

    def snapshot(self) -> dict[str, Any] | None:
        return self._group.snapshot() if self._group is not None and self._has_begun else None

    def stop(self) -> None:
        if self._group is not None:
            self._group.stop()

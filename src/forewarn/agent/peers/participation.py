"""The agent's part in its group of peers: what it reports of its work, and what it may do.

An agent without peers loads nothing else of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.agent.clock import real_seconds
from forewarn.agent.policy import LEADER
from forewarn.agent.status import phase_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forewarn.agent.peers.group import Circle
    from forewarn.agent.policy import PeersSettings
    from forewarn.agent.state import Work


_STATES = {
    "waiting": "waiting",
    "preparing": "preparing",
    "prepared": "ready",
    "approved": "ready",
    "failed": "failed",
    "started": "started",
    "undoing": "gone",
    "done": "gone",
}
"""What the others are told, by where the work stands."""


class Together:
    """Nothing, where there are no peers."""

    def __init__(self, settings: PeersSettings | None, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._wake = wake
        self._circle: Circle | None = None
        self._said: set[str] = set()
        self._counted_on_until = 0.0
        self._listener = None
        if settings is not None:
            # Who has no peers need not carry a server. An address that cannot be had is said before anything is begun.
            from forewarn.agent.peers.network import listen

            self._listener = listen(*settings.listen)

    def begin(self, me: str) -> None:
        """Once it is known who this machine is."""
        if self._settings is None or self._circle is not None:
            return
        from forewarn.agent.peers.group import Circle

        self._circle = Circle(self._settings, me, self._wake, self._listener)
        self._circle.start()

    def tell(self, works: Iterable[Work], *, busy: bool) -> None:
        """Say how far this machine is. While a handler runs, for whatever event, it is ready for none."""
        if self._circle is None:
            return
        for work in works:
            if work.rule.approve == LEADER:
                state = _STATES[phase_of(work)]
                if state == "failed" and work.is_prepared:  # the rule does not mind
                    state = "ready"
                if busy and state == "ready":
                    state = "preparing"
                if state == "ready" and not work.approved_at:
                    self._counted_on_until = real_seconds() + self._circle.fresh_seconds
                self._circle.say(work.id, work.event.resources, state, as_name=work.me)
                self._said.add(work.id)

    def may_begin(self) -> bool:
        """Whether a handler may begin: not as long as another may act on the word that this machine is ready."""
        return real_seconds() >= self._counted_on_until

    def forget(self, event_id: str) -> None:
        if self._circle is not None and event_id in self._said:
            self._said.discard(event_id)
            self._circle.forget(event_id)

    def problems(self) -> dict[str, str]:
        """For each event: why this machine may not approve it. Empty: it may."""
        if self._circle is None:
            return {}
        verdicts = {event_id: self._circle.verdict(event_id) for event_id in self._said}
        return {event_id: "" if verdict.may else verdict.why for event_id, verdict in verdicts.items()}

    def standing(self) -> dict[str, Any] | None:
        return None if self._circle is None else self._circle.snapshot()

    def stop(self) -> None:
        if self._circle is not None:
            self._circle.stop()
        elif self._listener is not None:
            self._listener.close()

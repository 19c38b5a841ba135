"""What a test has happen: operations of any cause, and faults of the endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.core.faults import FaultOrder
from forewarn.core.requests import request as ask_for
from forewarn.errors import NobodyTold
from forewarn.testing.asking import request_for
from forewarn.testing.event import OPERATOR, Event
from forewarn.testing.lengths import Length, length_if_any
from forewarn.testing.life import Life
from forewarn.testing.names import one_name

if TYPE_CHECKING:
    from forewarn.core.operations import Request
    from forewarn.testing.vm import VM


class Happening(Life):
    """Brings things about."""

    def ask(self, cause: str, *vms: VM | str, **options: Any) -> list[Event]:
        """Have anything happen that has a cause (docs/reference.md); the events that it makes, perhaps none.

        Options are host, type, duration, notice, deadline, overrides and speed. Lengths are in seconds, texts like
        "9s", or timedeltas.
        """
        asked = request_for(cause, tuple(map(one_name, vms)), options)
        operations = self.loop.run(self._running.engine.request(asked, OPERATOR))
        return [self.event(event_id) for operation in operations for event_id in operation.events]

    def ask_for_one(self, asked: Request, vm: str) -> Event:
        """The same of which one VM is to be told; an error, and nothing happens, if it would not be."""
        operations, changes = self.look(lambda engine: engine.preview(ask_for, asked, OPERATOR))
        if not any(vm in event.resources for event in changes.events.values()):
            why = "; ".join(why for operation in operations for _, why in operation.unnoticed)
            raise NobodyTold(vm=vm, cause=asked.cause, problem=why or "it is on no such host")
        operations = self.loop.run(self._running.engine.request(asked, OPERATOR))
        events = [self.event(event_id) for operation in operations for event_id in operation.events]
        return next(event for event in events if vm in event.vms)

    def event(self, event_id: str) -> Event:
        """An event by its id, in any letter case."""
        return Event(self._running, self.loop, event_id.lower())

    @property
    def events(self) -> list[Event]:
        """All that are told now."""
        return [self.event(event_id) for event_id in self.look(lambda engine: [e.id for e in engine.live_events()])]

    def fault(
        self,
        kind: str | int,
        vm: VM | str | None = None,
        *,
        on: str = "GET",
        count: int | None = None,
        seconds: Length | None = None,
        delay: Length | None = None,
    ) -> None:
        """Have the endpoint fail on purpose (docs/faults.md), for one VM or for all: so many times, or for so many
        seconds of the service's time; once if neither is said. `delay` is in real seconds."""
        name = "" if vm is None else one_name(vm)
        bounds = length_if_any("seconds", seconds), length_if_any("delay", delay)
        order = FaultOrder(str(kind), name, on, count, *bounds)
        self.loop.run(self._running.faults.add(order, OPERATOR))

    def clear_faults(self) -> None:
        """The endpoint is well again."""
        self.loop.run(self._running.faults.clear(None, OPERATOR))

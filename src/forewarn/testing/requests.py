"""Requests of a test for operations of any cause, and for faults of the endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.core.faults import FaultSpec
from forewarn.core.operations import CauseRequest
from forewarn.core.requests import request
from forewarn.errors import BadOption, NoticeNotPossible, nearest
from forewarn.testing.durations import Length, length_if_any, length_of, moment_of
from forewarn.testing.event import OPERATOR, Event
from forewarn.testing.vm import one_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forewarn.core.operations import Operation
    from forewarn.testing.running_service import RunningService
    from forewarn.testing.vm import VM


class Requests:
    """Sends requests to a running service as an operator, and finds the events that they made."""

    def __init__(self, running: RunningService) -> None:
        self._running = running

    def operations(self, cause: str, vms: Iterable[VM | str], options: dict[str, Any]) -> list[Event]:
        """Request operations; the events that they make."""
        __tracebackhide__ = True
        asked = read_request(cause, tuple(map(one_name, vms)), options)
        return self._events_of(self._request(asked))

    def event_for(self, vm: str, asked: CauseRequest) -> Event:
        """Request an operation of which this VM is notified; its event. If it would not be, that is an error, and
        nothing is requested."""
        __tracebackhide__ = True
        operations, changes = self._running.read(lambda engine: engine.preview(request, asked, OPERATOR))
        if not any(vm in event.resources for event in changes.events.values()):
            why = "; ".join(why for operation in operations for _, why in operation.not_notified)
            raise NoticeNotPossible(vm=vm, cause=asked.cause, problem=why or "it is not on that host")
        return next(event for event in self._events_of(self._request(asked)) if vm in event.vms)

    def _request(self, asked: CauseRequest) -> Iterable[Operation]:
        __tracebackhide__ = True
        return self._running.loop.run(self._running.assembly.engine.request(asked, OPERATOR))

    def _events_of(self, operations: Iterable[Operation]) -> list[Event]:
        return [self.event(event_id) for operation in operations for event_id in operation.events]

    def event(self, event_id: str) -> Event:
        """An event by its id, in any letter case."""
        __tracebackhide__ = True
        return Event(self._running.assembly, self._running.loop, event_id.lower())

    def live_events(self) -> list[Event]:
        """The events that VMs see now."""
        __tracebackhide__ = True
        ids = self._running.read(lambda engine: [event.id for event in engine.live_events()])
        return [self.event(event_id) for event_id in ids]

    def fault(
        self,
        kind: str | int,
        vm: VM | str | None,
        on: str,
        count: int | None,
        seconds: Length | None,
        delay: Length | None,
    ) -> None:
        """Make the endpoint fail, for one VM or for all."""
        __tracebackhide__ = True
        name = "" if vm is None else one_name(vm)
        bounds = length_if_any("seconds", seconds), length_if_any("delay", delay)
        order = FaultSpec(str(kind), name, on, count, *bounds)
        self._running.loop.run(self._running.assembly.faults.add(order, OPERATOR))

    def clear_faults(self) -> None:
        __tracebackhide__ = True
        self._running.loop.run(self._running.assembly.faults.clear(None, OPERATOR))


# --- Options of a request -------------------------------------------------------------------------


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadOption(name=name, value=value, problem="use a string.")
    return value


def _texts(name: str, value: object) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise BadOption(name=name, value=value, problem="use a list of strings.")
    return tuple(_text(name, each) for each in values)


def _factor(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise BadOption(name=name, value=value, problem="use a number greater than 0.")
    return value


OPTIONS: dict[str, Callable[[str, Any], Any]] = {
    "host": _text,
    "type": _text,
    "duration": length_of,
    "notice": length_of,
    "postpone_deadline": moment_of,
    "overrides": _texts,
    "speed": _factor,
}
"""The options beyond the cause and its VMs, and how each is read. None means that an option is not given."""


def read_request(cause: str, vms: tuple[str, ...], options: dict[str, Any]) -> CauseRequest:
    """The request, or an error that says which options there are."""
    for name in options:
        if name not in OPTIONS:
            problem = f"unknown option. Options: {', '.join(OPTIONS)}.{nearest(name, OPTIONS)}"
            raise BadOption(name=name, value=options[name], problem=problem)
    given = {name: OPTIONS[name](name, value) for name, value in options.items() if value is not None}
    return CauseRequest(_text("cause", cause), vms, **given)

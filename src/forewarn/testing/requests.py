"""Requests of a test: operations of any cause, and faults of the endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.core.faults import FaultSpec
from forewarn.core.operations import CauseRequest
from forewarn.core.requests import request
from forewarn.errors import BadOption, NoticeNotPossible, nearest
from forewarn.testing.durations import (
    Duration,
    read_duration,
    read_interruption,
    read_optional_duration,
    read_time,
)
from forewarn.testing.event import OPERATOR, Event
from forewarn.testing.vm import one_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forewarn.core.operations import Operation
    from forewarn.testing.running_service import RunningService
    from forewarn.testing.vm import VM

__tracebackhide__ = True


class Requests:
    """Sends requests to a running service as an operator, and finds the events that result."""

    def __init__(self, running: RunningService) -> None:
        self._running = running

    def operations(self, cause: str, vms: Iterable[VM | str], options: dict[str, Any]) -> list[Event]:
        """Request operations, and return their events."""
        requested = read_request(cause, tuple(map(one_name, vms)), options)
        return self._events_of(self._request(requested))

    def event_for(self, vm: str, requested: CauseRequest) -> Event:
        """Request an operation, and return its event for this VM. If the VM would get no notice, that is an error, and
        nothing is requested."""
        operations, changes = self._running.read(lambda engine: engine.preview(request, requested, OPERATOR))
        if not any(vm in event.resources for event in changes.events.values()):
            reasons = "; ".join(reason for operation in operations for _, reason in operation.not_notified)
            raise NoticeNotPossible(vm=vm, cause=requested.cause, problem=reasons or "it is not on that host")
        return next(event for event in self._events_of(self._request(requested)) if vm in event.vms)

    def _request(self, requested: CauseRequest) -> Iterable[Operation]:
        return self._running.loop.run(self._running.assembly.engine.request(requested, OPERATOR))

    def _events_of(self, operations: Iterable[Operation]) -> list[Event]:
        return [self.event(event_id) for operation in operations for event_id in operation.events]

    def event(self, event_id: str) -> Event:
        """Return the event with this id, in any letter case."""
        return Event(self._running.assembly, self._running.loop, event_id.lower())

    def live_events(self) -> list[Event]:
        """Return the events that VMs see now."""
        ids = self._running.read(lambda engine: [event.id for event in engine.live_events()])
        return [self.event(event_id) for event_id in ids]

    def fault(
        self,
        kind: str | int,
        vm: VM | str | None,
        method: str,
        count: int | None,
        duration: Duration | None,
        delay: Duration | None,
    ) -> None:
        """Make the endpoint fail, for one VM or for all."""
        name = "" if vm is None else one_name(vm)
        times = read_optional_duration("duration", duration), read_optional_duration("delay", delay)
        spec = FaultSpec(str(kind), name, method, count, *times)
        self._running.loop.run(self._running.assembly.faults.add(spec, OPERATOR))

    def clear_faults(self) -> None:
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
    "duration": read_interruption,
    "notice": read_duration,
    "postpone_deadline": read_time,
    "overrides": _texts,
    "description": _text,
    "speed": _factor,
}
"""The options besides the cause and its VMs, and their readers. None means that an option is not given."""


def read_request(cause: str, vms: tuple[str, ...], options: dict[str, Any]) -> CauseRequest:
    """Return the request. An unknown option is an error that lists the options."""
    for name in options:
        if name not in OPTIONS:
            problem = f"unknown option. Options: {', '.join(OPTIONS)}.{nearest(name, OPTIONS)}"
            raise BadOption(name=name, value=options[name], problem=problem)
    given = {name: OPTIONS[name](name, value) for name, value in options.items() if value is not None}
    return CauseRequest(_text("cause", cause), vms, **given)

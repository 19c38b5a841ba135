"""Filter the active items in memory, as the statements of the stores filter their rows (stores/statements.sql)."""

from __future__ import annotations

from itertools import dropwhile, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from forewarn.core.shell_patterns import glob_matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from forewarn.core.state import ServiceState
    from forewarn.ports import ListFilter

    Condition: TypeAlias = Callable[[Any], bool]
    Conditions: TypeAlias = Mapping[str, Callable[[ServiceState, Any], Condition]]
    """By field of the filter: a function that returns the condition for a value of this field."""

T = TypeVar("T")


def _is(field: str) -> Callable[[ServiceState, Any], Condition]:
    """Compare a field of the item."""
    read = attrgetter(field)
    return lambda _, value: lambda item: read(item) == value


def _operation_is(field: str) -> Callable[[ServiceState, Any], Condition]:
    """Compare a field of the operation of an event. An active event has an active operation."""
    read = attrgetter(field)

    def of_state(state: ServiceState, value: Any) -> Condition:
        return lambda event: (found := state.operations.get(event.operation)) is not None and read(found) == value

    return of_state


def _matches(field: str) -> Callable[[ServiceState, Any], Condition]:
    """Compare a list of names with a shell pattern."""
    read = attrgetter(field)

    def condition(_: ServiceState, pattern: str) -> Condition:
        matches = glob_matcher(pattern)
        return lambda item: any(map(matches, read(item)))

    return condition


def _has_event_of_group(state: ServiceState, group: str) -> Condition:
    def condition(operation: Any) -> bool:
        events = (state.events.get(event_id) or state.ended_of_active.get(event_id) for event_id in operation.events)
        return any(event is not None and event.group == group for event in events)

    return condition


def _unexecuted(_: ServiceState, __: bool) -> Condition:
    return lambda operation: operation.started_at is not None and operation.executed_at is None


EVENTS: Conditions = {
    **{field: _is(field) for field in ("group", "type", "status")},
    **{field: _operation_is(field) for field in ("host", "cause")},
    "vm": _matches("resources"),
}
OPERATIONS: Conditions = {
    **{field: _is(field) for field in ("host", "type", "cause", "status")},
    "group": _has_event_of_group,
    "vm": _matches("vms"),
    "unexecuted": _unexecuted,
}
ROLLOUTS: Conditions = {}


def matching(state: ServiceState, items: Mapping[str, T], conditions: Conditions, filters: ListFilter) -> Iterator[T]:
    """Return the items that match, oldest first, after the one with the id `after_id`. It must be one of them."""
    ids: Iterable[str] = items
    if filters.after_id:
        ids = islice(dropwhile(filters.after_id.__ne__, items), 1, None)
    found: Iterator[T] = map(items.__getitem__, ids)
    for field, condition in conditions.items():
        if value := getattr(filters, field):
            found = filter(condition(state, value), found)
    return found

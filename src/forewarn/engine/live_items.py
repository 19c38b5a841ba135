"""Filter the active items in memory, as the statements of the stores filter their rows (stores/statements.sql)."""

from __future__ import annotations

import asyncio
from itertools import dropwhile, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from forewarn.core.shell_patterns import glob_matcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from forewarn.core.state import ServiceState
    from forewarn.ports import ListFilter

    Condition: TypeAlias = Callable[[Any], bool]
    Conditions: TypeAlias = Mapping[str, Callable[[ServiceState, Any], Condition]]
    """By field of the filter: a function that returns the condition for a value of this field."""

T = TypeVar("T")


TURN_ITEMS = 200
"""After this many items, others get their turn."""


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
    "generation": lambda _, value: lambda event: event.generation >= value,
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


async def matching(
    state: ServiceState, items: Mapping[str, T], conditions: Conditions, filters: ListFilter
) -> AsyncIterator[T]:
    """Return the items that match, oldest first, after the one with the id `after_id`. It must be one of them.

    Comparing the names of an item with a pattern is work, so others get their turn after each item.
    """
    ids: Iterable[str] = items
    if filters.after_id:
        ids = islice(dropwhile(filters.after_id.__ne__, items), 1, None)
    given = ((condition, getattr(filters, field)) for field, condition in conditions.items())
    checks = [condition(state, value) for condition, value in given if value]
    for number, item in enumerate([items[item_id] for item_id in ids], 1):  # a list: the items may change meanwhile
        if all(check(item) for check in checks):
            yield item
        if filters.vm or not number % TURN_ITEMS:
            await asyncio.sleep(0)

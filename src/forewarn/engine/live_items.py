"""Filter the active items in memory, as the statements of the stores filter their rows (stores/statements.sql)."""

from __future__ import annotations

from itertools import dropwhile, islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from forewarn.core.shell_patterns import glob_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from forewarn.core.events import Event
    from forewarn.core.operations import Operation
    from forewarn.core.state import ServiceState
    from forewarn.ports import ListFilter

    Conditions: TypeAlias = Mapping[str, Callable[[ServiceState, Any, ListFilter], bool]]
    """By field of the filter. A condition applies if the field is given."""

T = TypeVar("T")


def _is_about_vm(vms: Iterable[str], filters: ListFilter) -> bool:
    return any(glob_matches(filters.vm, vm) for vm in vms)


def _has_operation(state: ServiceState, event: Event, **expected: str) -> bool:
    operation = state.operation(event.operation)
    return operation is not None and all(getattr(operation, name) == value for name, value in expected.items())


def _has_event_of_group(state: ServiceState, operation: Operation, group: str) -> bool:
    events = (state.event(event_id) or state.ended_of_active.get(event_id) for event_id in operation.events)
    return any(event is not None and event.group == group for event in events)


EVENTS: Conditions = {
    "group": lambda _, event, filters: event.group == filters.group,
    "vm": lambda _, event, filters: _is_about_vm(event.resources, filters),
    "host": lambda state, event, filters: _has_operation(state, event, host=filters.host),
    "type": lambda _, event, filters: event.type == filters.type,
    "cause": lambda state, event, filters: _has_operation(state, event, cause=filters.cause),
    "status": lambda _, event, filters: event.status == filters.status,
}
OPERATIONS: Conditions = {
    "group": lambda state, operation, filters: _has_event_of_group(state, operation, filters.group),
    "vm": lambda _, operation, filters: _is_about_vm(operation.vms, filters),
    "host": lambda _, operation, filters: operation.host == filters.host,
    "type": lambda _, operation, filters: operation.type == filters.type,
    "cause": lambda _, operation, filters: operation.cause == filters.cause,
    "status": lambda _, operation, filters: operation.status == filters.status,
    "unexecuted": lambda _, operation, __: operation.started_at is not None and operation.executed_at is None,
}
ROLLOUTS: Conditions = {}


def matching(state: ServiceState, items: Mapping[str, T], conditions: Conditions, filters: ListFilter) -> Iterator[T]:
    """Return the items that match, oldest first, after the one with the id `after_id`. It must be one of them."""
    ids: Iterable[str] = items
    if filters.after_id:
        ids = islice(dropwhile(filters.after_id.__ne__, items), 1, None)
    given = [condition for name, condition in conditions.items() if getattr(filters, name)]
    for item in map(items.__getitem__, ids):
        if all(condition(state, item, filters) for condition in given):
            yield item

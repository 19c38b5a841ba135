"""Work in steps, so that other work can run between two steps, and so that it can be cancelled there.

Each step yields its cost: about the number of VMs or windows that it has looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Steps: TypeAlias = Generator[int, None, T]
"""Yields the cost of each step, and returns the result."""

SLICE_COST = 200
"""The cost of a slice: about a millisecond."""
COMMAND_COST = 20
"""The cost of a change of one VM or one event: a tenth of a slice."""


class Result(NamedTuple, Generic[T]):
    """What work in steps has returned."""

    value: T


def take_slice(steps: Steps[T]) -> Result[T] | None:
    """Run steps for about a millisecond. Returns the result; None: there are more steps."""
    cost = 0
    while cost < SLICE_COST:
        try:
            cost += next(steps)
        except StopIteration as end:
            return Result(end.value)
    return None


def finish(steps: Steps[T]) -> T:
    """Run all steps at once."""
    while True:
        if (result := take_slice(steps)) is not None:
            return result.value


def at_once(function: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Return a function that runs all steps at once."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return finish(function(*args, **kwargs))

    return run

"""What a test asks for, as the engine is asked: each option with its type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.core.operations import Request
from forewarn.errors import BadOption, nearest
from forewarn.testing.lengths import length_of, moment_of

if TYPE_CHECKING:
    from collections.abc import Callable


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadOption(name=name, value=value, problem="write a text.")
    return value


def _texts(name: str, value: object) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise BadOption(name=name, value=value, problem="write a list of texts.")
    return tuple(_text(name, each) for each in values)


def _factor(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise BadOption(name=name, value=value, problem="write a number that is more than 0.")
    return value


OPTIONS: dict[str, Callable[[str, Any], Any]] = {
    "host": _text,
    "type": _text,
    "duration": length_of,
    "notice": length_of,
    "deadline": moment_of,
    "overrides": _texts,
    "speed": _factor,
}
"""What can be said beyond the cause and its VMs, and how it is read. What is None is not said."""


def request_for(cause: str, vms: tuple[str, ...], options: dict[str, Any]) -> Request:
    """The request, or an error that says what can be asked for."""
    for name in options:
        if name not in OPTIONS:
            problem = f"there is no such option. Known are: {', '.join(OPTIONS)}.{nearest(name, OPTIONS)}"
            raise BadOption(name=name, value=options[name], problem=problem)
    said = {name: OPTIONS[name](name, value) for name, value in options.items() if value is not None}
    return Request(_text("cause", cause), vms, **said)

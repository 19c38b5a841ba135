"""Finding things by an id, or by the beginning of one where that is clear."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from forewarn.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")

_MOST_COMPARED = 100
"""With how many ids a mistyped one is compared."""


def only(found: Sequence[T]) -> T | None:
    """The one that was found, if it was one."""
    return found[0] if len(found) == 1 else None


def hint(found: Sequence[object], wanted: str, live: Iterable[str]) -> str:
    """What to say where it was none, or several."""
    return " Several ids begin so: write more of it." if found else nearest(wanted, islice(live, _MOST_COMPARED))

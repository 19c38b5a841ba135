"""Lists in pages with a cursor, and finding one thing by the beginning of its id."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar

from msgspec import Meta, Struct

from forewarn.control.schema import answer, help_text
from forewarn.errors import BadParameter, nearest
from forewarn.ports import ListFilter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.core.fleet import Fleet
    from forewarn.engine.engine import Engine


T = TypeVar("T")

USUAL, MOST = 100, 1000


All: TypeAlias = Annotated[bool, help_text("Also those that are over, newest first.")]


class Paging(Struct):
    """Which page of a list."""

    limit: Annotated[
        Annotated[int, Meta(ge=1, le=MOST)] | None, help_text(f"How many at most; {USUAL} if it is not said.")
    ] = None
    cursor: Annotated[str, help_text("Where to go on: next of the page before.")] = ""


class PagingAll(Paging):
    """Which page of a list of things that end."""

    all: All = False


class Wanted(NamedTuple):
    """Which page is asked for."""

    limit: int
    after: str
    """What the page before ended with; empty: from the beginning."""

    @property
    def after_number(self) -> int:
        """The same where lists are in the order of a number; 0: from the beginning."""
        if not self.after:
            return 0
        if not (self.after.isascii() and self.after.isdecimal() and len(self.after) < 19):
            raise _bad_cursor()
        return int(self.after)


def wanted(request: Request) -> Wanted:
    query: Paging = request.state.query
    cursor = query.cursor
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        after = urlsafe_b64decode(padded).decode() if cursor else ""
    except (binascii.Error, UnicodeError):
        raise _bad_cursor() from None
    if cursor and not after:
        raise _bad_cursor()
    return Wanted(query.limit or USUAL, after)


def _bad_cursor() -> BadParameter:
    valid = "the value of next from the previous page"
    return BadParameter(parameter="cursor", problem=f"is not a cursor of this list: use {valid}", valid=valid)


def page(name: str, found: Iterable[Any], following: str | int | None) -> Response:
    """A page, and the cursor of the next one; `following` is what this one ended with, None where it is the last."""
    cursor = None if following is None else urlsafe_b64encode(str(following).encode()).decode().rstrip("=")
    return answer({name: list(found), "next": cursor})


def page_of_names(request: Request, name: str, names: list[str], shape: Callable[[str], Struct]) -> Response:
    """A page of things that are listed by their names, which are in order."""
    asked = wanted(request)
    first = bisect_right(names, asked.after) if asked.after else 0
    part = names[first : first + asked.limit]
    more = first + asked.limit < len(names)
    return page(name, [shape(each) for each in part], part[-1] if more else None)


async def rows_page(
    request: Request, read: Callable[[ListFilter], Awaitable[list[tuple[int, T]]]], group: str = ""
) -> tuple[list[T], int | None]:
    """Things that the store keeps in the order in which they came: those that live, or with all=true all.

    With what the page ends with, if it is not the last.
    """
    asked = wanted(request)
    live = not request.state.query.all
    # One more than asked for says whether there is another page.
    found = await read(ListFilter(live, asked.after_number, asked.limit + 1, group))
    part = found[: asked.limit]
    return [each for _, each in part], part[-1][0] if len(found) > asked.limit else None


class Names:
    """The names of a fleet's things in order, sorted once for each fleet."""

    def __init__(self, engine: Engine, pick: Callable[[Fleet], Iterable[str]]) -> None:
        self._engine = engine
        self._pick = pick
        self._fleet: Fleet | None = None
        self._names: list[str] = []

    def __call__(self) -> list[str]:
        if self._fleet is not self._engine.fleet:
            self._fleet = self._engine.fleet
            self._names = sorted(self._pick(self._fleet))
        return self._names


# --- Finding by id --------------------------------------------------------------------------------


_MOST_COMPARED = 100
"""With how many ids a mistyped one is compared."""


def only(found: Sequence[T]) -> T | None:
    """The one that was found, if it was one."""
    return found[0] if len(found) == 1 else None


def hint(found: Sequence[object], wanted: str, live: Iterable[str]) -> str:
    """What to say where it was none, or several."""
    return " Several ids begin so: write more of it." if found else nearest(wanted, islice(live, _MOST_COMPARED))

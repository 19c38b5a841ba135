"""Lists in pages with a cursor, and lookup by a prefix of an id."""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar

from msgspec import Meta, Struct

from forewarn.control.schema import at_most, help_text, json_response
from forewarn.control.slices import in_parts
from forewarn.errors import BadParameter, NotFound, nearest
from forewarn.ports import ListFilter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.core.fleet import Fleet
    from forewarn.engine.engine import Engine


T = TypeVar("T")

DEFAULT_LIMIT, MAX_LIMIT = 100, 1000
MAX_CURSOR = 600
"""Maximum length of a name of UTF-8 characters as base64."""
MAX_PAGE_NAMES = 20_000
"""A page ends with the item with which it has so many names of VMs or hosts: about 2 MB, encoded at once."""
SHAPES_AT_ONCE = 5
"""How many items of a page are computed in a slice. One can have 100 scopes or hosts."""


All: TypeAlias = Annotated[bool, help_text("Include ended ones; newest first.")]


class Paging(Struct):
    """Which page of a list."""

    limit: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_LIMIT)] | None,
        help_text(f"Maximum number of items. Default: {DEFAULT_LIMIT}. A page with many names of VMs ends earlier."),
    ] = None
    cursor: Annotated[Annotated[str, at_most(MAX_CURSOR)], help_text("The value of next in the previous page.")] = ""


class Counting(Paging):
    """Which page of a list, and whether to count all items."""

    count: Annotated[bool, help_text("Also return the number of all matching items, as total.")] = False


class PagingAll(Paging):
    """Which page of a list, with or without ended items."""

    all: All = False


class PageRequest(NamedTuple):
    """The requested page of a list."""

    limit: int
    after: str
    """The last key of the previous page; empty: the first page."""

    @property
    def after_number(self) -> int:
        """The last number of the previous page, for lists in the order of a number; 0: the first page."""
        if not self.after:
            return 0
        if not (self.after.isascii() and self.after.isdecimal() and len(self.after) < 19):
            raise _bad_cursor()
        return int(self.after)

    @property
    def after_id(self) -> str:
        """The last id of the previous page, for lists of active items; empty: the first page."""
        if self.after and not _ID.fullmatch(self.after):
            raise _bad_cursor()
        return self.after


_ID = re.compile("[0-9a-f-]{36}")


def requested_page(request: Request) -> PageRequest:
    query: Paging = request.state.query
    cursor = query.cursor
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        after = urlsafe_b64decode(padded).decode() if cursor else ""
    except (binascii.Error, UnicodeError):
        raise _bad_cursor() from None
    if cursor and not after:
        raise _bad_cursor()
    return PageRequest(query.limit or DEFAULT_LIMIT, after)


def _bad_cursor() -> BadParameter:
    allowed = "the value of next in the previous page"
    return BadParameter(parameter="cursor", problem=f"is not valid: give {allowed}", allowed=allowed)


def page(name: str, found: Iterable[Any], last_key: str | int | None, total: int | None = None) -> Response:
    """Return a page with the cursor of the next one. `last_key`: the key of the last item; None on the last page."""
    cursor = None if last_key is None else urlsafe_b64encode(str(last_key).encode()).decode().rstrip("=")
    counted = {} if total is None else {"total": total}
    return json_response({name: list(found), "next": cursor, **counted})


async def page_of_names(
    request: Request, slices: Slices, name: str, names: list[str], shape: Callable[[str], Struct]
) -> Response:
    """Return a page of a list that is sorted by name. What has left the fleet since the request is left out."""
    requested = requested_page(request)
    first = bisect_right(names, requested.after) if requested.after else 0
    part = names[first : first + requested.limit]
    more = first + requested.limit < len(names)
    total = len(names) if getattr(request.state.query, "count", False) else None

    def shapes() -> Iterator[Struct]:
        for each in part:
            with suppress(NotFound):
                yield shape(each)

    return page(name, await slices.collect(shapes(), SHAPES_AT_ONCE), part[-1] if more else None, total)


async def rows_page(
    request: Request,
    read: Callable[[ListFilter], Awaitable[list[tuple[str | int, T]]]],
    names: Callable[[T], int],
    filters: ListFilter | None = None,
) -> tuple[list[T], str | int | None]:
    """Return the rows of a page, in the order of the store, and the key of its last row if there is a next page.

    `names`: the number of names that a row has. Without a filter: only active rows, or all rows with all=true.
    """
    requested = requested_page(request)
    filters = ListFilter(not request.state.query.all) if filters is None else filters
    start = {"after_id": requested.after_id} if filters.live else {"after": requested.after_number}
    # One more row shows whether there is a next page.
    found = await read(filters._replace(limit=requested.limit + 1, **start))
    part = first_part(found[: requested.limit], lambda row: names(row[1]))
    return [each for _, each in part], part[-1][0] if len(found) > len(part) else None


def first_part(found: Sequence[T], names: Callable[[T], int]) -> list[T]:
    """Return the rows that fit in a page, by the number of names in each."""
    return next(in_parts(found, names, MAX_PAGE_NAMES), [])


class Names:
    """Sorted names of one kind of resource in the fleet. They are sorted once for each fleet."""

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


_MAX_COMPARED_IDS = 100
"""Maximum number of ids that a mistyped id is compared with."""


def single_match(found: Sequence[T]) -> T | None:
    """Return the single match, or None."""
    return found[0] if len(found) == 1 else None


def prefix_hint(found: Sequence[object], prefix: str, live: Iterable[str]) -> str:
    """Return a hint for the error, if no id matches the prefix or several do."""
    return (
        " Several ids start with it. Write more characters."
        if found
        else nearest(prefix, islice(live, _MAX_COMPARED_IDS))
    )

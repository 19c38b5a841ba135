"""All matching rows of history as one file, CSV or JSON. The rows are sent while they are read."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import StreamingResponse

from forewarn.core.durations import to_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from datetime import datetime

    from starlette.responses import Response

    from forewarn.delivery.history_rows import HistoryEntryShape

CSV_TYPE = "text/csv"
CSV, JSON_FILE = FORMATS = ("csv", "json")
_COLUMNS = (
    *("sequence", "time", "kind", "by", "group", "event", "operation", "host", "vms", "type", "cause", "reason"),
    *("status", "not_before"),
)
"""Fields of a row; the last two are of its snapshot."""
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that starts with one of these for a formula."""


def download(name: str, pages: AsyncIterator[list[HistoryEntryShape]], now: datetime) -> Response:
    """Return a response with all rows in this format. If reading fails, the response ends incomplete."""
    content, media_type = (_csv(pages), CSV_TYPE) if name == CSV else (_json(pages), "application/json")
    time = to_text(now, "seconds").replace(":", "")  # a colon is not allowed in every file name
    file = f"forewarn-history-{time}.{name}"
    return StreamingResponse(
        content, media_type=media_type, headers={"content-disposition": f'attachment; filename="{file}"'}
    )


async def _json(pages: AsyncIterator[list[HistoryEntryShape]]) -> AsyncIterator[bytes]:
    """Yield one JSON array, with a row in each line."""
    separator = b"[\n"
    async for page in pages:
        if page:
            yield separator + b",\n".join(map(msgspec.json.encode, page))
            separator = b",\n"
    yield b"[]\n" if separator == b"[\n" else b"\n]\n"


async def _csv(pages: AsyncIterator[list[HistoryEntryShape]]) -> AsyncIterator[bytes]:
    yield _lines([_COLUMNS])
    async for page in pages:
        if page:
            yield _lines(map(_cells, page))


def _lines(rows: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cells(row: HistoryEntryShape) -> list[str]:
    known = msgspec.structs.asdict(row)
    known["vms"] = " ".join(row.vms)
    if row.snapshot is not None:
        known |= {"status": row.snapshot.status, "not_before": row.snapshot.not_before}
    return [_safe("" if known.get(name) is None else str(known[name])) for name in _COLUMNS]


def _safe(text: str) -> str:
    """Return a cell that a spreadsheet shows as text."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text

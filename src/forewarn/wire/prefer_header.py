"""Parse the `wait` preference of long polls (Prefer header, RFC 7240)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_WAIT_SECONDS = 60

# Text between commas outside of quotes. An unclosed quote extends to the end.
_PREFERENCE = re.compile(r'(?:[^,"]|"(?:\\.|[^"\\])*"?)+')


def parse_wait(prefer: Iterable[str]) -> int | None:
    """Return the seconds to wait from all Prefer headers; None without a wait preference.

    The first wait counts, and unreadable preferences are ignored (RFC 7240).
    """
    for preference in _PREFERENCE.findall(",".join(prefer)):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            return _seconds(value.strip())
    return None


def _seconds(value: str) -> int | None:
    if len(value) > 2 and value[0] == value[-1] == '"':
        value = value[1:-1]
    if not value.isascii() or not value.isdigit():
        return None
    # Shortened, because int() rejects thousands of digits.
    return min(int(value.lstrip("0")[:9] or "0"), MAX_WAIT_SECONDS)

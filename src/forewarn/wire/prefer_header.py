"""How long a client would like its poll to be held: the `wait` of its Prefer headers (RFC 7240)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_WAIT_SECONDS = 60

# What stands between commas, of which those in quotes do not count; a quote that never closes takes the rest.
_PREFERENCE = re.compile(r'(?:[^,"]|"(?:\\.|[^"\\])*"?)+')


def parse_wait(prefer: Iterable[str]) -> int | None:
    """The seconds that will be waited, from the values of all Prefer headers; None when they say nothing of it.

    Of several waits the first counts, and a preference that cannot be read is as good as none (RFC 7240).
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
    # Not every run of digits may become a number: Python refuses to read thousands of them.
    return min(int(value.lstrip("0")[:9] or "0"), MAX_WAIT_SECONDS)

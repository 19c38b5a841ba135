"""An answer of the metadata service, but for the headers that every answer has."""

from __future__ import annotations

import json
from typing import NamedTuple

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """Status, body, and what is special about it."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    applied: str = ""
    """Which preference was followed, if any."""


def error_answer(status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """An error as this wire says it, spaced as the real service spaces its own."""
    return Answer(status, f'{{ "error": {json.dumps(text)} }}'.encode(), headers=headers)

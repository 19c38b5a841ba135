"""Error → response: one table per plane. Families decide, not single errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.errors import Conflict, Forbidden, ForewarnError, Invalid, NotFound, Unavailable
from forewarn.wire.answer import error_answer

if TYPE_CHECKING:
    from forewarn.wire.answer import Answer

# On this wire a thing that is not known is a bad request: 404 is for paths and versions.
METADATA_STATUS: dict[type[ForewarnError], int] = {
    Invalid: 400,
    NotFound: 400,
    Conflict: 400,
    Forbidden: 400,
    Unavailable: 503,
}

CONTROL_STATUS: dict[type[ForewarnError], int] = {
    Invalid: 400,
    NotFound: 404,
    Conflict: 409,
    Forbidden: 403,
    Unavailable: 503,
}


def family(error: ForewarnError) -> type[ForewarnError]:
    """Which of the five an error belongs to."""
    return next(kind for kind in CONTROL_STATUS if isinstance(error, kind))


def metadata_answer(error: ForewarnError) -> Answer:
    """The error as the metadata service says it."""
    return error_answer(METADATA_STATUS[family(error)], str(error))

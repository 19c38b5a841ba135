"""The root of all errors, and five families by what the caller can do."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self


_MOST_COMPARED = 5000
"""Names that a word is compared with: in a fleet of 100,000 a hint is not worth a second of everybody's time."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint that follows an unknown name: the nearest known one, or nothing."""
    # Here, because an agent at rest has no use for it and would carry it.
    from difflib import get_close_matches

    # A slip of the finger changes the length little; without that bound 'vn' would be nearer to 'event' than to 'vm'.
    most = max(2, len(word) // 3)
    alike = (name for name in known if abs(len(name) - len(word)) <= most)
    lowered = {name.lower(): name for name in islice(alike, _MOST_COMPARED)}
    close = get_close_matches(word.lower(), lowered, n=1, cutoff=0.5)
    return f" Did you mean {lowered[close[0]]!r}?" if close else ""


class ForewarnError(Exception):
    """Forewarn could not do that."""

    member = ""
    """Which member of a request it is about, where it is always the same."""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(" ".join((type(self).__doc__ or "").split()).format(**fields))

    @classmethod
    def relayed(cls, text: str) -> Self:
        """An error that happened elsewhere, in the words it was reported with."""
        error = cls.__new__(cls)
        error.fields = {}
        Exception.__init__(error, text)
        return error


class Invalid(ForewarnError):
    """The request is wrong: {problem}"""


class NotFound(ForewarnError):
    """There is no such thing: {name}"""


class Conflict(ForewarnError):
    """Not at this moment: {problem}"""


class Forbidden(ForewarnError):
    """Not yours to do: {problem}"""


class Unavailable(ForewarnError):
    """Try again later: {problem}"""


EXIT_CODES: dict[type[ForewarnError], int] = {Invalid: 2, NotFound: 3, Conflict: 4, Forbidden: 5, Unavailable: 6}


def exit_code(error: ForewarnError) -> int:
    """What a command that has failed so ends with."""
    return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))

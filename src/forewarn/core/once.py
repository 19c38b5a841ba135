"""A request that is repeated with the same key is done once, and answered as it was the first time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from forewarn.errors import KeyReused

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from forewarn.core.draft import Draft
    from forewarn.core.terms import Terms

KEPT_FOR = timedelta(days=1)


class Kept(NamedTuple):
    """The answer to a request with a key. In memory without its body, which the store has."""

    key: str
    """Whose key (by the hash of the token), and which: two callers may choose the same."""
    fingerprint: str
    """Of the request, so that a key is not taken for another's."""
    at: datetime
    status: int
    body: str = ""


def once(
    draft: Draft,
    now: datetime,
    terms: Terms,
    key: str,
    fingerprint: str,
    decide: Callable[[Draft, datetime, Terms], tuple[int, str]],
) -> Kept:
    """The answer to keep: of the same request before, within a day; else what is decided now.

    What is decided and what is kept are one commit: after a crash either both are there or neither.
    """
    known = draft.kept(key)
    if known is not None and now - known.at < KEPT_FOR:
        if known.fingerprint != fingerprint:
            raise KeyReused(key=key.partition(" ")[2])
        return known
    status, body = decide(draft, now, terms)
    answer = Kept(key, fingerprint, now, status, body)
    draft.changes.kept[key] = answer
    return answer

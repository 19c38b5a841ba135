"""Every check, in the order in which they are made."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from forewarn.errors import NoSuchCheck, nearest
from forewarn.verify import (
    approvals,
    document,
    finding,
    instance,
    life,
    limits,
    requests,
    scope,
    silence,
    tags,
    versions,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from forewarn.verify.check import Check, Mark

_PARTS = (versions, document, tags, approvals, limits, requests, life, scope, instance, finding, silence)
_WRITTEN = [check for part in _PARTS for check in part.rules.checks]
CHECKS: tuple[Check, ...] = tuple(sorted(_WRITTEN, key=lambda check: check.late))


def chosen(patterns: Iterable[str], marks: Collection[Mark]) -> list[Check]:
    """The checks of these marks whose names fit one of the patterns; without patterns all."""
    wanted = list(patterns)
    for pattern in wanted:
        if not any(fnmatchcase(check.name, pattern) for check in CHECKS):
            raise NoSuchCheck(pattern=pattern, hint=nearest(pattern, (check.name for check in CHECKS)))
    return [
        check
        for check in CHECKS
        if check.mark in marks and (not wanted or any(fnmatchcase(check.name, pattern) for pattern in wanted))
    ]

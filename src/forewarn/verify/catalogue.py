"""Every check, in the order in which they are made."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from forewarn.errors import NoCheckLeft, NoSuchCheck, nearest
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
from forewarn.verify.check import Mark

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from forewarn.verify.check import Check

_PARTS = (versions, document, tags, approvals, limits, requests, life, scope, instance, finding, silence)
_WRITTEN = [check for part in _PARTS for check in part.rules.checks]
CHECKS: tuple[Check, ...] = tuple(sorted(_WRITTEN, key=lambda check: check.late))


def chosen(patterns: Iterable[str], marks: Collection[Mark]) -> list[Check]:
    """The checks of these marks whose names fit one of the patterns; without patterns all."""
    wanted = list(patterns)
    for pattern in wanted:
        if not any(fnmatchcase(check.name, pattern) for check in CHECKS):
            raise NoSuchCheck(pattern=pattern, hint=nearest(pattern, (check.name for check in CHECKS)))
    named = [check for check in CHECKS if not wanted or any(fnmatchcase(check.name, pattern) for pattern in wanted)]
    left = [check for check in named if check.mark in marks]
    if not left:
        found = ",".join(mark for mark in Mark if any(check.mark == mark for check in named))
        raise NoCheckLeft(patterns=" or ".join(map(repr, wanted)), marks=" or ".join(marks), found=found)
    return left

"""Making the checks, one after the other, and what comes of each."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from forewarn.clock import real_seconds
from forewarn.verify.check import Departure, Skip
from forewarn.verify.exchange import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from forewarn.verify.check import Check
    from forewarn.verify.stage import Stage


class Result(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Outcome(NamedTuple):
    """How a check has ended."""

    check: Check
    result: Result
    seconds: float
    reason: str = ""
    """Why it was skipped."""
    sent: str = ""
    came: str = ""
    right: str = ""
    """Of a failure: what was sent, what came, and what would be right."""


def run(checks: Iterable[Check], stage: Stage) -> Iterator[Outcome]:
    """Make the checks; each outcome is there as soon as it is known."""
    try:
        for check in checks:
            yield _run_one(check, stage)
    finally:
        stage.close()


def _run_one(check: Check, stage: Stage) -> Outcome:
    began = real_seconds()
    missing = [need for need in check.needs if not stage.has(need)]
    if missing:
        return Outcome(check, Result.SKIPPED, 0.0, reason=f"give {' and '.join(missing)}")
    try:
        check.run(stage)
    except Departure as departure:
        spent, sent, came = real_seconds() - began, cut(departure.sent), cut(departure.came)
        return Outcome(check, Result.FAILED, spent, sent=sent, came=came, right=cut(departure.right))
    except Skip as skip:
        return Outcome(check, Result.SKIPPED, real_seconds() - began, reason=cut(str(skip)))
    except Exception as error:  # noqa: BLE001 - whatever a server sends, the results of the others are not lost
        last = stage.here.answers[-1] if stage.here.answers else None
        sent, came = (last.request.shown, last.shown) if last else ("", "")
        right = cut(f"an answer that can be read ({type(error).__name__}: {error})")
        return Outcome(check, Result.FAILED, real_seconds() - began, sent=sent, came=came, right=right)
    return Outcome(check, Result.PASSED, real_seconds() - began)


def counts(outcomes: Iterable[Outcome]) -> dict[Result, int]:
    """How many ended in which way."""
    found = dict.fromkeys(Result, 0)
    for outcome in outcomes:
        found[outcome.result] += 1
    return found

"""All checks in their order, running them, and the report of a run as JSON and JUnit."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.clock import real_seconds
from forewarn.errors import NoMatchingCheck, UnknownCheck, nearest
from forewarn.verify import approvals, document, instance, life, limits, requests, scope, tags, versions
from forewarn.verify.check import SECTIONS, Departure, Mark, Skip
from forewarn.verify.exchange import cut

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from forewarn.verify.check import Check
    from forewarn.verify.session import Session


_RULES = (
    versions.rules,
    document.rules,
    tags.rules,
    approvals.rules,
    limits.rules,
    requests.rules,
    life.rules,
    scope.rules,
    instance.rules,
    requests.discovery_rules,
    life.inactivity_rules,  # last: the server has disabled the group then
)
_WRITTEN = [check for rules in _RULES for check in rules.checks]
CHECKS: tuple[Check, ...] = tuple(sorted(_WRITTEN, key=lambda check: check.late))


def chosen(patterns: Iterable[str], marks: Collection[Mark]) -> list[Check]:
    """The checks of these marks whose names fit one of the patterns; without patterns all."""
    wanted = list(patterns)
    for pattern in wanted:
        if not any(fnmatchcase(check.name, pattern) for check in CHECKS):
            raise UnknownCheck(pattern=pattern, hint=nearest(pattern, (check.name for check in CHECKS)))
    named = [check for check in CHECKS if not wanted or any(fnmatchcase(check.name, pattern) for pattern in wanted)]
    left = [check for check in named if check.mark in marks]
    if not left:
        found = ",".join(mark for mark in Mark if any(check.mark == mark for check in named))
        raise NoMatchingCheck(patterns=" or ".join(map(repr, wanted)), marks=" or ".join(marks), found=found)
    return left


# --- A run ----------------------------------------------------------------------------------------


class Result(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class CheckOutcome(NamedTuple):
    """The result of one check."""

    check: Check
    result: Result
    seconds: float
    reason: str = ""
    """Why it was skipped."""
    sent: str = ""
    came: str = ""
    right: str = ""
    """Of a failure: what was sent, what came, and what would be right."""


def run(checks: Iterable[Check], session: Session) -> Iterator[CheckOutcome]:
    """Run the checks; yields each outcome as soon as it is known."""
    try:
        for check in checks:
            yield _run_one(check, session)
    finally:
        session.close()


def _run_one(check: Check, session: Session) -> CheckOutcome:
    began = real_seconds()
    missing = [need for need in check.needs if not session.has(need)]
    if missing:
        return CheckOutcome(check, Result.SKIPPED, 0.0, reason=f"give {' and '.join(missing)}")
    try:
        check.run(session)
    except Departure as departure:
        spent, sent, came = real_seconds() - began, cut(departure.sent), cut(departure.came)
        return CheckOutcome(check, Result.FAILED, spent, sent=sent, came=came, right=cut(departure.right))
    except Skip as skip:
        return CheckOutcome(check, Result.SKIPPED, real_seconds() - began, reason=cut(str(skip)))
    except Exception as error:  # noqa: BLE001 - whatever a server sends, the results of the others are not lost
        last = session.here.answers[-1] if session.here.answers else None
        sent, came = (last.request.shown, last.shown) if last else ("", "")
        right = cut(f"an answer that can be read ({type(error).__name__}: {error})")
        return CheckOutcome(check, Result.FAILED, real_seconds() - began, sent=sent, came=came, right=right)
    return CheckOutcome(check, Result.PASSED, real_seconds() - began)


def counts(outcomes: Iterable[CheckOutcome]) -> dict[Result, int]:
    """The number of checks by result."""
    found = dict.fromkeys(Result, 0)
    for outcome in outcomes:
        found[outcome.result] += 1
    return found


# --- The report -----------------------------------------------------------------------------------


_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot contain, not even as a reference. A server under test may send them."""


def describe(check: Check) -> dict[str, Any]:
    """A check as JSON."""
    return {
        "name": check.name,
        "section": check.section,
        "mark": str(check.mark),
        "rule": check.rule,
        "needs": [str(need) for need in check.needs],
    }


def as_json(url: str, outcomes: list[CheckOutcome]) -> dict[str, Any]:
    """A run as JSON."""
    return {
        "url": url,
        "counts": {str(result): count for result, count in counts(outcomes).items()},
        "checks": [
            {
                **describe(outcome.check),
                "result": str(outcome.result),
                "seconds": round(outcome.seconds, 3),
                "reason": outcome.reason,
                "sent": outcome.sent,
                "came": outcome.came,
                "right": outcome.right,
            }
            for outcome in outcomes
        ],
    }


def as_junit(url: str, outcomes: list[CheckOutcome]) -> bytes:
    """A run as JUnit: a suite for each section."""
    root = ET.Element("testsuites", _totals(f"forewarn verify {url}", outcomes))
    for section, title in SECTIONS.items():
        inside = [outcome for outcome in outcomes if outcome.check.section == section]
        if not inside:
            continue
        suite = ET.SubElement(root, "testsuite", _totals(f"{section}. {title}", inside))
        for outcome in inside:
            attributes = {
                "name": outcome.check.name,
                "classname": f"verify.{outcome.check.mark}",
                "time": f"{outcome.seconds:.3f}",
            }
            case = ET.SubElement(suite, "testcase", attributes)
            if outcome.result is Result.SKIPPED:
                ET.SubElement(case, "skipped", {"message": _clean(outcome.reason)})
            if outcome.result is Result.FAILED:
                failure = ET.SubElement(case, "failure", {"message": _clean(outcome.check.rule)})
                failure.text = _clean(f"sent:  {outcome.sent}\ncame:  {outcome.came}\nright: {outcome.right}")
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def _totals(name: str, outcomes: list[CheckOutcome]) -> dict[str, str]:
    found = counts(outcomes)
    return {
        "name": _clean(name),
        "tests": str(len(outcomes)),
        "failures": str(found[Result.FAILED]),
        "skipped": str(found[Result.SKIPPED]),
        "time": f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    }


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)

"""The list of all checks, the code that runs them, and reports as JSON and JUnit."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.clock import real_seconds
from forewarn.errors import NoMatchingCheck, UnknownCheck, nearest
from forewarn.verify import approvals, document, instance, life, limits, requests, scope, tags, versions
from forewarn.verify.check import SECTIONS, CheckFailed, CheckSkipped, Mark
from forewarn.verify.consequences import failed_check_behind
from forewarn.verify.exchange import truncate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from forewarn.verify.check import Check
    from forewarn.verify.session import Session


_REGISTRIES = (
    requests.first_check,
    versions.check,
    document.check,
    tags.check,
    approvals.check,
    limits.check,
    requests.check,
    life.check,
    scope.check,
    instance.check,
    requests.discovery_check,
    life.inactivity_check,  # last, because these checks make the server disable the group
)
_DEFINED = [check for registry in _REGISTRIES for check in registry.checks]
CHECKS: tuple[Check, ...] = tuple(sorted(_DEFINED, key=lambda check: check.late))
"""All checks, in the order in which they run."""


def select_checks(patterns: Iterable[str], marks: Collection[Mark]) -> list[Check]:
    """Return the checks with one of these marks whose name matches a pattern. No patterns match every name."""
    patterns = list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(check.name, pattern) for check in CHECKS):
            raise UnknownCheck(pattern=pattern, hint=nearest(pattern, (check.name for check in CHECKS)))
    named = [check for check in CHECKS if not patterns or any(fnmatchcase(check.name, pattern) for pattern in patterns)]
    selected = [check for check in named if check.mark in marks]
    if not selected:
        found = ",".join(mark for mark in Mark if any(check.mark == mark for check in named))
        raise NoMatchingCheck(patterns=" or ".join(map(repr, patterns)), marks=" or ".join(marks), found=found)
    return selected


# --- A run ----------------------------------------------------------------------------------------


class CheckResult(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    CONSEQUENCE = "consequence"
    """Failed or not run, because another check failed."""
    SKIPPED = "skipped"


class CheckOutcome(NamedTuple):
    """The result of one check, with its details."""

    check: Check
    result: CheckResult
    seconds: float
    reason: str = ""
    """Why the check did not run."""
    consequence_of: str = ""
    """Of a consequence: the name of the check that failed."""
    request: str = ""
    expected: str = ""
    actual: str = ""
    """Of a failed check."""


_SILENT = "not run: the server sends no complete response"


def run(checks: Iterable[Check], session: Session) -> Iterator[CheckOutcome]:
    """Run the checks. Yield each outcome as soon as it is known. Run no more checks once the server is silent."""
    silent_since = ""
    try:
        for check in checks:
            if silent_since:
                yield CheckOutcome(check, CheckResult.CONSEQUENCE, 0.0, reason=_SILENT, consequence_of=silent_since)
                continue
            outcome = _run_one(check, session)
            if outcome.result is CheckResult.FAILED and not session.endpoint.responds(session.reaction_seconds):
                silent_since = check.name
            yield outcome
    finally:
        session.close()


def _run_one(check: Check, session: Session) -> CheckOutcome:
    start = real_seconds()
    missing = [need for need in check.needs if not session.has(need)]
    if missing:
        return CheckOutcome(check, CheckResult.SKIPPED, 0.0, reason=f"give {' and '.join(missing)}")
    try:
        check.run(session)
    except CheckFailed as failure:
        return CheckOutcome(
            check,
            CheckResult.FAILED,
            real_seconds() - start,
            request=truncate(failure.request),
            expected=truncate(failure.expected),
            actual=truncate(failure.actual),
        )
    except CheckSkipped as skipped:
        return CheckOutcome(check, CheckResult.SKIPPED, real_seconds() - start, reason=truncate(str(skipped)))
    except Exception as error:  # noqa: BLE001 - a server may send anything; the other checks must still run
        last = session.endpoint.responses[-1] if session.endpoint.responses else None
        return CheckOutcome(
            check,
            CheckResult.FAILED,
            real_seconds() - start,
            request=last.request.summary if last else "",
            expected=truncate(f"a response that can be parsed ({type(error).__name__}: {error})"),
            actual=last.summary if last else "",
        )
    return CheckOutcome(check, CheckResult.PASSED, real_seconds() - start)


def explain(outcomes: Iterable[CheckOutcome]) -> list[CheckOutcome]:
    """Return the outcomes of a run. A failure that another failure explains becomes a consequence of it."""
    found = list(outcomes)
    failed = {outcome.check.name for outcome in found if outcome.result is CheckResult.FAILED}
    for index, outcome in enumerate(found):
        if outcome.result is CheckResult.FAILED and (cause := failed_check_behind(outcome.check.name, failed)):
            found[index] = outcome._replace(result=CheckResult.CONSEQUENCE, consequence_of=cause)
        elif outcome.result is CheckResult.CONSEQUENCE:
            behind = failed_check_behind(outcome.consequence_of, failed)
            found[index] = outcome._replace(consequence_of=behind or outcome.consequence_of)
    return found


def counts(outcomes: Iterable[CheckOutcome]) -> dict[CheckResult, int]:
    """Count the checks by result."""
    found = dict.fromkeys(CheckResult, 0)
    for outcome in outcomes:
        found[outcome.result] += 1
    return found


# --- The report -----------------------------------------------------------------------------------


def describe(check: Check) -> dict[str, Any]:
    """Return a check as JSON."""
    return {
        "name": check.name,
        "section": check.section,
        "mark": str(check.mark),
        "rule": check.rule,
        "needs": [str(need) for need in check.needs],
    }


def as_json(url: str, outcomes: list[CheckOutcome]) -> dict[str, Any]:
    """Return the report of a run as JSON."""
    return {
        "url": url,
        "counts": {str(result): count for result, count in counts(outcomes).items()},
        "checks": [
            {
                **describe(outcome.check),
                "result": str(outcome.result),
                "seconds": round(outcome.seconds, 3),
                "reason": outcome.reason,
                "consequence_of": outcome.consequence_of,
                "request": outcome.request,
                "expected": outcome.expected,
                "actual": outcome.actual,
            }
            for outcome in outcomes
        ],
    }


def as_junit(url: str, outcomes: list[CheckOutcome]) -> bytes:
    """Return the report of a run as JUnit XML, with one suite per section."""
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
            if outcome.result is CheckResult.SKIPPED:
                ET.SubElement(case, "skipped", {"message": _clean(outcome.reason)})
            if outcome.result in (CheckResult.FAILED, CheckResult.CONSEQUENCE):
                message = f"consequence of {outcome.consequence_of}" if outcome.consequence_of else outcome.check.rule
                failure = ET.SubElement(case, "failure", {"message": _clean(message), "type": outcome.result})
                failure.text = _clean(
                    outcome.reason
                    or f"request:  {outcome.request}\nexpected: {outcome.expected}\nactual:   {outcome.actual}"
                )
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def _totals(name: str, outcomes: list[CheckOutcome]) -> dict[str, str]:
    found = counts(outcomes)
    return {
        "name": _clean(name),
        "tests": str(len(outcomes)),
        "failures": str(found[CheckResult.FAILED] + found[CheckResult.CONSEQUENCE]),
        "skipped": str(found[CheckResult.SKIPPED]),
        "time": f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    }


def _clean(text: str) -> str:
    """Escape what a terminal or an XML reader must not get."""
    return "".join(letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text)

"""What has come of the checks, for machines: JSON and JUnit."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import SECTIONS
from forewarn.verify.run import Result, counts

if TYPE_CHECKING:
    from forewarn.verify.check import Check
    from forewarn.verify.run import Outcome

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot have, not even as a reference; servers under test send it all the same."""


def describe(check: Check) -> dict[str, Any]:
    """A check as JSON has it."""
    return {
        "name": check.name,
        "section": check.section,
        "mark": str(check.mark),
        "rule": check.rule,
        "needs": [str(need) for need in check.needs],
    }


def as_json(url: str, outcomes: list[Outcome]) -> dict[str, Any]:
    """A run as JSON has it."""
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


def as_junit(url: str, outcomes: list[Outcome]) -> bytes:
    """A run as JUnit has it: a suite for each section."""
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


def _totals(name: str, outcomes: list[Outcome]) -> dict[str, str]:
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

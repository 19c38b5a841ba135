"""The contract page: every rule has an id, a mark and a source, and every link to the page has a target."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from forewarn.verify.check import SECTIONS, Mark

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "explanation" / "contract.md").read_text()
HEADINGS = [line.lstrip("#").strip() for line in PAGE.splitlines() if line.startswith("#")]

_ROW = re.compile(r'\| <a id="([^"]*)"></a>(\S*) \| (.+) \| (\S+) \| (.+) \|')


class Rule(NamedTuple):
    anchor: str
    number: str
    says: str
    mark: str
    source: str


RULES = [Rule(*found.groups()) for line in PAGE.splitlines() if (found := _ROW.fullmatch(line))]


def heading_anchor(heading: str) -> str:
    """Return the anchor that GitHub generates for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_rule_has_its_number_as_anchor_and_a_known_mark() -> None:
    assert PAGE.count("<a id=") == len(RULES)
    assert [rule for rule in RULES if rule.anchor != rule.number or rule.mark not in set(Mark)] == []
    assert [rule for rule in RULES if not rule.source.strip()] == []


def test_numbers_are_complete_and_unique_in_each_section() -> None:
    by_section: dict[str, list[int]] = {}
    for rule in RULES:
        section, _, number = rule.number.partition(".")
        by_section.setdefault(section, []).append(int(number))
    assert {section: sorted(found) for section, found in by_section.items()} == {
        section: list(range(1, len(found) + 1)) for section, found in by_section.items()
    }


def test_the_counts_are_those_of_the_rules() -> None:
    marks = Counter(rule.mark for rule in RULES)
    counts = ", ".join(f"{marks[mark]} {mark}" for mark in Mark)
    assert f"{len(RULES)} rules: {counts}." in PAGE


def test_the_sections_that_checks_belong_to_have_their_numbers() -> None:
    numbered = {int(heading.split(".")[0]) for heading in HEADINGS if heading[0].isdigit()}
    assert numbered == {*SECTIONS, 8, 9}


def test_every_link_to_a_rule_or_section_has_a_target() -> None:
    anchors = {rule.anchor for rule in RULES} | {heading_anchor(heading) for heading in HEADINGS}
    links = [
        (page.name, anchor)
        for page in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"))
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text())
        if target.endswith("contract.md") or (not target and page.name == "contract.md")
    ]
    assert {name for name, _ in links} >= {"contract.md", "fidelity.md"}
    assert [link for link in links if link[1] not in anchors] == []

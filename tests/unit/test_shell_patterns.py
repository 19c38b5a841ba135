"""Shell patterns: what they match, how much work a match is, and how many a request can have."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.shell_patterns import (
    MAX_PATTERNS,
    MAX_STARS,
    check_patterns,
    glob_matcher,
    glob_to_regex,
    is_pattern,
    matching,
    quoted,
)
from forewarn.errors import LimitExceeded


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=10))
def test_stars_and_question_marks_match_as_in_a_shell(pattern: str, text: str) -> None:
    assert bool(glob_matcher(pattern)(text)) == fnmatchcase(text, pattern)


@pytest.mark.parametrize("pattern", ["[!w]eb", "[^w]eb"])
def test_both_signs_exclude_characters(pattern: str) -> None:
    assert matching(["web", "deb"], [pattern]) == ["deb"]


def test_a_range_that_goes_backwards_matches_nothing() -> None:
    assert not glob_matcher("[z-a]")("m")


def test_a_name_that_looks_like_a_pattern_means_itself() -> None:
    names = ["web0", "web[0]", "web?"]
    assert matching(names, ["web[0]"]) == ["web[0]"]
    assert matching(names, ["web?"]) == ["web?"]
    assert matching(["web0", "web1"], ["web[0]"]) == ["web0"]
    for name in names:
        assert [other for other in names if glob_matcher(quoted(name))(other)] == [name]


@pytest.mark.parametrize("stars", [1, MAX_STARS, 50])
def test_a_pattern_can_go_back_at_its_last_star_only(
    stars: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = "*a" * stars + "X"
    assert not glob_matcher(pattern)("a" * 5000), "with a choice at each star, this takes years"
    compile_ = re.compile
    monkeypatch.setattr(re, "compile", lambda expression, flags: compile_(expression, flags | re.DEBUG))
    glob_matcher(pattern)
    parsed = capsys.readouterr().out.splitlines()
    assert sum(line.strip().startswith(("MAX_REPEAT", "MIN_REPEAT")) for line in parsed) == stars
    assert sum(line.startswith(("MAX_REPEAT", "MIN_REPEAT")) for line in parsed) == 1
    assert sum(line.startswith("ATOMIC_GROUP") for line in parsed) == stars - 1


def test_the_number_of_stars_and_of_patterns_is_limited() -> None:
    check_patterns(["*a" * MAX_STARS] * MAX_PATTERNS + ["a"] * 1000)
    with pytest.raises(LimitExceeded, match=r"Too many \* for one pattern: 11. The maximum is 10."):
        check_patterns(["*a" * (MAX_STARS + 1)])
    with pytest.raises(LimitExceeded, match=r"Too many patterns for one request: 21. The maximum is 20."):
        check_patterns(["a?"] * (MAX_PATTERNS + 1))


def test_what_is_a_pattern() -> None:
    assert list(filter(is_pattern, ["a", "a*", "?a", "a[b", "a]", "", "a^"])) == ["a*", "?a", "a[b"]
    assert glob_to_regex("a*?.b") == r"^a.*.\.b$"

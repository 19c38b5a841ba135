"""Kinds of history entries: one form each, and an error that helps with any other."""

from __future__ import annotations

import re

from forewarn.core.history import HISTORY_KINDS, check_kind


def test_a_kind_is_hyphenated_and_has_its_own_description() -> None:
    assert [kind for kind in HISTORY_KINDS if not re.fullmatch("[a-z]+(-[a-z]+)*", kind)] == []
    assert len(set(HISTORY_KINDS.values())) == len(HISTORY_KINDS)
    assert {check_kind(kind) for kind in HISTORY_KINDS} == {""}


def test_an_unknown_kind_is_rejected_with_the_nearest_one() -> None:
    rejection = check_kind("aproved")
    assert rejection.startswith("'aproved' is not a kind of history entry. Did you mean 'approved'? Kinds: requested, ")
    assert all(kind in rejection for kind in HISTORY_KINDS)

"""Kinds of history entries: one form each, and an error that helps with any other."""

from __future__ import annotations

import re

import pytest

from forewarn.core.history import HISTORY_KINDS, check_kind

RENAMED = {
    "not told": "not-notified",
    "carried out": "executed",
    "said to be done": "marked-done",
    "wave announced": "wave-scheduled",
    "rollout done": "rollout-completed",
    "host in-use": "host-in-service",
    "fault over": "fault-expired",
}
"""As release 0.1 wrote them in its store and in webhook filters."""


def test_a_kind_is_hyphenated_and_has_its_own_description() -> None:
    assert [kind for kind in HISTORY_KINDS if not re.fullmatch("[a-z]+(-[a-z]+)*", kind)] == []
    assert len(set(HISTORY_KINDS.values())) == len(HISTORY_KINDS)
    assert {check_kind(kind) for kind in HISTORY_KINDS} == {""}


@pytest.mark.parametrize("old", RENAMED)
def test_a_renamed_kind_is_rejected_with_the_new_name(old: str) -> None:
    hyphenated = old.replace(" ", "-")
    assert check_kind(old) == f"{old!r} is now called {RENAMED[old]!r}."
    assert check_kind(hyphenated) == f"{hyphenated!r} is now called {RENAMED[old]!r}."
    assert RENAMED[old] in HISTORY_KINDS
    assert not {old, hyphenated} & HISTORY_KINDS.keys()


def test_a_kind_with_blanks_is_rejected_with_its_hyphenated_form() -> None:
    assert check_kind("rollout started") == "'rollout started' is now called 'rollout-started'."


def test_an_unknown_kind_is_rejected_with_the_nearest_one() -> None:
    rejection = check_kind("aproved")
    assert rejection.startswith("'aproved' is not a kind of history entry. Did you mean 'approved'? Kinds: requested, ")
    assert all(kind in rejection for kind in HISTORY_KINDS)

"""A test whose program is missing is skipped; not where everything is to be tested."""

from __future__ import annotations

import pytest

from programs import need


def test_what_is_there_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    need("sh")


def test_what_is_missing_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs no-such-program: see script/peers"):
        need("sh", "no-such-program")


def test_what_is_missing_fails_where_everything_is_to_be_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs no-such-program"):
        need("no-such-program")

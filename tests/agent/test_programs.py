"""A test whose program is missing is skipped; not where everything is to be tested."""

from __future__ import annotations

import pytest

from programs import need


def test_an_installed_program_is_no_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    need("sh")


def test_a_missing_program_skips_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs no-such-program: see script/peers"):
        need("sh", "no-such-program")


def test_a_missing_program_fails_where_everything_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs no-such-program"):
        need("no-such-program")

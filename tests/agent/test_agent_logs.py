"""Lines of the agent's log: for people and for programs."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from typing import TYPE_CHECKING

import pytest

from agent.events import told
from forewarn.agent import logs
from forewarn.errors import HandlerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ID = "4CAEA225-A741-474D-A72E-428C86FCD853"
log = logging.getLogger("forewarn.agent")


@pytest.fixture
def begun() -> Iterator[Callable[[str], io.StringIO]]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions

    def begin(form: str) -> io.StringIO:
        stream = io.StringIO()
        logs.begin(form, stream)
        return stream

    yield begin
    root.handlers[:], root.level, logging.raiseExceptions = before


def test_a_line_for_people(begun: Callable[[str], io.StringIO]) -> None:
    stream = begun("text")
    fields = {"handler": "stop-web", "action": "prepare", "seconds": 1.5}
    log.info("%s: is prepared", "stop-web", extra={"event": told(ID), "fields": fields})
    log.warning("the endpoint is throttling")
    log.info("by its id", extra={"event": ID})
    assert [line[8:] for line in stream.getvalue().splitlines()] == [
        " Reboot 4CAEA225: stop-web: is prepared seconds=1.5",
        " warning: the endpoint is throttling",
        " event 4CAEA225: by its id",
    ]
    assert re.match(r"\d\d:\d\d:\d\d ", stream.getvalue())


def test_a_line_for_programs(begun: Callable[[str], io.StringIO]) -> None:
    stream = begun("json")
    fields = {"handler": "stop-web", "seconds": 1.5, "message": "not this one", "odd": {1}}
    log.error("it failed", extra={"event": told(ID), "fields": fields})
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "error",
        "logger": "forewarn.agent",
        "message": "it failed",
        "event": ID,
        "type": "Reboot",
        "handler": "stop-web",
        "seconds": 1.5,
        "odd": "{1}",
    }


def test_json_where_nobody_looks(begun: Callable[[str], io.StringIO]) -> None:
    stream = begun("")
    log.info("hello")
    assert json.loads(stream.getvalue())["message"] == "hello"


@pytest.mark.parametrize("form", logs.FORMS)
def test_nothing_that_a_terminal_obeys_gets_through(begun: Callable[[str], io.StringIO], form: str) -> None:
    stream = begun(form)
    evil = "\x1b]0;gotcha\x07\x9b2J\u202e\r\x00\ud800 and\nanother line"
    try:
        raise RuntimeError(evil)
    except RuntimeError:
        log.exception("%s", evil, extra={"event": told(evil, kind=evil), "fields": {"said": evil}})
    written = stream.getvalue()
    assert not set(written) & set("\x1b\x07\x9b\u202e\r\x00\ud800")
    assert "gotcha" in written


def test_an_error_that_is_expected_has_no_trace(begun: Callable[[str], io.StringIO]) -> None:
    stream = begun("text")
    try:
        raise HandlerFailed(problem="exit code 1")
    except HandlerFailed:
        log.exception("could not stop")
    assert stream.getvalue()[9:] == "error: could not stop: exit code 1\n"
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("who has thought of this")
    assert "\n    Traceback (most recent call last):" in stream.getvalue()


def test_a_line_has_an_end(begun: Callable[[str], io.StringIO]) -> None:
    stream = begun("text")
    log.info("x" * 100_000)
    assert len(stream.getvalue()) < 10_000
    assert "(100000 letters)" in stream.getvalue()


def test_the_journal_is_told_how_grave_a_line_is(begun: Callable[[str], io.StringIO], tmp_path: Path) -> None:
    begun("text")
    with (tmp_path / "journal").open("w+") as stream:
        found = os.fstat(stream.fileno())
        logs.begin("text", stream, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
        log.info("hello")
        log.error("oh")
        stream.seek(0)
        assert [line[:3] for line in stream] == ["<6>", "<3>"]
        logs.begin("text", stream, {"JOURNAL_STREAM": "1:2"})
        stream.seek(0)
        log.info("hello")
        stream.seek(0)
        assert not stream.read().startswith("<")


def test_a_log_that_cannot_be_written_is_nobodys_end_and_nobodys_noise(
    begun: Callable[[str], io.StringIO], capsys: pytest.CaptureFixture[str]
) -> None:
    stream = begun("text")
    stream.close()
    log.info("into nothing")
    assert capsys.readouterr() == ("", "")

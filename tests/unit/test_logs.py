"""Lines of the log: text for people, JSON for programs."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from typing import TYPE_CHECKING

import pytest

from forewarn.errors import HandlerFailed
from forewarn.system.logs import LOG_FORMATS, configure_logging, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ID = "4CAEA225-A741-474D-A72E-428C86FCD853"
log = get_logger("forewarn.agent")
plain = logging.getLogger("forewarn.agent")
TIME = "2026-11-20T02:00:00Z"


@pytest.fixture
def configured() -> Iterator[Callable[[str], io.StringIO]]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions

    def configure(log_format: str) -> io.StringIO:
        stream = io.StringIO()
        configure_logging(log_format, stream)
        return stream

    yield configure
    root.handlers[:], root.level, logging.raiseExceptions = before


def test_a_text_line_has_time_level_event_name_message_and_fields(configured: Callable[[str], io.StringIO]) -> None:
    stream = configured("text")
    log.info("handler_prepared", "Handler prepared.", event_id=ID, event_type="Reboot", seconds=1.5)
    log.warning("webhook_delivery_failed", "Delivery failed; retrying.", webhook="pager", error="HTTP 503")
    lines = stream.getvalue().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)
    assert [line[len(TIME) :] for line in lines] == [
        f" INFO handler_prepared: Handler prepared. event_id={ID} event_type=Reboot seconds=1.5",
        ' WARNING webhook_delivery_failed: Delivery failed; retrying. webhook=pager error="HTTP 503"',
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("pager", "pager"),
        ("a b", '"a b"'),
        ('say "no"', r'"say \"no\""'),
        ("a=b", '"a=b"'),
        ("", '""'),
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        (("web-0", "web-1"), "web-0,web-1"),
        ([], '""'),
        ({"a": 1}, "\"{'a': 1}\""),
        ("one\ntwo", r'"one\ntwo"'),
    ],
)
def test_a_value_with_blanks_or_quotes_is_quoted(
    configured: Callable[[str], io.StringIO], value: object, text: str
) -> None:
    stream = configured("text")
    log.info("value_logged", "A value.", value=value)
    assert stream.getvalue().endswith(f" value_logged: A value. value={text}\n")


def test_a_json_line(configured: Callable[[str], io.StringIO]) -> None:
    stream = configured("json")
    log.error("handler_failed", "Handler failed.", event_id=ID, seconds=1.5, level="not this one", odd={1})
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "error",
        "event": "handler_failed",
        "message": "Handler failed.",
        "logger": "forewarn.agent",
        "event_id": ID,
        "seconds": 1.5,
        "odd": "{1}",
    }


def test_the_default_is_json_without_a_terminal(configured: Callable[[str], io.StringIO]) -> None:
    stream = configured("")
    log.info("agent_started", "Agent started.")
    assert json.loads(stream.getvalue())["event"] == "agent_started"


@pytest.mark.parametrize("log_format", LOG_FORMATS)
def test_a_plain_logging_record_has_the_event_name_log(
    configured: Callable[[str], io.StringIO], log_format: str
) -> None:
    stream = configured(log_format)
    plain.error("%d requests", 3, extra={"color_message": "\x1b[31mred", "client": "10.0.0.4"})
    written = stream.getvalue()
    if log_format == "text":
        assert written[len(TIME) :] == " ERROR log: 3 requests client=10.0.0.4\n"
    else:
        line = json.loads(written)
        assert (line["event"], line["message"], line["client"]) == ("log", "3 requests", "10.0.0.4")
        assert "color_message" not in line


def test_a_percent_sign_in_a_message_is_only_that(configured: Callable[[str], io.StringIO]) -> None:
    stream = configured("text")
    log.info("disk_filled", "The disk is 100% full: %s.")
    assert "disk_filled: The disk is 100% full: %s." in stream.getvalue()


@pytest.mark.parametrize("log_format", LOG_FORMATS)
def test_control_characters_never_reach_the_terminal(configured: Callable[[str], io.StringIO], log_format: str) -> None:
    stream = configured(log_format)
    evil = "\x7f\x1b]0;gotcha\x07\x9b2J\u202e\r\x00\ud800 and\nanother line"
    try:
        raise RuntimeError(evil)
    except RuntimeError:
        log.exception("request_failed", evil, event_id=evil, received=evil)
    plain.error("%s", evil, extra={"received": evil})
    written = stream.getvalue()
    assert not set(written) & set("\x7f\x1b\x07\x9b\u202e\r\x00\ud800")
    assert "gotcha" in written


def test_an_expected_error_has_its_text_and_no_trace(configured: Callable[[str], io.StringIO]) -> None:
    stream = configured("text")
    try:
        raise HandlerFailed(problem="exit code 1")
    except HandlerFailed:
        log.exception("handler_failed", "Handler failed.")
    assert stream.getvalue()[len(TIME) :] == ' ERROR handler_failed: Handler failed. error="exit code 1"\n'
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("loop_failed", "Unexpected error.")
    assert "\n    Traceback (most recent call last):" in stream.getvalue()


def test_an_exception_can_be_given_to_a_warning(configured: Callable[[str], io.StringIO]) -> None:
    stream = configured("json")
    log.warning("store_failed", "Commit failed.", exc_info=KeyError("x"))
    assert json.loads(stream.getvalue())["trace"] == "KeyError: 'x'"


@pytest.mark.parametrize("log_format", LOG_FORMATS)
def test_a_line_has_a_maximum_length(configured: Callable[[str], io.StringIO], log_format: str) -> None:
    stream = configured(log_format)
    log.info("text_received", "x" * 100_000, text="y" * 100_000)
    log.error("request_failed", "Failed.", exc_info=KeyError("z" * 100_000))
    assert len(stream.getvalue()) < 60_000
    assert stream.getvalue().count("(100000 characters)") == 2


def test_the_journal_gets_a_priority_for_each_line(configured: Callable[[str], io.StringIO], tmp_path: Path) -> None:
    configured("text")
    with (tmp_path / "journal").open("w+") as stream:
        found = os.fstat(stream.fileno())
        configure_logging("text", stream, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
        log.info("agent_started", "Agent started.")
        log.error("loop_failed", "Unexpected error.")
        stream.seek(0)
        assert [line[:3] for line in stream] == ["<6>", "<3>"]
        configure_logging("text", stream, {"JOURNAL_STREAM": "1:2"})
        stream.seek(0)
        log.info("agent_started", "Agent started.")
        stream.seek(0)
        assert not stream.read().startswith("<")


def test_a_closed_stream_raises_nothing_and_prints_nothing(
    configured: Callable[[str], io.StringIO], capsys: pytest.CaptureFixture[str]
) -> None:
    stream = configured("text")
    stream.close()
    log.info("agent_started", "Agent started.")
    assert capsys.readouterr() == ("", "")


def test_a_record_names_the_line_of_code_that_logged_it(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("agent_stuck", "A thread is stuck.")
    assert caplog.records[0].funcName == "test_a_record_names_the_line_of_code_that_logged_it"

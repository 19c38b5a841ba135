"""Structured logging: each line has an event name, a message and fields. Text for people, JSON for programs.

    _log = get_logger(__name__)
    _log.warning("webhook_delivery_failed", "Delivery failed; retrying.", webhook=name, error=problem)

Event names are snake_case and stable: people search for them and alert on them. The message is a fixed sentence;
everything that varies is a field.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from forewarn.core.durations import to_text
from forewarn.errors import ForewarnError
from forewarn.system.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

TEXT, JSON = LOG_FORMATS = ("text", "json")
LOG_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
PLAIN_EVENT = "log"
"""Event name of a record that was not written by an EventLogger, for example by a library."""

_MAX_MESSAGE_LENGTH = 8000
_MAX_TRACE_LENGTH = 32_000
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_HIDDEN_ATTRIBUTES = _STANDARD_ATTRIBUTES | {"event_name", "fields", "color_message"}
"""Attributes of a record that are not fields. uvicorn adds `color_message`, the message with colors."""
_JOURNAL_PRIORITIES = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}


# --- Writing a line -------------------------------------------------------------------------------


class EventLogger:
    """A logger whose lines have an event name and fields.

    `exc_info` is as in `logging`: True for the exception being handled, or an exception.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, message: str, /, **fields: Any) -> None:
        self._write(logging.DEBUG, event, message, fields)

    def info(self, event: str, message: str, /, **fields: Any) -> None:
        self._write(logging.INFO, event, message, fields)

    def warning(
        self, event: str, message: str, /, *, exc_info: BaseException | bool | None = None, **fields: Any
    ) -> None:
        self._write(logging.WARNING, event, message, fields, exc_info)

    def error(
        self, event: str, message: str, /, *, exc_info: BaseException | bool | None = None, **fields: Any
    ) -> None:
        self._write(logging.ERROR, event, message, fields, exc_info)

    def critical(
        self, event: str, message: str, /, *, exc_info: BaseException | bool | None = None, **fields: Any
    ) -> None:
        self._write(logging.CRITICAL, event, message, fields, exc_info)

    def exception(self, event: str, message: str, /, **fields: Any) -> None:
        """Log an error with the exception being handled: the text of a ForewarnError, the trace of any other."""
        self._write(logging.ERROR, event, message, fields, exc_info=True)

    def _write(
        self,
        level: int,
        event: str,
        message: str,
        fields: dict[str, Any],
        exc_info: BaseException | bool | None = None,
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {"event_name": event, "fields": fields}
            self._logger.log(level, message, exc_info=exc_info, extra=extra, stacklevel=3)


class OncePerMinute:
    """Limits repeated lines: one per key and minute. Clients cannot fill the log or the memory with new keys."""

    def __init__(self, max_keys: int = 100) -> None:
        self._max_keys = max_keys
        self._allowed_at: dict[str, float] = {}

    def allows(self, key: str, now: float) -> bool:
        """Return whether to log a line about this key. `now` is in seconds of a monotonic clock."""
        while self._allowed_at and now - next(iter(self._allowed_at.values())) >= 60.0:
            del self._allowed_at[next(iter(self._allowed_at))]
        if key in self._allowed_at or len(self._allowed_at) >= self._max_keys:
            return False
        self._allowed_at[key] = now
        return True


def get_logger(name: str) -> EventLogger:
    """Return the event logger of a module; `name` is its `__name__`."""
    return EventLogger(logging.getLogger(name))


def configure_logging(
    log_format: str = "",
    stream: TextIO | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    level: int = logging.INFO,
) -> None:
    """Send all log records to the stream (default: stderr). Default format: text on a terminal, else JSON."""
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    is_text = (log_format or (TEXT if target.isatty() else JSON)) == TEXT
    formatter = TextFormatter() if is_text else JsonFormatter()
    handler.setFormatter(JournalFormatter(formatter) if _is_journal(target, environment) else formatter)
    # If the stream cannot be written to, lose the line: do not print a trace for each one.
    logging.raiseExceptions = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def add_log_handler(handler: logging.Handler) -> None:
    """Also send all log records to this handler, before the stream: it has every line that somebody has seen."""
    logging.getLogger().handlers.insert(0, handler)


# --- Formats --------------------------------------------------------------------------------------


class TextFormatter(logging.Formatter):
    """`2026-11-20T02:00:00Z WARNING webhook_delivery_failed: Delivery failed; retrying. webhook=pager`."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_time(record, "seconds"), record.levelname, f"{_event_name(record)}:", _message(record)]
        words += [f"{name}={text_value(value)}" for name, value in _fields(record).items()]
        line = printable(" ".join(words))
        if trace := _trace(record):
            line = "\n    ".join([line, *map(printable, trace.splitlines())])
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in ASCII: no byte of it can be a control sequence of a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record, "milliseconds"),
            "level": record.levelname.lower(),
            "event": _event_name(record),
            "message": _message(record),
            "logger": record.name,
        }
        for name, value in _fields(record).items():
            line.setdefault(name, _shortened(value, _MAX_MESSAGE_LENGTH) if isinstance(value, str) else value)
        if trace := _trace(record):
            line["trace"] = trace
        return json.dumps(line, default=str)


class JournalFormatter(logging.Formatter):
    """Puts the priority before each line, where systemd's journal reads it: `<4>`."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = f"<{_JOURNAL_PRIORITIES.get(record.levelno, 6)}>"
        return "\n".join(priority + line for line in self._inner.format(record).splitlines())


def _time(record: logging.LogRecord, timespec: str) -> str:
    return to_text(datetime.fromtimestamp(record.created, timezone.utc), timespec)


def _event_name(record: logging.LogRecord) -> str:
    return str(getattr(record, "event_name", PLAIN_EVENT))


def _message(record: logging.LogRecord) -> str:
    return _shortened(record.getMessage(), _MAX_MESSAGE_LENGTH)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {name: value for name, value in vars(record).items() if name not in _HIDDEN_ATTRIBUTES}
    fields.update(getattr(record, "fields", None) or {})
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ForewarnError):
        fields.setdefault("error", str(error))
    return fields


def text_value(value: object) -> str:
    """`pager`, `1.5`, `true`, `a,b`; in quotes if it has blanks, quotes or control characters, or is empty."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple, set, frozenset)) else str(value)
    text = _shortened(text, _MAX_MESSAGE_LENGTH)
    is_bare = text.isprintable() and text and not any(letter in ' "=' for letter in text)
    return text if is_bare else json.dumps(text, ensure_ascii=False)


def _trace(record: logging.LogRecord) -> str:
    """The trace of an unexpected exception. A ForewarnError has none: its text says everything."""
    if not record.exc_info or record.exc_info[1] is None or isinstance(record.exc_info[1], ForewarnError):
        return ""
    return _shortened(logging.Formatter().formatException(record.exc_info), _MAX_TRACE_LENGTH)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def _is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether the stream goes to systemd's journal, which names its own stream in JOURNAL_STREAM."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"

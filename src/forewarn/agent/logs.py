"""The agent's log: lines for people, or lines of JSON for programs. A line about an event has its id."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from forewarn.core.durations import to_text
from forewarn.errors import ForewarnError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

TEXT, JSON = FORMS = ("text", "json")
_LONGEST = 8000
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event", "fields"}
"""What every record has; the rest was given with it."""
_SAID = frozenset({"handler", "action"})
"""Fields that the message of a line has in words: a person need not read them twice."""
_PRIORITIES = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6}


def printable(text: str) -> str:
    """The text with everything visible that a terminal would obey: it may come from the endpoint or from a program."""
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def begin(form: str, stream: TextIO | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Log from now on, in this form ("": text on a terminal, else JSON)."""
    where = sys.stderr if stream is None else stream
    writer = logging.StreamHandler(where)
    chosen = form or (TEXT if where.isatty() else JSON)
    lines = TextLines() if chosen == TEXT else JsonLines()
    writer.setFormatter(Prioritised(lines) if _is_journal(where, environment) else lines)
    # A log that cannot be written must not end the agent, nor fill the log with that.
    logging.raiseExceptions = False
    root = logging.getLogger()
    root.handlers[:] = [writer]
    root.setLevel(logging.INFO)


class TextLines(logging.Formatter):
    """`12:00:01 Reboot 4CAEA225: stop-web: is prepared`, in the machine's own time."""

    def format(self, record: logging.LogRecord) -> str:
        # Unlike all else that reads the time, a record's is the machine's own: it stands beside other logs.
        moment = datetime.fromtimestamp(record.created).astimezone()
        words = [f"{moment:%H:%M:%S}"]
        if record.levelno >= logging.WARNING:
            words.append(f"{record.levelname.lower()}:")
        event_id, event_type = _event(record)
        if event_id:
            words.append(f"{event_type or 'event'} {event_id.partition('-')[0]}:")
        words.append(_message(record))
        words += [f"{name}={value}" for name, value in _fields(record).items() if name not in _SAID]
        line = printable(" ".join(words))
        if trace := _trace(record):
            line = "\n    ".join([line, *map(printable, trace.splitlines())])
        return line


class JsonLines(logging.Formatter):
    """One object per line. ASCII alone, so no byte of it is an order to a terminal either."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": to_text(moment, "milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        event_id, event_type = _event(record)
        if event_id:
            line["event"] = event_id
        if event_type:
            line["type"] = event_type
        for name, value in _fields(record).items():
            line.setdefault(name, value)
        if trace := _trace(record):
            line["trace"] = trace
        return json.dumps(line, default=str)


class Prioritised(logging.Formatter):
    """The journal reads how grave a line is from its beginning."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        mark = f"<{_PRIORITIES.get(record.levelno, 6)}>"
        return "\n".join(mark + line for line in self._inner.format(record).splitlines())


def _event(record: logging.LogRecord) -> tuple[str, str]:
    """The id and the type of the event that a line is about: it was given as itself, or by its id."""
    event = getattr(record, "event", None)
    if event is None or isinstance(event, str):
        return event or "", ""
    return str(getattr(event, "id", "")), str(getattr(event, "type", ""))


def _message(record: logging.LogRecord) -> str:
    message = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ForewarnError) and str(error) not in message:
        message = f"{message}: {error}"
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]}… ({len(message)} letters)"


def _trace(record: logging.LogRecord) -> str:
    """Where an error came from, if it is one that nobody has expected."""
    if not record.exc_info or isinstance(record.exc_info[1], ForewarnError) or record.exc_info[1] is None:
        return ""
    return logging.Formatter().formatException(record.exc_info)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    given = {name: value for name, value in vars(record).items() if name not in _OWN}
    fields = getattr(record, "fields", None)
    return {**given, **fields} if isinstance(fields, dict) else given


def _is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether the stream goes to the journal: systemd says which one does."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"

"""log: logs events to a file of JSON lines, to the systemd journal, or to the agent's own log."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.changes import is_advisory
from forewarn.agent.clock import system_time
from forewarn.agent.handlers.handler import COMMON, PREPARE, Handler, as_variable, as_variables
from forewarn.agent.handlers.options import read_path
from forewarn.core.durations import to_text
from forewarn.errors import HandlerFailed

if TYPE_CHECKING:
    from forewarn.agent.handlers.handler import Job
    from forewarn.files.toml_reader import TomlTable

_JOURNAL = "/run/systemd/journal/socket"
_NOTICE = "5"
"""The journal's priority "notice"."""
_JOURNAL_SECONDS = 5.0


class LogHandler(Handler):
    """Changes nothing. Undo logs the end of the event."""

    def __init__(self, options: TomlTable) -> None:
        options.reject_unknown({"path", "journal", "journal_socket", *COMMON})
        self._path = read_path(options, "path")
        self._journal = options.flag("journal")
        self._socket = read_path(options, "journal_socket") or _JOURNAL

    def describe(self, action: str) -> str:
        places = [self._path] if self._path else []
        if self._to_journal():
            places.append("the journal")
        what = "the event" if action == PREPARE else "its end"
        target = " and ".join(places) or "the agent's log"
        return f"log {what} to {target}"

    def prepare(self, job: Job) -> None:
        event = job.event
        what = "" if is_advisory(event) else " is scheduled"
        self._write(job, f"{event.type} {event.received_key}{what}: {event.description or 'no description'}")

    def undo(self, job: Job) -> None:
        self._write(job, f"{job.event.type} {job.event.received_key} is over or was cancelled")

    def _to_journal(self) -> bool:
        return Path(self._socket).exists() and not self._path if self._journal is None else self._journal

    def _write(self, job: Job, message: str) -> None:
        if self._path:
            _append(self._path, job, message)
        if self._to_journal():
            _send_to_journal(self._socket, job, message)
        elif not self._path:
            job.info(message)


def _append(path: str, job: Job, message: str) -> None:
    record = {
        "time": to_text(system_time(), "milliseconds"),
        "message": message,
        "action": job.action,
        "vm": job.vm,
        "handler": job.handler,
        "event": job.event.raw,
    }
    line = f"{json.dumps(record)}\n".encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            # In one write, so that lines of several agents never mix.
            if os.write(descriptor, line) != len(line):
                raise HandlerFailed(problem=f"only a part of a line was written to {path}.")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HandlerFailed(problem=f"cannot write to {path}: {error.strerror}.") from error


def _send_to_journal(path: str, job: Job, message: str) -> None:
    """Send an entry in the journal's native protocol. A value with line ends is sent with its length."""
    fields = {"MESSAGE": message, "PRIORITY": _NOTICE, "SYSLOG_IDENTIFIER": "forewarn-agent", **as_variables(job)}
    # People search for it: the id as in other log lines.
    fields["FOREWARN_EVENT_ID"] = as_variable(job.event.received_key)
    parts = []
    for name, value in fields.items():
        text = value.encode(errors="replace")
        plain = b"\n" not in text
        parts.append(name.encode() + (b"=" if plain else b"\n" + struct.pack("<Q", len(text))) + text + b"\n")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
            journal.settimeout(max(0.01, min(_JOURNAL_SECONDS, job.seconds_left())))
            journal.sendto(b"".join(parts), path)
    except OSError as error:
        raise HandlerFailed(problem=f"cannot write to the journal at {path}: {error.strerror or error}.") from error


KIND = LogHandler

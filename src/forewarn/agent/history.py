"""The agent's history: the log entries about events, in a file of limited size in the state folder."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

from forewarn.system.logs import JsonFormatter
from forewarn.wire.document_reader import id_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE, OLDER_FILE = "history.jsonl", "history.1.jsonl"
MAX_FILE_BYTES = 500_000
"""When the file is full, it replaces the older file, and a new one begins."""
_NOT_KEPT = ("handler_started", "handler_reported", "handler_warned", "approval_repeated")
"""Entries about events without a result, which could fill the file."""


class HistoryWriter(logging.Handler):
    """Appends each log entry about an event to the file, with one write."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._folder = folder

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", None) or {}
        if "event_id" not in fields or getattr(record, "event_name", "") in _NOT_KEPT:
            return
        try:
            self._append(f"{self.format(record)}\n".encode())
        except Exception:  # noqa: BLE001 - the log has the entry too; the agent must go on
            self.handleError(record)

    def _append(self, line: bytes) -> None:
        path = self._folder / FILE
        if path.exists() and path.stat().st_size + len(line) > MAX_FILE_BYTES:
            path.replace(self._folder / OLDER_FILE)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def read_history(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries, oldest first. Skip a line that a full disk has cut off."""
    for name in (OLDER_FILE, FILE):
        try:
            lines = (folder / name).read_bytes().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            continue
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                entry.pop("logger", None)
                # Earlier agents wrote ids in upper case.
                ids = {name: entry[name] for name in ("event_id", "old_id") if isinstance(entry.get(name), str)}
                yield {**entry, **{name: id_key(value) for name, value in ids.items()}}

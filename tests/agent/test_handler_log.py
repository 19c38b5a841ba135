"""The handler `log`: a file, the journal, or the agent's own log."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from typing import TYPE_CHECKING

import pytest

from agent.jobs import LoneJob, handler_of, sample_event, then
from forewarn.errors import HandlerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    """Where the journal would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        journal.settimeout(60)
        yield journal


def fields_of(datagram: bytes) -> dict[str, str]:
    """As the journal reads them."""
    fields = {}
    while datagram:
        line, _, datagram = datagram.partition(b"\n")
        name, plain, value = line.partition(b"=")
        if not plain:
            (length,) = struct.unpack("<Q", datagram[:8])
            value, datagram = datagram[8 : 8 + length], datagram[8 + length + 1 :]
        fields[name.decode()] = value.decode()
    return fields


def test_a_file_gets_a_line_at_prepare_and_one_at_undo(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    handler = handler_of(f'kind = "log"\npath = "{path}"')
    job = LoneJob(tmp_path)
    old = os.umask(0)
    try:
        handler.prepare(job)
    finally:
        os.umask(old)
    handler.undo(then(job))
    coming, over = map(json.loads, path.read_text().splitlines())
    assert coming["event"] == over["event"] == job.event.raw
    assert (coming["action"], over["action"]) == ("prepare", "undo")
    assert (coming["vm"], coming["handler"]) == ("web-0", "it")
    assert coming["time"].endswith("Z")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert job.said == []


def test_the_journal_gets_fields(tmp_path: Path, journal: socket.socket) -> None:
    handler = handler_of(f'kind = "log"\njournal_socket = "{tmp_path}/journal"')
    assert handler.describe("prepare") == "log the event to the journal"
    event = sample_event(Description="first line\nsecond=line")
    handler.prepare(LoneJob(tmp_path, event=event))
    fields = fields_of(journal.recv(100_000))
    assert fields["MESSAGE"] == f"Reboot {event.id.lower()} is scheduled: first line\nsecond=line"
    assert fields["PRIORITY"] == "5"
    assert fields["SYSLOG_IDENTIFIER"] == "forewarn-agent"
    assert fields["FOREWARN_EVENT_ID"] == event.id.lower()
    assert fields["FOREWARN_EVENT_DESCRIPTION"] == "first line\nsecond=line"


def test_with_a_file_the_journal_is_used_only_on_request(tmp_path: Path, journal: socket.socket) -> None:
    both = f'kind = "log"\npath = "{tmp_path}/file"\njournal_socket = "{tmp_path}/journal"\n'
    assert handler_of(both).describe("undo") == f"log its end to {tmp_path}/file"
    handler = handler_of(both + "journal = true")
    assert handler.describe("undo") == f"log its end to {tmp_path}/file and the journal"
    handler.undo(LoneJob(tmp_path, "undo"))
    assert "is over or was cancelled" in fields_of(journal.recv(100_000))["MESSAGE"]
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize("more", ["", "journal = false"])
def test_without_file_and_journal_the_log_of_the_agent_is_used(tmp_path: Path, more: str) -> None:
    if more:
        (tmp_path / "journal").touch()
    handler = handler_of(f'kind = "log"\njournal_socket = "{tmp_path}/journal"\n{more}')
    job = LoneJob(tmp_path)
    assert handler.describe("prepare") == "log the event to the agent's log"
    handler.prepare(job)
    assert job.said == [f"Reboot {job.event.id.lower()} is scheduled: Virtual machine is going to be restarted."]


def test_a_failed_write_is_a_failure_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(HandlerFailed, match="cannot write to /no/such/file: No such file or directory"):
        handler_of('kind = "log"\npath = "/no/such/file"').prepare(LoneJob(tmp_path))
    with pytest.raises(HandlerFailed, match="cannot write to the journal at /no/such: No such file"):
        handler_of('kind = "log"\njournal = true\njournal_socket = "/no/such"').prepare(LoneJob(tmp_path))
    with pytest.raises(HandlerFailed, match="cannot write to /dev/full: No space left"):
        handler_of('kind = "log"\npath = "/dev/full"').prepare(LoneJob(tmp_path))

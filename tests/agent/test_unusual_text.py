"""Unusual text from the endpoint is passed on in a safe form."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.events import NOW
from agent.snapshots import event, snapshot
from forewarn.agent import status_server
from forewarn.agent.cli.status import status_lines
from forewarn.agent.metrics import render_metrics
from forewarn.agent.status_server import Watchdog

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("trouble", [None, "is\naway"])
@pytest.mark.parametrize("kind", ["x\nSTOPPING=1\nMAINPID=1", "x\rSTOPPING=1", "x\x85y\u2028z", "Re\ud800boot"])
def test_systemd_gets_one_status_line_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, trouble: str | None
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.settimeout(20)
        watchdog = Watchdog({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"})
        assert watchdog.due_at is not None
        due = watchdog.due_at
        monkeypatch.setattr(status_server, "real_seconds", lambda: due)
        polling = {**snapshot()["polling"], "error": trouble}
        watchdog.notify_if_due(lambda: snapshot(events=[event(type=kind)], polling=polling))
        fields = line.recv(4096).decode("utf-8").splitlines()
    assert len(fields) == 2
    assert fields[0] == "WATCHDOG=1"
    assert fields[1].startswith("STATUS=")


def test_a_label_with_half_a_letter_is_still_read_by_prometheus() -> None:
    text = render_metrics(snapshot(events=[event(type="Re\ud800boot", rule="a\\b")]), "1.0")
    families = {family.name: family for family in text_string_to_metric_families(text.encode().decode())}
    labels = families["forewarn_agent_event_phase"].samples[0].labels
    assert labels["type"] == "Re?boot"
    assert labels["rule"] == "a\\b"


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_the_status_handles_any_duration_and_time(moment: str) -> None:
    lines = status_lines(snapshot(events=[event(duration_seconds=10**30, not_before=moment)]), NOW)
    assert any("duration an unknown time" in line for line in lines)

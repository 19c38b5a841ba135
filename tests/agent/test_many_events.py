"""A document with 400 events, and a loop that cannot answer."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import subprocess
import threading
import uuid
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from agent.agent_process import COMMAND, SECONDS
from forewarn.agent.config_file import read_config
from forewarn.agent.loop import Agent, AgentOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

COUNT = 400
CONFIG = """
[handler.drain]
kind = "command"
prepare = ["true"]
undo = ["true"]

[[rule]]
prepare = ["drain"]
approve = "self"
"""
FSYNCS = 60
"""Far more than needed, and far less than one for each event."""


class Endpoint:
    """Serves as many events as the test wants."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.events: list[dict[str, Any]] = []
        self.unknown: set[str] = set()
        """Ids that it rejects, with all others in the same request."""
        self.approved: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _RequestHandler)
        self.server.daemon_threads = True
        self.server.endpoint = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def serve(self, count: int) -> None:
        not_before = format_datetime(datetime.now(UTC) + timedelta(minutes=15), usegmt=True)
        self.events = [
            {
                "EventId": str(uuid.uuid4()).upper(),
                "EventStatus": "Scheduled",
                "EventType": "Reboot",
                "ResourceType": "VirtualMachine",
                "Resources": ["web-0"],
                "NotBefore": not_before,
                "Description": "Host server is undergoing maintenance.",
                "EventSource": "Platform",
                "DurationInSeconds": 9,
            }
            for _ in range(count)
        ]
        self.incarnation += 1


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _endpoint(self) -> Endpoint:
        endpoint: Endpoint = self.server.endpoint  # type: ignore[attr-defined]
        return endpoint

    def do_GET(self) -> None:
        self._respond(200, {"DocumentIncarnation": self._endpoint.incarnation, "Events": self._endpoint.events})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids = [request["EventId"] for request in body["StartRequests"]]
        is_known = self._endpoint.unknown.isdisjoint(ids)
        self._endpoint.approved += ids if is_known else []
        self._respond(200 if is_known else 400, {})

    def log_message(self, *_: object) -> None:
        pass

    def _respond(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response_only(status)
        self.send_header("Date", format_datetime(datetime.now(UTC), usegmt=True))
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def running_endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    thread = threading.Thread(target=endpoint.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.server.shutdown()
        thread.join()
        endpoint.server.server_close()


def until(found: Callable[[], object]) -> None:
    """Wait for it. Each call waits for the agent."""
    deadline = datetime.now(UTC) + timedelta(seconds=SECONDS)
    while not found():
        assert datetime.now(UTC) < deadline


@contextmanager
def running_agent(endpoint: Endpoint, folder: Path) -> Iterator[Agent]:
    (folder / "agent.toml").write_text(CONFIG)
    agent = Agent(read_config(folder / "agent.toml"), AgentOptions(endpoint.url, "web-0", folder / "state"))
    thread = threading.Thread(target=agent.run)
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join()


def test_the_number_of_writes_does_not_grow_with_the_number_of_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsyncs: list[int] = []
    fsync = os.fsync

    def counted(descriptor: int) -> None:
        fsyncs.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    with running_endpoint() as endpoint, running_agent(endpoint, tmp_path) as agent:
        until(lambda: agent.snapshot()["polling"]["responses"])
        endpoint.serve(COUNT)
        until(lambda: agent.snapshot()["counts"]["approved"] == COUNT)
        assert {event["phase"] for event in agent.snapshot()["events"]} == {"approved"}
        assert sorted(endpoint.approved) == sorted(event["EventId"] for event in endpoint.events)
        assert len(json.loads((tmp_path / "state" / "state.json").read_text())["works"]) == COUNT
        assert len(fsyncs) < FSYNCS
        fsyncs.clear()
        endpoint.serve(0)
        until(lambda: not agent.snapshot()["events"])
        assert agent.snapshot()["counts"]["undone"] == 1
        assert json.loads((tmp_path / "state" / "state.json").read_text())["works"] == []
        assert len(fsyncs) < FSYNCS


def test_an_unknown_event_does_not_prevent_the_approval_of_others(tmp_path: Path) -> None:
    with running_endpoint() as endpoint, running_agent(endpoint, tmp_path) as agent:
        endpoint.serve(4)
        first, *others = [event["EventId"] for event in endpoint.events]
        endpoint.unknown = {first}
        until(lambda: agent.snapshot()["counts"]["approved"] == len(others))
        assert sorted(endpoint.approved) == sorted(others)


# --- A loop that hangs ----------------------------------------------------------------------------


BLOCKED = "the agent's loop did not answer within 2 s"


def get(address: tuple[str, int], path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(*address, timeout=SECONDS)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_a_loop_that_hangs_is_not_ready(tmp_path: Path) -> None:
    """Nobody reads the agent's log, so the loop hangs when the pipe is full."""
    config = tmp_path / "agent.toml"
    config.write_text('[handler.a]\nkind = "log"\n[[rule]]\nprepare = ["a"]\nwhen = "5m"\n')
    state = ["--state", str(tmp_path / "state")]
    command = [*COMMAND, "run", "--config", str(config), *state, "--listen", "127.0.0.1:0", "--log", "json"]
    with running_endpoint() as endpoint:
        environment = {**os.environ, "FOREWARN_ENDPOINT": endpoint.url, "FOREWARN_VM_NAME": "web-0"}
        agent = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, bufsize=0)
        assert agent.stderr is not None
        fcntl.fcntl(agent.stderr, fcntl.F_SETPIPE_SZ, 4096)
        reader = threading.Thread(target=agent.stderr.read)
        try:
            log = b""
            while not (found := re.search(rb'"address": "([^"]+):(\d+)"', log)):
                log += (data := os.read(agent.stderr.fileno(), 4096))
                assert data, log
            address = found[1].decode(), int(found[2])
            until(lambda: get(address, "/readyz")[0] == 200)
            endpoint.serve(COUNT)
            until(lambda: get(address, "/readyz") == (503, json.dumps({"ready": False, "reason": BLOCKED}) + "\n"))
            assert get(address, "/status") == (503, f"{BLOCKED}\n")
            assert get(address, "/healthz") == (200, "ok\n")
            metrics = get(address, "/metrics")[1]
            assert "\nforewarn_agent_ready 0.0\n" in metrics
            assert "forewarn_agent_events{" not in metrics
            status_command = subprocess.run(
                [*COMMAND, "status", *state], env=environment, capture_output=True, text=True
            )
            assert status_command.returncode == 6
            assert status_command.stdout == ""
            assert BLOCKED in status_command.stderr
            reader.start()
            until(lambda: get(address, "/readyz")[0] == 200)
            assert len(json.loads(get(address, "/status")[1])["events"]) == COUNT
        finally:
            if not reader.is_alive():
                reader.start()
            agent.terminate()
            agent.wait(SECONDS)
            reader.join()
            agent.stderr.close()

"""A real service in a process of its own, as a user starts it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOREWARN = str(Path(sys.executable).with_name("forewarn"))
START_SECONDS = 30
DOCUMENT = "/metadata/scheduledevents?api-version=2020-07-01"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Service:
    """`forewarn up`, with the ways in."""

    folder: Path
    process: subprocess.Popen[str] | None = None
    greeting: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def start(self, *arguments: str, **variables: str) -> Service:
        """Start it on free ports, and return when it says it is up; an early end is an error with its words."""
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")},
            "HOME": str(self.folder),
            "XDG_DATA_HOME": str(self.folder / "share"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "FOREWARN_DATA": self.data,
            "FOREWARN_METADATA": "127.0.0.1:0",
            "FOREWARN_CONTROL": "127.0.0.1:0",
            "FOREWARN_RATE_LIMIT": "0",
            **variables,
        }
        self.process = subprocess.Popen(
            [FOREWARN, "up", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("Try in another terminal"):
                break
        self.greeting = "".join(lines)
        if not lines or not lines[-1].startswith("Try"):
            raise RuntimeError(f"forewarn up ended with {self.process.wait()}: {self.greeting}")
        return self

    def stop(self) -> int:
        """SIGTERM, as an init system would."""
        assert self.process is not None
        self.process.terminate()
        return self._reap()

    def kill(self) -> int:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        return self._reap()

    def _reap(self) -> int:
        assert self.process is not None
        code = self.process.wait(timeout=START_SECONDS)
        if self.process.stdout is not None:
            self.greeting += self.process.stdout.read()
            self.process.stdout.close()
        self.process = None
        return code

    def _word(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((Path(self.data) / "service.json").read_text())
        return found

    @property
    def metadata_address(self) -> tuple[str, int]:
        host, _, port = str(self._word()["metadata"]).removeprefix("http://").rpartition(":")
        return host, int(port)

    @property
    def control_address(self) -> tuple[str, int]:
        host, _, port = str(self._word()["control"]).removeprefix("http://").rpartition(":")
        return host, int(port)

    def connect(self, address: tuple[str, int] | None = None, source: str = "127.0.0.1") -> socket.socket:
        """A bare connection, from any loopback address."""
        return socket.create_connection(address or self.metadata_address, timeout=20, source_address=(source, 0))

    def request(
        self,
        method: str = "GET",
        target: str = DOCUMENT,
        headers: dict[str, str] | None = None,
        body: bytes | str | None = None,
        *,
        source: str = "127.0.0.1",
        address: tuple[str, int] | None = None,
    ) -> Answer:
        """A request to the metadata service; with the Metadata header unless headers are given."""
        host, port = address or self.metadata_address
        connection = http.client.HTTPConnection(host, port, timeout=20, source_address=(source, 0))
        try:
            connection.request(method, target, body, {"Metadata": "true"} if headers is None else headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def document(self, **options: Any) -> Any:
        answer = self.request(**options)
        assert answer.status == 200, answer
        return answer.json()

    def approve(self, *ids: str, source: str = "127.0.0.1") -> Answer:
        body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in ids]})
        return self.request("POST", body=body, source=source)

    @property
    def token(self) -> str:
        """The admin token that the first start has left."""
        return (Path(self.data) / "admin-token").read_text().strip()

    def control(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """A request to the control API, with the service's own token."""
        host, port = self.control_address
        connection = http.client.HTTPConnection(host, port, timeout=60)
        try:
            content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            sent = {"Authorization": f"Bearer {self.token if token is None else token}", **(headers or {})}
            connection.request(method, path, content, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def answer(self, path: str) -> Any:
        """What is at a path of the control API."""
        answer = self.control("GET", path)
        assert answer.status == 200, answer
        return answer.json()

    def all(self, path: str) -> list[Any]:
        """A list of the control API, page by page."""
        found: list[Any] = []
        query = ("&" if "?" in path else "?") + "limit=1000"
        cursor = ""
        while True:
            page = self.answer(path + query + cursor)
            (name,) = page.keys() - {"next"}
            found += page[name]
            if page["next"] is None:
                return found
            cursor = f"&cursor={page['next']}"

    def restart_vm(self, name: str) -> dict[str, Any]:
        """The operation of a user's restart."""
        answer = self.control("POST", "/v1/operations", {"cause": "restart", "vms": [name]})
        assert answer.status == 201, answer
        operation: dict[str, Any] = answer.json()["operations"][0]
        return operation

    def advance(self, length: str) -> None:
        answer = self.control("POST", "/v1/clock/advance", {"by": length})
        assert answer.status == 200, answer

    def cli(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """The command line, as typed in another terminal."""
        environment = {**self.environment, **variables}
        return subprocess.run(
            [FOREWARN, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

"""A client of the feed: bare HTTP, and the lines of server-sent events read by the rules of the standard."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.testing.client import ServiceClient


class Feed:
    """One connection."""

    def __init__(
        self,
        service: ServiceClient,
        query: str = "",
        last_id: str = "",
        token: str | None = None,
        small: bool = False,
        cookie: str = "",
        seconds: float = 60,
    ) -> None:
        """It ends if it gets nothing for so many seconds."""
        host, port = service.control_address
        self._connection = http.client.HTTPConnection(host, port, timeout=seconds)
        if small:  # small buffers, so that the service soon notices a client that does not read
            connected = socket.socket()
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connected.settimeout(60)
            connected.connect((host, port))
            self._connection.sock = connected
        headers = {"Cookie": cookie} if cookie else {"Authorization": f"Bearer {token or service.token}"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        try:
            self._connection.request("GET", f"/v1/feed{query}", headers=headers)
            self.answer = self._connection.getresponse()
        except BaseException:
            self._connection.close()
            raise
        self.last_id = last_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()
        self._connection.close()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows until the connection ends or breaks."""
        kind, data, number = "", "", self.last_id
        try:
            for raw in self.answer:
                line = raw.decode().rstrip("\n")
                if line:
                    name, _, value = line.partition(": ")
                    if name == "id":
                        number = value
                    elif name == "event":
                        kind = value
                    elif name == "data":
                        data = value
                    continue
                self.last_id = number
                if data:
                    row = json.loads(data)
                    assert str(row["sequence"]) == number
                    assert row["kind"] == kind
                    yield row
                kind = data = ""
        except (OSError, http.client.HTTPException):
            return

    def messages(self) -> Iterator[tuple[str, str, Any]]:
        """Yield every message with data, also those of live topics: its event, its id (or nothing) and its data."""
        found: dict[str, str] = {}
        for raw in self.answer:
            name, _, value = raw.decode().rstrip("\n").partition(": ")
            if name:
                found[name] = value
                continue
            if "data" in found:
                yield found.get("event", ""), found.get("id", ""), json.loads(found["data"])
            found = {}

    def until(self, sequence: int) -> list[dict[str, Any]]:
        found = []
        for row in self.rows():
            found.append(row)
            if row["sequence"] >= sequence:
                return found
        raise AssertionError(f"the feed ended before row {sequence}")


class Follower:
    """Follows in a thread, and comes back when it was cut off and the service is up again."""

    def __init__(self, service: ServiceClient, query: str = "") -> None:
        self.found: list[dict[str, Any]] = []
        self.connections = 0
        self._service = service
        self._query = query
        self._last_id = ""
        self._up = threading.Event()
        self._begun = threading.Event()
        self._told = threading.Condition()
        self._done = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._up.wait()
            if self._done:
                return
            self._up.clear()
            with Feed(self._service, self._query, self._last_id) as feed:
                assert feed.answer.status == 200, feed.answer.read()
                self.connections += 1
                for row in feed.rows():
                    with self._told:
                        self.found.append(row)
                        self._told.notify_all()
                    self._last_id = feed.last_id
                    self._begun.set()
                self._last_id = feed.last_id
            self._begun.set()

    def up(self) -> None:
        """The service is up (again)."""
        self._begun.clear()
        self._up.set()

    def wait_for_more(self) -> None:
        """Wait for the first row of this connection."""
        assert self._begun.wait(60)

    def wait_for(self, sequence: int) -> None:
        with self._told:
            assert self._told.wait_for(lambda: self.found and self.found[-1]["sequence"] >= sequence, 60)

    def end(self) -> None:
        """The service is down for good."""
        self._done = True
        self._up.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

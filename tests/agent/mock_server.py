"""A server that behaves like Microsoft's mock server (Azure-Samples/scheduled-events-mock-server, 2025).

- Ids are lower case. Each change of the status, and each restart of its playback, gives the event a new id.
- NotBefore is ISO 8601.
- It compares the id in an approval exactly. Its response is 200 with the document, whether the id was right or not.
- It has no ETag and no other page, ignores the api-version, and closes the connection after each response.
"""

from __future__ import annotations

import json
import threading
import uuid
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

PATH = "/metadata/scheduledevents"


class MockServer:
    """Serves one event."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._incarnation = 1
        self._event: dict[str, Any] | None = None
        self._ahead = timedelta(0)
        self.ignores_approvals = False
        self.upper_case = False
        """Ids are upper case, as on Azure."""
        self.ids: list[str] = []
        """All ids that the event has had."""
        self.approvals: list[str] = []
        """The ids of all approvals, as received."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _MockRequestHandler)
        self._server.mock = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        return {"FOREWARN_ENDPOINT": self.url, "FOREWARN_VM_NAME": "web-0"}

    # --- The operator ---

    def schedule(self, *resources: str, event_type: str = "Reboot", seconds: int = -1) -> str:
        """Schedule an event in 15 minutes and return its id."""
        with self._guard:
            self._event = {
                "EventType": event_type,
                "ResourceType": "VirtualMachine",
                "Resources": list(resources) or ["web-0"],
                "EventSource": "User",
                "NotBefore": f"{self.now() + timedelta(minutes=15):%Y-%m-%dT%H:%M:%SZ}",
                "Description": "Virtual machine is going to be restarted as requested by authorized user.",
                "DurationInSeconds": seconds,
            }
            self._set_status("Scheduled")
            return self.ids[-1]

    def start(self) -> None:
        """Start the event, or give a started event another id."""
        with self._guard:
            self._start()

    def complete(self) -> None:
        with self._guard:
            self._event = None
            self._incarnation += 1

    def advance(self, **duration: float) -> None:
        """Move the server's clock."""
        self._ahead += timedelta(**duration)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def not_before(self) -> str:
        assert self._event is not None
        return str(self._event["NotBefore"])

    # --- The endpoint ---

    def document(self) -> dict[str, Any]:
        with self._guard:
            return {"DocumentIncarnation": self._incarnation, "Events": [self._event] if self._event else []}

    def approve(self, event_id: str) -> bool:
        """Whether there is an event. Start it if it waits and has exactly this id."""
        with self._guard:
            self.approvals.append(event_id)
            if self._event is None:
                return False
            is_right = event_id == self._event["EventId"] and self._event["EventStatus"] == "Scheduled"
            if is_right and not self.ignores_approvals:
                self._start()
            return True

    def _start(self) -> None:
        assert self._event is not None
        self._event["NotBefore"] = ""
        self._set_status("Started")

    def _set_status(self, status: str) -> None:
        assert self._event is not None
        new_id = str(uuid.uuid4())
        self.ids.append(new_id.upper() if self.upper_case else new_id)
        self._event = {**self._event, "EventId": self.ids[-1], "EventStatus": status}
        self._incarnation += 1


class _MockRequestHandler(BaseHTTPRequestHandler):
    @property
    def _mock(self) -> MockServer:
        mock: MockServer = self.server.mock  # type: ignore[attr-defined]
        return mock

    def do_GET(self) -> None:
        known = self.path.partition("?")[0] == PATH
        self._respond(200 if known else 404, self._mock.document() if known else "<h1>Not Found</h1>")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        has_event = self._mock.approve(body["StartRequests"][0]["EventId"])
        self._respond(200 if has_event else 400, self._mock.document())

    def _respond(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response_only(status)
        self.send_header("Date", format_datetime(self._mock.now(), usegmt=True))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

"""A server that behaves like Microsoft's mock of Scheduled Events (Azure-Samples/scheduled-events-mock-server)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from verify.broken_events import VERSIONS, EventModel
from verify.broken_server import BrokenService, Defect, ServerRequest, ServerResponse
from verify.defects import iso

if TYPE_CHECKING:
    from verify.broken_events import Scope

_HTML = {"Content-Type": "text/html; charset=utf-8"}


class MockService(BrokenService):
    """Microsoft's mock: one event, one document at every version, and no validation of header or version.

    Dates are ISO 8601. Ids are in lower case, compared exactly, and new at each transition. The response to an approval
    is the document.
    """

    max_body_bytes = 10**9

    def __init__(self, defect: Defect) -> None:
        super().__init__(defect)
        self.model = EventModel("one event only", "id changes", "exact ids", "never disabled")

    def _dispatch(self, vm: str, scope: Scope, request: ServerRequest) -> ServerResponse:
        if request.path != "/metadata/scheduledevents" or request.slashed:
            return ServerResponse(404, b"<h1>Not Found</h1>", dict(_HTML))
        if request.method not in ("GET", "HEAD", "OPTIONS", "POST"):
            return ServerResponse(405, b"<h1>Method Not Allowed</h1>", dict(_HTML))
        self.model.record_poll(scope)
        if request.method == "POST":
            try:
                ids = [each["EventId"] for each in json.loads(request.body).get("StartRequests", [])]
            except (ValueError, AttributeError, TypeError, KeyError):
                return self._json({"error": "Invalid JSON"}, 400)
            if not scope.events:
                return self._json(self._document(scope), 400)
            # The model's ids are in upper case, and an upper-case id is unknown here.
            self.model.approve(scope, vm, [each.swapcase() for each in ids[:1] if isinstance(each, str)])
        return self._json(self._document(scope), 200)

    def _document(self, scope: Scope) -> dict[str, Any]:
        document = self.model.document(scope, VERSIONS[-1])
        for event in document["Events"]:
            iso(event)
            event["EventId"] = event["EventId"].lower()
        return document

    def _json(self, value: Any, status: int) -> ServerResponse:
        body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode() + b"\n"
        return ServerResponse(status, body, {"Content-Type": "application/json"})


def server_header(_: ServerRequest, response: ServerResponse) -> None:
    response.headers["Server"] = "Werkzeug/3.1"
    del response.headers["x-ms-request-id"]


MOCK = Defect("Microsoft's mock", (), response=server_header)

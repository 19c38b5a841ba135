"""Which page is where. A pure function of the request and of what the agent says of itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.pages.health import hanging, readiness

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGES = {
    "/healthz": "whether the agent is well",
    "/readyz": "whether the machine may be given work",
    "/metrics": "metrics for Prometheus",
    "/status": "all that the agent knows and has done",
}
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"


class Page(NamedTuple):
    """What is answered."""

    status: int
    body: str
    content_type: str = _TEXT

    def render(self, *, with_body: bool = True) -> bytes:
        """The whole answer."""
        body = self.body.encode("utf-8", "backslashreplace")
        head = [
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if self.status == 405:
            head.append("Allow: GET, HEAD")
        return "\r\n".join([*head, "", ""]).encode("latin-1") + (body if with_body else b"")


def answer(method: str, target: str, snapshot: Mapping[str, Any]) -> Page:
    """The page that was asked for."""
    if method not in ("GET", "HEAD"):
        return Page(405, "Only GET and HEAD are answered here.\n")
    path = target.partition("?")[0]
    if path == "/healthz":
        hangs = hanging(snapshot)
        return Page(503, f"{hangs}\n") if hangs else Page(200, "ok\n")
    if path == "/readyz":
        found = readiness(snapshot)
        return Page(200 if found["ready"] else 503, json.dumps(found) + "\n", _JSON)
    if path == "/metrics":
        # What only a scraper needs is loaded when the first one comes.
        from forewarn import __version__
        from forewarn.agent.pages.metrics import render_metrics
        from forewarn.wire.metrics_text import CONTENT_TYPE

        return Page(200, render_metrics(snapshot, __version__), CONTENT_TYPE)
    if path == "/status":
        return Page(200, json.dumps(snapshot) + "\n", _JSON)
    listed = "".join(f"{name:<10} {shows}\n" for name, shows in PAGES.items())
    return Page(200 if path == "/" else 404, f"The agent's pages:\n{listed}")

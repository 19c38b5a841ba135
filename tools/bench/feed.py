"""The time from a request until its row arrives in the feed.

One client requests restarts, one after the other. Another client reads the feed. Both run in this process, so they
share one clock. The service sends the row and the response at the same time, after the commit. So the benchmark
compares the time until the row with the time until the response to the same request.
"""

from __future__ import annotations

import json
import select
import time
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING, Any

from tools.bench.connection import is_complete
from tools.bench.report import Outcome, Row, below, spread
from tools.bench.service import POLLER, Service, fleet_text

if TYPE_CHECKING:
    import socket

    from tools.bench.context import Context

REQUESTS = 500
OTHER_READERS = 50
"""Number of additional readers of the feed in the second part."""
GOAL_MS = 20


def measure(context: Context) -> Outcome:
    """Measure with one reader of the feed, and then with fifty more."""
    service = Service(context.processes, context.folder("feed"), fleet_text(1))
    service.start()
    single = _measure(context, service, 0)
    many = _measure(context, service, OTHER_READERS)
    service.stop()
    rows = [
        below(
            "from a request to its row in the feed: p99",
            single["row"]["p99_ms"],
            "ms",
            GOAL_MS,
            _response(single, "p99_ms"),
        ),
        Row(
            "from a request to its row in the feed: p50",
            f"{single['row']['p50_ms']:.3g} ms",
            _response(single, "p50_ms"),
            _ratio(single),
        ),
        below(
            f"the same with {OTHER_READERS} other readers: p99",
            many["row"]["p99_ms"],
            "ms",
            GOAL_MS,
            _response(many, "p99_ms"),
        ),
    ]
    return Outcome(rows, {"single_reader": single, "many_readers": many})


def _response(result: dict[str, Any], percentile: str) -> str:
    return f"its response {result['response'][percentile]:.3g} ms"


def _ratio(result: dict[str, Any]) -> str:
    return f"{result['ratio']['median']:.2f}"


def _measure(context: Context, service: Service, other_readers: int) -> dict[str, Any]:
    feeds = [service.control().follow("/v1/feed?kind=requested") for _ in range(other_readers + 1)]
    row_ms, response_ms = [], []
    with closing(service.control()) as control:
        for _ in range(REQUESTS):
            request = control.request_bytes("POST", "/v1/operations", {"cause": "restart", "vms": [POLLER]})
            started = time.perf_counter()
            control.raw_socket.sendall(request)
            row_seconds, response_seconds, response = _wait_for_both(feeds[0], control.raw_socket, started)
            row_ms.append(row_seconds * 1000)
            response_ms.append(response_seconds * 1000)
            operation = json.loads(response.partition(b"\r\n\r\n")[2])["operations"][0]["id"]
            # Keeps the number of scheduled events the same for every request.
            control.call("POST", f"/v1/operations/{operation}/cancel")
            for feed in feeds[1:]:
                _discard(feed)
    for feed in feeds:
        feed.close()
    result = {"row": _summary(row_ms), "response": _summary(response_ms)}
    result["ratio"] = spread([row / response for row, response in zip(row_ms, response_ms, strict=True)])
    row = result["row"]
    context.log(f"feed, {other_readers} other readers: p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms")
    return result


def _wait_for_both(feed: socket.socket, control: socket.socket, started: float) -> tuple[float, float, bytes]:
    """Return the seconds until the row, the seconds until the response, and the response."""
    row_seconds = response_seconds = 0.0
    response = b""
    while not row_seconds or not response_seconds:
        ready, _, _ = select.select([feed, control], [], [], 60)
        now = time.perf_counter() - started
        if feed in ready and b"data: " in feed.recv(65536):
            row_seconds = now
        if control in ready:
            response += control.recv(65536)
            response_seconds = now if is_complete(response) else 0.0
    return row_seconds, response_seconds, response


def _discard(feed: socket.socket) -> None:
    """Read and drop what has arrived."""
    if select.select([feed], [], [], 0)[0]:
        feed.recv(65536)


def _summary(latencies_ms: list[float]) -> dict[str, float]:
    ordered = sorted(latencies_ms)
    p99 = ordered[len(ordered) * 99 // 100]
    return {"p50_ms": median(ordered), "p99_ms": p99, "maximum_ms": ordered[-1], "count": len(ordered)}

"""How long it takes from asking for something until somebody who follows the feed is told of it.

One client asks for restarts, one after the other; another follows. Both are this process: one clock, and nothing
to be sent back. What is asked for is told when it is on disk, and the answer comes at the same time; so the time
until the answer, of the very same requests, is what it is compared with.
"""

from __future__ import annotations

import json
import select
import time
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.connection import is_whole
from bench.report import Outcome, Row, below, spread
from bench.service import POLLER, Service, fleet_text

if TYPE_CHECKING:
    import socket

    from bench.stage import Stage

REQUESTS = 500
OTHERS = 50
"""How many others follow in the second part."""
GOAL_MS = 20


def measure(stage: Stage) -> Outcome:
    """With one who follows, and with fifty others beside."""
    service = Service(stage.processes, stage.folder("feed"), fleet_text(1))
    service.start()
    alone = _measure(stage, service, 0)
    among = _measure(stage, service, OTHERS)
    service.stop()
    rows = [
        below(
            "from a request to its row in the feed: p99",
            alone["told"]["p99_ms"],
            "ms",
            GOAL_MS,
            _answer(alone, "p99_ms"),
        ),
        Row(
            "from a request to its row in the feed: p50",
            f"{alone['told']['p50_ms']:.3g} ms",
            _answer(alone, "p50_ms"),
            _ratio(alone),
        ),
        below(
            f"the same with {OTHERS} other readers: p99",
            among["told"]["p99_ms"],
            "ms",
            GOAL_MS,
            _answer(among, "p99_ms"),
        ),
    ]
    return Outcome(rows, {"alone": alone, "among_others": among})


def _answer(found: dict[str, Any], which: str) -> str:
    return f"its response {found['answered'][which]:.3g} ms"


def _ratio(found: dict[str, Any]) -> str:
    return f"{found['ratio']['median']:.2f}"


def _measure(stage: Stage, service: Service, others: int) -> dict[str, Any]:
    feeds = [service.control().follow("/v1/feed?kind=requested") for _ in range(others + 1)]
    told, answered = [], []
    with closing(service.control()) as control:
        for _ in range(REQUESTS):
            request = control.request("POST", "/v1/operations", {"cause": "restart", "vms": [POLLER]})
            begun = time.perf_counter()
            control.bare.sendall(request)
            until_told, until_answered, answer = _both(feeds[0], control.bare, begun)
            told.append(until_told * 1000)
            answered.append(until_answered * 1000)
            operation = json.loads(answer.partition(b"\r\n\r\n")[2])["operations"][0]["id"]
            # What is scheduled must not grow from one request to the next.
            control.call("POST", f"/v1/operations/{operation}/cancel")
            for feed in feeds[1:]:
                _drain(feed)
    for feed in feeds:
        feed.close()
    found = {"told": _summary(told), "answered": _summary(answered)}
    found["ratio"] = spread([one / other for one, other in zip(told, answered, strict=True)])
    stage.say(f"feed with {others} others: p50 {found['told']['p50_ms']:.2f} ms, p99 {found['told']['p99_ms']:.2f} ms")
    return found


def _both(feed: socket.socket, control: socket.socket, begun: float) -> tuple[float, float, bytes]:
    """Seconds until the row has come, seconds until the answer has, and the answer."""
    told = answered = 0.0
    answer = b""
    while not told or not answered:
        ready, _, _ = select.select([feed, control], [], [], 60)
        now = time.perf_counter() - begun
        if feed in ready and b"data: " in feed.recv(65536):
            told = now
        if control in ready:
            answer += control.recv(65536)
            answered = now if is_whole(answer) else 0.0
    return told, answered, answer


def _drain(feed: socket.socket) -> None:
    if select.select([feed], [], [], 0)[0]:
        feed.recv(65536)


def _summary(milliseconds: list[float]) -> dict[str, float]:
    each = sorted(milliseconds)
    return {"p50_ms": median(each), "p99_ms": each[len(each) * 99 // 100], "most_ms": each[-1], "count": len(each)}

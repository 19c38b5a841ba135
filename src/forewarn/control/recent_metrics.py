"""/v1/metrics/recent: metrics of the last hour, in memory, for small charts."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta
from msgspec.structs import asdict

from forewarn.clock import cpu_seconds, real_seconds, system_time
from forewarn.control.routing import Route
from forewarn.control.schema import Count, Shape, Time, help_text, json_response
from forewarn.core.durations import to_text
from forewarn.system.memory import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

INTERVAL_SECONDS = 10
SAMPLES = 360
"""One hour."""


class Totals(Shape):
    """Numbers at one moment. The first ones count since the start of the service."""

    polls: int
    approvals: int
    commits: int
    commit_seconds: float
    active_events: int
    feed_readers: int
    connections: int
    webhook_backlog: int


class MetricsSampleShape(Shape):
    """The metrics at one time. Rates are averages since the sample before; null in the first sample."""

    time: Annotated[Time, help_text("Real time, also with a virtual clock.")]
    polls_per_second: float | None
    approvals_per_second: float | None
    commits_per_second: float | None
    commit_seconds: Annotated[float | None, help_text("The mean duration of a commit; null if there was none.")]
    active_events: Count
    feed_readers: Count
    connections: Annotated[Count, help_text("Open connections to the metadata service and to the control API.")]
    cpu_share: Annotated[float | None, help_text("CPU time of the process per second; 1 is one core.")]
    resident_bytes: Count
    webhook_backlog: Annotated[Count, help_text("Rows of history that webhooks have not received yet.")]


class RecentMetricsShape(Shape):
    """The samples in columns, oldest first. All columns have the same length."""

    interval_seconds: Annotated[int, Meta(ge=1)]
    time: list[Time]
    polls_per_second: list[float | None]
    approvals_per_second: list[float | None]
    commits_per_second: list[float | None]
    commit_seconds: list[float | None]
    active_events: list[Count]
    feed_readers: list[Count]
    connections: list[Count]
    cpu_share: list[float | None]
    resident_bytes: list[Count]
    webhook_backlog: list[Count]


class RecentMetrics:
    """Takes a sample every ten seconds of real time."""

    def __init__(self, totals: Callable[[], Totals], on_sample: Callable[[], None]) -> None:
        self._totals = totals
        self._on_sample = on_sample
        self._samples: deque[MetricsSampleShape] = deque(maxlen=SAMPLES)
        self._before: tuple[float, float, Totals] | None = None
        """Real seconds, CPU seconds and totals of the last sample."""
        self._task: asyncio.Task[None] | None = None

    def routes(self) -> list[Route]:
        summary = "Return metrics of the last hour, with a sample every ten seconds."
        return [Route("GET", "/v1/metrics/recent", self.recent, summary, RecentMetricsShape)]

    async def recent(self, _: Request) -> Response:
        rows = [asdict(sample) for sample in self._samples]
        columns = {name: [row[name] for row in rows] for name in MetricsSampleShape.__struct_fields__}
        return json_response(RecentMetricsShape(interval_seconds=INTERVAL_SECONDS, **columns))

    @property
    def newest(self) -> MetricsSampleShape | None:
        return self._samples[-1] if self._samples else None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(INTERVAL_SECONDS)

    def sample(self) -> None:
        """Take a sample."""
        totals, now, cpu = self._totals(), real_seconds(), cpu_seconds()
        rates: dict[str, float | None] = dict.fromkeys(
            ("polls_per_second", "approvals_per_second", "commits_per_second", "commit_seconds", "cpu_share")
        )
        if self._before is not None:
            then, cpu_then, before = self._before
            seconds = max(now - then, 1e-9)
            commits = totals.commits - before.commits
            rates = {
                "polls_per_second": (totals.polls - before.polls) / seconds,
                "approvals_per_second": (totals.approvals - before.approvals) / seconds,
                "commits_per_second": commits / seconds,
                "commit_seconds": (totals.commit_seconds - before.commit_seconds) / commits if commits else None,
                "cpu_share": (cpu - cpu_then) / seconds,
            }
        self._before = (now, cpu, totals)
        self._samples.append(
            MetricsSampleShape(
                time=to_text(system_time()),
                active_events=totals.active_events,
                feed_readers=totals.feed_readers,
                connections=totals.connections,
                resident_bytes=resident_bytes(),
                webhook_backlog=totals.webhook_backlog,
                **rates,
            )
        )
        self._on_sample()

"""/healthz, /readyz and /metrics: for those who watch over the service itself."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from starlette.responses import Response

from forewarn import __version__
from forewarn.control.routing import Route
from forewarn.control.schema import Shape, answer, choice
from forewarn.errors import StoreFailed
from forewarn.wire.metrics_text import CONTENT_TYPE

if TYPE_CHECKING:
    from starlette.requests import Request

    from forewarn.control.metrics import Metrics
    from forewarn.engine.engine import Engine


MOST_LATE_SECONDS = 10.0
"""What is due is done within a second; ten are a sign that something holds the engine up."""


class HealthShape(Shape):
    """The service runs."""

    status: Annotated[str, choice("ok")]
    version: str


class ReadinessShape(Shape):
    """Whether the service can do its work."""

    status: Annotated[str, choice("ready", "not ready")]
    problems: list[str]


class HealthControl:
    """Whether it runs, whether it works, and how it fares."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics

    def routes(self) -> list[Route]:
        ready = "See whether the service can do its work."
        return [
            Route("GET", "/healthz", self.health, "See whether the service runs.", HealthShape, role=None),
            Route("GET", "/readyz", self.ready, ready, ReadinessShape, role=None, other_status=503),
            Route(
                "GET",
                "/metrics",
                self.metrics,
                "Read metrics, for Prometheus.",
                {"type": "string"},
                answer_type=CONTENT_TYPE,
            ),
        ]

    async def health(self, _: Request) -> Response:
        return answer(HealthShape("ok", __version__))

    async def ready(self, _: Request) -> Response:
        problems = []
        if self._engine.measurements.problem:  # perhaps nobody has tried since
            with suppress(StoreFailed):
                await self._engine.last_seen.write()
        if self._engine.measurements.problem:
            problems.append(self._engine.measurements.problem)
        late = self._engine.measurements.late_seconds()
        if late > MOST_LATE_SECONDS:
            problems.append(f"What was due {late:.0f} seconds ago is not done yet.")
        found = ReadinessShape("not ready" if problems else "ready", problems)
        return answer(found, 503 if problems else 200)

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)

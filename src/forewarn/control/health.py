"""/healthz, /readyz and /metrics: monitoring of the service itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from forewarn import __version__
from forewarn.control.routing import Route
from forewarn.control.schema import Shape, choice, help_text, json_response
from forewarn.core.durations import format_time
from forewarn.engine.clock_hold import describe_step
from forewarn.nodes.node import STALE_SECONDS
from forewarn.wire.metrics_text import CONTENT_TYPE

if TYPE_CHECKING:
    from starlette.requests import Request

    from forewarn.control.metrics import Metrics
    from forewarn.engine.engine import Engine
    from forewarn.nodes.node import Node


MAX_DELAY_SECONDS = 10.0
"""Due work normally runs within a second. Ten seconds mean that something blocks the engine."""


class HealthShape(Shape):
    """The service runs."""

    status: Annotated[str, choice("ok", "starting"), help_text("starting: the node has no state yet.")]
    version: str


class ReadinessShape(Shape):
    """Whether the service is ready."""

    status: Annotated[str, choice("ready", "not ready")]
    problems: list[str]
    role: Annotated[
        Annotated[str, choice("leader", "candidate", "follower")] | UnsetType,
        help_text("The role of this node, if the service has several."),
    ] = UNSET
    age_seconds: Annotated[float | UnsetType, help_text("How old the knowledge of this node may be.")] = UNSET


class HealthControl:
    """Health, readiness and metrics."""

    def __init__(self, engine: Engine, metrics: Metrics, node: Node | None = None) -> None:
        self._engine = engine
        self._node = node
        self._metrics = metrics

    def routes(self) -> list[Route]:
        healthy = "Return whether the service is running. A node of several answers polls then."
        ready = (
            "Return whether the service is ready: it can read and write its store, is not behind schedule, and the "
            "system clock has not jumped."
        )
        return [
            Route("GET", "/healthz", self.health, healthy, HealthShape, role=None, other_status=503),
            Route("GET", "/readyz", self.ready, ready, ReadinessShape, role=None, other_status=503),
            Route(
                "GET",
                "/metrics",
                self.metrics,
                "Return metrics in the Prometheus text format.",
                {"type": "string"},
                response_type=CONTENT_TYPE,
            ),
        ]

    async def health(self, _: Request) -> Response:
        if self._node is not None and not self._node.has_state:
            return json_response(HealthShape("starting", __version__), 503)
        return json_response(HealthShape("ok", __version__))

    async def ready(self, _: Request) -> Response:
        problems = await self._engine.store_problems()
        if self._engine.fleet_problem:
            problems.append(self._engine.fleet_problem)
        delay = self._engine.measurements.late_seconds()
        follows = self._node is not None and not self._engine.leads  # then it starts nothing
        if (jump := self._engine.clock_hold.jump) is not None and not follows:
            problems.append(
                f"The system clock jumped {describe_step(jump)} at {format_time(jump.seen_at)}. Starts, inactivity and "
                f"retention wait until {format_time(jump.until)}. To continue now, run: forewarn clock accept"
            )
        if delay > MAX_DELAY_SECONDS:
            problems.append(f"The scheduler is {delay:.0f} seconds late.")
        if self._node is not None:
            age = self._node.age_seconds
            if not self._node.has_state:
                reason = self._node.problem or "it loads the state"
                problems.append(f"This node starts, and answers no polls yet: {reason}")
            elif age > STALE_SECONDS:
                reason = self._node.problem or "it is behind"
                problems.append(f"This node has not heard from the database for {age:.0f} seconds: {reason}")
            if self._node.loss:
                problems.append(self._node.loss)
            if self._node.clock_problem:
                problems.append(self._node.clock_problem)
            if self._node.leader is None and not self._engine.leads and self._node.has_state:
                problems.append("No node leads, as far as this node knows. Polls are answered, changes wait.")
        found = ReadinessShape("not ready" if problems else "ready", problems)
        if self._node is not None:
            found.role, found.age_seconds = self._node.role.name, round(self._node.age_seconds, 3)
        return json_response(found, 503 if problems else 200)

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)

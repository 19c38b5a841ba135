"""/v1: the control API. The command line and other programs use it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response

from forewarn.control import (
    clock,
    events,
    faults,
    feed,
    fleet,
    groups,
    health,
    history,
    hosts,
    operations,
    proof,
    rollouts,
    scenarios,
    tokens,
    vms,
    webhooks,
)
from forewarn.control.auth import Authenticator, HostNames, WrongTokens
from forewarn.control.metrics import count, gauge
from forewarn.control.openapi import describe
from forewarn.control.problems import HANDLERS
from forewarn.control.request_log import RequestLog
from forewarn.control.routing import Route, starlette_routes
from forewarn.delivery.feed import Feed
from forewarn.wire.versions import available_versions

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from forewarn.control.metrics import Metrics
    from forewarn.delivery.feed import FeedLimits
    from forewarn.delivery.webhooks import Dispatcher
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults
    from forewarn.metadata.server import MetadataServer
    from forewarn.scenarios.runs import ScenarioRuns
    from forewarn.wire.metrics_text import Metric


class Control:
    """All routes of the control API."""

    def __init__(
        self,
        engine: Engine,
        metadata: MetadataServer,
        metrics: Metrics,
        webhooks: Dispatcher,
        faults: Faults,
        scenario_runs: ScenarioRuns,
        *,
        preview_versions: bool,
        proof_key: str,
        feed_limits: FeedLimits | None = None,
    ) -> None:
        self._engine = engine
        self._webhooks = webhooks
        self._faults = faults
        self._scenario_runs = scenario_runs
        self._metrics = metrics
        self._metadata = metadata
        self._proof_key = proof_key
        self._versions = available_versions(preview=preview_versions)
        self.feed = Feed(engine, feed_limits)
        self.wrong_tokens = WrongTokens()
        metrics.add(self._own_metrics)

    def stop(self) -> None:
        """End the feeds and the delayed responses."""
        self.feed.stop()
        self.wrong_tokens.stop()

    def _own_metrics(self) -> list[Metric]:
        wrong = {(): self.wrong_tokens.count}
        return [
            gauge("forewarn_feed_readers", "Clients that are connected to the feed.", [], {(): len(self.feed.readers)}),
            count("forewarn_wrong_tokens_total", "Requests to the control API with a wrong token.", [], wrong),
        ]

    @cached_property
    def routes(self) -> list[Route]:
        """All routes, in the order of the OpenAPI description."""
        return [
            *health.HealthControl(self._engine, self._metrics).routes(),
            *proof.ProofControl(self._proof_key).routes(),
            Route("GET", "/v1/openapi.json", self.openapi, "Return this description.", {"type": "object"}, tenant=True),
            *fleet.FleetControl(self._engine, self._metadata).routes(),
            *vms.VMControl(self._engine, self._versions).routes(),
            *clock.ClockControl(self._engine, self._metadata).routes(),
            *operations.OperationControl(self._engine).routes(),
            *events.EventControl(self._engine).routes(),
            *hosts.HostControl(self._engine).routes(),
            *groups.GroupControl(self._engine).routes(),
            *rollouts.RolloutControl(self._engine).routes(),
            *tokens.TokenControl(self._engine).routes(),
            *webhooks.WebhookControl(self._engine, self._webhooks).routes(),
            *faults.FaultControl(self._engine, self._faults).routes(),
            *scenarios.ScenarioControl(self._scenario_runs).routes(),
            *history.HistoryControl(self._engine).routes(),
            *feed.FeedControl(self._engine, self.feed).routes(),
        ]

    def description(self) -> dict[str, Any]:
        """Return the OpenAPI description."""
        return describe(self.routes)

    async def openapi(self, _: Request) -> Response:
        return JSONResponse(self.description())


def control_app(
    engine: Engine, control: Control, host_names: HostNames | None = None, *, has_access_log: bool = False
) -> ASGIApp:
    """Return the ASGI application: log, authentication, then the routes. Errors are problem details (RFC 9457)."""
    app = Starlette(routes=starlette_routes(control.routes), exception_handlers=HANDLERS)
    app.router.redirect_slashes = False  # a redirect would use the Host header, which the client controls
    authenticated = Authenticator(engine, app, control.wrong_tokens, host_names)
    return RequestLog(authenticated, has_access_log=has_access_log)

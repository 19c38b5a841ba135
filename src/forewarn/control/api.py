"""/v1: the control API. The command line and other programs use it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response

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
    nodes,
    operations,
    overview,
    proof,
    rollouts,
    sessions,
    settings,
    tokens,
    vms,
    webhooks,
)
from forewarn.control.auth import Authenticator, HostNames, KnownTokens, WrongTokens
from forewarn.control.leader_requests import LeaderRequests
from forewarn.control.live_topics import LiveStates
from forewarn.control.metrics import count, gauge
from forewarn.control.openapi import describe
from forewarn.control.problems import HANDLERS
from forewarn.control.request_log import RequestLog
from forewarn.control.routing import Route, starlette_routes
from forewarn.control.security_headers import SecurityHeaders
from forewarn.control.session_cookie import SessionCookie
from forewarn.control.sessions import ServiceFacts
from forewarn.control.slices import Slices
from forewarn.delivery.feed import Feed
from forewarn.wire.versions import available_versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.routing import Route as StarletteRoute
    from starlette.types import ASGIApp

    from forewarn.control.metrics import Metrics
    from forewarn.delivery.feed import FeedLimits
    from forewarn.delivery.webhooks import Dispatcher
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults
    from forewarn.metadata.server import MetadataServer
    from forewarn.nodes.forwarding import NodeForwarder
    from forewarn.nodes.node import Node
    from forewarn.settings import Value
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
        *,
        preview_versions: bool,
        proof_key: str,
        feed_limits: FeedLimits | None = None,
        service_facts: ServiceFacts | None = None,
        settings: Mapping[str, Value] | None = None,
        cookie: SessionCookie | None = None,
        session_lifetime: timedelta = timedelta(hours=12),
        node: Node | None = None,
    ) -> None:
        self._engine = engine
        self._node = node
        self._webhooks = webhooks
        self._faults = faults
        self._metrics = metrics
        self._metadata = metadata
        self._proof_key = proof_key
        self._versions = available_versions(preview=preview_versions)
        self.feed = Feed(engine, feed_limits)
        self.slices = Slices()
        self._describing = asyncio.Lock()
        self._description: bytes | None = None
        self.live_states = LiveStates(engine, self.feed.topics, webhooks)
        self.wrong_tokens = WrongTokens()
        self.tokens = KnownTokens(engine)
        self.cookie = cookie or SessionCookie()
        self._session_lifetime = session_lifetime
        self._settings = settings or {}
        self._facts = service_facts or ServiceFacts("forewarn", "simulated", False, self._versions)
        metrics.add(self._own_metrics)

    def start(self) -> None:
        """Start to publish live topics."""
        self.live_states.start()

    def stop(self) -> None:
        """End the feeds, the delayed responses, and the work that takes long."""
        self.feed.stop()
        self.slices.stop()
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
            *health.HealthControl(self._engine, self._metrics, self._node).routes(),
            *proof.ProofControl(self._proof_key).routes(),
            Route("GET", "/v1/openapi.json", self.openapi, "Return this description.", {"type": "object"}, tenant=True),
            *fleet.FleetControl(self._engine, self._metadata, self.slices).routes(),
            *overview.OverviewControl(self._engine, self.slices).routes(),
            *vms.VMControl(self._engine, self._metadata, self._versions, self.slices).routes(),
            *clock.ClockControl(self._engine, self._metadata).routes(),
            *operations.OperationControl(self._engine, self.slices).routes(),
            *events.EventControl(self._engine, self.slices).routes(),
            *hosts.HostControl(self._engine, self.slices).routes(),
            *groups.GroupControl(self._engine, self.slices).routes(),
            *rollouts.RolloutControl(self._engine, self.slices).routes(),
            *tokens.TokenControl(self._engine, self.slices).routes(),
            *sessions.SessionControl(
                self._engine, self.tokens, self.wrong_tokens, self.cookie, self._session_lifetime, self._facts
            ).routes(),
            *settings.SettingControl(self._settings).routes(),
            *nodes.NodeControl(self._engine, self._node).routes(),
            *webhooks.WebhookControl(self._engine, self._webhooks, self.slices).routes(),
            *faults.FaultControl(self._engine, self._faults).routes(),
            *history.HistoryControl(self._engine, self.slices).routes(),
            *feed.FeedControl(self._engine, self.feed).routes(),
        ]

    def description(self) -> dict[str, Any]:
        """Return the OpenAPI description."""
        return describe(self.routes)

    async def openapi(self, _: Request) -> Response:
        """The description is made once, in a thread: it takes some time."""
        async with self._describing:
            if self._description is None:
                self._description = await asyncio.to_thread(lambda: msgspec.json.encode(self.description()))
        return Response(self._description, media_type="application/json")


def control_app(
    control: Control,
    host_names: HostNames | None = None,
    public_routes: Sequence[StarletteRoute] = (),
    *,
    has_access_log: bool = False,
    forwarder: NodeForwarder | None = None,
) -> ASGIApp:
    """Return the ASGI application: log, authentication, then the routes. Errors are problem details (RFC 9457).

    `public_routes` are routes outside of the API, for everyone. With a forwarder, a node that follows sends changes to
    the leader.
    """
    routed = Starlette(routes=[*starlette_routes(control.routes), *public_routes], exception_handlers=HANDLERS)
    routed.router.redirect_slashes = False  # a redirect would use the Host header, which the client controls
    app: ASGIApp = routed if forwarder is None else LeaderRequests(routed, forwarder, control.slices)
    authenticated = Authenticator(control.tokens, control.cookie, app, control.wrong_tokens, host_names, public_routes)
    return control.slices.begin_in_turn(RequestLog(SecurityHeaders(authenticated), has_access_log=has_access_log))

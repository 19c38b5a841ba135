"""/v1: the control API, what the command line and other programs talk to."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response

from forewarn.core.access import Role
from forewarn.core.durations import format_duration, to_text
from forewarn.errors import BadRequestBody, UnknownVersion
from forewarn.server.bodies import A_LENGTH, LARGEST_FLEET, read_body, read_fields, until_gone
from forewarn.server.endpoints import Endpoint, caller, routes
from forewarn.server.event_control import EventControl
from forewarn.server.fault_control import FaultControl
from forewarn.server.feed import Feed
from forewarn.server.feed_control import FeedControl
from forewarn.server.fleet_control import apply_fleet
from forewarn.server.gate import Gate
from forewarn.server.health_control import HealthControl
from forewarn.server.history_control import HistoryControl
from forewarn.server.host_control import HostControl
from forewarn.server.metrics import gauge
from forewarn.server.openapi import describe
from forewarn.server.operation_control import OperationControl
from forewarn.server.paging import PAGING, Names, page_of_names
from forewarn.server.problems import HANDLERS
from forewarn.server.queries import Query
from forewarn.server.rollout_control import RolloutControl
from forewarn.server.scenario_control import ScenarioControl
from forewarn.server.token_control import TokenControl
from forewarn.server.webhook_control import WebhookControl
from forewarn.wire import control as shapes
from forewarn.wire.answer import JSON
from forewarn.wire.document import render
from forewarn.wire.schema import FLAG, LENGTH, TEXT, Field, choice, list_of, ref
from forewarn.wire.shapes_schema import page_schema
from forewarn.wire.versions import available_versions

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from forewarn.engine import Engine
    from forewarn.faults import Faults
    from forewarn.metadata.server import MetadataServer
    from forewarn.play.player import Player
    from forewarn.server.metrics import Metrics
    from forewarn.server.webhooks.dispatcher import Dispatcher
    from forewarn.wire.metrics_text import Metric

TOML = "application/toml"
SEEN_WITHIN = timedelta(seconds=30)
"""How long, in real time, a VM may take to see a step of a moved clock."""
LONGEST_LIMIT = timedelta(hours=1)


class Control:
    """Every endpoint, over one engine."""

    def __init__(
        self,
        engine: Engine,
        metadata: MetadataServer,
        metrics: Metrics,
        webhooks: Dispatcher,
        faults: Faults,
        player: Player,
        *,
        preview_versions: bool,
    ) -> None:
        self._engine = engine
        self._webhooks = webhooks
        self._faults = faults
        self._player = player
        self._metrics = metrics
        self._metadata = metadata
        self._versions = available_versions(preview=preview_versions)
        self.feed = Feed(engine)
        metrics.add(self._followers)
        self._vm_names = Names(engine, lambda fleet: fleet.vms)

    def _followers(self) -> list[Metric]:
        return [gauge("forewarn_feed_readers", "Clients that follow the feed.", [], {(): len(self.feed.readers)})]

    @cached_property
    def endpoints(self) -> list[Endpoint]:
        """All that can be asked."""
        vm, clock = ref("VM"), ref("Clock")
        version = Field("api-version", choice(*self._versions), "As which version; the newest if it is not said.")
        return [
            *HealthControl(self._engine, self._metrics).endpoints(),
            Endpoint("GET", "/v1/openapi.json", self.openapi, "See this description.", {"type": "object"}, tenant=True),
            Endpoint("GET", "/v1/fleet", self.fleet, "See how large the fleet is.", ref("Fleet")),
            Endpoint(
                "PUT",
                "/v1/fleet",
                self.replace_fleet,
                "Apply a fleet file.",
                ref("FleetChange"),
                Role.ADMIN,
                query=(
                    Field("source", TEXT, "What messages call the file."),
                    Field("path", TEXT, "Where it is: a start with it then knows that it was applied."),
                    Field("force", FLAG, "End the events of VMs that leave or change group."),
                ),
                body=(),
                body_type=TOML,
            ),
            Endpoint("GET", "/v1/vms", self.vms, "List VMs.", page_schema("vms", "VM"), query=PAGING),
            Endpoint("GET", "/v1/vms/{name}", self.vm, "See a VM.", vm),
            Endpoint(
                "GET",
                "/v1/vms/{name}/document",
                self.document,
                "See what a VM is told, as it is told.",
                ref("Document"),
                query=(version,),
            ),
            Endpoint("GET", "/v1/clock", self.clock, "See what time it is for the service.", clock, tenant=True),
            Endpoint(
                "POST",
                "/v1/clock/advance",
                self.advance,
                "Move a virtual clock on.",
                clock,
                Role.OPERATOR,
                body=(
                    Field("by", LENGTH, "How far.", required=True),
                    Field(
                        "seen_by",
                        list_of(TEXT),
                        "VMs that poll by themselves: each takes in every step before the next.",
                    ),
                    Field("limit", LENGTH, "How long they may take for a step, in real time; 30s if it is not said."),
                ),
            ),
            *OperationControl(self._engine).endpoints(),
            *EventControl(self._engine).endpoints(),
            *HostControl(self._engine).endpoints(),
            *RolloutControl(self._engine).endpoints(),
            *TokenControl(self._engine).endpoints(),
            *WebhookControl(self._engine, self._webhooks).endpoints(),
            *FaultControl(self._engine, self._faults).endpoints(),
            *ScenarioControl(self._player).endpoints(),
            *HistoryControl(self._engine).endpoints(),
            *FeedControl(self._engine, self.feed).endpoints(),
        ]

    async def openapi(self, _: Request) -> Response:
        return JSONResponse(describe(self.endpoints))

    # --- Fleet ------------------------------------------------------------------------------------

    async def fleet(self, _: Request) -> Response:
        fleet = self._engine.fleet
        return JSONResponse({"vms": len(fleet.vms), "groups": len(fleet.groups), "hosts": len(fleet.hosts)})

    async def replace_fleet(self, request: Request) -> Response:
        query = Query(request)
        source, path, force = query.text("source", "the fleet file"), query.text("path"), query.flag("force")
        text = (await read_body(request, LARGEST_FLEET)).decode("utf-8", errors="replace")
        by = caller(request).name
        change = await apply_fleet(self._engine, self._metadata, text, source, by, path=path, force=force)
        return JSONResponse(shapes.fleet_change_shape(change))

    async def vms(self, request: Request) -> Response:
        return page_of_names(request, "vms", self._vm_names(), self._vm)

    async def vm(self, request: Request) -> Response:
        return JSONResponse(self._vm(request.path_params["name"]))

    def _vm(self, name: str) -> dict[str, Any]:
        engine = self._engine
        vm = engine.fleet.vm(name)
        group = engine.fleet.group(vm.group)
        return shapes.vm_shape(vm, group, engine.document(vm.group), engine.last_heard(vm.group))

    async def document(self, request: Request) -> Response:
        vm = self._engine.fleet.vm(request.path_params["name"])
        asked = Query(request).text("api-version", max(self._versions))
        if asked not in self._versions:
            raise UnknownVersion(version=asked, known=", ".join(self._versions))
        kind = self._engine.fleet.group(vm.group).kind
        return Response(render(self._engine.document(vm.group), self._versions[asked], kind), media_type=JSON)

    # --- Clock --------------------------------------------------------------------------------------

    async def clock(self, _: Request) -> Response:
        return JSONResponse(self._clock())

    async def advance(self, request: Request) -> Response:
        fields = await read_fields(request)
        length, limit, vms = fields.length("by"), fields.length("limit"), fields.texts("seen_by")
        if length is None:
            raise BadRequestBody(pointer="/by", problem=f"must be {A_LENGTH}", valid=A_LENGTH)
        if limit is not None and (not vms or not timedelta(0) < limit <= LONGEST_LIMIT):
            problem = (
                f"is more than 0s, at most {format_duration(LONGEST_LIMIT)}"
                if vms
                else "is for the VMs of seen_by: name them"
            )
            raise BadRequestBody(pointer="/limit", problem=problem, valid=A_LENGTH)
        if vms:
            with self._metadata.seen.audience(vms, limit if limit is not None else SEEN_WITHIN) as audience:
                gone = asyncio.create_task(until_gone(request))
                gone.add_done_callback(lambda _: audience.abandon())
                try:
                    await self._engine.advance(length, audience)
                finally:
                    gone.cancel()
        else:
            await self._engine.advance(length)
        return JSONResponse(self._clock())

    def _clock(self) -> dict[str, Any]:
        clock, terms = self._engine.clock, self._engine.terms
        return {
            "now": to_text(clock.now()),
            "clock": "virtual" if clock.virtual else "system",
            "speed": terms.speed,
        }


def control_app(engine: Engine, control: Control) -> ASGIApp:
    """The application: token first, then the routes; every error as a problem (RFC 9457)."""
    app = Starlette(routes=routes(control.endpoints), exception_handlers=HANDLERS)
    app.router.redirect_slashes = False  # by the Host header, wherever that points
    return Gate(engine, app)

"""/v1: the control API, what the command line talks to."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forewarn import __version__
from forewarn.core.durations import parse_duration, to_text
from forewarn.errors import (
    BadRequestBody,
    BadToken,
    NotFound,
    UnknownEvent,
    UnknownVersion,
    nearest,
)
from forewarn.ports import HistoryFilter
from forewarn.server.bodies import LARGEST_FLEET, read_body, read_object, stream_list, text_of
from forewarn.server.fleet_control import apply_fleet
from forewarn.server.problems import HANDLERS, problem
from forewarn.wire import control as shapes
from forewarn.wire.answer import JSON
from forewarn.wire.document import render
from forewarn.wire.versions import available_versions

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from forewarn.core.event import Event
    from forewarn.core.operations import Operation
    from forewarn.engine import Engine
    from forewarn.server.listeners import MetadataServer

OPERATOR = "operator"
"""Who is behind the service's own token, in history."""
NEWEST_SHOWN = 1000


class Control:
    """The routes, over one engine."""

    def __init__(self, engine: Engine, metadata: MetadataServer, *, preview_versions: bool) -> None:
        self._engine = engine
        self._metadata = metadata
        self._versions = available_versions(preview=preview_versions)

    def routes(self) -> list[Route]:
        """Every path of the API."""
        return [
            Route("/healthz", self.health),
            Route("/v1/fleet", self.fleet),
            Route("/v1/fleet", self.replace_fleet, methods=["PUT"]),
            Route("/v1/vms", self.vms),
            Route("/v1/vms/{name}", self.vm),
            Route("/v1/vms/{name}/document", self.document),
            Route("/v1/operations", self.request_operation, methods=["POST"]),
            Route("/v1/operations/{id}", self.operation),
            Route("/v1/events", self.events),
            Route("/v1/events/{id}", self.event),
            Route("/v1/events/{id}/history", self.history),
            Route("/v1/events/{id}/approve", self.approve, methods=["POST"]),
            Route("/v1/events/{id}/cancel", self.cancel, methods=["POST"]),
            Route("/v1/clock", self.clock),
            Route("/v1/clock/advance", self.advance, methods=["POST"]),
        ]

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    # --- Fleet ------------------------------------------------------------------------------------

    async def fleet(self, _: Request) -> Response:
        fleet = self._engine.fleet
        return JSONResponse(
            {
                "vms": len(fleet.vms),
                "groups": [shapes.group_shape(group, len(fleet.members(name))) for name, group in fleet.groups.items()],
                "hosts": [{"name": name, "vms": list(fleet.on_host(name))} for name in fleet.hosts],
            }
        )

    async def replace_fleet(self, request: Request) -> Response:
        source = request.query_params.get("source", "the fleet file")
        force = request.query_params.get("force", "false") == "true"
        text = (await read_body(request, LARGEST_FLEET)).decode("utf-8", errors="replace")
        path = request.query_params.get("path", "")
        change = await apply_fleet(self._engine, self._metadata, text, source, OPERATOR, path=path, force=force)
        return JSONResponse(shapes.fleet_change_shape(change))

    async def vms(self, _: Request) -> Response:
        return stream_list("vms", map(self._vm, list(self._engine.fleet.vms)))

    async def vm(self, request: Request) -> Response:
        return JSONResponse(self._vm(request.path_params["name"]))

    def _vm(self, name: str) -> dict[str, Any]:
        engine = self._engine
        vm = engine.fleet.vm(name)
        group = engine.fleet.group(vm.group)
        return shapes.vm_shape(vm, group, engine.document(vm.group), engine.last_heard(vm.group))

    async def document(self, request: Request) -> Response:
        vm = self._engine.fleet.vm(request.path_params["name"])
        asked = request.query_params.get("api-version", max(self._versions))
        if asked not in self._versions:
            raise UnknownVersion(version=asked, known=", ".join(self._versions))
        kind = self._engine.fleet.group(vm.group).kind
        return Response(render(self._engine.document(vm.group), self._versions[asked], kind), media_type=JSON)

    # --- Operations and events ----------------------------------------------------------------------

    async def request_operation(self, request: Request) -> Response:
        body = await read_object(request)
        cause = text_of(body, "cause")
        vms = body.get("vms")
        if not isinstance(vms, list) or not vms or not all(isinstance(name, str) for name in vms):
            raise BadRequestBody(pointer="/vms", problem="must be a list of at least one VM's name")
        operation = await self._engine.request(cause, vms, by=OPERATOR)
        return JSONResponse(await self._operation(operation), status_code=201)

    async def operation(self, request: Request) -> Response:
        found = await self._engine.operation(request.path_params["id"].lower())
        if found is None:
            raise NotFound(name=f"operation {request.path_params['id']}")
        return JSONResponse(await self._operation(found))

    async def _operation(self, operation: Operation) -> dict[str, Any]:
        found = [await self._engine.event(event_id) for event_id in operation.events]
        return shapes.operation_shape(operation, [event for event in found if event is not None])

    async def events(self, request: Request) -> Response:
        everything = request.query_params.get("all", "false") == "true"
        events = await self._engine.past_events(NEWEST_SHOWN) if everything else self._engine.live_events()
        return stream_list("events", map(shapes.event_shape, events))

    async def event(self, request: Request) -> Response:
        return JSONResponse(shapes.event_shape(await self._find_event(request)))

    async def history(self, request: Request) -> Response:
        event = await self._find_event(request)
        entries = await self._engine.history(HistoryFilter(event=event.id, operation=event.operation))
        return JSONResponse({"history": [shapes.entry_shape(entry) for entry in entries]})

    async def approve(self, request: Request) -> Response:
        event = await self._find_event(request)
        await self._engine.approve([event.id], by=OPERATOR)
        return JSONResponse(shapes.event_shape(await self._find_event(request)))

    async def cancel(self, request: Request) -> Response:
        event = await self._find_event(request)
        return JSONResponse(shapes.event_shape(await self._engine.cancel(event.id, by=OPERATOR)))

    async def _find_event(self, request: Request) -> Event:
        """By its id, in any letter case, or by the beginning of it where that is clear."""
        wanted = request.path_params["id"].lower()
        matching = await self._engine.events_beginning(wanted)
        if len(matching) == 1:
            return matching[0]
        if matching:
            hint = " Several events begin so: write more of the id."
        else:
            hint = nearest(wanted, (event.id for event in self._engine.live_events()))
        raise UnknownEvent(event_id=request.path_params["id"], hint=hint)

    # --- Clock --------------------------------------------------------------------------------------

    async def clock(self, _: Request) -> Response:
        return JSONResponse(self._clock())

    async def advance(self, request: Request) -> Response:
        body = await read_object(request)
        length = parse_duration(text_of(body, "by"))
        await self._engine.advance(length)
        return JSONResponse(self._clock())

    def _clock(self) -> dict[str, Any]:
        clock, pace = self._engine.clock, self._engine.pace
        return {
            "now": to_text(clock.now()),
            "clock": "virtual" if clock.virtual else "system",
            "speed": pace.speed,
        }


def control_app(control: Control, token: str) -> ASGIApp:
    """The application: token first, then the routes; every error as a problem (RFC 9457)."""
    app = Starlette(
        routes=control.routes(),
        exception_handlers=HANDLERS,
    )

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/healthz" and not _has_token(scope, token):
            answer = problem(BadToken(), status=401, headers={"www-authenticate": "Bearer"})
            await answer(scope, receive, send)
        else:
            await app(scope, receive, send)

    return guarded


def _has_token(scope: Scope, token: str) -> bool:
    headers = dict(scope["headers"])
    return hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {token}".encode())

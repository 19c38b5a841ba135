"""/v1: the control API, what the command line talks to."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forewarn import __version__
from forewarn.core.durations import parse_duration, to_text
from forewarn.errors import BadToken, UnknownVersion
from forewarn.server.bodies import LARGEST_FLEET, read_body, read_object, stream_list, text_of
from forewarn.server.fleet_control import apply_fleet
from forewarn.server.host_control import HostControl
from forewarn.server.operation_control import OPERATOR, OperationControl
from forewarn.server.problems import HANDLERS, problem
from forewarn.server.rollout_control import RolloutControl
from forewarn.wire import control as shapes
from forewarn.wire.answer import JSON
from forewarn.wire.document import render
from forewarn.wire.versions import available_versions

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from forewarn.engine import Engine
    from forewarn.server.listeners import MetadataServer


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
            Route("/v1/clock", self.clock),
            Route("/v1/clock/advance", self.advance, methods=["POST"]),
            *OperationControl(self._engine).routes(),
            *HostControl(self._engine).routes(),
            *RolloutControl(self._engine).routes(),
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

    # --- Clock --------------------------------------------------------------------------------------

    async def clock(self, _: Request) -> Response:
        return JSONResponse(self._clock())

    async def advance(self, request: Request) -> Response:
        body = await read_object(request)
        length = parse_duration(text_of(body, "by"))
        await self._engine.advance(length)
        return JSONResponse(self._clock())

    def _clock(self) -> dict[str, Any]:
        clock, terms = self._engine.clock, self._engine.terms
        return {
            "now": to_text(clock.now()),
            "clock": "virtual" if clock.virtual else "system",
            "speed": terms.speed,
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

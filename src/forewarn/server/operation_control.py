"""/v1/operations and /v1/events: asking for something to happen, and what is said to it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forewarn.core import approvals, progress
from forewarn.core.explain import explain
from forewarn.core.operations import Operation, Progress, Request
from forewarn.core.placement import choose_host
from forewarn.core.requests import request as ask_for
from forewarn.errors import AlreadyOver, BadRequestBody, OperationNotSo, Unknown, UnknownEvent, nearest
from forewarn.ports import HistoryFilter
from forewarn.server.bodies import Fields, read_fields, stream_list
from forewarn.wire import control as shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.requests import Request as HttpRequest

    from forewarn.core.event import Event
    from forewarn.engine import Engine

OPERATOR = "operator"
"""Who is behind the service's own token, in history."""
NEWEST_SHOWN = 1000
MOST_COMPARED = 100
"""With how many ids a mistyped one is compared."""
MOST_DESTINATIONS = 20
"""For how many VMs it is said beforehand where they would go."""
ASKED = ("cause", "vms", "host", "type", "duration", "notice", "postpone_until", "overrides", "dry_run")

T = TypeVar("T", "Operation", "Event")


class OperationControl:
    """Operations and their events."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        return [
            Route("/v1/operations", self.operations),
            Route("/v1/operations", self.request, methods=["POST"]),
            Route("/v1/operations/{id}", self.operation),
            Route("/v1/operations/{id}/explain", self.explain_operation),
            Route("/v1/operations/{id}/history", self.operation_history),
            Route("/v1/operations/{id}/done", self.done, methods=["POST"]),
            Route("/v1/operations/{id}/failed", self.failed, methods=["POST"]),
            Route("/v1/operations/{id}/cancel", self.cancel_operation, methods=["POST"]),
            Route("/v1/events", self.events),
            Route("/v1/events/{id}", self.event),
            Route("/v1/events/{id}/history", self.history),
            Route("/v1/events/{id}/explain", self.explain_event),
            Route("/v1/events/{id}/approve", self.approve, methods=["POST"]),
            Route("/v1/events/{id}/cancel", self.cancel, methods=["POST"]),
            Route("/v1/events/{id}/postpone", self.postpone, methods=["POST"]),
        ]

    # --- Asking ---------------------------------------------------------------------------------------

    async def request(self, request: HttpRequest) -> Response:
        fields = await read_fields(request, ASKED)
        asked = Request(
            cause=fields.text("cause"),
            vms=fields.texts("vms"),
            host=fields.text("host"),
            type=fields.text("type"),
            duration=fields.length("duration"),
            notice=fields.length("notice"),
            deadline=fields.moment("postpone_until", self._engine.clock.now()),
            overrides=fields.texts("overrides"),
        )
        if not asked.vms and not asked.host:
            raise BadRequestBody(pointer="/vms", problem="must be a list of at least one VM's name; or name a host")
        if fields.flag("dry_run"):
            operations, changes = self._engine.preview(ask_for, asked, OPERATOR)
            found = [
                shapes.operation_shape(operation, [changes.events[event_id] for event_id in operation.events])
                for operation in operations
            ]
        else:
            operations = await self._engine.order(ask_for, asked, OPERATOR)
            found = [await self._shape(operation) for operation in operations]
        for shape, expected in zip(found, self._destinations(operations), strict=True):
            shape["destinations"] = expected
        dry_run = fields.flag("dry_run")
        return JSONResponse({"dry_run": dry_run, "operations": found}, status_code=200 if dry_run else 201)

    def _destinations(self, operations: Sequence[Operation]) -> Iterable[dict[str, str | None]]:
        """Where the VMs would go if it were now; None: no host fits."""
        draft, left = self._engine.draft(), MOST_DESTINATIONS
        for operation in operations:
            expected: dict[str, str | None] = {}
            pending = operation.progress is Progress.PENDING
            for name in operation.concerned(draft.fleet)[:left] if operation.moves_vms else ():
                expected[name] = choose_host(draft, draft.fleet.vm(name)) if pending else None
            left -= len(expected)
            yield expected | dict(operation.moves)

    # --- Operations -------------------------------------------------------------------------------------

    async def operations(self, request: HttpRequest) -> Response:
        """Those that are live; with all=true also those that are over."""
        found: Sequence[Operation] = list(self._engine.live_operations())
        if request.query_params.get("all", "false") == "true":
            found = await self._engine.archive.operations(NEWEST_SHOWN)
        return stream_list("operations", [await self._shape(operation) for operation in found[:NEWEST_SHOWN]])

    async def operation(self, request: HttpRequest) -> Response:
        return JSONResponse(await self._shape(await self._find(request)))

    async def explain_operation(self, request: HttpRequest) -> Response:
        return JSONResponse(self._explain(await self._find(request)))

    async def operation_history(self, request: HttpRequest) -> Response:
        operation = await self._find(request)
        return await self._history(HistoryFilter(operation=operation.id))

    async def done(self, request: HttpRequest) -> Response:
        operation = await self._find_live(request)
        after = await self._engine.end_by_hand(progress.done_by_hand, operation.id, OPERATOR)
        return JSONResponse(await self._shape(after))

    async def failed(self, request: HttpRequest) -> Response:
        fields = await read_fields(request, ("why",))
        operation = await self._find_live(request)
        after = await self._engine.end_by_hand(progress.failed, operation.id, OPERATOR, fields.text("why"))
        return JSONResponse(await self._shape(after))

    async def cancel_operation(self, request: HttpRequest) -> Response:
        operation = await self._find_live(request)
        after = await self._engine.order(approvals.cancel_operation, operation.id, OPERATOR)
        return JSONResponse(await self._shape(after))

    async def _shape(self, operation: Operation) -> dict[str, Any]:
        found = [await self._engine.archive.event(event_id) for event_id in operation.events]
        return shapes.operation_shape(operation, [event for event in found if event is not None])

    async def _find(self, request: HttpRequest) -> Operation:
        """By its id, or by the beginning of it where that is clear."""
        wanted = request.path_params["id"].lower()
        found = await self._engine.archive.operations_beginning(wanted)
        live = {operation.id: operation for operation in self._engine.live_operations()}
        if one := _only(found):
            return live.get(one.id, one)
        raise Unknown(what="operation", name=request.path_params["id"], hint=_hint(found, wanted, live))

    async def _find_live(self, request: HttpRequest) -> Operation:
        operation = await self._find(request)
        if not operation.progress.live:
            problem = "nothing more can be done to it."
            raise OperationNotSo(operation_id=operation.id, progress=operation.progress.value, problem=problem)
        return operation

    # --- Events -----------------------------------------------------------------------------------------

    async def events(self, request: HttpRequest) -> Response:
        everything = request.query_params.get("all", "false") == "true"
        live = self._engine.live_events()
        events = await self._engine.archive.past_events(NEWEST_SHOWN) if everything else live
        return stream_list("events", map(shapes.event_shape, events))

    async def event(self, request: HttpRequest) -> Response:
        return JSONResponse(shapes.event_shape(await self._find_event(request)))

    async def history(self, request: HttpRequest) -> Response:
        event = await self._find_event(request)
        return await self._history(HistoryFilter(event=event.id, operation=event.operation))

    async def _history(self, wanted: HistoryFilter) -> Response:
        entries = await self._engine.archive.history(wanted)
        return JSONResponse({"history": [shapes.entry_shape(entry) for entry in entries]})

    async def explain_event(self, request: HttpRequest) -> Response:
        event = await self._find_event(request)
        operation = await self._engine.archive.operation(event.operation)
        if operation is None:  # pragma: no cover - an event is never without its operation
            raise Unknown(what="operation", name=event.operation, hint="")
        return JSONResponse({"event": shapes.event_shape(event), **self._explain(operation)})

    def _explain(self, operation: Operation) -> dict[str, Any]:
        draft = self._engine.draft()
        rollout = draft.rollout(operation.request.rollout)
        return shapes.explanation_shape(operation, explain(draft, self._engine.terms, operation, rollout))

    async def approve(self, request: HttpRequest) -> Response:
        event = await self._find_live_event(request)
        await self._engine.order(approvals.approve, [event.id], OPERATOR)
        return JSONResponse(shapes.event_shape(await self._find_event(request)))

    async def cancel(self, request: HttpRequest) -> Response:
        event = await self._find_live_event(request)
        return JSONResponse(shapes.event_shape(await self._engine.order(approvals.cancel, event.id, OPERATOR)))

    async def postpone(self, request: HttpRequest) -> Response:
        """`by` counts from NotBefore, `until` is a moment."""
        fields = await read_fields(request, ("by", "until", "dry_run"))
        event = await self._find_live_event(request)
        until = self._until(fields, event)
        if fields.flag("dry_run"):
            after, _ = self._engine.preview(approvals.postpone, event.id, OPERATOR, until)
        else:
            after = await self._engine.order(approvals.postpone, event.id, OPERATOR, until)
        return JSONResponse(shapes.event_shape(after))

    def _until(self, fields: Fields, event: Event) -> Any:
        length, moment = fields.length("by"), fields.moment("until", self._engine.clock.now())
        if (length is None) == (moment is None):
            raise BadRequestBody(pointer="/by", problem="or /until must be given, one of them")
        return event.not_before + length if length is not None else moment

    async def _find_event(self, request: HttpRequest) -> Event:
        """By its id, in any letter case, or by the beginning of it where that is clear."""
        wanted = request.path_params["id"].lower()
        found = await self._engine.archive.events_beginning(wanted)
        if one := _only(found):
            return one
        live = {event.id: event for event in self._engine.live_events()}
        raise UnknownEvent(event_id=request.path_params["id"], hint=_hint(found, wanted, live))

    async def _find_live_event(self, request: HttpRequest) -> Event:
        event = await self._find_event(request)
        if not event.status.live:
            raise AlreadyOver(event_id=event.id, status=event.status.lower())
        return event


def _only(found: Sequence[T]) -> T | None:
    return found[0] if len(found) == 1 else None


def _hint(found: Sequence[Any], wanted: str, live: Mapping[str, Any]) -> str:
    return " Several ids begin so: write more of it." if found else nearest(wanted, islice(live, MOST_COMPARED))

"""/v1/operations: asking for something to happen, and how it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.control.events import event_shape
from forewarn.control.explanations import explanation
from forewarn.control.history import HISTORY, history_page
from forewarn.control.idempotency import make_once
from forewarn.control.input import read_fields
from forewarn.control.paging import ALL, PAGING, hint, only, page, rows_page
from forewarn.control.routing import DRY_RUN, Endpoint, caller
from forewarn.control.schema import (
    FLAG,
    LENGTH,
    MAYBE_MOMENT,
    MAYBE_NUMBER,
    MAYBE_TEXT,
    MOMENT,
    MOMENT_OR_LENGTH,
    TEXT,
    TEXTS,
    Field,
    Schema,
    choice,
    list_of,
    map_of,
    nullable,
    page_schema,
    record,
    ref,
)
from forewarn.core.access import Role
from forewarn.core.durations import seconds, to_text_if_any
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.operations import CAUSES, OVERRIDES, Health, Operation, Progress, Request
from forewarn.core.placement import choose_host
from forewarn.core.requests import request as ask_for
from forewarn.errors import BadRequestBody, OperationNotSo, Unknown
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from starlette.requests import Request as HttpRequest

    from forewarn.core.events import Event
    from forewarn.core.limits import Terms
    from forewarn.core.operations import FailedAttempt
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine


MOST_DESTINATIONS = 20
"""For how many VMs it is said beforehand where they would go."""
ASKED = (
    Field("cause", choice(*CAUSES), "What is to happen.", required=True),
    Field("vms", list_of(TEXT), "The VMs it is to happen to; or else name a host."),
    Field("host", TEXT, "The host it is to happen to, with all that is on it."),
    Field("type", choice("", *EVENT_TYPES), "The type of event, where the cause can have several."),
    Field("duration", LENGTH, "How long the interruption lasts, where the cause has one."),
    Field("notice", LENGTH, "How long beforehand it is told."),
    Field("postpone_until", MOMENT_OR_LENGTH, "Up to when it may be postponed."),
    Field("overrides", list_of(choice(*OVERRIDES)), "What is insisted on."),
    DRY_RUN,
)


class OperationControl:
    """Operations."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> list[Endpoint]:
        one, path, operator = ref("Operation"), "/v1/operations/{id}", Role.OPERATOR
        why = Field("why", TEXT, "What went wrong, for history.")
        return [
            Endpoint(
                "GET",
                "/v1/operations",
                self.operations,
                "List operations.",
                page_schema("operations", "Operation"),
                query=(ALL, *PAGING),
            ),
            Endpoint(
                "POST",
                "/v1/operations",
                self.request,
                "Ask for something to happen.",
                ref("Requested"),
                operator,
                body=ASKED,
                status=201,
                other_status=200,
                makes=True,
                leads_to=((path, "/operations/0/id"), ("/v1/events/{id}", "/operations/0/events/0/id")),
            ),
            Endpoint("GET", path, self.operation, "See an operation, until it is done and after.", one),
            Endpoint(
                "GET", f"{path}/explain", self.explain, "See why an operation waits, or waited.", ref("Explanation")
            ),
            Endpoint(
                "GET", f"{path}/history", self.history, "See what happened to an operation.", HISTORY, query=PAGING
            ),
            Endpoint("POST", f"{path}/done", self.done, "Say that the work is done.", one, operator, body=()),
            Endpoint("POST", f"{path}/failed", self.failed, "Say that the work failed.", one, operator, body=(why,)),
            Endpoint(
                "POST", f"{path}/cancel", self.cancel, "Withdraw an operation that waits.", one, operator, body=()
            ),
        ]

    async def request(self, request: HttpRequest) -> Response:
        fields = await read_fields(request)
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
            problem = "must be a list of at least one VM's name; or name a host"
            raise BadRequestBody(pointer="/vms", problem=problem, valid="a list of at least one VM's name")
        by, dry_run = caller(request).name, fields.flag("dry_run")

        def decide(draft: Draft, now: datetime, terms: Terms) -> dict[str, Any]:
            operations = ask_for(draft, now, terms, asked, by)
            found = [
                operation_shape(operation, [draft.changes.events[event_id] for event_id in operation.events])
                for operation in operations
            ]
            for shape, expected in zip(found, _destinations(draft, operations), strict=True):
                shape["destinations"] = expected
            return {"dry_run": dry_run, "operations": found}

        if dry_run:
            return JSONResponse(self._engine.preview(decide)[0])
        return await make_once(self._engine, request, fields, decide)

    async def operations(self, request: HttpRequest) -> Response:
        found, following = await rows_page(request, self._engine.archive.operations)
        return page("operations", [await self._shape(operation) for operation in found], following)

    async def operation(self, request: HttpRequest) -> Response:
        return JSONResponse(await self._shape(await self._find(request)))

    async def explain(self, request: HttpRequest) -> Response:
        return JSONResponse(explanation(self._engine, await self._find(request)))

    async def history(self, request: HttpRequest) -> Response:
        operation = await self._find(request)
        return await history_page(self._engine, request, HistoryFilter(operation=operation.id))

    async def done(self, request: HttpRequest) -> Response:
        await read_fields(request)
        operation = await self._find_live(request)
        after = await self._engine.mark_done(operation.id, caller(request).name)
        return JSONResponse(await self._shape(after))

    async def failed(self, request: HttpRequest) -> Response:
        fields = await read_fields(request)
        operation = await self._find_live(request)
        by, why = caller(request).name, fields.text("why")
        after = await self._engine.mark_failed(operation.id, by, why)
        return JSONResponse(await self._shape(after))

    async def cancel(self, request: HttpRequest) -> Response:
        await read_fields(request)
        operation = await self._find_live(request)
        after = await self._engine.cancel_operation(operation.id, caller(request).name)
        return JSONResponse(await self._shape(after))

    async def _shape(self, operation: Operation) -> dict[str, Any]:
        found = [await self._engine.archive.event(event_id) for event_id in operation.events]
        failed = self._engine.failed_attempt(operation.id)
        return operation_shape(operation, [event for event in found if event is not None], failed)

    async def _find(self, request: HttpRequest) -> Operation:
        """By its id, or by the beginning of it where that is clear."""
        wanted = request.path_params["id"].lower()
        found = await self._engine.archive.operations_beginning(wanted)
        live = {operation.id: operation for operation in self._engine.live_operations()}
        if one := only(found):
            return live.get(one.id, one)
        raise Unknown(what="operation", name=request.path_params["id"], hint=hint(found, wanted, live))

    async def _find_live(self, request: HttpRequest) -> Operation:
        operation = await self._find(request)
        if not operation.progress.live:
            problem = "nothing more can be done to it."
            raise OperationNotSo(operation_id=operation.id, progress=operation.progress.value, problem=problem)
        return operation


def _destinations(draft: Draft, operations: Sequence[Operation]) -> Iterable[dict[str, str | None]]:
    """Where the VMs would go if it were now; None: no host fits."""
    left = MOST_DESTINATIONS
    for operation in operations:
        expected: dict[str, str | None] = {}
        pending = operation.progress is Progress.PENDING
        for name in operation.concerned(draft.fleet)[:left] if operation.moves_vms else ():
            expected[name] = choose_host(draft, draft.fleet.vm(name)) if pending else None
        left -= len(expected)
        yield expected | dict(operation.moves)


SHAPES: dict[str, Schema] = {
    "Operation": record(
        {
            "id": TEXT,
            "cause": choice(*CAUSES),
            "type": MAYBE_TEXT,
            "host": MAYBE_TEXT,
            "vms": TEXTS,
            "requested_by": TEXT,
            "requested_at": MOMENT,
            "notice_seconds": MAYBE_NUMBER,
            "postpone_until": MAYBE_MOMENT,
            "overrides": list_of(choice(*OVERRIDES)),
            "rollout": MAYBE_TEXT,
            "progress": choice(*(progress.value for progress in Progress)),
            "health": nullable(choice(*(health.value for health in Health if health.value))),
            "outcome": MAYBE_TEXT,
            "events": list_of(ref("Event")),
            "not_told": map_of(TEXT),
            "moves": map_of(TEXT),
            "holds_until": MAYBE_MOMENT,
            "started_at": MAYBE_MOMENT,
            "carried_out_at": MAYBE_MOMENT,
            "settles_at": MAYBE_MOMENT,
            "ended_at": MAYBE_MOMENT,
            "last_failure": {**MAYBE_TEXT, "description": "Why the fabric's last attempt failed; it is tried again."},
            "next_attempt_at": {**MAYBE_MOMENT, "description": "When the fabric is to try again."},
            "destinations": map_of(MAYBE_TEXT),
        },
        "destinations",
    ),
    "Requested": record({"dry_run": FLAG, "operations": list_of(ref("Operation"))}),
}


def operation_shape(
    operation: Operation, events: Sequence[Event], failed: FailedAttempt | None = None
) -> dict[str, Any]:
    """An operation with its events."""
    asked = operation.request
    return {
        "id": operation.id,
        "cause": operation.cause,
        "type": operation.type or None,
        "host": operation.host or None,
        "vms": list(operation.vms),
        "requested_by": operation.requested_by,
        "requested_at": to_text_if_any(operation.requested_at),
        "notice_seconds": seconds(asked.notice),
        "postpone_until": to_text_if_any(asked.deadline),
        "overrides": list(asked.overrides),
        "rollout": asked.rollout or None,
        "progress": operation.progress.value,
        "health": operation.health.value or None,
        "outcome": operation.outcome or None,
        "events": [event_shape(event) for event in events],
        "not_told": dict(operation.unnoticed),
        "moves": dict(operation.moves),
        "holds_until": to_text_if_any(operation.holds_until),
        "started_at": to_text_if_any(operation.started_at),
        "carried_out_at": to_text_if_any(operation.carried_out_at),
        "settles_at": to_text_if_any(operation.settles_at),
        "ended_at": to_text_if_any(operation.ended_at),
        "last_failure": failed.problem if failed is not None else None,
        "next_attempt_at": to_text_if_any(failed.next_at) if failed is not None else None,
    }

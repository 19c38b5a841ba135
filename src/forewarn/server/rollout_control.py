"""/v1/rollouts: starting them, seeing them, and stopping them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.core import rollout_commands
from forewarn.core.access import Role
from forewarn.core.enabling import why_no_notice
from forewarn.core.operations import CAUSES, OVERRIDES
from forewarn.core.rollout_commands import plan
from forewarn.core.rollouts import Course, Rollout, in_order, matching
from forewarn.errors import RolloutNotSo, Unknown
from forewarn.ports import HistoryFilter
from forewarn.server.bodies import LARGEST_NUMBER, Fields, read_fields
from forewarn.server.endpoints import Endpoint, caller
from forewarn.server.finding import hint, only
from forewarn.server.history_control import HISTORY, history_page
from forewarn.server.operation_control import DRY_RUN
from forewarn.server.paging import ALL, PAGING, page, rows_page
from forewarn.server.repeats import make_once
from forewarn.wire.rollouts import plan_shape, rollout_shape
from forewarn.wire.schema import LENGTH, MOMENT_OR_LENGTH, NAME, Field, choice, list_of, ref, whole
from forewarn.wire.shapes_schema import page_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.core.fleet import Fleet
    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft
    from forewarn.engine import Engine

ASKED = (
    Field("hosts", list_of(NAME, minItems=1), "Names of hosts, or patterns like 'rack-1-*'.", required=True),
    Field("type", choice("", *CAUSES["host-update"].types), "What it does to the VMs."),
    Field("duration", LENGTH, "How long a freeze lasts."),
    Field("notice", LENGTH, "How long beforehand it is told."),
    Field("postpone_until", MOMENT_OR_LENGTH, "Up to when its events may be postponed."),
    Field("overrides", list_of(choice(*OVERRIDES)), "What is insisted on."),
    Field("budget", whole(1, LARGEST_NUMBER), "How many hosts at once."),
    Field("pause", LENGTH, "How long to wait between waves."),
    Field("health_time", LENGTH, "How long VMs may take to be well again."),
    DRY_RUN,
)


class RolloutControl:
    """Rollouts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> list[Endpoint]:
        one, path, operator, dry = ref("Rollout"), "/v1/rollouts/{id}", Role.OPERATOR, (DRY_RUN,)
        return [
            Endpoint(
                "GET",
                "/v1/rollouts",
                self.rollouts,
                "List rollouts.",
                page_schema("rollouts", "RolloutSummary"),
                query=(ALL, *PAGING),
            ),
            Endpoint(
                "POST",
                "/v1/rollouts",
                self.start,
                "Start a rollout, or see its plan.",
                {"anyOf": [one, ref("Plan")]},
                operator,
                body=ASKED,
                status=201,
                other_status=200,
                makes=True,
                leads_to=((path, "/id"),),
            ),
            Endpoint("GET", path, self.rollout, "See a rollout, and how far it has come.", one),
            Endpoint("GET", f"{path}/plan", self.plan, "See what is still to come of a rollout.", ref("Plan")),
            Endpoint("GET", f"{path}/history", self.history, "See what happened to a rollout.", HISTORY, query=PAGING),
            Endpoint("POST", f"{path}/pause", self.pause, "Pause a rollout.", one, operator, body=dry),
            Endpoint("POST", f"{path}/resume", self.resume, "Resume a rollout.", one, operator, body=dry),
            Endpoint("POST", f"{path}/cancel", self.cancel, "End a rollout.", one, operator, body=dry),
        ]

    async def start(self, request: Request) -> Response:
        fields = await read_fields(request)
        patterns, course = fields.texts("hosts"), self._course(fields)
        by = caller(request).name
        await asyncio.to_thread(_look_at, self._engine.fleet, patterns)
        if fields.flag("dry_run"):
            draft, now = self._engine.draft(), self._engine.clock.now()
            rollout = rollout_commands.prepare(draft, now, patterns, course, by)
            return await self._planned(draft, rollout)

        def decide(draft: Draft, now: datetime, terms: Terms) -> dict[str, Any]:
            return rollout_shape(rollout_commands.start(draft, now, terms, patterns, course, by))

        return await make_once(self._engine, request, fields, decide)

    def _course(self, fields: Fields) -> Course:
        usual = Course()
        pause, health_time = fields.length("pause"), fields.length("health_time")
        return Course(
            type=fields.text("type"),
            duration=fields.length("duration"),
            notice=fields.length("notice"),
            deadline=fields.moment("postpone_until", self._engine.clock.now()),
            overrides=fields.texts("overrides"),
            budget=fields.number("budget", usual.budget),
            pause=usual.pause if pause is None else pause,
            health_time=usual.health_time if health_time is None else health_time,
        )

    async def _planned(self, draft: Draft, rollout: Rollout) -> Response:
        """In a thread: a plan over thousands of hosts would hold up the polls."""
        now, terms = self._engine.clock.now(), self._engine.terms

        def listens(group: str) -> bool:
            return not why_no_notice(draft, group, now, terms)

        found = await asyncio.to_thread(plan, draft.fleet, terms, rollout, now, listens)
        return JSONResponse(plan_shape(rollout, found))

    async def rollouts(self, request: Request) -> Response:
        found, following = await rows_page(request, self._engine.archive.rollouts)
        return page("rollouts", (rollout_shape(rollout, hosts=False) for rollout in found), following)

    async def rollout(self, request: Request) -> Response:
        return JSONResponse(rollout_shape(await self._find(request)))

    async def plan(self, request: Request) -> Response:
        """What is still to come, as the fleet is now."""
        return await self._planned(self._engine.draft(), await self._find(request))

    async def history(self, request: Request) -> Response:
        rollout = await self._find(request)
        return await history_page(self._engine, request, HistoryFilter(operation=rollout.id))

    async def pause(self, request: Request) -> Response:
        return await self._turn(request, rollout_commands.pause, "paused")

    async def resume(self, request: Request) -> Response:
        return await self._turn(request, rollout_commands.resume, "resumed")

    async def cancel(self, request: Request) -> Response:
        return await self._turn(request, rollout_commands.cancel, "cancelled")

    async def _turn(
        self, request: Request, decide: Callable[[Draft, datetime, Terms, str, str], Rollout], what: str
    ) -> Response:
        fields = await read_fields(request)
        rollout = await self._find(request)
        if not rollout.stage.live:
            raise RolloutNotSo(rollout_id=rollout.id, stage=rollout.stage.value, what=what)
        if fields.flag("dry_run"):
            after, _ = self._engine.preview(decide, rollout.id, caller(request).name)
        else:
            after = await self._engine.order(decide, rollout.id, caller(request).name)
        return JSONResponse(rollout_shape(after))

    async def _find(self, request: Request) -> Rollout:
        """By its id, or by the beginning of it where that is clear."""
        wanted = request.path_params["id"].lower()
        found = await self._engine.archive.rollouts_beginning(wanted)
        live = {rollout.id: rollout for rollout in self._engine.live_rollouts()}
        if one := only(found):
            return live.get(one.id, one)
        raise Unknown(what="rollout", name=request.path_params["id"], hint=hint(found, wanted, live))


def _look_at(fleet: Fleet, patterns: Sequence[str]) -> None:
    """Have the fleet remember what is on which host: for thousands of hosts the polls should not wait for that."""
    in_order(fleet, matching(fleet.host_names(), patterns))

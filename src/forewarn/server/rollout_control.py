"""/v1/rollouts: starting them, seeing them, and stopping them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forewarn.core import rollout_walk
from forewarn.core.listening import why_no_notice
from forewarn.core.rollout import Course, Rollout, in_order, matching
from forewarn.core.rollout_plan import plan
from forewarn.errors import RolloutNotSo, Unknown, nearest
from forewarn.ports import HistoryFilter
from forewarn.server.bodies import Fields, read_fields
from forewarn.server.operation_control import OPERATOR
from forewarn.wire import control as shapes
from forewarn.wire.rollouts import plan_shape, rollout_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.core.draft import Draft
    from forewarn.core.fleet import Fleet
    from forewarn.core.terms import Terms
    from forewarn.engine import Engine

NEWEST_SHOWN = 1000
ASKED = (
    *("hosts", "type", "duration", "notice", "postpone_until", "overrides"),
    *("budget", "pause", "health_time", "dry_run"),
)


class RolloutControl:
    """Rollouts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        return [
            Route("/v1/rollouts", self.rollouts),
            Route("/v1/rollouts", self.start, methods=["POST"]),
            Route("/v1/rollouts/{id}", self.rollout),
            Route("/v1/rollouts/{id}/plan", self.plan),
            Route("/v1/rollouts/{id}/history", self.history),
            Route("/v1/rollouts/{id}/pause", self.pause, methods=["POST"]),
            Route("/v1/rollouts/{id}/resume", self.resume, methods=["POST"]),
            Route("/v1/rollouts/{id}/cancel", self.cancel, methods=["POST"]),
        ]

    async def start(self, request: Request) -> Response:
        fields = await read_fields(request, ASKED)
        patterns, course = fields.texts("hosts"), self._course(fields)
        await asyncio.to_thread(_look_at, self._engine.fleet, patterns)
        if fields.flag("dry_run"):
            draft, now = self._engine.draft(), self._engine.clock.now()
            rollout = rollout_walk.prepare(draft, now, patterns, course, OPERATOR)
            return await self._planned(draft, rollout)
        started = await self._engine.order(rollout_walk.start, patterns, course, OPERATOR)
        return JSONResponse(rollout_shape(started), status_code=201)

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
        """Those that are live; with all=true also those that are over."""
        live = self._engine.live_rollouts()
        everything = request.query_params.get("all", "false") == "true"
        found = await self._engine.archive.rollouts(NEWEST_SHOWN) if everything else live
        return JSONResponse({"rollouts": [rollout_shape(rollout, hosts=False) for rollout in found]})

    async def rollout(self, request: Request) -> Response:
        return JSONResponse(rollout_shape(await self._find(request)))

    async def plan(self, request: Request) -> Response:
        """What is still to come, as the fleet is now."""
        return await self._planned(self._engine.draft(), await self._find(request))

    async def history(self, request: Request) -> Response:
        rollout = await self._find(request)
        entries = await self._engine.archive.history(HistoryFilter(operation=rollout.id))
        return JSONResponse({"history": [shapes.entry_shape(entry) for entry in entries]})

    async def pause(self, request: Request) -> Response:
        return await self._turn(request, rollout_walk.pause, "paused")

    async def resume(self, request: Request) -> Response:
        return await self._turn(request, rollout_walk.resume, "resumed")

    async def cancel(self, request: Request) -> Response:
        return await self._turn(request, rollout_walk.cancel, "cancelled")

    async def _turn(
        self, request: Request, decide: Callable[[Draft, datetime, Terms, str, str], Rollout], what: str
    ) -> Response:
        fields = await read_fields(request, ("dry_run",))
        rollout = await self._find(request)
        if not rollout.stage.live:
            raise RolloutNotSo(rollout_id=rollout.id, stage=rollout.stage.value, what=what)
        if fields.flag("dry_run"):
            after, _ = self._engine.preview(decide, rollout.id, OPERATOR)
        else:
            after = await self._engine.order(decide, rollout.id, OPERATOR)
        return JSONResponse(rollout_shape(after))

    async def _find(self, request: Request) -> Rollout:
        """By its id, or by the beginning of it where that is clear."""
        wanted = request.path_params["id"].lower()
        known = {rollout.id: rollout for rollout in await self._engine.archive.rollouts(NEWEST_SHOWN)}
        known |= {rollout.id: rollout for rollout in self._engine.live_rollouts()}
        found = [rollout for rollout_id, rollout in known.items() if rollout_id.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        hint = " Several ids begin so: write more of it." if found else nearest(wanted, known)
        raise Unknown(what="rollout", name=request.path_params["id"], hint=hint)


def _look_at(fleet: Fleet, patterns: Sequence[str]) -> None:
    """Have the fleet remember what is on which host: for thousands of hosts the polls should not wait for that."""
    in_order(fleet, matching(fleet.host_names(), patterns))

"""/v1/rollouts: start, show and stop them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.control.history import HISTORY, history_page
from forewarn.control.idempotency import make_once
from forewarn.control.input import LARGEST_NUMBER, Fields, read_fields
from forewarn.control.paging import ALL, PAGING, hint, only, page, rows_page
from forewarn.control.routing import DRY_RUN, Endpoint, caller
from forewarn.control.schema import (
    COUNT,
    LENGTH,
    MAYBE_MOMENT,
    MAYBE_NUMBER,
    MAYBE_TEXT,
    MOMENT,
    MOMENT_OR_LENGTH,
    NAME,
    TEXT,
    TEXTS,
    Field,
    Schema,
    choice,
    list_of,
    page_schema,
    record,
    ref,
    whole,
)
from forewarn.core import rollout_commands
from forewarn.core.access import Role
from forewarn.core.durations import seconds, to_text, to_text_if_any
from forewarn.core.enabling import why_no_notice
from forewarn.core.operations import CAUSES, OVERRIDES
from forewarn.core.rollout_commands import plan
from forewarn.core.rollouts import Course, Rollout, Stage, in_order, matching
from forewarn.errors import RolloutNotSo, Unknown
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.core.fleet import Fleet
    from forewarn.core.limits import Terms
    from forewarn.core.rollout_commands import Plan
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine


def rollout_shape(rollout: Rollout, *, hosts: bool = True) -> dict[str, Any]:
    """A rollout and how far it has come; without its hosts by name where many are listed."""
    under_way = [{"host": host, "operation": operation} for host, operation in rollout.under_way]
    shape = {
        "id": rollout.id,
        "hosts": list(rollout.patterns),
        **_course(rollout.course),
        "requested_by": rollout.requested_by,
        "requested_at": to_text(rollout.requested_at),
        "stage": rollout.stage.value,
        "wave": rollout.wave,
        "counts": {
            "waiting": len(rollout.waiting),
            "under_way": len(rollout.under_way),
            "done": len(rollout.done),
            "skipped": len(rollout.skipped),
        },
        "next_at": to_text_if_any(rollout.next_at),
        "outcome": rollout.outcome or None,
        "ended_at": to_text_if_any(rollout.ended_at),
    }
    if hosts:
        shape["waiting"] = list(rollout.waiting)
        shape["under_way"] = under_way
        shape["done"] = list(rollout.done)
        shape["skipped"] = [{"host": host, "why": why} for host, why in rollout.skipped]
    return shape


def _course(course: Course) -> dict[str, Any]:
    return {
        "type": course.type,
        "duration_seconds": seconds(course.duration),
        "notice_seconds": seconds(course.notice),
        "postpone_until": to_text_if_any(course.deadline),
        "overrides": list(course.overrides),
        "budget": course.budget,
        "pause_seconds": seconds(course.pause),
        "health_seconds": seconds(course.health_time),
    }


def plan_shape(rollout: Rollout, plan: Plan) -> dict[str, Any]:
    """What a rollout would do, and when."""
    return {
        "hosts": list(rollout.patterns),
        **_course(rollout.course),
        "waves": [
            {
                "hosts": list(wave.hosts),
                "groups": [{"group": group, "update_domain": domain} for group, domain in wave.domains],
                "vms": wave.vms,
                "announced_at": to_text(wave.announced_at),
                "starts_at": to_text(wave.starts_at),
                "ends_at": to_text(wave.ends_at),
            }
            for wave in plan.waves
        ],
        "skipped": [{"host": host, "why": why} for host, why in plan.skipped],
        "expected_end": to_text(plan.expected_end),
        "longest_end": to_text(plan.longest_end),
    }


# --- Routes ---------------------------------------------------------------------------------------


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
            after = await self._engine.execute(decide, rollout.id, caller(request).name)
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


_COURSE: dict[str, Schema] = {
    "type": TEXT,
    "duration_seconds": MAYBE_NUMBER,
    "notice_seconds": MAYBE_NUMBER,
    "postpone_until": MAYBE_MOMENT,
    "overrides": list_of(choice(*OVERRIDES)),
    "budget": COUNT,
    "pause_seconds": MAYBE_NUMBER,
    "health_seconds": MAYBE_NUMBER,
}


_SKIPPED = list_of(record({"host": TEXT, "why": TEXT}))


_ROLLOUT: dict[str, Schema] = {
    "id": TEXT,
    "hosts": TEXTS,
    **_COURSE,
    "requested_by": TEXT,
    "requested_at": MOMENT,
    "stage": choice(*(stage.value for stage in Stage)),
    "wave": COUNT,
    "counts": record(dict.fromkeys(("waiting", "under_way", "done", "skipped"), COUNT)),
    "next_at": MAYBE_MOMENT,
    "outcome": MAYBE_TEXT,
    "ended_at": MAYBE_MOMENT,
}


SHAPES: dict[str, Schema] = {
    "RolloutSummary": record(_ROLLOUT),
    "Rollout": record(
        {
            **_ROLLOUT,
            "waiting": TEXTS,
            "under_way": list_of(record({"host": TEXT, "operation": TEXT})),
            "done": TEXTS,
            "skipped": _SKIPPED,
        }
    ),
    "Plan": record(
        {
            "hosts": TEXTS,
            **_COURSE,
            "waves": list_of(
                record(
                    {
                        "hosts": TEXTS,
                        "groups": list_of(record({"group": TEXT, "update_domain": COUNT})),
                        "vms": COUNT,
                        "announced_at": MOMENT,
                        "starts_at": MOMENT,
                        "ends_at": MOMENT,
                    }
                )
            ),
            "skipped": _SKIPPED,
            "expected_end": MOMENT,
            "longest_end": MOMENT,
        }
    ),
}

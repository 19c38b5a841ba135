"""/v1/rollouts: start, show and stop them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Self

from msgspec import UNSET, Meta, Struct, UnsetType

from forewarn.control.history import HISTORY, history_page
from forewarn.control.idempotency import make_once
from forewarn.control.input import read_body, read_length, read_moment
from forewarn.control.paging import Paging, PagingAll, hint, only, page, rows_page
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    LARGEST_NUMBER,
    Count,
    DryRun,
    Length,
    Moment,
    MomentOrLength,
    Name,
    Shape,
    answer,
    choice,
    help_text,
    page_of,
    whole,
)
from forewarn.core import rollout_commands
from forewarn.core.access import Role
from forewarn.core.durations import seconds, to_text, to_text_if_any
from forewarn.core.enabling import why_no_notice
from forewarn.core.operations import CAUSES, OVERRIDES
from forewarn.core.rollout_commands import plan
from forewarn.core.rollouts import Course, Rollout, Stage, in_order, matching
from forewarn.errors import UnknownResource, WrongRolloutStatus
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.core.fleet import Fleet
    from forewarn.core.limits import Terms
    from forewarn.core.rollout_commands import Plan, Wave
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine


class CourseShape(Struct, forbid_unknown_fields=True):
    """How a rollout goes about it: part of rollouts and of plans."""

    type: str
    duration_seconds: float | None
    notice_seconds: float | None
    postpone_until: Moment | None
    overrides: list[Annotated[str, choice(*OVERRIDES)]]
    budget: Count
    pause_seconds: float | None
    health_seconds: float | None
    hosts: list[str]


def _course(rollout: Rollout) -> dict[str, Any]:
    course = rollout.course
    return {
        "type": course.type,
        "duration_seconds": seconds(course.duration),
        "notice_seconds": seconds(course.notice),
        "postpone_until": to_text_if_any(course.deadline),
        "overrides": list(course.overrides),
        "budget": course.budget,
        "pause_seconds": seconds(course.pause),
        "health_seconds": seconds(course.health_time),
        "hosts": list(rollout.patterns),
    }


class CountsShape(Shape):
    """How many hosts of a rollout are where."""

    waiting: Count
    under_way: Count
    done: Count
    skipped: Count


class HostUnderWayShape(Shape):
    """A host that a rollout works on."""

    host: str
    operation: str


class SkippedHostShape(Shape):
    """A host that a rollout leaves out."""

    host: str
    why: str


class RolloutShape(CourseShape, kw_only=True):
    """A rollout and how far it has come."""

    id: str
    requested_by: str
    requested_at: Moment
    stage: Annotated[str, choice(*(stage.value for stage in Stage))]
    wave: Count
    counts: CountsShape
    next_at: Moment | None
    outcome: str | None
    ended_at: Moment | None
    # Not in lists: these can be long.
    waiting: list[str] | UnsetType = UNSET
    under_way: list[HostUnderWayShape] | UnsetType = UNSET
    done: list[str] | UnsetType = UNSET
    skipped: list[SkippedHostShape] | UnsetType = UNSET

    @classmethod
    def of(cls, rollout: Rollout, *, hosts: bool = True) -> Self:
        """Without its hosts by name where many are listed."""
        shape = cls(
            **_course(rollout),
            id=rollout.id,
            requested_by=rollout.requested_by,
            requested_at=to_text(rollout.requested_at),
            stage=rollout.stage.value,
            wave=rollout.wave,
            counts=CountsShape(len(rollout.waiting), len(rollout.under_way), len(rollout.done), len(rollout.skipped)),
            next_at=to_text_if_any(rollout.next_at),
            outcome=rollout.outcome or None,
            ended_at=to_text_if_any(rollout.ended_at),
        )
        if hosts:
            shape.waiting = list(rollout.waiting)
            shape.under_way = [HostUnderWayShape(*each) for each in rollout.under_way]
            shape.done = list(rollout.done)
            shape.skipped = [SkippedHostShape(*each) for each in rollout.skipped]
        return shape


class GroupDomainShape(Shape):
    """The update domain of a group that a wave takes out."""

    group: str
    update_domain: Count


class WaveShape(Shape):
    """Hosts that a rollout takes out together."""

    hosts: list[str]
    groups: list[GroupDomainShape]
    vms: Count
    announced_at: Moment
    starts_at: Moment
    ends_at: Moment

    @classmethod
    def of(cls, wave: Wave) -> Self:
        return cls(
            hosts=list(wave.hosts),
            groups=[GroupDomainShape(group, domain) for group, domain in wave.domains],
            vms=wave.vms,
            announced_at=to_text(wave.announced_at),
            starts_at=to_text(wave.starts_at),
            ends_at=to_text(wave.ends_at),
        )


class PlanShape(CourseShape, kw_only=True):
    """What a rollout would do, and when."""

    waves: list[WaveShape]
    skipped: list[SkippedHostShape]
    expected_end: Moment
    longest_end: Moment

    @classmethod
    def of(cls, rollout: Rollout, plan: Plan) -> Self:
        return cls(
            **_course(rollout),
            waves=list(map(WaveShape.of, plan.waves)),
            skipped=[SkippedHostShape(*each) for each in plan.skipped],
            expected_end=to_text(plan.expected_end),
            longest_end=to_text(plan.longest_end),
        )


class RolloutRequest(DryRun, kw_only=True):
    """Which hosts are updated, and how."""

    hosts: Annotated[
        list[Name],
        Meta(extra_json_schema={"minItems": 1}),
        help_text("Names of hosts, or patterns like 'rack-1-*'."),
    ]
    type: Annotated[
        Annotated[str, choice("", *CAUSES["host-update"].types)] | None, help_text("What it does to the VMs.")
    ] = None
    duration: Annotated[Length | None, help_text("How long a freeze lasts.")] = None
    notice: Annotated[Length | None, help_text("How long beforehand it is told.")] = None
    postpone_until: Annotated[MomentOrLength | None, help_text("Up to when its events may be postponed.")] = None
    overrides: Annotated[list[Annotated[str, choice(*OVERRIDES)]] | None, help_text("What is insisted on.")] = None
    budget: Annotated[
        Annotated[int, whole(1, LARGEST_NUMBER)] | None,
        help_text("How many hosts at once."),
    ] = None
    pause: Annotated[Length | None, help_text("How long to wait between waves.")] = None
    health_time: Annotated[Length | None, help_text("How long VMs may take to be well again.")] = None


class RolloutControl:
    """Rollouts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> list[Endpoint]:
        one, path, operator, dry = RolloutShape, "/v1/rollouts/{id}", Role.OPERATOR, DryRun
        return [
            Endpoint(
                "GET",
                "/v1/rollouts",
                self.rollouts,
                "List rollouts.",
                page_of("rollouts", one),
                query=PagingAll,
            ),
            Endpoint(
                "POST",
                "/v1/rollouts",
                self.start,
                "Start a rollout, or see its plan.",
                (one, PlanShape),
                operator,
                body=RolloutRequest,
                status=201,
                other_status=200,
                makes=True,
                leads_to=((path, "/id"),),
            ),
            Endpoint("GET", path, self.rollout, "See a rollout, and how far it has come.", one),
            Endpoint("GET", f"{path}/plan", self.plan, "See what is still to come of a rollout.", PlanShape),
            Endpoint("GET", f"{path}/history", self.history, "See what happened to a rollout.", HISTORY, query=Paging),
            Endpoint("POST", f"{path}/pause", self.pause, "Pause a rollout.", one, operator, body=dry),
            Endpoint("POST", f"{path}/resume", self.resume, "Resume a rollout.", one, operator, body=dry),
            Endpoint("POST", f"{path}/cancel", self.cancel, "End a rollout.", one, operator, body=dry),
        ]

    async def start(self, request: Request) -> Response:
        body = await read_body(request, RolloutRequest)
        patterns, course = tuple(body.hosts), self._course(body)
        by = caller(request).name
        await asyncio.to_thread(_look_at, self._engine.fleet, patterns)
        if body.dry_run:
            draft, now = self._engine.draft(), self._engine.clock.now()
            rollout = rollout_commands.prepare(draft, now, patterns, course, by)
            return await self._planned(draft, rollout)

        def decide(draft: Draft, now: datetime, terms: Terms) -> RolloutShape:
            return RolloutShape.of(rollout_commands.start(draft, now, terms, patterns, course, by))

        return await make_once(self._engine, request, decide)

    def _course(self, body: RolloutRequest) -> Course:
        usual = Course()
        pause, health_time = read_length(body.pause, "/pause"), read_length(body.health_time, "/health_time")
        return Course(
            type=body.type or "",
            duration=read_length(body.duration, "/duration"),
            notice=read_length(body.notice, "/notice"),
            deadline=read_moment(body.postpone_until, "/postpone_until", self._engine.clock.now()),
            overrides=tuple(body.overrides or ()),
            budget=usual.budget if body.budget is None else body.budget,
            pause=usual.pause if pause is None else pause,
            health_time=usual.health_time if health_time is None else health_time,
        )

    async def _planned(self, draft: Draft, rollout: Rollout) -> Response:
        """In a thread: a plan over thousands of hosts would hold up the polls."""
        now, terms = self._engine.clock.now(), self._engine.terms

        def listens(group: str) -> bool:
            return not why_no_notice(draft, group, now, terms)

        found = await asyncio.to_thread(plan, draft.fleet, terms, rollout, now, listens)
        return answer(PlanShape.of(rollout, found))

    async def rollouts(self, request: Request) -> Response:
        found, following = await rows_page(request, self._engine.records.rollouts)
        return page("rollouts", (RolloutShape.of(rollout, hosts=False) for rollout in found), following)

    async def rollout(self, request: Request) -> Response:
        return answer(RolloutShape.of(await self._find(request)))

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
        body = await read_body(request, DryRun)
        rollout = await self._find(request)
        if not rollout.stage.live:
            raise WrongRolloutStatus(rollout_id=rollout.id, stage=rollout.stage.value, what=what)
        if body.dry_run:
            after, _ = self._engine.preview(decide, rollout.id, caller(request).name)
        else:
            after = await self._engine.execute(decide, rollout.id, caller(request).name)
        return answer(RolloutShape.of(after))

    async def _find(self, request: Request) -> Rollout:
        """By its id, or by the beginning of it where that is clear."""
        wanted = request.path_params["id"].lower()
        found = await self._engine.records.rollouts_beginning(wanted)
        live = {rollout.id: rollout for rollout in self._engine.live_rollouts()}
        if one := only(found):
            return live.get(one.id, one)
        raise UnknownResource(what="rollout", name=request.path_params["id"], hint=hint(found, wanted, live))


def _look_at(fleet: Fleet, patterns: Sequence[str]) -> None:
    """Have the fleet remember what is on which host: for thousands of hosts the polls should not wait for that."""
    in_order(fleet, matching(fleet.host_names(), patterns))

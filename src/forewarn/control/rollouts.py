"""/v1/rollouts: start, show, pause and cancel rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

from msgspec import UNSET, Meta, Struct, UnsetType

from forewarn.control.explanations import RolloutExplanationShape, rollout_explanation
from forewarn.control.filters import find_rollout
from forewarn.control.idempotency import create_once
from forewarn.control.input import read_body, read_duration, read_interruption, read_time
from forewarn.control.paging import PagingAll, page, rows_page
from forewarn.control.routing import Route, caller
from forewarn.control.schema import (
    MAX_NUMBER,
    Count,
    Description,
    DryRun,
    Duration,
    Interruption,
    Name,
    RequireNotice,
    Shape,
    Speed,
    Time,
    TimeOrDuration,
    at_most,
    choice,
    help_text,
    integer,
    json_response,
    page_of,
)
from forewarn.core import rollout_commands
from forewarn.core.access import Role
from forewarn.core.durations import seconds, to_text, to_text_if_any
from forewarn.core.operations import CAUSES, OVERRIDES, UNKNOWN_DURATION
from forewarn.core.rollout_commands import MAX_NAMED_HOSTS
from forewarn.core.rollouts import Rollout, RolloutSettings, RolloutStatus
from forewarn.errors import WrongRolloutStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.rollout_commands import RolloutPlan, Wave
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps
    from forewarn.engine.engine import Engine


class RolloutSettingsShape(Struct, forbid_unknown_fields=True):
    """The settings of a rollout: part of rollouts and of plans."""

    type: str
    duration_seconds: float | None
    notice_seconds: float | None
    postpone_deadline: Time | None
    overrides: list[Annotated[str, choice(*OVERRIDES)]]
    require_notice: bool
    max_unavailable: Count
    pause_seconds: float | None
    health_timeout_seconds: float | None
    hosts: list[str]


def _settings(rollout: Rollout) -> dict[str, Any]:
    settings = rollout.settings
    return {
        "type": settings.type,
        "duration_seconds": None if settings.duration == UNKNOWN_DURATION else seconds(settings.duration),
        "notice_seconds": seconds(settings.notice),
        "postpone_deadline": to_text_if_any(settings.postpone_deadline),
        "overrides": list(settings.overrides),
        "require_notice": settings.require_notice,
        "max_unavailable": settings.max_unavailable,
        "pause_seconds": seconds(settings.pause),
        "health_timeout_seconds": seconds(settings.health_timeout),
        "hosts": list(rollout.patterns),
    }


class RolloutCountsShape(Shape):
    """The number of hosts in each state."""

    pending: Count
    in_progress: Count
    done: Count
    skipped: Count


class HostInProgressShape(Shape):
    """A host that a rollout is updating."""

    host: str
    operation: str


class SkippedHostShape(Shape):
    """A host that a rollout skips."""

    host: str
    reason: str


class RolloutShape(RolloutSettingsShape, kw_only=True):
    """A rollout and its progress."""

    id: str
    requested_by: str
    requested_at: Time
    status: Annotated[str, choice(*(status.value for status in RolloutStatus))]
    wave: Count
    counts: RolloutCountsShape
    next_wave_at: Time | None
    reason: str | None
    ended_at: Time | None
    # Only in the response for one rollout: they can be long.
    pending: list[str] | UnsetType = UNSET
    in_progress: list[HostInProgressShape] | UnsetType = UNSET
    done: list[str] | UnsetType = UNSET
    skipped: list[SkippedHostShape] | UnsetType = UNSET

    @classmethod
    def of(cls, rollout: Rollout, *, hosts: bool = True) -> Self:
        """Host names are left out of lists of rollouts."""
        shape = cls(
            **_settings(rollout),
            id=rollout.id,
            requested_by=rollout.requested_by,
            requested_at=to_text(rollout.requested_at),
            status=rollout.status.value,
            wave=rollout.wave,
            counts=RolloutCountsShape(
                len(rollout.pending), len(rollout.in_progress), len(rollout.done), len(rollout.skipped)
            ),
            next_wave_at=to_text_if_any(rollout.next_wave_at),
            reason=rollout.reason or None,
            ended_at=to_text_if_any(rollout.ended_at),
        )
        if hosts:
            shape.pending = list(rollout.pending)
            shape.in_progress = [HostInProgressShape(*each) for each in rollout.in_progress]
            shape.done = list(rollout.done)
            shape.skipped = [SkippedHostShape(*each) for each in rollout.skipped]
        return shape


class GroupDomainShape(Shape):
    """The update domain of a group that a wave updates."""

    group: str
    update_domain: Count


class WaveShape(Shape):
    """Hosts that a rollout updates together."""

    hosts: list[str]
    groups: list[GroupDomainShape]
    vms: Count
    scheduled_at: Time
    starts_at: Time
    ends_at: Time

    @classmethod
    def of(cls, wave: Wave) -> Self:
        return cls(
            hosts=list(wave.hosts),
            groups=[GroupDomainShape(group, domain) for group, domain in wave.domains],
            vms=wave.vms,
            scheduled_at=to_text(wave.scheduled_at),
            starts_at=to_text(wave.starts_at),
            ends_at=to_text(wave.ends_at),
        )


class RolloutPlanShape(RolloutSettingsShape, kw_only=True):
    """The waves of a rollout and their expected times."""

    waves: list[WaveShape]
    skipped: list[SkippedHostShape]
    not_notified: Annotated[dict[str, str], help_text("The scopes that would get no notice now, each with the reason.")]
    expected_end: Time
    latest_end: Time

    @classmethod
    def of(cls, rollout: Rollout, plan: RolloutPlan, not_notified: dict[str, str]) -> Steps[Self]:
        waves: list[WaveShape] = []
        for wave in plan.waves:
            waves += [WaveShape.of(wave)]
            yield 1 + len(wave.domains)
        return cls(
            **_settings(rollout),
            waves=waves,
            skipped=[SkippedHostShape(*each) for each in plan.skipped],
            not_notified=not_notified,
            expected_end=to_text(plan.expected_end),
            latest_end=to_text(plan.latest_end),
        )


class RolloutRequest(DryRun, kw_only=True):
    """The rollout to start."""

    hosts: Annotated[
        list[Name],
        Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_NAMED_HOSTS}),
        help_text("Host names, or patterns like 'rack-1-*'."),
    ]
    type: Annotated[
        Annotated[str, choice("", *CAUSES["host-update"].types)] | None,
        help_text("Event type: how the update affects VMs."),
    ] = None
    duration: Annotated[Interruption | None, help_text("Duration of a freeze.")] = None
    notice: Annotated[
        Duration | None, help_text("Time between the notification of the groups and the start of a wave.")
    ] = None
    postpone_deadline: Annotated[
        TimeOrDuration | None, help_text("The latest time to which its events can be postponed.")
    ] = None
    overrides: Annotated[
        Annotated[list[Annotated[str, choice(*OVERRIDES)]], at_most(len(OVERRIDES))] | None,
        help_text("Rules to override. Each use is recorded in history."),
    ] = None
    description: Description = None
    require_notice: RequireNotice = None
    speed: Speed = None
    max_unavailable: Annotated[
        Annotated[int, integer(1, MAX_NUMBER)] | None,
        help_text("Maximum number of hosts that are updated at once."),
    ] = None
    pause: Annotated[Duration | None, help_text("Time between two waves.")] = None
    health_timeout: Annotated[
        Duration | None, help_text("Time that the VMs of a host have to become healthy. After it, the rollout stops.")
    ] = None


class RolloutControl:
    """Rollouts."""

    def __init__(self, engine: Engine, slices: Slices) -> None:
        self._engine = engine
        self._slices = slices

    def routes(self) -> list[Route]:
        one, path, operator, dry = RolloutShape, "/v1/rollouts/{id}", Role.OPERATOR, DryRun
        return [
            Route(
                "GET",
                "/v1/rollouts",
                self.rollouts,
                "List rollouts.",
                page_of("rollouts", one),
                query=PagingAll,
            ),
            Route(
                "POST",
                "/v1/rollouts",
                self.start,
                "Start a rollout, or return its plan (dry_run).",
                (one, RolloutPlanShape),
                operator,
                body=RolloutRequest,
                status=201,
                other_status=200,
                creates=True,
                links=((path, "/id"),),
            ),
            Route("GET", path, self.rollout, "Return a rollout and its progress.", one),
            Route("GET", f"{path}/plan", self.plan, "Return the remaining waves of a rollout.", RolloutPlanShape),
            Route(
                "GET",
                f"{path}/explain",
                self.explain,
                "Explain what a rollout waits for.",
                RolloutExplanationShape,
            ),
            Route("POST", f"{path}/pause", self.pause, "Pause a rollout.", one, operator, body=dry),
            Route("POST", f"{path}/resume", self.resume, "Resume a rollout.", one, operator, body=dry),
            Route("POST", f"{path}/cancel", self.cancel, "Cancel a rollout.", one, operator, body=dry),
        ]

    async def start(self, request: Request) -> Response:
        body = await read_body(request, RolloutRequest)
        patterns, settings = tuple(body.hosts), self._settings(body)
        by = caller(request).name
        rollout_commands.check_hosts(patterns)
        if body.dry_run:
            draft, now = self._engine.draft(), self._engine.clock.now()
            steps = rollout_commands.dry_run(draft, now, self._engine.limits, patterns, settings, by)
            return await self._planned(request, steps)
        # Before the command, while other commands go on.
        hosts = await self._slices.plan(request, rollout_commands.match_hosts(self._engine.fleet, patterns))

        def decide(draft: Draft, now: datetime, limits: OperatorLimits) -> Steps[RolloutShape]:
            rollout = yield from rollout_commands.start_in_steps(draft, now, limits, patterns, settings, by, hosts)
            return RolloutShape.of(rollout)

        return await create_once(self._engine, request, decide)

    def _settings(self, body: RolloutRequest) -> RolloutSettings:
        defaults = RolloutSettings()
        pause, health_timeout = (
            read_duration(body.pause, "/pause"),
            read_duration(body.health_timeout, "/health_timeout"),
        )
        return RolloutSettings(
            type=body.type or "",
            duration=read_interruption(body.duration, "/duration"),
            notice=read_duration(body.notice, "/notice"),
            postpone_deadline=read_time(body.postpone_deadline, "/postpone_deadline", self._engine.clock.now()),
            overrides=tuple(body.overrides or ()),
            description=body.description,
            require_notice=bool(body.require_notice),
            speed=1.0 if body.speed is None else body.speed,
            max_unavailable=defaults.max_unavailable if body.max_unavailable is None else body.max_unavailable,
            pause=defaults.pause if pause is None else pause,
            health_timeout=defaults.health_timeout if health_timeout is None else health_timeout,
        )

    async def rollouts(self, request: Request) -> Response:
        found, last_key = await rows_page(request, self._engine.records.rollouts, lambda rollout: len(rollout.patterns))
        return page("rollouts", (RolloutShape.of(rollout, hosts=False) for rollout in found), last_key)

    async def rollout(self, request: Request) -> Response:
        return json_response(RolloutShape.of(await self._find(request)))

    async def plan(self, request: Request) -> Response:
        """Plan the remaining waves for the current fleet."""
        rollout = await self._find(request)
        draft, now = self._engine.draft(), self._engine.clock.now()
        steps = rollout_commands.plan_with_notices(draft, now, self._engine.limits, rollout)
        return await self._planned(request, steps)

    async def _planned(self, request: Request, steps: Steps[tuple[Rollout, RolloutPlan, dict[str, str]]]) -> Response:
        def shape() -> Steps[RolloutPlanShape]:
            found = yield from steps
            return (yield from RolloutPlanShape.of(*found))

        return json_response(await self._slices.plan(request, shape()))

    async def explain(self, request: Request) -> Response:
        return json_response(rollout_explanation(self._engine, await self._find(request)))

    async def pause(self, request: Request) -> Response:
        return await self._change(request, rollout_commands.pause, "paused")

    async def resume(self, request: Request) -> Response:
        return await self._change(request, rollout_commands.resume, "resumed")

    async def cancel(self, request: Request) -> Response:
        return await self._change(request, rollout_commands.cancel_in_steps, "cancelled")

    async def _change(
        self, request: Request, decide: Callable[[Draft, datetime, OperatorLimits, str, str], Steps[Rollout]], what: str
    ) -> Response:
        body = await read_body(request, DryRun)
        rollout = await self._find(request)
        if not rollout.status.live:
            raise WrongRolloutStatus(rollout_id=rollout.id, status=rollout.status.value, what=what)
        if body.dry_run:
            after = await self._engine.preview_in_steps(decide, rollout.id, caller(request).name)
        else:
            after = await self._engine.execute_in_steps(decide, rollout.id, caller(request).name)
        return json_response(RolloutShape.of(after))

    async def _find(self, request: Request) -> Rollout:
        return await find_rollout(self._engine, request.path_params["id"])

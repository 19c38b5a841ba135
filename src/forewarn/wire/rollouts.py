"""The control API's shapes of rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.core.durations import to_text, to_text_if_any
from forewarn.wire.control import seconds

if TYPE_CHECKING:
    from forewarn.core.rollout_commands import Plan
    from forewarn.core.rollouts import Course, Rollout


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

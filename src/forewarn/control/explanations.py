"""What an operation or a rollout waits for, as JSON: for /v1/operations, /v1/events and /v1/rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from msgspec import Struct

from forewarn.control.schema import Shape, Time, choice
from forewarn.core.durations import to_text, to_text_if_any
from forewarn.core.explain import Explanation, explain, explain_rollout
from forewarn.core.operations import CAUSES, Operation, OperationStatus
from forewarn.core.rollouts import Rollout, RolloutStatus
from forewarn.delivery.event_shapes import WaitShape
from forewarn.delivery.history_rows import waits_as_tenants_see

if TYPE_CHECKING:
    from forewarn.engine.engine import Engine


class ExplanationShape(Struct, forbid_unknown_fields=True):
    """What an operation waits for, and what happens next."""

    operation: str
    cause: Annotated[str, choice(*CAUSES)]
    cause_description: str
    requested_by: str
    requested_at: Time
    host: str | None
    rollout: str | None
    status: Annotated[str, choice(*(status.value for status in OperationStatus))]
    postpone_deadline: Time | None
    not_notified: dict[str, str]
    waits: list[WaitShape]
    next: str
    latest: Time | None

    @classmethod
    def of(cls, operation: Operation, found: Explanation) -> Self:
        return cls(
            operation=operation.id,
            cause=operation.cause,
            cause_description=CAUSES[operation.cause].meaning,
            requested_by=operation.requested_by,
            requested_at=to_text(operation.requested_at),
            host=operation.host or None,
            rollout=operation.request.rollout or None,
            status=operation.status.value,
            postpone_deadline=to_text_if_any(operation.request.postpone_deadline),
            not_notified=dict(operation.not_notified),
            waits=list(map(WaitShape.of, found.waits)),
            next=found.next,
            latest=to_text_if_any(found.latest),
        )


def explanation(engine: Engine, operation: Operation, own: str = "") -> ExplanationShape:
    """Explain what an operation waits for now. With the group of a tenant: without hosts and other groups."""
    draft = engine.draft()
    if own:  # the reason and the failed attempt can name a host, or a VM of another group
        operation = operation._replace(reason="")
    rollout = draft.rollout(operation.request.rollout)
    failed = engine.failed_attempt(operation.id) if not own else None
    found = explain(draft, engine.limits, operation, rollout, failed)
    if not own:
        return ExplanationShape.of(operation, found)
    shape = ExplanationShape.of(operation, found._replace(waits=waits_as_tenants_see(found.waits, own)))
    shape.host = shape.rollout = None
    scopes = draft.fleet.scopes(own)
    shape.not_notified = {scope: reason for scope, reason in shape.not_notified.items() if scope in scopes}
    return shape


class RolloutExplanationShape(Shape):
    """What a rollout waits for, and what happens next."""

    rollout: str
    status: Annotated[str, choice(*(status.value for status in RolloutStatus))]
    waits: list[WaitShape]
    next: str
    latest: Time | None

    @classmethod
    def of(cls, rollout: Rollout, found: Explanation) -> Self:
        return cls(
            rollout=rollout.id,
            status=rollout.status.value,
            waits=list(map(WaitShape.of, found.waits)),
            next=found.next,
            latest=to_text_if_any(found.latest),
        )


def rollout_explanation(engine: Engine, rollout: Rollout) -> RolloutExplanationShape:
    """Explain what a rollout waits for now."""
    return RolloutExplanationShape.of(rollout, explain_rollout(engine.draft(), rollout))

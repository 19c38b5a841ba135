"""Why an operation is waiting, as JSON: for /v1/operations and /v1/events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.control.schema import (
    FLAG,
    MAYBE_MOMENT,
    MAYBE_TEXT,
    MOMENT,
    TEXT,
    Schema,
    choice,
    list_of,
    map_of,
    record,
    ref,
)
from forewarn.core.durations import to_text_if_any
from forewarn.core.explain import Explanation, explain
from forewarn.core.operations import CAUSES, Operation, Progress

if TYPE_CHECKING:
    from forewarn.engine.engine import Engine


def explanation(engine: Engine, operation: Operation) -> dict[str, Any]:
    """Why an operation waits, as JSON."""
    draft = engine.draft()
    rollout = draft.rollout(operation.request.rollout)
    failed = engine.failed_attempt(operation.id)
    return explanation_shape(operation, explain(draft, engine.terms, operation, rollout, failed))


def explanation_shape(operation: Operation, found: Explanation) -> dict[str, Any]:
    """Why an operation waits."""
    return {
        "operation": operation.id,
        "cause": operation.cause,
        "meaning": CAUSES[operation.cause].meaning,
        "requested_by": operation.requested_by,
        "requested_at": to_text_if_any(operation.requested_at),
        "host": operation.host or None,
        "rollout": operation.request.rollout or None,
        "progress": operation.progress.value,
        "postpone_until": to_text_if_any(operation.request.deadline),
        "not_told": dict(operation.unnoticed),
        "waits": [
            {
                "what": wait.what,
                "over": wait.over,
                "group": wait.group or None,
                "by": wait.by or None,
                "at": to_text_if_any(wait.at),
                "until": to_text_if_any(wait.until),
                "words": wait.words or None,
            }
            for wait in found.waits
        ],
        "next": found.next,
        "latest": to_text_if_any(found.latest),
    }


_EXPLANATION: dict[str, Schema] = {
    "operation": TEXT,
    "cause": choice(*CAUSES),
    "meaning": TEXT,
    "requested_by": TEXT,
    "requested_at": MOMENT,
    "host": MAYBE_TEXT,
    "rollout": MAYBE_TEXT,
    "progress": choice(*(progress.value for progress in Progress)),
    "postpone_until": MAYBE_MOMENT,
    "not_told": map_of(TEXT),
    "waits": list_of(
        record(
            {
                "what": TEXT,
                "over": FLAG,
                "group": MAYBE_TEXT,
                "by": MAYBE_TEXT,
                "at": MAYBE_MOMENT,
                "until": MAYBE_MOMENT,
                "words": MAYBE_TEXT,
            }
        )
    ),
    "next": TEXT,
    "latest": MAYBE_MOMENT,
}


SHAPES: dict[str, Schema] = {
    "Explanation": record(_EXPLANATION),
    "EventExplanation": record({"event": ref("Event"), **_EXPLANATION}),
}

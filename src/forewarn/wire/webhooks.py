"""Webhooks as the control API shows them: the shapes, and what they look like. Never the secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.core.durations import to_text
from forewarn.core.history import HAPPENINGS
from forewarn.wire.control import entry_shape
from forewarn.wire.schema import COUNT, FLAG, MOMENT, TEXT, Schema, choice, list_of, nullable, record, ref

if TYPE_CHECKING:
    from forewarn.core.state import Entry, Tally
    from forewarn.core.webhooks import Undelivered, Webhook


def webhook_shape(webhook: Webhook, position: int, tally: Tally) -> dict[str, Any]:
    """A webhook, and how it fares."""
    return {
        "name": webhook.name,
        "url": webhook.url,
        "groups": list(webhook.groups),
        "kinds": list(webhook.kinds),
        "created_by": webhook.created_by,
        "created_at": to_text(webhook.created_at),
        "position": position,
        "waiting": tally.waiting,
        "failed": tally.given_up,
        "lost": tally.lost,
        "last_problem": tally.last_problem or None,
    }


def failure_shape(row: Undelivered, entry: Entry) -> dict[str, Any]:
    """A row of history that is not delivered."""
    return {
        "sequence": row.sequence,
        "attempts": row.attempts,
        "problem": row.problem or None,
        "given_up": row.given_up,
        "entry": entry_shape(entry),
    }


_WEBHOOK: dict[str, Schema] = {
    "name": TEXT,
    "url": TEXT,
    "groups": list_of(TEXT),
    "kinds": list_of(choice(*HAPPENINGS)),
    "created_by": TEXT,
    "created_at": MOMENT,
    "position": {
        **COUNT,
        "description": "Every row of history up to here is delivered, not wanted, or among the failures.",
    },
    "waiting": {**COUNT, "description": "How many rows are tried again, or wait behind such a one of their group."},
    "failed": {**COUNT, "description": "How many rows were given up."},
    "lost": {
        **COUNT,
        "description": "How many rows will never be delivered, since the service was started: history keeps them no "
        "more, or too many were given up.",
    },
    "last_problem": nullable(TEXT),
}
WEBHOOK_SHAPES: dict[str, Schema] = {
    "Webhook": record(_WEBHOOK),
    "NewWebhook": record(
        {
            **_WEBHOOK,
            "secret": {
                **nullable(TEXT),
                "description": "What signatures are made with: shown this once, and null where a request is repeated.",
            },
        }
    ),
    "WebhookTrial": record({"delivered": FLAG, "status": nullable(COUNT), "problem": nullable(TEXT)}),
    "WebhookFailure": record(
        {"sequence": COUNT, "attempts": COUNT, "problem": nullable(TEXT), "given_up": FLAG, "entry": ref("Entry")}
    ),
    "Retried": record({"retried": {**COUNT, "description": "How many rows are tried now."}}),
}

"""/v1/webhooks: receivers of history, and what could not be delivered. Never the secret."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.control.idempotency import make_once
from forewarn.control.input import LARGEST_NUMBER, read_fields
from forewarn.control.paging import PAGING, page, page_of_names, wanted
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    COUNT,
    FLAG,
    MOMENT,
    TEXT,
    Field,
    Schema,
    choice,
    list_of,
    nullable,
    page_schema,
    record,
    ref,
    whole,
)
from forewarn.core.access import NAME_PATTERN, NAME_RULE, Role
from forewarn.core.durations import to_text
from forewarn.core.history import HAPPENINGS
from forewarn.core.state import Tally
from forewarn.core.webhooks import (
    LONGEST_SECRET,
    MOST_GROUPS,
    SETTING,
    SHORTEST_SECRET,
    Webhook,
    add_webhook,
    find_webhook,
)
from forewarn.delivery.history_rows import entry_shape
from forewarn.delivery.webhooks import row_of

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft, Entry
    from forewarn.core.webhooks import Undelivered
    from forewarn.delivery.webhooks import Dispatcher
    from forewarn.engine.engine import Engine


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
    """A row of history that the receiver has not taken: it is tried again, or given up."""
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
    "waiting": {
        **COUNT,
        "description": "How many rows are tried again, and how many of history come after the position, wanted or not.",
    },
    "failed": {**COUNT, "description": "How many rows were given up."},
    "lost": {
        **COUNT,
        "description": "How many rows will never be delivered, since the service was started: history keeps them no "
        "more, or too many were given up.",
    },
    "last_problem": nullable(TEXT),
}
SHAPES: dict[str, Schema] = {
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


# --- Routes ---------------------------------------------------------------------------------------


ASKED = (
    Field("name", {"type": "string", "pattern": NAME_PATTERN}, f"What to call it: {NAME_RULE}.", required=True),
    Field("url", TEXT, f"Where to send to, by http or https; private addresses only if {SETTING} says.", required=True),
    Field(
        "secret",
        {"type": "string", "minLength": SHORTEST_SECRET, "maxLength": LONGEST_SECRET},
        "What to sign with; if it is not said, one is made.",
    ),
    Field("groups", list_of(TEXT, maxItems=MOST_GROUPS), "Only what is about these groups; none: everything."),
    Field("kinds", list_of(choice(*HAPPENINGS)), "Only this, as history calls it; none: everything."),
)
ONE_ROW = Field("sequence", whole(1, LARGEST_NUMBER), "Only this row of history; if it is not said, all.")


class WebhookControl:
    """Webhooks."""

    def __init__(self, engine: Engine, webhooks: Dispatcher) -> None:
        self._engine = engine
        self._webhooks = webhooks

    def endpoints(self) -> list[Endpoint]:
        one, path = ref("Webhook"), "/v1/webhooks/{name}"
        listed, failures = page_schema("webhooks", "Webhook"), page_schema("failures", "WebhookFailure")
        trial, retried = ref("WebhookTrial"), ref("Retried")
        return [
            Endpoint("GET", "/v1/webhooks", self.webhooks, "List webhooks.", listed, query=PAGING),
            Endpoint(
                "POST",
                "/v1/webhooks",
                self.add,
                "Add a webhook.",
                ref("NewWebhook"),
                Role.ADMIN,
                body=ASKED,
                status=201,
                makes=True,
                leads_to=((path, "/name"),),
            ),
            Endpoint("GET", path, self.webhook, "See a webhook, and how it fares.", one),
            Endpoint("DELETE", path, self.remove, "Remove a webhook.", one, Role.ADMIN),
            Endpoint("POST", f"{path}/test", self.test, "Send a webhook a test.", trial, Role.OPERATOR, body=()),
            Endpoint("GET", f"{path}/failures", self.failures, "List what is not delivered.", failures, query=PAGING),
            Endpoint("POST", f"{path}/retry", self.retry, "Try again now.", retried, Role.OPERATOR, body=(ONE_ROW,)),
        ]

    async def webhooks(self, request: Request) -> Response:
        known = self._engine.draft().webhooks()
        return page_of_names(request, "webhooks", sorted(known), lambda name: self._shape(known[name]))

    async def webhook(self, request: Request) -> Response:
        return JSONResponse(self._shape(self._found(request)))

    async def add(self, request: Request) -> Response:
        fields = await read_fields(request)
        secret, by = fields.text("secret") or secrets.token_urlsafe(32), caller(request).name
        name, url = fields.text("name"), fields.text("url")
        groups, kinds = (tuple(dict.fromkeys(fields.texts(each))) for each in ("groups", "kinds"))

        def decide(draft: Draft, now: datetime, terms: Terms) -> dict[str, Any]:
            added = add_webhook(draft, now, terms, Webhook(name, url, secret, by, now, groups, kinds), by)
            return {**webhook_shape(added, added.cursor, Tally()), "secret": secret}

        return await make_once(self._engine, request, fields, decide, hidden=("secret",))

    async def remove(self, request: Request) -> Response:
        shape = self._shape(self._found(request))
        await self._engine.remove_webhook(request.path_params["name"], caller(request).name)
        return JSONResponse(shape)

    async def test(self, request: Request) -> Response:
        await read_fields(request)
        outcome = await self._webhooks.try_out(request.path_params["name"])
        return JSONResponse({**outcome._asdict(), "problem": outcome.problem or None})

    async def failures(self, request: Request) -> Response:
        rows = self._engine.draft().undelivered(self._found(request).name)
        asked = wanted(request)
        later = sorted(sequence for sequence in rows if sequence > asked.after_number)
        part = later[: asked.limit]
        entries = await asyncio.gather(*(row_of(self._engine, sequence) for sequence in part))
        shown = [failure_shape(rows[entry.sequence], entry) for entry in entries if entry is not None]
        return page("failures", shown, part[-1] if len(later) > asked.limit else None)

    async def retry(self, request: Request) -> Response:
        fields = await read_fields(request)
        sequence = fields.number("sequence", 0) if "sequence" in fields else None
        rows = await self._webhooks.retry(request.path_params["name"], sequence)
        return JSONResponse({"retried": len(rows)})

    def _found(self, request: Request) -> Webhook:
        return find_webhook(self._engine.draft(), request.path_params["name"])

    def _shape(self, webhook: Webhook) -> dict[str, Any]:
        return webhook_shape(webhook, self._webhooks.position(webhook), self._webhooks.tally(webhook))

"""/v1/webhooks: who else is told of what happens, and what could not be told."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.core.access import NAME_PATTERN, NAME_RULE, Role
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
    remove_webhook,
)
from forewarn.server.bodies import LARGEST_NUMBER, read_fields
from forewarn.server.endpoints import Endpoint, caller
from forewarn.server.paging import PAGING, page, page_of_names, wanted
from forewarn.server.repeats import make_once
from forewarn.server.webhooks.channel import row_of
from forewarn.wire.schema import TEXT, Field, choice, list_of, ref, whole
from forewarn.wire.shapes_schema import page_schema
from forewarn.wire.webhooks import failure_shape, webhook_shape

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft
    from forewarn.engine import Engine
    from forewarn.server.webhooks.dispatcher import Dispatcher

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
            return {**webhook_shape(added, added.position, Tally()), "secret": secret}

        return await make_once(self._engine, request, fields, decide, hidden=("secret",))

    async def remove(self, request: Request) -> Response:
        shape = self._shape(self._found(request))
        await self._engine.order(remove_webhook, request.path_params["name"], caller(request).name)
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
        tally = self._engine.draft().told.tally(webhook.name)
        return webhook_shape(webhook, self._webhooks.position(webhook), tally)

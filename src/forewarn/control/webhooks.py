"""/v1/webhooks: receivers of history, and what could not be delivered. Never the secret."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Annotated, Self

from msgspec import UNSET, Meta, UnsetType

from forewarn.control.idempotency import make_once
from forewarn.control.input import read_body
from forewarn.control.paging import Paging, page, page_of_names, wanted
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    LARGEST_NUMBER,
    Body,
    Count,
    Moment,
    NoMembers,
    Shape,
    answer,
    choice,
    help_text,
    page_of,
    pattern,
    whole,
)
from forewarn.core.access import NAME_PATTERN, NAME_RULE, Role
from forewarn.core.durations import to_text
from forewarn.core.history import HISTORY_KINDS
from forewarn.core.state import DeliveryStats
from forewarn.core.webhooks import (
    MAX_SECRET_LENGTH,
    MAX_WEBHOOK_GROUPS,
    MIN_SECRET_LENGTH,
    SETTING,
    Webhook,
    add_webhook,
    find_webhook,
)
from forewarn.delivery.history_rows import EntryShape
from forewarn.delivery.webhooks import row_of

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft, Entry
    from forewarn.core.webhooks import Undelivered
    from forewarn.delivery.webhooks import Dispatcher
    from forewarn.engine.engine import Engine


class WebhookShape(Shape):
    """A webhook, and how it fares."""

    name: str
    url: str
    groups: list[str]
    kinds: list[Annotated[str, choice(*HISTORY_KINDS)]]
    created_by: str
    created_at: Moment
    position: Annotated[
        Count, help_text("Every row of history up to here is delivered, not wanted, or among the failures.")
    ]
    waiting: Annotated[
        Count,
        help_text("How many rows are tried again, and how many of history come after the position, wanted or not."),
    ]
    failed: Annotated[Count, help_text("How many rows were given up.")]
    lost: Annotated[
        Count,
        help_text(
            "How many rows will never be delivered, since the service was started: history keeps them no "
            "more, or too many were given up."
        ),
    ]
    last_problem: str | None
    secret: Annotated[
        str | UnsetType | None,
        help_text("What signatures are made with: shown when it is added, and null where that request is repeated."),
    ] = UNSET

    @classmethod
    def of(cls, webhook: Webhook, position: int, stats: DeliveryStats) -> Self:
        return cls(
            name=webhook.name,
            url=webhook.url,
            groups=list(webhook.groups),
            kinds=list(webhook.kinds),
            created_by=webhook.created_by,
            created_at=to_text(webhook.created_at),
            position=position,
            waiting=stats.waiting,
            failed=stats.given_up,
            lost=stats.lost,
            last_problem=stats.last_problem or None,
        )


class WebhookTrialShape(Shape):
    """What came of a test."""

    delivered: bool
    status: Count | None
    problem: str | None


class WebhookFailureShape(Shape):
    """A row of history that the receiver has not taken: it is tried again, or given up."""

    sequence: Count
    attempts: Count
    problem: str | None
    given_up: bool
    entry: EntryShape

    @classmethod
    def of(cls, row: Undelivered, entry: Entry) -> Self:
        return cls(row.sequence, row.attempts, row.problem or None, row.given_up, EntryShape.of(entry))


class RetriedShape(Shape):
    """What a retry has begun."""

    retried: Annotated[Count, help_text("How many rows are tried now.")]


class NewWebhook(Body, kw_only=True):
    """A webhook to be added."""

    name: Annotated[str, pattern(NAME_PATTERN), help_text(f"What to call it: {NAME_RULE}.")]
    url: Annotated[str, help_text(f"Where to send to, by http or https; private addresses only if {SETTING} says.")]
    secret: Annotated[
        Annotated[str, Meta(extra_json_schema={"minLength": MIN_SECRET_LENGTH, "maxLength": MAX_SECRET_LENGTH})] | None,
        help_text("What to sign with; if it is not said, one is made."),
    ] = None
    groups: Annotated[
        Annotated[list[str], Meta(extra_json_schema={"maxItems": MAX_WEBHOOK_GROUPS})] | None,
        help_text("Only what is about these groups; none: everything."),
    ] = None
    kinds: Annotated[
        list[Annotated[str, choice(*HISTORY_KINDS)]] | None,
        help_text("Only this, as history calls it; none: everything."),
    ] = None


class RetryRequest(Body):
    """What is tried again."""

    sequence: Annotated[
        Annotated[int, whole(1, LARGEST_NUMBER)] | None,
        help_text("Only this row of history; if it is not said, all."),
    ] = None


class WebhookControl:
    """Webhooks."""

    def __init__(self, engine: Engine, webhooks: Dispatcher) -> None:
        self._engine = engine
        self._webhooks = webhooks

    def endpoints(self) -> list[Endpoint]:
        one, path = WebhookShape, "/v1/webhooks/{name}"
        listed, failures = page_of("webhooks", one), page_of("failures", WebhookFailureShape)
        trial, retried = WebhookTrialShape, RetriedShape
        return [
            Endpoint("GET", "/v1/webhooks", self.webhooks, "List webhooks.", listed, query=Paging),
            Endpoint(
                "POST",
                "/v1/webhooks",
                self.add,
                "Add a webhook.",
                one,
                Role.ADMIN,
                body=NewWebhook,
                status=201,
                makes=True,
                leads_to=((path, "/name"),),
            ),
            Endpoint("GET", path, self.webhook, "See a webhook, and how it fares.", one),
            Endpoint("DELETE", path, self.remove, "Remove a webhook.", one, Role.ADMIN),
            Endpoint("POST", f"{path}/test", self.test, "Send a webhook a test.", trial, Role.OPERATOR, body=NoMembers),
            Endpoint("GET", f"{path}/failures", self.failures, "List what is not delivered.", failures, query=Paging),
            Endpoint("POST", f"{path}/retry", self.retry, "Try again now.", retried, Role.OPERATOR, body=RetryRequest),
        ]

    async def webhooks(self, request: Request) -> Response:
        known = self._engine.draft().webhooks()
        return page_of_names(request, "webhooks", sorted(known), lambda name: self._shape(known[name]))

    async def webhook(self, request: Request) -> Response:
        return answer(self._shape(self._found(request)))

    async def add(self, request: Request) -> Response:
        body = await read_body(request, NewWebhook)
        secret, by = body.secret or secrets.token_urlsafe(32), caller(request).name
        groups, kinds = (tuple(dict.fromkeys(each or ())) for each in (body.groups, body.kinds))

        def decide(draft: Draft, now: datetime, terms: Terms) -> WebhookShape:
            added = add_webhook(draft, now, terms, Webhook(body.name, body.url, secret, by, now, groups, kinds), by)
            shape = WebhookShape.of(added, added.cursor, DeliveryStats())
            shape.secret = secret
            return shape

        return await make_once(self._engine, request, decide, hidden=("secret",))

    async def remove(self, request: Request) -> Response:
        shape = self._shape(self._found(request))
        await self._engine.remove_webhook(request.path_params["name"], caller(request).name)
        return answer(shape)

    async def test(self, request: Request) -> Response:
        await read_body(request, NoMembers)
        outcome = await self._webhooks.try_out(request.path_params["name"])
        return answer(WebhookTrialShape(outcome.delivered, outcome.status, outcome.problem or None))

    async def failures(self, request: Request) -> Response:
        rows = self._engine.draft().undelivered(self._found(request).name)
        asked = wanted(request)
        later = sorted(sequence for sequence in rows if sequence > asked.after_number)
        part = later[: asked.limit]
        entries = await asyncio.gather(*(row_of(self._engine, sequence) for sequence in part))
        shown = [WebhookFailureShape.of(rows[entry.sequence], entry) for entry in entries if entry is not None]
        return page("failures", shown, part[-1] if len(later) > asked.limit else None)

    async def retry(self, request: Request) -> Response:
        body = await read_body(request, RetryRequest)
        rows = await self._webhooks.retry(request.path_params["name"], body.sequence)
        return answer(RetriedShape(len(rows)))

    def _found(self, request: Request) -> Webhook:
        return find_webhook(self._engine.draft(), request.path_params["name"])

    def _shape(self, webhook: Webhook) -> WebhookShape:
        return WebhookShape.of(webhook, self._webhooks.position(webhook), self._webhooks.stats(webhook))

"""/v1/webhooks: webhooks and their undelivered rows. The secret is shown only at creation."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Annotated, Self

from msgspec import UNSET, Meta, UnsetType

from forewarn.control.idempotency import create_once
from forewarn.control.input import read_body
from forewarn.control.paging import Paging, first_part, page, page_of_names, requested_page
from forewarn.control.routing import Route, caller
from forewarn.control.schema import (
    MAX_NUMBER,
    Body,
    Count,
    NameIfAny,
    NoMembers,
    Shape,
    Time,
    at_most,
    choice,
    help_text,
    integer,
    json_response,
    page_of,
    pattern,
)
from forewarn.core.access import NAME_PATTERN, NAME_RULE, Role
from forewarn.core.durations import to_text
from forewarn.core.history import HISTORY_KINDS
from forewarn.core.state import DeliveryStats
from forewarn.core.webhooks import (
    MAX_SECRET_LENGTH,
    MAX_URL_LENGTH,
    MAX_WEBHOOK_GROUPS,
    MIN_SECRET_LENGTH,
    SETTING,
    Webhook,
    add_webhook,
    find_webhook,
)
from forewarn.delivery.history_rows import HistoryEntryShape
from forewarn.delivery.webhooks import find_row

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft, HistoryEntry
    from forewarn.core.webhooks import Undelivered
    from forewarn.delivery.webhooks import Dispatcher
    from forewarn.engine.engine import Engine


class WebhookShape(Shape):
    """A webhook and its delivery state."""

    name: str
    url: str
    groups: list[str]
    kinds: list[Annotated[str, choice(*HISTORY_KINDS)]]
    created_by: str
    created_at: Time
    position: Annotated[
        Count,
        help_text("The cursor: every row of history up to here was delivered, filtered out, or is listed in failures."),
    ]
    pending: Annotated[
        Count,
        help_text("Rows that are retried, plus all rows of history after the position (not filtered yet)."),
    ]
    failed: Annotated[Count, help_text("Rows that failed after the maximum number of attempts.")]
    dropped: Annotated[
        Count,
        help_text(
            "Rows since the start of the service that will never be delivered: they were removed from history, "
            "or there were too many failed rows."
        ),
    ]
    last_error: str | None
    secret: Annotated[
        str | UnsetType | None,
        help_text("The signing secret: only in the response to its creation; null if that response is replayed."),
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
            pending=stats.pending,
            failed=stats.failed,
            dropped=stats.dropped,
            last_error=stats.last_error or None,
        )


class WebhookTestShape(Shape):
    """The result of a test delivery."""

    delivered: bool
    status: Count | None
    error: str | None


class WebhookFailureShape(Shape):
    """A row of history that was not delivered: it will be retried, or it has failed permanently."""

    sequence: Count
    attempts: Count
    error: str | None
    failed: bool
    entry: HistoryEntryShape

    @classmethod
    def of(cls, row: Undelivered, entry: HistoryEntry) -> Self:
        return cls(row.sequence, row.attempts, row.error or None, row.failed, HistoryEntryShape.of(entry))


class RetriedShape(Shape):
    """The result of a retry request."""

    retried: Annotated[Count, help_text("Number of rows that are sent again now.")]


class NewWebhook(Body, kw_only=True):
    """The webhook to add."""

    name: Annotated[str, pattern(NAME_PATTERN), help_text(f"Its name: {NAME_RULE}.")]
    url: Annotated[
        str,
        at_most(MAX_URL_LENGTH),
        help_text(f"The http or https URL to send to. Private addresses need the setting {SETTING}."),
    ]
    secret: Annotated[
        Annotated[str, Meta(extra_json_schema={"minLength": MIN_SECRET_LENGTH, "maxLength": MAX_SECRET_LENGTH})] | None,
        help_text("The signing secret. Default: a random one."),
    ] = None
    groups: Annotated[
        Annotated[list[NameIfAny], at_most(MAX_WEBHOOK_GROUPS)] | None,
        help_text("Only rows about these groups. Default: all rows."),
    ] = None
    kinds: Annotated[
        Annotated[list[Annotated[str, choice(*HISTORY_KINDS)]], at_most(len(HISTORY_KINDS))] | None,
        help_text("Only rows of these kinds. Default: all kinds."),
    ] = None


class RetryRequest(Body):
    """Which rows to send again."""

    sequence: Annotated[
        Annotated[int, integer(1, MAX_NUMBER)] | None,
        help_text("Only this row of history. Default: all undelivered rows."),
    ] = None


class WebhookControl:
    """Webhooks."""

    def __init__(self, engine: Engine, webhooks: Dispatcher, slices: Slices) -> None:
        self._engine = engine
        self._slices = slices
        self._webhooks = webhooks

    def routes(self) -> list[Route]:
        one, path = WebhookShape, "/v1/webhooks/{name}"
        listed, failures = page_of("webhooks", one), page_of("failures", WebhookFailureShape)
        test, retried = WebhookTestShape, RetriedShape
        return [
            Route("GET", "/v1/webhooks", self.webhooks, "List webhooks.", listed, query=Paging),
            Route(
                "POST",
                "/v1/webhooks",
                self.add,
                "Add a webhook.",
                one,
                Role.ADMIN,
                body=NewWebhook,
                status=201,
                creates=True,
                links=((path, "/name"),),
            ),
            Route("GET", path, self.webhook, "Return a webhook and its delivery state.", one),
            Route("DELETE", path, self.remove, "Remove a webhook.", one, Role.ADMIN),
            Route(
                "POST",
                f"{path}/test",
                self.test,
                "Send a test event to a webhook.",
                test,
                Role.OPERATOR,
                body=NoMembers,
            ),
            Route(
                "GET", f"{path}/failures", self.failures, "List undelivered rows of a webhook.", failures, query=Paging
            ),
            Route(
                "POST",
                f"{path}/retry",
                self.retry,
                "Send undelivered rows again now.",
                retried,
                Role.OPERATOR,
                body=RetryRequest,
            ),
        ]

    async def webhooks(self, request: Request) -> Response:
        known = self._engine.draft().webhooks()
        return await page_of_names(
            request, self._slices, "webhooks", sorted(known), lambda name: self._shape(known[name])
        )

    async def webhook(self, request: Request) -> Response:
        return json_response(self._shape(self._found(request)))

    async def add(self, request: Request) -> Response:
        body = await read_body(request, NewWebhook)
        secret, by = body.secret or secrets.token_urlsafe(32), caller(request).name
        groups, kinds = (tuple(dict.fromkeys(each or ())) for each in (body.groups, body.kinds))

        def decide(draft: Draft, now: datetime, limits: OperatorLimits) -> WebhookShape:
            added = add_webhook(draft, now, limits, Webhook(body.name, body.url, secret, by, now, groups, kinds), by)
            shape = WebhookShape.of(added, added.cursor, DeliveryStats())
            shape.secret = secret
            return shape

        return await create_once(self._engine, request, decide, hidden=("secret",))

    async def remove(self, request: Request) -> Response:
        shape = self._shape(self._found(request))
        await self._engine.remove_webhook(request.path_params["name"], caller(request).name)
        return json_response(shape)

    async def test(self, request: Request) -> Response:
        await read_body(request, NoMembers)
        outcome = await self._webhooks.send_test(request.path_params["name"])
        return json_response(WebhookTestShape(outcome.delivered, outcome.status, outcome.error or None))

    async def failures(self, request: Request) -> Response:
        rows = self._engine.draft().undelivered(self._found(request).name)
        requested = requested_page(request)
        later = sorted(sequence for sequence in rows if sequence > requested.after_number)
        part = later[: requested.limit]
        entries = await asyncio.gather(*(find_row(self._engine, sequence) for sequence in part))
        known = [entry for entry in entries if entry is not None]
        shown = first_part(known, lambda entry: len(entry.vms))
        last = part[-1] if len(later) > requested.limit else None
        if len(shown) < len(known):
            last = shown[-1].sequence
        shapes = (WebhookFailureShape.of(rows[entry.sequence], entry) for entry in shown)
        return page("failures", await self._slices.collect(shapes), last)

    async def retry(self, request: Request) -> Response:
        body = await read_body(request, RetryRequest)
        rows = await self._webhooks.retry(request.path_params["name"], body.sequence)
        return json_response(RetriedShape(len(rows)))

    def _found(self, request: Request) -> Webhook:
        return find_webhook(self._engine.draft(), request.path_params["name"])

    def _shape(self, webhook: Webhook) -> WebhookShape:
        return WebhookShape.of(webhook, self._webhooks.position(webhook), self._webhooks.stats(webhook))

"""/v1/history: what happened, when, to which resource, by whom and why. A tenant sees the rows of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta

from forewarn.control.filters import (
    NameCheck,
    find_event,
    find_operation,
    find_rollout,
    one_of,
    visible_groups,
)
from forewarn.control.history_download import CSV_TYPE, FORMATS, download
from forewarn.control.paging import Paging, first_part, page, requested_page
from forewarn.control.routing import Route, caller
from forewarn.control.schema import MAX_LIST, Name, at_most, choice, help_text, page_of
from forewarn.control.slices import in_parts
from forewarn.core.durations import A_PAST_TIME, A_PERIOD, Period, parse_past_time, parse_period
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.history import HISTORY_KINDS, check_kind
from forewarn.core.operations import CAUSES
from forewarn.delivery.history_rows import HistoryEntryShape, as_tenants_see
from forewarn.errors import BadParameter, BadToken, InsufficientRole, shown
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import datetime

    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.core.access import Token
    from forewarn.engine.engine import Engine


DOWNLOAD_ROWS = 500
"""Rows that a download reads at once."""
PART_ROWS = 50
"""Rows that it encodes at once. A row with many VMs counts as several."""
VMS_AS_ROW = 20
NEWEST_FIRST = "newest"
ORDERS = ("oldest", NEWEST_FIRST)


EventType: TypeAlias = Annotated[
    Name, choice(*EVENT_TYPES), help_text("Only rows of operations with events of this type.")
]


class HistoryQuery(Paging):
    """Which rows of history."""

    vm: Annotated[Name, help_text("Only rows about this VM.")] = ""
    group: Annotated[
        Annotated[tuple[Name, ...], at_most(MAX_LIST)], help_text("Only rows about this group. Can be repeated.")
    ] = ()
    host: Annotated[Name, help_text("Only rows about this host, or about VMs that were moved to it.")] = ""
    event: Annotated[Name, help_text("Only rows about this event and its operation: an id, or its beginning.")] = ""
    operation: Annotated[Name, help_text("Only rows about this operation: an id, or its beginning.")] = ""
    rollout: Annotated[Name, help_text("Only rows about this rollout: an id, or its beginning.")] = ""
    type: EventType = ""
    cause: Annotated[Name, choice(*CAUSES), help_text("Only rows of operations with this cause.")] = ""
    by: Annotated[Name, help_text("Only rows of changes that this user, token or VM made.")] = ""
    kind: Annotated[
        Annotated[tuple[Annotated[str, choice(*HISTORY_KINDS)], ...], at_most(len(HISTORY_KINDS))],
        help_text("Only rows of this kind. Can be repeated."),
    ] = ()
    since: Annotated[Name, Meta(examples=["30d"]), help_text(f"Only rows at or after this time: {A_PAST_TIME}.")] = ""
    until: Annotated[Name, Meta(examples=["2026-03-05"]), help_text(f"Only rows before this time: {A_PAST_TIME}.")] = ""
    during: Annotated[Name, Meta(examples=["2026-03"]), help_text(f"Only rows of this period: {A_PERIOD}.")] = ""
    order: Annotated[Name, choice(*ORDERS), help_text("Which rows come first. Default: oldest.")] = ""
    format: Annotated[
        Name,
        choice(*FORMATS),
        help_text("Return all matching rows as a file: CSV, or a JSON array. Without limit and cursor."),
    ] = ""


class HistoryControl:
    """History."""

    def __init__(self, engine: Engine, slices: Slices) -> None:
        self._engine = engine
        self._slices = slices

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/history",
                self.history,
                "List rows of history.",
                (page_of("history", HistoryEntryShape), list[HistoryEntryShape]),
                tenant=True,
                query=HistoryQuery,
                text_type=CSV_TYPE,
            )
        ]

    async def history(self, request: HttpRequest) -> Response:
        query: HistoryQuery = request.state.query
        newest = one_of("order", query.order, ORDERS) == NEWEST_FIRST
        tenant = caller(request)
        for name in ("host", "operation", "rollout") if tenant.group else ():
            if getattr(query, name):
                what = f"History by {name}"
                raise InsufficientRole(role=tenant.role.value, what=what, needed="viewer, operator or admin")
        event, operation = await self._about(query, tenant)
        history_filter = HistoryFilter(
            groups=visible_groups(tenant, query.group),
            after=tenant.generation,
            event=event,
            operation=operation,
            vm=query.vm,
            host=query.host,
            type=requested_type(request),
            cause=one_of("cause", query.cause, CAUSES),
            by=query.by,
            kinds=requested_kinds(request),
            newest=newest,
        )
        since, until = self._period(query)
        if since is not None and until is not None and since > until:
            first, last = shown(query.since or query.during), shown(query.until or query.during)
            problem = f"{first} is after {last}, so nothing can match"
            allowed = "a time before until, and within during"
            raise BadParameter(parameter="since", problem=problem, allowed=allowed)
        if since is not None and since > self._engine.clock.now():
            name = "since" if query.since else "during"
            problem = f"{shown(getattr(query, name))} is in the future, so nothing can match"
            raise BadParameter(parameter=name, problem=problem, allowed="a time in the past")
        check = NameCheck(self._engine, self._slices, tenant)
        await check.vm(query.vm)
        await check.groups(() if tenant.group else history_filter.groups)
        await check.host(query.host)
        await check.author(query.by)
        history_filter = history_filter._replace(since=since, until=until)
        if form := one_of("format", query.format, FORMATS):
            for name in ("limit", "cursor"):
                if getattr(query, name):
                    problem = "cannot be used with format: the file has all rows"
                    raise BadParameter(parameter=name, problem=problem, allowed="no value")
            return download(
                form, all_rows(self._engine, self._slices, request, history_filter), self._engine.clock.now()
            )
        return await self._page(request, history_filter)

    async def _page(self, request: HttpRequest, history_filter: HistoryFilter) -> Response:
        """Return a page of the rows that match the filter and that the caller may see."""
        requested, own = requested_page(request), caller(request).group
        # One more row shows whether there is a next page.
        history_filter = history_filter._replace(limit=requested.limit + 1)
        position = requested.after_number
        if history_filter.newest:
            history_filter = history_filter._replace(before=position)
        else:
            history_filter = history_filter._replace(after=max(position, history_filter.after))
        found = await self._engine.records.history(history_filter)
        part = first_part(found[: requested.limit], lambda entry: len(entry.vms))
        shown = map(as_tenants_see, part) if own else part
        shapes = await self._slices.collect(map(HistoryEntryShape.of, shown))
        return page("history", shapes, part[-1].sequence if len(found) > len(part) else None)

    async def _about(self, query: HistoryQuery, token: Token) -> tuple[str, str]:
        """Return the ids of the event, and of its operation or of the rollout."""
        given = [name for name in ("event", "operation", "rollout") if getattr(query, name)]
        if len(given) > 1:
            problem = f"cannot be used with {given[0]}: a row is about one of them"
            raise BadParameter(parameter=given[1], problem=problem, allowed="no value")
        if query.event:
            event = await find_event(self._engine, token, query.event)
            return event.id, event.operation
        if query.operation:
            return "", (await find_operation(self._engine, query.operation)).id
        return "", (await find_rollout(self._engine, query.rollout)).id if query.rollout else ""

    def _period(self, query: HistoryQuery) -> tuple[datetime | None, datetime | None]:
        since, until = self._time("since", query.since), self._time("until", query.until)
        during = _during(query.during)
        if during is None:
            return since, until
        return max(since or during.since, during.since), min(until or during.until, during.until)

    def _time(self, name: str, text: str) -> datetime | None:
        try:
            return parse_past_time(text, self._engine.clock.now()) if text else None
        except ValueError:
            problem = f"{shown(text)} is not a time. Write {A_PAST_TIME}"
            raise BadParameter(parameter=name, problem=problem, allowed=A_PAST_TIME) from None


async def all_rows(
    engine: Engine, slices: Slices, request: HttpRequest, history_filter: HistoryFilter
) -> AsyncGenerator[list[HistoryEntryShape], None]:
    """Yield all rows that match and that the caller may see, part by part, up to the newest row of now."""
    own, first, end = caller(request).group, history_filter.after + 1, engine.records.newest + 1
    while request.state.is_authorized():  # the token may be revoked meanwhile
        part = history_filter._replace(after=first - 1, before=end, limit=DOWNLOAD_ROWS)
        found = await engine.records.history(part)
        for rows in in_parts(found, lambda entry: 1 + len(entry.vms) // VMS_AS_ROW, PART_ROWS):
            await slices.turn()
            yield [HistoryEntryShape.of(as_tenants_see(entry) if own else entry) for entry in rows]
        if len(found) < DOWNLOAD_ROWS:
            return
        if history_filter.newest:
            end = found[-1].sequence
        else:
            first = found[-1].sequence + 1
    raise BadToken


def _during(text: str) -> Period | None:
    try:
        return parse_period(text) if text else None
    except ValueError:
        raise BadParameter(parameter="during", problem=f"{shown(text)} is not {A_PERIOD}", allowed=A_PERIOD) from None


def requested_kinds(request: HttpRequest) -> tuple[str, ...]:
    """Return the kinds of the request's filter; empty: all kinds."""
    kinds = tuple(dict.fromkeys(request.state.query.kind))
    for kind in kinds:
        if problem := check_kind(kind):
            raise BadParameter(parameter="kind", problem=problem, allowed=list(HISTORY_KINDS))
    return kinds


def requested_type(request: HttpRequest) -> str:
    """Return the event type of the request's filter; empty: all types."""
    return one_of("type", request.state.query.type, EVENT_TYPES)

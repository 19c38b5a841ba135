"""/v1/history: what happened to whom, when, by whom and why. Tenants see the rows of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from forewarn.control.paging import Paging, page, wanted
from forewarn.control.routing import Route, caller
from forewarn.control.schema import Name, choice, help_text, page_of
from forewarn.core.durations import A_PAST_TIME, A_PERIOD, Period, parse_past_time, parse_period
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.history import HISTORY_KINDS, check_kind
from forewarn.core.operations import CAUSES
from forewarn.delivery.history_rows import HistoryEntryShape, as_tenants_see
from forewarn.errors import BadParameter, InsufficientRole, UnknownResource, nearest
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

    from forewarn.engine.engine import Engine


HISTORY = page_of("history", HistoryEntryShape)
NEWEST_FIRST = "newest"
ORDERS = ("oldest", NEWEST_FIRST)


class HistoryQuery(Paging):
    """Which rows of history."""

    vm: Annotated[Name, help_text("Only rows about this VM.")] = ""
    group: Annotated[tuple[Name, ...], help_text("Only rows about this group. Can be repeated.")] = ()
    host: Annotated[Name, help_text("Only rows about this host, or about VMs that were moved to it.")] = ""
    type: Annotated[Name, choice(*EVENT_TYPES), help_text("Only rows of operations with events of this type.")] = ""
    cause: Annotated[Name, choice(*CAUSES), help_text("Only rows of operations with this cause.")] = ""
    by: Annotated[Name, help_text("Only rows of changes that this user, token or VM made.")] = ""
    kind: Annotated[
        tuple[Annotated[str, choice(*HISTORY_KINDS)], ...],
        help_text("Only rows of this kind. Can be repeated."),
    ] = ()
    since: Annotated[Name, Meta(examples=["30d"]), help_text(f"Only rows at or after this time: {A_PAST_TIME}.")] = ""
    until: Annotated[Name, Meta(examples=["2026-03-05"]), help_text(f"Only rows before this time: {A_PAST_TIME}.")] = ""
    during: Annotated[Name, Meta(examples=["2026-03"]), help_text(f"Only rows of this period: {A_PERIOD}.")] = ""
    order: Annotated[Name, choice(*ORDERS), help_text("Which rows come first. Default: oldest.")] = ""


class HistoryControl:
    """History."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        what = "List rows of history."
        return [Route("GET", "/v1/history", self.history, what, HISTORY, tenant=True, query=HistoryQuery)]

    async def history(self, request: HttpRequest) -> Response:
        query: HistoryQuery = request.state.query
        newest = _one_of("order", query.order, ORDERS) == NEWEST_FIRST
        tenant = caller(request)
        for name in ("host", "cause"):
            if tenant.group and name in request.query_params:
                what = f"History by {name}"
                raise InsufficientRole(role=tenant.role.value, what=what, needed="viewer, operator or admin")
        sought = HistoryFilter(
            groups=groups_seen(request),
            vm=query.vm,
            host=query.host,
            type=_one_of("type", query.type, EVENT_TYPES),
            cause=_one_of("cause", query.cause, CAUSES),
            by=query.by,
            kinds=requested_kinds(request),
            newest=newest,
        )
        since, until = self._span(query)
        return await history_page(self._engine, request, sought._replace(since=since, until=until))

    def _span(self, query: HistoryQuery) -> tuple[datetime | None, datetime | None]:
        since, until = self._moment("since", query.since), self._moment("until", query.until)
        during = _during(query.during)
        if during is None:
            return since, until
        return max(since or during.since, during.since), min(until or during.until, during.until)

    def _moment(self, name: str, text: str) -> datetime | None:
        try:
            return parse_past_time(text, self._engine.clock.now()) if text else None
        except ValueError:
            problem = f"{text!r} is not a time in the past. Write {A_PAST_TIME}"
            raise BadParameter(parameter=name, problem=problem, allowed=A_PAST_TIME) from None


async def history_page(engine: Engine, request: HttpRequest, sought: HistoryFilter) -> Response:
    """A page of what is sought, as the caller may see it."""
    asked, own = wanted(request), caller(request).group
    sought = sought._replace(limit=asked.limit + 1)  # one more says whether there is another page
    place = asked.after_number
    found = await engine.records.history(
        sought._replace(before=place) if sought.newest else sought._replace(after=place)
    )
    part = found[: asked.limit]
    shown = map(as_tenants_see, part) if own else part
    return page("history", map(HistoryEntryShape.of, shown), part[-1].sequence if len(found) > asked.limit else None)


def _during(text: str) -> Period | None:
    try:
        return parse_period(text) if text else None
    except ValueError:
        raise BadParameter(parameter="during", problem=f"{text!r} is not {A_PERIOD}", allowed=A_PERIOD) from None


def groups_seen(request: HttpRequest) -> tuple[str, ...]:
    """The groups that are asked for; none: all. A tenant's is its own: of others it is told that there are none."""
    own, asked = caller(request).group, tuple(dict.fromkeys(request.state.query.group))
    for group in asked if own else ():
        if group != own:
            raise UnknownResource(what="group", name=group, hint=nearest(group, [own]))
    return (own,) if own else asked


def requested_kinds(request: HttpRequest) -> tuple[str, ...]:
    """Return the kinds of the request's filter; empty: all kinds."""
    kinds = tuple(dict.fromkeys(request.state.query.kind))
    for kind in kinds:
        if problem := check_kind(kind):
            raise BadParameter(parameter="kind", problem=problem, allowed=list(HISTORY_KINDS))
    return kinds


def _one_of(name: str, text: str, known: Iterable[str]) -> str:
    """A word of a list, in any letter case; empty: none was given."""
    words = {word.lower(): word for word in known}
    if text and text.lower() not in words:
        problem = f"{text!r} is not one of {', '.join(words.values())}.{nearest(text, words.values())}"
        raise BadParameter(parameter=name, problem=problem, allowed=list(words.values()))
    return words[text.lower()] if text else ""

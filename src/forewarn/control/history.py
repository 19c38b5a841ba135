"""/v1/history: what happened to whom, when, by whom and why. Tenants see the rows of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.control.input import Query
from forewarn.control.paging import PAGING, page, wanted
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    COUNT,
    MAYBE_TEXT,
    MOMENT,
    NAME,
    TEXT,
    TEXTS,
    Field,
    Schema,
    choice,
    list_of,
    page_schema,
    record,
)
from forewarn.core.durations import A_PAST_MOMENT, A_SPAN, Span, parse_past_moment, parse_span
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.operations import CAUSES
from forewarn.delivery.feed import KINDS
from forewarn.delivery.history_rows import as_tenants_see, entry_shape
from forewarn.errors import BadParameter, NotForRole, Unknown, nearest
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

    from forewarn.engine.engine import Engine


OF_GROUPS = Field("group", list_of(NAME), "Only rows about this group. May be given several times.")
OF_KINDS = Field("kind", list_of(choice(*KINDS)), "Only what is of this kind. May be given several times.")
HISTORY = page_schema("history", "Entry")
NEWEST_FIRST = "newest"
ORDERS = ("oldest", NEWEST_FIRST)
ASKED = (
    Field("vm", NAME, "Only rows about this VM."),
    OF_GROUPS,
    Field("host", NAME, "Only rows about this host, or about VMs that were brought to it."),
    Field("type", {**NAME, **choice(*EVENT_TYPES)}, "Only of operations with events of this type."),
    Field("cause", {**NAME, **choice(*CAUSES)}, "Only of operations with this cause."),
    Field("by", NAME, "Only what was done by this person, token or VM."),
    OF_KINDS,
    Field("since", {**NAME, "examples": ["30d"]}, f"From then on: {A_PAST_MOMENT}."),
    Field("until", {**NAME, "examples": ["2026-03-05"]}, f"Before then: {A_PAST_MOMENT}."),
    Field("during", {**NAME, "examples": ["2026-03"]}, f"Only then: {A_SPAN}."),
    Field("order", {**NAME, **choice(*ORDERS)}, "Which come first; the oldest if it is not said."),
    *PAGING,
)


class HistoryControl:
    """History."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> list[Endpoint]:
        what = "See what has happened."
        return [Endpoint("GET", "/v1/history", self.history, what, HISTORY, tenant=True, query=ASKED)]

    async def history(self, request: HttpRequest) -> Response:
        newest = _one_of(request, "order", ORDERS) == NEWEST_FIRST
        tenant = caller(request)
        for name in ("host", "cause"):
            if tenant.group and name in request.query_params:
                what = f"History by {name}"
                raise NotForRole(role=tenant.role.value, what=what, needed="viewer, operator or admin")
        sought = HistoryFilter(
            groups=groups_seen(request),
            vm=Query(request).text("vm"),
            host=Query(request).text("host"),
            type=_one_of(request, "type", EVENT_TYPES),
            cause=_one_of(request, "cause", CAUSES),
            by=Query(request).text("by"),
            what=kinds_asked(request),
            newest=newest,
        )
        since, until = self._span(request)
        return await history_page(self._engine, request, sought._replace(since=since, until=until))

    def _span(self, request: HttpRequest) -> tuple[datetime | None, datetime | None]:
        since, until = self._moment(request, "since"), self._moment(request, "until")
        during = _during(Query(request).text("during"))
        if during is None:
            return since, until
        return max(since or during.since, during.since), min(until or during.until, during.until)

    def _moment(self, request: HttpRequest, name: str) -> datetime | None:
        text = Query(request).text(name)
        try:
            return parse_past_moment(text, self._engine.clock.now()) if text else None
        except ValueError:
            problem = f"{text!r} is no moment of the past: write {A_PAST_MOMENT}"
            raise BadParameter(parameter=name, problem=problem, valid=A_PAST_MOMENT) from None


async def history_page(engine: Engine, request: HttpRequest, sought: HistoryFilter) -> Response:
    """A page of what is sought, as the caller may see it."""
    asked, own = wanted(request), caller(request).group
    sought = sought._replace(limit=asked.limit + 1)  # one more says whether there is another page
    place = asked.after_number
    found = await engine.archive.history(
        sought._replace(before=place) if sought.newest else sought._replace(after=place)
    )
    part = found[: asked.limit]
    shown = map(as_tenants_see, part) if own else part
    return page("history", map(entry_shape, shown), part[-1].sequence if len(found) > asked.limit else None)


def _during(text: str) -> Span | None:
    try:
        return parse_span(text) if text else None
    except ValueError:
        raise BadParameter(parameter="during", problem=f"{text!r} is not {A_SPAN}", valid=A_SPAN) from None


def groups_seen(request: HttpRequest) -> tuple[str, ...]:
    """The groups that are asked for; none: all. A tenant's is its own: of others it is told that there are none."""
    own, asked = caller(request).group, Query(request).texts("group")
    for group in asked if own else ():
        if group != own:
            raise Unknown(what="group", name=group, hint=nearest(group, [own]))
    return (own,) if own else asked


def kinds_asked(request: HttpRequest) -> tuple[str, ...]:
    """What history says of the kinds that are asked for; none: all."""
    kinds = Query(request).texts("kind")
    for kind in kinds:
        if kind not in KINDS:
            problem = f"nothing of kind {kind!r} ever happens.{nearest(kind, KINDS)}"
            raise BadParameter(parameter="kind", problem=problem, valid=list(KINDS))
    return tuple(KINDS[kind] for kind in kinds)


def _one_of(request: HttpRequest, name: str, known: Iterable[str]) -> str:
    """A word of a list, in any letter case; empty: none was given."""
    text = Query(request).text(name)
    words = {word.lower(): word for word in known}
    if text and text.lower() not in words:
        problem = f"{text!r} is not one of {', '.join(words.values())}.{nearest(text, words.values())}"
        raise BadParameter(parameter=name, problem=problem, valid=list(words.values()))
    return words[text.lower()] if text else ""


SHAPES: dict[str, Schema] = {
    "Entry": record(
        {
            "sequence": COUNT,
            "at": MOMENT,
            "what": TEXT,
            "by": TEXT,
            "group": MAYBE_TEXT,
            "event": MAYBE_TEXT,
            "operation": MAYBE_TEXT,
            "host": MAYBE_TEXT,
            "vms": TEXTS,
            "why": MAYBE_TEXT,
        }
    ),
}

"""A document is taken in: which work it begins, changes and ends. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.changes import has_started
from forewarn.agent.policy.rule import choose_rule, notice_of
from forewarn.agent.work.deciding import end
from forewarn.agent.work.work import BEGUN, CAME_BACK, CANCELLED, OVER, PREPARING, begin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from forewarn.agent.policy.rule import Rule
    from forewarn.agent.work.work import Work
    from forewarn.wire.document_reader import ToldEvent

JUST_BOOTED_SECONDS = 15 * 60
"""A machine that was started so recently, and finds an event begun that it has never heard of, comes back from it."""


class Circumstances(NamedTuple):
    """What else decides."""

    rules: tuple[Rule, ...]
    listed_as: Callable[[tuple[str, ...]], str | None]
    """Which of some names is this machine's."""
    now: datetime
    boot: str
    up_seconds: float
    is_first: bool
    """Whether the agent has just begun to look, so that it may have missed how an event began."""


class Taken(NamedTuple):
    """What came of a document."""

    works: dict[str, Work]
    news: list[tuple[ToldEvent, str]]
    """What is worth a line in the log."""
    left_alone: dict[str, ToldEvent]
    """Events of this machine that no rule is for."""


def take_in(works: Mapping[str, Work], events: Iterable[ToldEvent], around: Circumstances) -> Taken:
    """What there is to do now that these events are told."""
    found: dict[str, Work] = {}
    taken = Taken(found, [], {})
    listed = {event.id: event for event in events}
    for known in works.values():
        kept = _go_on(known, listed.get(known.id), around, taken.news)
        if kept is not None:
            found[known.id] = kept
    for event in listed.values():
        me = around.listed_as(event.resources)
        if event.id in found or me is None:
            continue
        rule = choose_rule(around.rules, event, around.now)
        if rule is None:
            taken.left_alone[event.id] = event
            continue
        work = begin(event, me, rule, around.boot)
        if work.is_started and around.is_first and around.up_seconds < JUST_BOOTED_SECONDS:
            found[event.id] = work._replace(done=True, ending=CAME_BACK)
            taken.news.append((event, "has begun before this machine was started: nothing is left to prepare"))
        else:
            found[event.id] = work
            taken.news.append((event, f"{_seen_first(work)}, taken by {work.rule.name}"))
    return taken


def presume(works: Mapping[str, Work], boot: str, now: datetime) -> dict[str, Work]:
    """What to take for true when the endpoint says nothing: a machine that was started anew when the event could have
    begun has come back from it, and must not wait for ever to be restored."""
    found = {}
    for work in works.values():
        is_back = work.is_begun and not work.ending and work.boot != boot and _may_have_begun(work, now)
        found[work.id] = end(work, CAME_BACK) if is_back else work
    return found


def _may_have_begun(work: Work, now: datetime) -> bool:
    return work.is_started or bool(work.approved_at) or notice_of(work.event, now) == timedelta(0)


def _seen_first(work: Work) -> str:
    return "has started" if work.is_started else "is scheduled"


def _go_on(
    work: Work, event: ToldEvent | None, around: Circumstances, news: list[tuple[ToldEvent, str]]
) -> Work | None:
    """None: there is nothing left of it."""
    boot = around.boot
    me = None if event is None else around.listed_as(event.resources)
    if event is None or (me is None and not work.is_started):  # it is gone, or not about this machine any more
        # It may have started and ended while nobody looked.
        why = OVER if _may_have_begun(work, around.now) else CANCELLED
        if why == OVER and work.rule.undo and not work.steps and not work.done:
            news.append((work.event, f"is {why}"))
            return end(work, why)  # there was nothing to prepare, and yet there is something to do afterwards
        if work.done or not work.is_begun:
            news.append((work.event, f"is {why}"))
            return None
        if work.ending:
            return work
        news.append((work.event, f"is {why}"))
        return end(work, why)
    if work.is_started and not has_started(event):
        event = work.event  # a document from before: what has started does not go back to be scheduled
    if not work.is_started and has_started(event):
        news.append((event, "has started"))
    work = work._replace(event=event, me=me or work.me)
    if work.boot == boot or work.ending or not work.is_begun:
        return work._replace(boot=boot)
    if work.is_started:
        news.append((event, "this machine is back from it"))
        return end(work, CAME_BACK)
    # It was started anew by something else, and the event is still to come: what was stopped may run again.
    news.append((event, "this machine was started anew before it: it is prepared again"))
    again = tuple(step._replace(state=PREPARING, run="") if step.state in BEGUN else step for step in work.steps)
    return work._replace(steps=again, boot=boot)

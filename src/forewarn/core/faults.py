"""FAULTS: one row for each way in which the endpoint can be made to fail on purpose, and what may be asked of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import enabling
from forewarn.core.durations import format_duration, format_exactly
from forewarn.core.state import HistoryEntry
from forewarn.errors import BadOption, UnknownFault, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft

GET, POST, ANY = "GET", "POST", "any"
METHODS = (GET, POST, ANY)
MOST_FAULTS = 100
"""At a time, so that what is looked through at each request stays small."""
MAX_HITS = 1_000_000
LONGEST_DELAY = timedelta(minutes=10)
MAX_DURATION = timedelta(days=366)


class FaultKind(NamedTuple):
    """One way to fail."""

    name: str
    """What the user types."""
    meaning: str
    methods: tuple[str, ...] = (GET,)
    """The requests that it can strike; none: it happens at once, and waits for no request."""
    delay: timedelta | None = None
    """How long a client is kept waiting if nothing else is said; None: it is not."""


FAULTS = {
    row.name: row
    for row in (
        FaultKind("slow", "The answer comes after a delay.", (GET, POST), timedelta(minutes=2)),
        FaultKind("empty", "200 with an empty body."),
        FaultKind("unchanged", "304, whatever tag the client has."),
        FaultKind("410", "410 Gone: the service is being updated.", (GET, POST)),
        FaultKind("429", "429: too many requests, however few there were.", (GET, POST)),
        FaultKind("500", "500: the service has failed.", (GET, POST)),
        FaultKind(
            "stall", "Half of the body, nothing for a delay, then the connection ends.", delay=timedelta(seconds=30)
        ),
        FaultKind("reset", "The connection is reset, without an answer.", (GET, POST)),
        FaultKind("length", "Content-Length says more than the body has; then the connection ends."),
        FaultKind("stale", "The document of an older incarnation, with its own tag."),
        FaultKind("disabled", "The group is disabled as after 24 h of silence; its next GET enables it anew.", ()),
    )
}


class FaultOrder(NamedTuple):
    """A fault to add. Without count and duration it affects one request."""

    kind: str
    vm: str = ""
    """Only requests of this VM; empty: of all."""
    method: str = GET
    """Which requests it affects: GET, POST or any."""
    count: int | None = None  # type: ignore[assignment]  # the word the user types; nobody counts in this tuple
    """How many requests it affects."""
    duration: timedelta | None = None
    """How long it stays active, on the service's clock. With a count, whichever ends first."""
    delay: timedelta | None = None
    """How long a client is kept waiting, in real time."""


class Fault(NamedTuple):
    """An active fault and how often it was applied."""

    id: str
    order: FaultOrder
    by: str
    added_at: datetime
    expires_at: datetime | None = None
    """When it expires; None: only its count ends it."""
    remaining: int | None = None
    """How many more requests it will affect; None: no limit."""
    hits: int = 0

    def fits(self, vm: str, method: str) -> bool:
        """Whether it applies to this request."""
        wanted = self.order.method in (method, ANY) and method in FAULTS[self.order.kind].methods
        return wanted and self.order.vm in (vm, "")

    @property
    def is_spent(self) -> bool:
        """Whether its count is used up."""
        return self.remaining is not None and self.remaining <= 0

    def is_over(self, now: datetime) -> bool:
        return self.is_spent or (self.expires_at is not None and now >= self.expires_at)

    def hit(self) -> Fault:
        """The fault after one more affected request."""
        return self._replace(remaining=None if self.remaining is None else self.remaining - 1, hits=self.hits + 1)


def fill_in(asked: FaultOrder) -> FaultOrder:
    """The order with what it leaves open, or an error that says what would be right."""
    kind = FAULTS.get(asked.kind)
    if kind is None:
        raise UnknownFault(name=asked.kind, known=", ".join(FAULTS), hint=nearest(asked.kind, FAULTS))
    if asked.method not in METHODS:
        raise BadOption(name="method", value=asked.method, problem=f"choose one of {', '.join(METHODS)}.")
    if not kind.methods:
        return _at_once(asked)
    if asked.method not in (*kind.methods, ANY):
        able = ", ".join(name for name, other in FAULTS.items() if asked.method in other.methods)
        problem = f"{kind.name} strikes only {' and '.join(kind.methods)}. A {asked.method} can be struck by: {able}."
        raise BadOption(name="method", value=asked.method, problem=problem)
    _check_bounds(asked)
    if asked.delay is not None and kind.delay is None:
        able = ", ".join(name for name, other in FAULTS.items() if other.delay is not None)
        problem = f"{kind.name} keeps nobody waiting. A delay is for: {able}."
        raise BadOption(name="delay", value=format_exactly(asked.delay), problem=problem)
    return asked._replace(
        count=1 if asked.count is None and asked.duration is None else asked.count,
        delay=asked.delay if asked.delay is not None else kind.delay,
    )


def _check_bounds(asked: FaultOrder) -> None:
    if asked.count is not None and not _is_whole(asked.count, 1, MAX_HITS):
        problem = f"write a whole number from 1 to {MAX_HITS:,}."
        raise BadOption(name="count", value=str(asked.count), problem=problem)
    if asked.duration is not None and not timedelta(0) < asked.duration <= MAX_DURATION:
        problem = f"write more than 0s and at most {format_duration(MAX_DURATION)}."
        raise BadOption(name="duration", value=format_exactly(asked.duration), problem=problem)
    if asked.delay is not None and not timedelta(0) < asked.delay <= LONGEST_DELAY:
        problem = f"write more than 0s and at most {format_duration(LONGEST_DELAY)}."
        raise BadOption(name="delay", value=format_exactly(asked.delay), problem=problem)


def _is_whole(number: object, least: int, most: int) -> bool:
    """Also of what a program hands over, which may be anything: to Python, True is a number."""
    return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most


def _at_once(asked: FaultOrder) -> FaultOrder:
    given = {
        "method": asked.method if asked.method != GET else None,
        "count": None if asked.count is None else str(asked.count),
        "duration": None if asked.duration is None else format_exactly(asked.duration),
        "delay": None if asked.delay is None else format_exactly(asked.delay),
    }
    for name, value in given.items():
        if value is not None:
            problem = f"{asked.kind} happens at once, and strikes no request. Leave it out."
            raise BadOption(name=name, value=value, problem=problem)
    return asked


def describe(order: FaultOrder) -> str:
    """A fault in a few words, as history says it."""
    parts = [order.kind]
    if order.method != GET:
        parts.append(f"on {order.method}")
    if order.count is not None:
        parts.append("once" if order.count == 1 else f"{order.count:,} times")
    if order.duration is not None:
        parts.append(f"for {format_exactly(order.duration)}")
    if order.delay is not None:
        parts.append(f"with a delay of {format_exactly(order.delay)}")
    return " ".join(parts)


# --- What history says of them ------------------------------------------------------------------------


def add(draft: Draft, now: datetime, limits: OperatorLimits, fault_id: str, asked: FaultOrder, by: str) -> Fault:
    """The fault, from now on; what happens at once has happened. Only history has it: the rest is in memory."""
    order = fill_in(asked)
    vm = draft.fleet.vm(order.vm) if order.vm else None
    expires_at = None if order.duration is None else now + order.duration
    fault = Fault(fault_id, order, by, now, expires_at, order.count)
    draft.note(_entry(draft, HistoryEntry(now, "fault-added", by, reason=f"{fault_id}: {describe(order)}"), fault))
    if FAULTS[order.kind].methods:
        return fault
    groups = {vm.group} if vm is not None else {vm.group for vm in draft.fleet.vms.values()}
    told = sorted(draft.deliveries_among(frozenset(groups)))
    disabled = enabling.disable(draft, now, limits, told, by, f"fault {fault_id}")
    fault = fault._replace(remaining=0, hits=len(disabled))
    note_over(draft, now, limits, [fault], by)
    return fault


def note_cleared(draft: Draft, now: datetime, limits: OperatorLimits, faults: Sequence[Fault], by: str) -> None:
    """Faults were ended by hand."""
    for fault in faults:
        draft.note(_entry(draft, HistoryEntry(now, "fault-cleared", by, reason=_summary(fault)), fault))


def note_over(draft: Draft, now: datetime, limits: OperatorLimits, faults: Sequence[Fault], by: str) -> None:
    """Faults have come to their bound."""
    for fault in faults:
        draft.note(_entry(draft, HistoryEntry(now, "fault-expired", by, reason=_summary(fault)), fault))


def _summary(fault: Fault) -> str:
    return f"{fault.id}: {describe(fault.order)}; struck {fault.hits:,}"


def _entry(draft: Draft, entry: HistoryEntry, fault: Fault) -> HistoryEntry:
    vm = draft.fleet.vms.get(fault.order.vm)
    return entry if vm is None else entry._replace(group=vm.group, vms=(vm.name,))

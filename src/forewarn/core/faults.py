"""FAULTS: one row for each fault that can be injected into the metadata endpoint, and the checks of their options."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import enabling
from forewarn.core.durations import format_duration, format_exact_duration
from forewarn.core.state import HistoryEntry
from forewarn.errors import BadOption, UnknownFault, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft

GET, POST, ANY = "GET", "POST", "any"
METHODS = (GET, POST, ANY)
MAX_FAULTS = 100
"""At a time, so that what is looked through at each request stays small."""
MAX_COUNT = 1_000_000
MAX_DELAY = timedelta(minutes=10)
MAX_FAULT_DURATION = timedelta(days=366)


class FaultKind(NamedTuple):
    """A kind of fault."""

    name: str
    """The name on the command line and in the API."""
    meaning: str
    methods: tuple[str, ...] = (GET,)
    """The methods of the requests that it can affect; none: it takes effect immediately."""
    delay: timedelta | None = None
    """The default delay; None: the fault has no delay."""


FAULTS = {
    row.name: row
    for row in (
        FaultKind("slow", "The response is delayed.", (GET, POST), timedelta(minutes=2)),
        FaultKind("empty", "200 with an empty body."),
        FaultKind("unchanged", "304 Not Modified, whatever If-None-Match says."),
        FaultKind("410", "410 Gone, as during an update of the service.", (GET, POST)),
        FaultKind("429", "429 Too Many Requests, at any request rate.", (GET, POST)),
        FaultKind("500", "500 Internal Server Error.", (GET, POST)),
        FaultKind(
            "stall", "Half of the body, then a delay, then the connection is closed.", delay=timedelta(seconds=30)
        ),
        FaultKind("reset", "The connection is reset without a response.", (GET, POST)),
        FaultKind("length", "Content-Length is larger than the body; then the connection is closed."),
        FaultKind("stale", "The document of an older incarnation, with its ETag."),
        FaultKind(
            "disabled", "The scope is disabled, as after 24 hours without a poll. Its next GET enables it again.", ()
        ),
    )
}


class FaultSpec(NamedTuple):
    """A fault to add. Without count and duration it affects one request."""

    kind: str
    vm: str = ""
    """Only requests of this VM; empty: of all."""
    method: str = GET
    """Which requests it affects: GET, POST or any."""
    count: int | None = None  # type: ignore[assignment]  # the word that the user types; tuple.count is not used here
    """How many requests it affects."""
    duration: timedelta | None = None
    """How long it stays active, on the service's clock. With a count, whichever ends first."""
    delay: timedelta | None = None
    """The delay of the response, in real time."""


class Fault(NamedTuple):
    """An active fault and how often it was applied."""

    id: str
    spec: FaultSpec
    by: str
    added_at: datetime
    expires_at: datetime | None = None
    """When it expires; None: only its count ends it."""
    remaining: int | None = None
    """How many more requests it will affect; None: no limit."""
    hits: int = 0

    def fits(self, vm: str, method: str) -> bool:
        """Whether it applies to this request."""
        is_affected = self.spec.method in (method, ANY) and method in FAULTS[self.spec.kind].methods
        return is_affected and self.spec.vm in (vm, "")

    @property
    def is_spent(self) -> bool:
        """Whether its count is used up."""
        return self.remaining is not None and self.remaining <= 0

    def is_over(self, now: datetime) -> bool:
        return self.is_spent or (self.expires_at is not None and now >= self.expires_at)

    def hit(self) -> Fault:
        """The fault after one more affected request."""
        return self._replace(remaining=None if self.remaining is None else self.remaining - 1, hits=self.hits + 1)


def fill_in(spec: FaultSpec) -> FaultSpec:
    """Return the request with default values filled in. Raises an error if it is invalid."""
    kind = FAULTS.get(spec.kind)
    if kind is None:
        raise UnknownFault(name=spec.kind, known=", ".join(FAULTS), hint=nearest(spec.kind, FAULTS))
    if spec.method not in METHODS:
        raise BadOption(name="method", value=spec.method, problem=f"choose one of {', '.join(METHODS)}.")
    if not kind.methods:
        return _check_immediate(spec)
    if spec.method not in (*kind.methods, ANY):
        able = ", ".join(name for name, other in FAULTS.items() if spec.method in other.methods)
        problem = f"{kind.name} affects only {' and '.join(kind.methods)}. Faults for {spec.method}: {able}."
        raise BadOption(name="method", value=spec.method, problem=problem)
    _check_bounds(spec)
    if spec.delay is not None and kind.delay is None:
        able = ", ".join(name for name, other in FAULTS.items() if other.delay is not None)
        problem = f"{kind.name} has no delay. Faults with a delay: {able}."
        raise BadOption(name="delay", value=format_exact_duration(spec.delay), problem=problem)
    return spec._replace(
        count=1 if spec.count is None and spec.duration is None else spec.count,
        delay=spec.delay if spec.delay is not None else kind.delay,
    )


def _check_bounds(spec: FaultSpec) -> None:
    if spec.count is not None and not _is_integer(spec.count, 1, MAX_COUNT):
        problem = f"write a whole number from 1 to {MAX_COUNT:,}."
        raise BadOption(name="count", value=str(spec.count), problem=problem)
    if spec.duration is not None and not timedelta(0) < spec.duration <= MAX_FAULT_DURATION:
        problem = f"write more than 0s and at most {format_duration(MAX_FAULT_DURATION)}."
        raise BadOption(name="duration", value=format_exact_duration(spec.duration), problem=problem)
    if spec.delay is not None and not timedelta(0) < spec.delay <= MAX_DELAY:
        problem = f"write more than 0s and at most {format_duration(MAX_DELAY)}."
        raise BadOption(name="delay", value=format_exact_duration(spec.delay), problem=problem)


def _is_integer(number: object, minimum: int, maximum: int) -> bool:
    """Return whether it is an int in the range. The test kit may pass any type, and True is an int in Python."""
    return isinstance(number, int) and not isinstance(number, bool) and minimum <= number <= maximum


def _check_immediate(spec: FaultSpec) -> FaultSpec:
    given = {
        "method": spec.method if spec.method != GET else None,
        "count": None if spec.count is None else str(spec.count),
        "duration": None if spec.duration is None else format_exact_duration(spec.duration),
        "delay": None if spec.delay is None else format_exact_duration(spec.delay),
    }
    for name, value in given.items():
        if value is not None:
            problem = f"{spec.kind} takes effect immediately and affects no request. Omit it."
            raise BadOption(name=name, value=value, problem=problem)
    return spec


def describe(spec: FaultSpec) -> str:
    """Describe a fault in a few words, for history."""
    parts = [spec.kind]
    if spec.method != GET:
        parts.append(f"on {spec.method}")
    if spec.count is not None:
        parts.append("once" if spec.count == 1 else f"{spec.count:,} times")
    if spec.duration is not None:
        parts.append(f"for {format_exact_duration(spec.duration)}")
    if spec.delay is not None:
        parts.append(f"with a delay of {format_exact_duration(spec.delay)}")
    return " ".join(parts)


# --- History of faults -------------------------------------------------------------------------------


def add(draft: Draft, now: datetime, limits: OperatorLimits, fault_id: str, spec: FaultSpec, by: str) -> Fault:
    """Add a fault. Only its history row is stored; active faults are in memory."""
    spec = fill_in(spec)
    vm = draft.fleet.vm(spec.vm) if spec.vm else None
    expires_at = None if spec.duration is None else now + spec.duration
    fault = Fault(fault_id, spec, by, now, expires_at, spec.count)
    draft.record(_entry(draft, HistoryEntry(now, "fault-added", by, reason=f"{fault_id}: {describe(spec)}"), fault))
    if FAULTS[spec.kind].methods:
        return fault
    scopes = map(draft.fleet.scope_of, draft.fleet.vms.values() if vm is None else (vm,))
    scopes_enabled = sorted(draft.deliveries_among(frozenset(scopes)))
    disabled = enabling.disable(draft, now, limits, scopes_enabled, by, f"fault {fault_id}")
    fault = fault._replace(remaining=0, hits=len(disabled))
    record_expired(draft, now, limits, [fault], by)
    return fault


def record_cleared(draft: Draft, now: datetime, limits: OperatorLimits, faults: Sequence[Fault], by: str) -> None:
    """Record that an operator cleared faults."""
    for fault in faults:
        draft.record(_entry(draft, HistoryEntry(now, "fault-cleared", by, reason=_summary(fault)), fault))


def record_expired(draft: Draft, now: datetime, limits: OperatorLimits, faults: Sequence[Fault], by: str) -> None:
    """Record that faults reached their limits."""
    for fault in faults:
        draft.record(_entry(draft, HistoryEntry(now, "fault-expired", by, reason=_summary(fault)), fault))


def _summary(fault: Fault) -> str:
    return f"{fault.id}: {describe(fault.spec)}; hits: {fault.hits:,}"


def _entry(draft: Draft, entry: HistoryEntry, fault: Fault) -> HistoryEntry:
    vm = draft.fleet.vms.get(fault.spec.vm)
    return entry if vm is None else entry._replace(group=vm.group, vms=(vm.name,))

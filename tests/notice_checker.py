"""A checker of the promise that no machine is touched without its notice, by what is visible from outside.

It knows places and states of VMs (`GET /v1/vms`), operations (`GET /v1/operations/{id}`), the orders that a fabric got,
and the documents of its own polls. It states the rule on its own, and calls nothing of the service:

- Work on a host touches every VM that runs on it between the start and the end of the work, whatever `WorkOrder.vms`
  says, and every VM that an unfinished order brings there. Other work touches its VMs.
- The scope of each touched VM saw the event of the work, with this VM in Resources, as `Scheduled` for its notice, or
  approved it. The exceptions are in `_excuse`.
- A VM that comes to a host out of service, or is there when the host goes out of service, has an operation for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOST_WORK = ("host-update", "emergency-repair")
"""Causes whose work is done on the host itself.

Orders of live-migration and degraded-hardware carry a host, too. It is the host that their VMs leave: the work is done
on each of these VMs alone, and a VM that is not in the order notices nothing. The same is true for hardware-failure,
which starts the VMs of a failed host elsewhere.
"""
WITHOUT_NOTICE = ("hardware-failure", "start")
"""Causes without a notice: it has happened already, or it disturbs nobody."""
DELETIONS = ("delete", "scale-in", "instance-repair")
AUTO_APPROVED = {"restart": "reboot", "redeploy": "redeploy"}
"""The value of `auto_approve` for causes that a group can approve."""
NEW_IMAGES = ("reimage", "image-upgrade")
MINIMUM_NOTICE = {
    "Freeze": timedelta(minutes=15),
    "Reboot": timedelta(minutes=15),
    "Redeploy": timedelta(minutes=10),
    "Preempt": timedelta(seconds=30),
    "Terminate": timedelta(minutes=5),
}
"""Section 4 of the contract, written a second time on purpose."""
SHORT_DOWNTIME = timedelta(seconds=10)
"""The service can be down for so long without moving its events."""
OUT_OF_SERVICE = {"failed": ("hardware-failure",), "degraded": ("degraded-hardware", "hardware-failure")}
"""The causes of which a VM needs an operation on a host in this state."""


class Arrival(NamedTuple):
    """How and when a VM came to where it is."""

    at: datetime
    how: str
    """first (it was there at the first look), moved, started, added, moved by a file, or scope."""
    by: str = ""
    """The cause of the order that moved it."""
    began_at: datetime | None = None
    """When this order was given."""


class Place(NamedTuple):
    """Where a VM is, and who sees its events."""

    scope: str
    host: str
    runs: bool
    group: str


@dataclass
class Work:
    """What the fabric does for one operation."""

    operation: str
    cause: str
    host: str
    vms: tuple[str, ...]
    moves: dict[str, str]
    started_at: datetime
    ended_at: datetime | None = None
    judged: set[str] = field(default_factory=set)

    @property
    def is_on_host(self) -> bool:
        return self.cause in HOST_WORK


class SeenEvent(NamedTuple):
    """An event as a scope saw it."""

    first_at: datetime
    """When it was first seen as Scheduled."""
    not_before: datetime
    """As it was seen last."""
    resources: frozenset[str]


class Reported(NamedTuple):
    """Where the fabric has put a VM."""

    host: str
    outdated: set[str]
    """What the service says as long as it does not know better."""
    by: Work


class Violation(NamedTuple):
    """A VM that was touched without its notice."""

    text: str
    vm: str
    cause: str
    arrival: Arrival
    began_in_between: bool
    """Whether the order that brought the VM was given before the work was requested."""
    rollout: bool

    def __str__(self) -> str:
        return self.text


class NoticeChecker:
    """Judges what it is fed. Times are the service's times. `violations` has what must never happen and did."""

    def __init__(self, *, slack: timedelta = timedelta(0)) -> None:
        """`slack`: how much later than the service a poll can see an event."""
        self.violations: list[Violation] = []
        self._speed = 1.0
        self.slack = slack
        self._places: dict[str, Place] = {}
        self._arrivals: dict[str, Arrival] = {}
        """Since when each VM runs on its host, in its scope."""
        self._joined: dict[str, datetime] = {}
        """Since when each VM is in its scope."""
        self._reported: dict[str, Reported] = {}
        self._works: dict[str, Work] = {}
        self._operations: dict[str, Mapping[str, Any]] = {}
        self._enabled_at: dict[str, datetime] = {}
        self._seen: dict[tuple[str, str], SeenEvent] = {}
        self._approved: set[str] = set()
        self._faulty: set[str] = set()
        self._policies: dict[str, Mapping[str, Any]] = {}
        self._downtimes: list[tuple[datetime, datetime]] = []
        self._short_downtimes: list[tuple[datetime, datetime]] = []
        self._started = False

    # --- What is observed -----------------------------------------------------------------------------

    def policies(self, groups: Iterable[Mapping[str, Any]], speed: float = 1) -> None:
        """The groups of `GET /v1/groups`, for the notices that depend on the group, and the speed of the clock."""
        self._policies = {group["name"]: group for group in groups}
        self._speed = speed

    def operation(self, operation: Mapping[str, Any]) -> None:
        """An operation of the control API."""
        self._operations[operation["id"]] = operation

    def places(self, vms: Iterable[Mapping[str, Any]], now: datetime) -> None:
        """The VMs of `GET /v1/vms`. Call it after everything that can change them, and before work starts."""
        before, self._places = self._places, {}
        known = []
        for vm in vms:
            name, host = vm["name"], vm["host"]
            reported = self._reported.get(name)
            if reported is not None and host in reported.outdated:
                host = reported.host
            elif reported is not None and host == reported.host:
                known.append(name)
            else:
                self._reported.pop(name, None)
            self._places[name] = Place(vm["scope"], host, vm["state"] == "running", vm["group"])
        for name, place in self._places.items():
            self._note_arrival(name, before.get(name), place, now)
        for name in known:  # the service lists it there, so it can be moved on from there
            del self._reported[name]
        for gone in before.keys() - self._places.keys():
            del self._arrivals[gone], self._joined[gone]
            self._reported.pop(gone, None)
        scopes = {place.scope for place in self._places.values()}
        for scope in self._enabled_at.keys() - scopes:  # a scope without VMs is forgotten
            del self._enabled_at[scope]
        self._started = True
        for work in self._works.values():
            if work.ended_at is None and work.is_on_host:
                self._judge(work, now)

    def document(self, vm: str, document: Mapping[str, Any], now: datetime) -> None:
        """A document that a VM got. Only the VMs of known places count."""
        place = self._places.get(vm)
        if place is None:
            return
        self._enabled_at.setdefault(place.scope, now)
        for event in document["Events"]:
            if event["EventStatus"] != "Scheduled":
                continue
            key = place.scope, event["EventId"].lower()
            known = self._seen.get(key)
            not_before = parsedate_to_datetime(event["NotBefore"]) if event["NotBefore"] else now
            first_at = known.first_at if known is not None else now
            self._seen[key] = SeenEvent(first_at, not_before, frozenset(event["Resources"]))

    def approved(self, event_id: str, *, rejected: bool = False) -> None:
        """An approval is sent, or the service has rejected it."""
        if rejected:
            self._approved.discard(event_id.lower())
        else:
            self._approved.add(event_id.lower())

    def faulty(self, vm: str) -> None:
        """A fault was injected at the endpoint of this VM."""
        self._faulty.add(self._places[vm].scope)

    def down(self, since: datetime, until: datetime) -> None:
        """The service was down, so nobody could poll."""
        (self._downtimes if until - since > SHORT_DOWNTIME else self._short_downtimes).append((since, until))

    def work_started(
        self,
        operation: str,
        cause: str,
        host: str,
        vms: Iterable[str],
        moves: Mapping[str, str],
        now: datetime,
    ) -> None:
        """The fabric got an order. The operation and the places must be known as they were just before."""
        work = self._works.get(operation)
        if work is None:  # otherwise it is the same work again: after a failed attempt, or after a restart
            work = self._works[operation] = Work(operation, cause, host, tuple(vms), dict(moves), now)
        self._judge(work, now)

    def work_ended(self, operation: str, now: datetime, hosts: Mapping[str, str] | None = None) -> None:
        """The work is done, has failed for good, or is not waited for. `hosts`: where the fabric has put VMs."""
        work = self._works[operation]
        work.ended_at = now
        for name, host in (hosts or {}).items():
            if name in self._places:
                outdated = {self._places[name].host, work.moves.get(name, "")} - {host}
                self._reported[name] = Reported(host, outdated, work)

    # --- The rule -------------------------------------------------------------------------------------

    def _note_arrival(self, name: str, before: Place | None, place: Place, now: datetime) -> None:
        if before is None or before.scope != place.scope:
            self._joined[name] = now
        if before == place:
            return
        arrival = Arrival(now, "first")
        if before is None:
            arrival = Arrival(now, "added") if self._started else arrival
        elif before.host != place.host:
            bringing = [work for work in self._works.values() if work.moves.get(name) == place.host]
            if name in self._reported:
                by = self._reported[name].by
                arrival = Arrival(now, "reported", by.cause, by.started_at)
            elif bringing:
                arrival = Arrival(now, "moved", bringing[-1].cause, bringing[-1].started_at)
            else:
                arrival = Arrival(now, "moved by a file")
        elif before.scope != place.scope:
            arrival = Arrival(now, "scope")
        elif place.runs and not before.runs:
            starting = [work for work in self._works.values() if name in work.vms and work.cause == "start"]
            arrival = Arrival(now, "started", "start", starting[-1].started_at if starting else None)
        self._arrivals[name] = arrival

    def _judge(self, work: Work, now: datetime) -> None:
        """Check each VM that the work touches now."""
        touched: dict[str, Arrival] = {}
        if work.is_on_host:
            for name, place in self._places.items():
                if place.host == work.host and place.runs:
                    touched[name] = self._arrivals[name]
            for other in self._works.values():
                if other.ended_at is None and other is not work:
                    touched.update(self._on_their_way(other, work.host))
        else:
            touched.update((name, self._arrivals[name]) for name in work.vms if name in self._places)
        for name, arrival in touched.items():
            if name not in work.judged:
                work.judged.add(name)
                self._judge_vm(work, name, arrival, now)

    def _on_their_way(self, work: Work, host: str) -> Iterable[tuple[str, Arrival]]:
        """VMs that unfinished work brings to a host: nobody outside knows whether they are there already."""
        for name in work.vms:
            place = self._places.get(name)
            is_start = work.cause == "start"
            target = work.moves.get(name) or (place.host if place is not None and is_start else "")
            if place is not None and target == host and not (place.host == host and place.runs):
                yield name, Arrival(work.started_at, "starting" if is_start else "moving", work.cause, work.started_at)

    def _judge_vm(self, work: Work, name: str, arrival: Arrival, now: datetime) -> None:
        place, operation = self._places[name], self._operations[work.operation]
        if self._excuse(work, operation, name, place, arrival):
            return
        minimum = MINIMUM_NOTICE[operation["type"]] if operation["type"] else timedelta(0)
        if "notice" in operation["overrides"] and operation["notice_seconds"] is not None:
            minimum = min(minimum, timedelta(seconds=operation["notice_seconds"]))
        minimum /= self._speed
        found = ["it saw no event of this operation"]
        if not minimum:
            return
        for event in operation["events"]:
            if event["id"] in self._approved and event["scope"] == place.scope and name in event["vms"]:
                return
            # Nobody sees an event while the service is down. At a high speed, a whole notice can be shorter.
            unseen = _overlap(self._short_downtimes, datetime.fromisoformat(event["created_at"]), now)
            least = minimum - self.slack - unseen
            seen = self._seen.get((place.scope, event["id"]))
            if seen is None or name not in seen.resources:
                if least <= timedelta(0):
                    return
                continue
            notice = now - seen.first_at - _overlap(self._downtimes, seen.first_at, now)
            if notice >= least and now >= seen.not_before - self.slack:
                return
            found.append(f"it saw {event['id']} for {notice}, with NotBefore {seen.not_before}")
        what = f"{work.cause} of {work.host or ', '.join(work.vms)}"
        self._violation(
            f"{name} ({place.scope}) is touched at {now} by {what} ({work.operation}) without a notice of "
            f"{minimum}: {'; '.join(found[-2:])}. It came to {place.host} at {arrival.at}: {arrival.how} "
            f"{arrival.by}. The operation was requested at {operation['requested_at']}.",
            name,
            work.cause,
            arrival,
            operation,
        )

    def _excuse(self, work: Work, operation: Mapping[str, Any], name: str, place: Place, arrival: Arrival) -> str:
        """Return why a VM may be touched without a notice, or an empty string."""
        if work.cause in WITHOUT_NOTICE:
            return "a cause without notice"
        policy = self._policies.get(place.group, {})
        if work.cause in DELETIONS and not policy.get("terminate_notice"):
            return "a deletion in a group without terminate notice"
        if work.cause in NEW_IMAGES and not policy.get("os_image_notice"):
            return "a new image in a group without OS image notice"
        if AUTO_APPROVED.get(work.cause) in policy.get("auto_approve", ()):
            return "its group approves such work automatically"
        if place.scope in self._faulty:
            return "a fault was injected at its endpoint"
        if work.is_on_host and arrival.how == "reported" and arrival.at >= work.started_at:
            return "the fabric itself has put the VM on a host that it was working on"
        # Other work names its VMs at the request. Work on a host also names those that come later.
        since = max(datetime.fromisoformat(operation["requested_at"]), self._joined[name])
        if work.is_on_host:
            since = max(since, arrival.at)
        enabled_at = self._enabled_at.get(place.scope)
        if enabled_at is None or enabled_at >= since:
            return "events were not enabled when the work was requested, or when the VM came"
        return ""

    def hosts_at_work(self) -> set[str]:
        """Return the hosts on which work is in progress."""
        return {work.host for work in self._works.values() if work.is_on_host and work.ended_at is None}

    def host_of(self, vm: str) -> str:
        """Return where a VM is."""
        return self._places[vm].host if vm in self._places else ""

    def vms_out_of_service(self, hosts: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, datetime]]:
        """Return the VMs that run on hosts out of service, each with the state and since when it runs there."""
        states = {host["name"]: host["state"] for host in hosts}
        return {
            name: (states[place.host], self._arrivals[name].at)
            for name, place in self._places.items()
            if place.runs and states.get(place.host) in OUT_OF_SERVICE and self._arrivals[name].how != "scope"
        }

    def judge_out_of_service(self, name: str, state: str, operations: Iterable[Mapping[str, Any]]) -> None:
        """Check a VM on a host out of service. `operations`: all operations that ever concerned this VM."""
        place, arrival = self._places[name], self._arrivals[name]
        for operation in operations:
            since = datetime.fromisoformat(operation["requested_at"])
            if operation["host"] == place.host and operation["cause"] in OUT_OF_SERVICE[state] and since >= arrival.at:
                return
        text = (
            f"{name} runs on {place.host}, which is {state}, since {arrival.at} ({arrival.how} {arrival.by}), and "
            "nothing happens about it."
        )
        if not any(violation.text == text for violation in self.violations):
            self._violation(text, name, state, arrival, None)

    def _violation(self, text: str, vm: str, cause: str, arrival: Arrival, operation: Mapping[str, Any] | None) -> None:
        requested_at = (
            datetime.fromisoformat(operation["requested_at"]) if operation else datetime.max.replace(tzinfo=UTC)
        )
        before = arrival.began_at is not None and arrival.began_at <= requested_at
        self.violations.append(Violation(text, vm, cause, arrival, before, bool(operation and operation["rollout"])))


def _overlap(downtimes: Iterable[tuple[datetime, datetime]], since: datetime, until: datetime) -> timedelta:
    """Return how much of a time the service was down."""
    parts = (min(end, until) - max(start, since) for start, end in downtimes)
    return sum((part for part in parts if part > timedelta(0)), timedelta(0))

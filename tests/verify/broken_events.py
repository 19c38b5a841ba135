"""Events of the broken server: correct, except for one configurable defect."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

NOTICE = {
    "Freeze": 900,
    "Reboot": 900,
    "Redeploy": 600,
    "Preempt": 30,
    "Terminate": 600,
    "SpotRebalanceRecommendation": 0,
}
VALUES = {
    "Reboot": ("Virtual machine is going to be restarted as requested by authorized user.", "User", -1),
    "Redeploy": ("Virtual machine is going to be redeployed as requested by authorized user.", "User", -1),
    "Freeze": ("Host server is undergoing maintenance.", "Platform", 9),
    "Preempt": ("", "Platform", -1),
    "Terminate": ("", "User", -1),
    "SpotRebalanceRecommendation": ("", "Platform", -1),
}
PREVIEW = "2024-07-09"
SINCE = {"Preempt": "2017-11-01", "Terminate": "2019-01-01", "SpotRebalanceRecommendation": PREVIEW}
VERSIONS = ("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")
STARTED_FOR = timedelta(minutes=10)
INACTIVITY_TIMEOUT = timedelta(hours=24)


def new_id() -> str:
    return str(uuid.uuid4()).upper()


def format_date(time: datetime) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT")


@dataclass
class Event:
    type: str
    scope: Scope
    not_before: datetime
    event_id: str = field(default_factory=new_id)
    status: str = "Scheduled"
    approved: bool = False
    removed_at: datetime | None = None
    starts_with: list[Event] = field(default_factory=list)
    """Events that start together with this one."""


@dataclass
class Scope:
    vms: list[str]
    events: list[Event] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    """Ids of events that were removed."""
    incarnation: int = 0
    enabling_id: str = field(default_factory=new_id)
    last_seen: datetime | None = None


class EventModel:
    """Two groups and one clock. `defects` name the things that it does wrong."""

    def __init__(self, *defects: str) -> None:
        self.defects = frozenset(defects)
        self.lock = threading.RLock()
        self.now = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
        self.pool = Scope(["pool_0", "pool_1"])
        self.mail = Scope(["mail"])

    def increment(self, scope: Scope, change: str) -> None:
        if f"{change} not counted" in self.defects:
            return
        if f"{change} counted backwards" in self.defects:
            scope.incarnation -= 1
            return
        scope.incarnation += 2 if f"{change} counted twice" in self.defects else 1

    # --- Actions -------------------------------------------------------------------------------------

    def schedule(self, event_type: str) -> bool:
        affected = [self.pool, self.mail] if event_type == "Freeze" else [self.pool]
        notice = NOTICE[event_type] // 3 if "short notice" in self.defects else NOTICE[event_type]
        if "no notice" in self.defects:
            notice = 1
        if "long notice" in self.defects and event_type == "Terminate":
            notice = 1200
        made = [Event(event_type, scope, self.now + timedelta(seconds=notice)) for scope in affected]
        made = [event for event in made if self.is_enabled(event.scope)]
        if event_type == "SpotRebalanceRecommendation":
            for event in made:
                event.status = "Advisory"
        if "no event appears" in self.defects:
            return True
        for event in made:
            event.starts_with = made
            if "one event only" in self.defects:
                event.scope.events.clear()
            if "same id" in self.defects:
                event.event_id = "A123BC45-1234-5678-AB90-ABCDEF123456"
            event.scope.events.append(event)
            self.increment(event.scope, "addition")
            if "all groups count" in self.defects:
                self.mail.incarnation += 1
        return True

    def is_enabled(self, scope: Scope) -> bool:
        if "notice while disabled" in self.defects:
            return True
        return scope.last_seen is not None and self.now - scope.last_seen <= INACTIVITY_TIMEOUT

    def cancel(self, event_id: str) -> bool:
        event = self.find(self.pool, event_id)
        if event is not None and event.status == "Scheduled" and "cancel ignored" not in self.defects:
            for each in event.starts_with:
                each.scope.events.remove(each)
                self.increment(each.scope, "cancellation")
        return event is not None

    def approve(self, scope: Scope, vm: str, ids: list[str]) -> bool:
        """Approve the events. Return False and approve none if an id is unknown."""
        if "first id only" in self.defects:
            ids = ids[:1]
        if "last id only" in self.defects:
            ids = ids[-1:]
        if "ended unknown" not in self.defects:
            ids = [event_id for event_id in ids if event_id.upper() not in scope.ended]
        found = [self.find(scope, event_id) for event_id in ids]
        if "other group may approve" in self.defects and scope is self.mail:
            found = [event or self.find(self.pool, event_id) for event, event_id in zip(found, ids, strict=True)]
        if "approved once" in self.defects and any(event is not None and event.approved for event in found):
            return False
        if None in found and "known ids approved" not in self.defects:
            return False
        if "approval ignored" in self.defects or ("only the first VM approves" in self.defects and vm == "pool_1"):
            return True
        for event in found:
            if event is not None:
                event.approved = True
                if event.status == "Advisory" and "advice starts" in self.defects:
                    event.status = "Scheduled"
                if "approval counts" in self.defects:
                    event.scope.incarnation += 1
                self.start_ready()
        return None not in found

    def start_ready(self) -> None:
        for scope in (self.pool, self.mail):
            for event in list(scope.events):
                group = list(event.starts_with)
                if event.type == "Terminate":
                    group = [e for e in scope.events if e.type == event.type and e.not_before == event.not_before]
                if "starts alone" in self.defects:
                    group = [event]
                if event.status == "Scheduled" and all(e.approved or self.due(e) for e in group):
                    self.start(event)

    def due(self, event: Event) -> bool:
        early = timedelta(minutes=2) if "starts early" in self.defects else timedelta(0)
        return "never starts" not in self.defects and self.now >= event.not_before - early

    def start(self, event: Event) -> None:
        event.status = "Started"
        event.removed_at = self.now + STARTED_FOR
        if "id changes" in self.defects:
            event.event_id = new_id()
        self.increment(event.scope, "start")

    def advance(self, seconds: int) -> bool:
        target = self.now + timedelta(seconds=seconds)
        while self.now < target:
            self.now = min(self.now + timedelta(seconds=60 if target - self.now > timedelta(seconds=60) else 1), target)
            self.start_ready()
            for scope in (self.pool, self.mail):
                for event in [e for e in scope.events if e.removed_at is not None and self.now >= e.removed_at]:
                    if "never removed" in self.defects:
                        continue
                    if "completed" in self.defects and event.status == "Started":
                        event.status, event.removed_at = "Completed", self.now + STARTED_FOR
                        continue
                    scope.events.remove(event)
                    scope.ended.add(event.event_id)
                    self.increment(scope, "removal")
        return True

    # --- Documents ----------------------------------------------------------------------------------

    def find(self, scope: Scope, event_id: str) -> Event | None:
        wanted = event_id if "exact ids" in self.defects else event_id.upper()
        return next((event for event in scope.events if event.event_id == wanted), None)

    def record_poll(self, scope: Scope) -> None:
        if (
            scope.last_seen is not None
            and self.now - scope.last_seen > INACTIVITY_TIMEOUT
            and "never disabled" not in self.defects
        ):
            if "notice while disabled" not in self.defects:
                scope.events = [event for event in scope.events if event.status == "Advisory"]
            scope.incarnation, scope.enabling_id = len(scope.events), new_id()
        scope.last_seen = self.now

    def tag(self, scope: Scope) -> str:
        enabling_id = "" if "etag without enabling id" in self.defects else scope.enabling_id[:8]
        return f'"{enabling_id}.{scope.incarnation}"'

    def document(self, scope: Scope, version: str) -> dict[str, Any]:
        events = list(scope.events)
        if "other groups shown" in self.defects and scope is self.mail:
            events += self.pool.events
        gates = {"SpotRebalanceRecommendation": PREVIEW} if "types not gated" in self.defects else SINCE
        event_as_json = [self.event_as_json(event, version) for event in events if gates.get(event.type, "") <= version]
        return {"DocumentIncarnation": scope.incarnation, "Events": event_as_json}

    def event_as_json(self, event: Event, version: str) -> dict[str, Any]:
        description, source, seconds = VALUES[event.type]
        names = [event.scope.vms[-1 if event.type in ("Preempt", "Terminate") else 0]]
        if "resources change" in self.defects and event.status == "Started":
            names = ["pool_7"]
        moved = event.not_before
        if "NotBefore decreases" in self.defects and self.now >= event.not_before - timedelta(minutes=8):
            moved -= timedelta(minutes=5)
        found: dict[str, Any] = {
            "EventId": event.event_id,
            "EventStatus": event.status,
            "EventType": event.type,
            "ResourceType": "VirtualMachine",
            "Resources": [f"_{name}" for name in names] if version == "2017-03-01" else names,
            "NotBefore": format_date(moved) if event.status == "Scheduled" else "",
        }
        if version >= "2019-04-01":
            found["Description"] = description
        if version >= "2019-08-01":
            found["EventSource"] = source
        if version >= "2020-07-01":
            found["DurationInSeconds"] = seconds
        return found

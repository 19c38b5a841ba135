"""The events of the small server that the checks are tried on: right, unless it is told what to do wrong."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

NOTICE = {"Freeze": 900, "Reboot": 900, "Redeploy": 600, "Preempt": 30, "Terminate": 600}
WORDS = {
    "Reboot": ("Virtual machine is going to be restarted as requested by authorized user.", "User", -1),
    "Redeploy": ("Virtual machine is going to be redeployed as requested by authorized user.", "User", -1),
    "Freeze": ("Host server is undergoing maintenance.", "Platform", 9),
    "Preempt": ("", "Platform", -1),
    "Terminate": ("", "User", -1),
}
SINCE = {"Preempt": "2017-11-01", "Terminate": "2019-01-01"}
VERSIONS = ("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")
STARTED_FOR = timedelta(minutes=10)
SILENCE = timedelta(hours=24)


def new_id() -> str:
    return str(uuid.uuid4()).upper()


def rfc1123(moment: datetime) -> str:
    return moment.strftime("%a, %d %b %Y %H:%M:%S GMT")


@dataclass
class Event:
    type: str
    scope: Scope
    not_before: datetime
    event_id: str = field(default_factory=new_id)
    status: str = "Scheduled"
    approved: bool = False
    over_at: datetime | None = None
    with_others: list[Event] = field(default_factory=list)
    """What has to start together with it."""


@dataclass
class Scope:
    vms: list[str]
    events: list[Event] = field(default_factory=list)
    incarnation: int = 0
    enabling: str = field(default_factory=new_id)
    heard_at: datetime | None = None


class World:
    """Two scopes and one clock. `wrong` is the one thing that it does wrong, if any."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.lock = threading.RLock()
        self.now = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
        self.pool = Scope(["pool_0", "pool_1"])
        self.mail = Scope(["mail"])

    def count(self, scope: Scope, what: str) -> None:
        if self.wrong == f"{what} not counted":
            return
        if self.wrong == f"{what} counted back":
            scope.incarnation -= 1
            return
        scope.incarnation += 2 if self.wrong == f"{what} counted twice" else 1

    # --- Orders --------------------------------------------------------------------------------------

    def schedule(self, kind: str) -> bool:
        told = [self.pool, self.mail] if kind == "Freeze" else [self.pool]
        notice = NOTICE[kind] // 3 if self.wrong == "short notice" else NOTICE[kind]
        if self.wrong == "no notice":
            notice = 1
        if self.wrong == "long notice" and kind == "Terminate":
            notice = 1200
        made = [Event(kind, scope, self.now + timedelta(seconds=notice)) for scope in told]
        made = [event for event in made if self.listens(event.scope)]
        if self.wrong == "nothing told":
            return True
        for event in made:
            event.with_others = made
            if self.wrong == "one event only":
                event.scope.events.clear()
            if self.wrong == "same id":
                event.event_id = "A123BC45-1234-5678-AB90-ABCDEF123456"
            event.scope.events.append(event)
            self.count(event.scope, "addition")
            if self.wrong == "all scopes count":
                self.mail.incarnation += 1
        return True

    def listens(self, scope: Scope) -> bool:
        if self.wrong == "told when disabled":
            return True
        return scope.heard_at is not None and self.now - scope.heard_at <= SILENCE

    def cancel(self, event_id: str) -> bool:
        event = self.find(self.pool, event_id)
        if event is not None and event.status == "Scheduled" and self.wrong != "cancel ignored":
            for each in event.with_others:
                each.scope.events.remove(each)
                self.count(each.scope, "cancellation")
        return event is not None

    def approve(self, scope: Scope, vm: str, ids: list[str]) -> bool:
        """Whether all of them are known; else none is approved."""
        found = [self.find(scope, event_id) for event_id in ids]
        if self.wrong == "outside may approve" and scope is self.mail:
            found = [event or self.find(self.pool, event_id) for event, event_id in zip(found, ids, strict=True)]
        if self.wrong == "approved once" and any(event is not None and event.approved for event in found):
            return False
        if None in found and self.wrong != "known ones approved":
            return False
        if self.wrong == "approval ignored" or (self.wrong == "only the first VM approves" and vm == "pool_1"):
            return True
        for event in found:
            if event is not None:
                event.approved = True
                if self.wrong == "approval counts":
                    event.scope.incarnation += 1
                self.start_what_may()
        return None not in found

    def start_what_may(self) -> None:
        for scope in (self.pool, self.mail):
            for event in list(scope.events):
                together = list(event.with_others)
                if event.type == "Terminate":
                    together = [e for e in scope.events if e.type == event.type and e.not_before == event.not_before]
                if self.wrong == "starts alone":
                    together = [event]
                if event.status == "Scheduled" and all(e.approved or self.due(e) for e in together):
                    self.start(event)

    def due(self, event: Event) -> bool:
        early = timedelta(minutes=2) if self.wrong == "starts early" else timedelta(0)
        return self.wrong != "never starts" and self.now >= event.not_before - early

    def start(self, event: Event) -> None:
        event.status = "Started"
        event.over_at = self.now + STARTED_FOR
        if self.wrong == "id changes":
            event.event_id = new_id()
        self.count(event.scope, "start")

    def advance(self, seconds: int) -> bool:
        target = self.now + timedelta(seconds=seconds)
        while self.now < target:
            self.now = min(self.now + timedelta(seconds=60 if target - self.now > timedelta(seconds=60) else 1), target)
            self.start_what_may()
            for scope in (self.pool, self.mail):
                for event in [e for e in scope.events if e.over_at is not None and self.now >= e.over_at]:
                    if self.wrong == "never removed":
                        continue
                    if self.wrong == "completed" and event.status == "Started":
                        event.status, event.over_at = "Completed", self.now + STARTED_FOR
                        continue
                    scope.events.remove(event)
                    self.count(scope, "removal")
        return True

    # --- What is seen --------------------------------------------------------------------------------

    def find(self, scope: Scope, event_id: str) -> Event | None:
        wanted = event_id if self.wrong == "exact ids" else event_id.upper()
        return next((event for event in scope.events if event.event_id == wanted), None)

    def hear(self, scope: Scope) -> None:
        if scope.heard_at is not None and self.now - scope.heard_at > SILENCE and self.wrong != "never disabled":
            scope.incarnation, scope.enabling = 0, new_id()
            if self.wrong != "told when disabled":
                scope.events.clear()
        scope.heard_at = self.now

    def tag(self, scope: Scope) -> str:
        enabling = "" if self.wrong == "tag without enabling" else scope.enabling[:8]
        return f'"{enabling}.{scope.incarnation}"'

    def document(self, scope: Scope, version: str) -> dict[str, Any]:
        events = list(scope.events)
        if self.wrong == "other scopes shown" and scope is self.mail:
            events += self.pool.events
        gates = {} if self.wrong == "types not gated" else SINCE
        shown = [self.shown(event, version) for event in events if gates.get(event.type, "") <= version]
        return {"DocumentIncarnation": scope.incarnation, "Events": shown}

    def shown(self, event: Event, version: str) -> dict[str, Any]:
        words, source, seconds = WORDS[event.type]
        names = [event.scope.vms[-1 if event.type in ("Preempt", "Terminate") else 0]]
        if self.wrong == "resources change" and event.status == "Started":
            names = ["pool_7"]
        moved = event.not_before
        if self.wrong == "not before goes back" and self.now >= event.not_before - timedelta(minutes=8):
            moved -= timedelta(minutes=5)
        found: dict[str, Any] = {
            "EventId": event.event_id,
            "EventStatus": event.status,
            "EventType": event.type,
            "ResourceType": "VirtualMachine",
            "Resources": [f"_{name}" for name in names] if version == "2017-03-01" else names,
            "NotBefore": rfc1123(moved) if event.status == "Scheduled" else "",
        }
        if version >= "2019-04-01":
            found["Description"] = words
        if version >= "2019-08-01":
            found["EventSource"] = source
        if version >= "2020-07-01":
            found["DurationInSeconds"] = seconds
        return found

"""Which documents VMs were given, and that they came back for more: by then they have processed the last one.

A virtual clock can wait for that, for an application that polls in a process of its own. A document counts when it went
out whole: one that an injected fault has damaged does not.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import format_time
from forewarn.errors import DocumentNotSeen, ServiceStopping, WaitAbandoned
from forewarn.wire.document import entity_tag, parse_start_requests, tag_matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime, timedelta

    from forewarn.engine.engine import Engine
    from forewarn.metadata.replies import Reply
    from forewarn.metadata.request import Request


class DeliveredDocument(NamedTuple):
    """A document as a VM was given it."""

    at: datetime
    body: bytes


class VMTracking:
    """What is known of one VM."""

    __slots__ = ("documents", "in_progress", "known", "last_tag", "named_tags", "polls", "status")

    def __init__(self) -> None:
        self.polls = 0
        self.in_progress = 0
        """How many of them are not answered yet."""
        self.status = 0
        """Of the last answer."""
        self.last_tag = ""
        """The tag of the last document that went out whole."""
        self.named_tags = ""
        """The tags that it named when it last asked."""
        self.known = ""
        """The documents that it had then: those that it named, and the one that it had been given."""
        self.documents: list[DeliveredDocument] = []

    def forget(self) -> None:
        """Whoever asks from now on may be another program than before. But a poll that is held is there now."""
        self.last_tag = ""
        self.known = self.named_tags if self.in_progress else ""


class DeliveryTracker:
    """What VMs have asked for and were given. The connections say so while `watching`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_vm: dict[str, VMTracking] = {}
        self._waiting: set[asyncio.Event] = set()
        self._keeping = False
        self._approvers: dict[str, set[str]] = {}
        self.stopping = False
        self.watching: bool = engine.clock.virtual
        """Also while nobody waits: a poll that is held now may still be held when somebody does. But time that runs by
        itself waits for nobody."""

    def stop(self) -> None:
        """Nobody is waited for any more."""
        self.stopping = True
        self._wake_waiting()

    def keep_documents(self) -> None:
        """From now on, for good: remember every document that is given."""
        self._keeping = self.watching = True

    def documents(self, vm: str) -> list[DeliveredDocument]:
        """What the VM was given since `keep_documents`, in order; the same several times in a row is one."""
        return list(self._by_vm[vm].documents) if vm in self._by_vm else []

    def polls(self, vm: str) -> int:
        """How often the VM has asked since somebody began to watch."""
        return self._by_vm[vm].polls if vm in self._by_vm else 0

    def approvers(self, event_id: str) -> set[str]:
        """The VMs whose approval of the event was taken since `keep_documents`, the first and all others."""
        return set(self._approvers.get(event_id.lower(), ()))

    # --- Watching -------------------------------------------------------------------------------------

    @contextmanager
    def audience(self, vms: Sequence[str], limit: timedelta) -> Iterator[Audience]:
        """These VMs, to be waited for."""
        audience = Audience(self, self._engine, vms, limit)
        for name in vms:
            self.tracking(name).forget()
        self._waiting.add(audience.polled)
        try:
            yield audience
        finally:
            self._waiting.discard(audience.polled)

    def _wake_waiting(self) -> None:
        for polled in self._waiting:
            polled.set()

    def has(self, vm: str, tag: str) -> bool:
        """Whether the VM has come back with this document, or after it."""
        tracking = self._by_vm.get(vm)
        return tracking is not None and bool(tracking.known) and tag_matches(tracking.known, tag)

    def tracking(self, vm: str) -> VMTracking:
        return self._by_vm.setdefault(vm, VMTracking())

    # --- What connections say -------------------------------------------------------------------------

    def request_began(self, request: Request) -> None:
        """A request has begun."""
        if request.caller is None or request.method != "GET" or not request.target.is_document:
            return
        tracking = request.tracking = self.tracking(request.caller.vm)
        tracking.in_progress += 1
        tracking.polls += 1
        tracking.named_tags = _tags(request.values(b"if-none-match"))
        tracking.known = ",".join(filter(None, (tracking.named_tags, tracking.last_tag)))
        self._wake_waiting()

    def request_answered(self, request: Request, answer: Reply) -> None:
        """It was answered, whole."""
        tracking, caller = request.tracking, request.caller
        if tracking is not None:
            tracking.status = answer.status
            if answer.status == HTTPStatus.OK and answer.body:
                tracking.last_tag = _tag_in(answer.head)
                if self._keeping and (not tracking.documents or tracking.documents[-1].body != answer.body):
                    tracking.documents.append(DeliveredDocument(self._engine.clock.now(), answer.body))
        elif (
            self._keeping
            and caller is not None
            and request.method == "POST"
            and request.target.is_document
            and answer.status == HTTPStatus.OK
        ):
            for event_id in parse_start_requests(request.body):  # history has only the first who approved
                self._approvers.setdefault(event_id.lower(), set()).add(caller.vm)

    def request_failed(self, request: Request, status: int) -> None:
        """Only a part of the answer was sent."""
        if request.tracking is not None:
            request.tracking.status = status

    def request_ended(self, request: Request) -> None:
        """It is over, answered or not."""
        if request.tracking is not None:
            request.tracking.in_progress -= 1
            request.tracking = None


def _tag_in(head: bytes) -> str:
    return head.partition(b"\r\netag: ")[2].partition(b"\r\n")[0].decode()


def _tags(named_tags: list[str]) -> str:
    """What the caller says that it has. A star says nothing of that."""
    return ",".join(tag for tag in ",".join(named_tags).split(",") if tag.strip() not in ("", "*"))


class Audience:
    """Some VMs that are to take in every document before time goes on."""

    def __init__(self, tracker: DeliveryTracker, engine: Engine, vms: Sequence[str], limit: timedelta) -> None:
        self._tracker = tracker
        self._engine = engine
        self._vms = [engine.fleet.vm(name).name for name in vms]
        self._limit = limit
        self._abandoned = False
        self.polled = asyncio.Event()
        """Set whenever somebody asks."""

    @property
    def groups(self) -> set[str]:
        """The groups of those who are still in the fleet."""
        fleet = self._engine.fleet
        return {fleet.vms[name].group for name in self._vms if name in fleet.vms}

    def abandon(self) -> None:
        """Whoever wanted to wait does so no more."""
        self._abandoned = True
        self.polled.set()

    def missing(self) -> list[str]:
        """Who has not taken in the document that is true now. Who has left the fleet cannot."""
        return [name for name in self._vms if name in self._engine.fleet.vms and not self._has_seen(name)]

    def _has_seen(self, name: str) -> bool:
        document = self._engine.document(self._engine.fleet.vms[name].group)
        return document.enabled and self._tracker.has(name, entity_tag(document))

    async def wait(self) -> None:
        """Until nobody is missing; an error when that takes too long."""
        before = {name: self._tracker.polls(name) for name in self._vms}
        try:
            async with asyncio.timeout(self._limit.total_seconds()):
                while self.missing():
                    self.polled.clear()
                    if self._tracker.stopping:
                        raise ServiceStopping
                    if self._abandoned:
                        raise WaitAbandoned
                    await self.polled.wait()
        except TimeoutError:
            raise self._not_seen(before) from None

    def _not_seen(self, before: dict[str, int]) -> DocumentNotSeen:
        name = self.missing()[0]
        tracking = self._tracker.tracking(name)
        polls = tracking.polls - before[name]
        did, remedy = f"it polled {polls} times; the last response was {tracking.status}", ""
        if polls == 0:
            did, remedy = "it did not poll", f"Start the application that polls for {name}, or use a longer timeout."
        elif polls == 1:
            did, remedy = "it polled once, and not again", "The application may have exited, or need a longer timeout."
        elif tracking.status != 200:
            remedy = "A fault with a duration does not end while the clock waits. Limit it by count instead."
        now = self._engine.clock.now()
        seconds = self._limit.total_seconds()
        return DocumentNotSeen(vm=name, limit=seconds, did=did, now=format_time(now), remedy=remedy)

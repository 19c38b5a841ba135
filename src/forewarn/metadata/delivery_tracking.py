"""Delivery tracking: which documents a VM has received, and whether it has polled again since.

A VM that polls again has processed the previous document. A virtual clock can wait for that, so that an application
in another process sees every change. A document that an injected fault has damaged does not count as received.
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
    from forewarn.metadata.rendered_responses import RenderedResponse
    from forewarn.metadata.request import MetadataRequest


class DeliveredDocument(NamedTuple):
    """A document as a VM received it."""

    at: datetime
    body: bytes


class VMTracking:
    """Delivery state of one VM."""

    __slots__ = ("documents", "in_progress", "last_tag", "polls", "seen_tags", "sent_tags", "status")

    def __init__(self) -> None:
        self.polls = 0
        self.in_progress = 0
        """Number of polls without a response yet."""
        self.status = 0
        """Status of the last response."""
        self.last_tag = ""
        """Tag of the last document that was sent completely."""
        self.sent_tags = ""
        """Tags that the VM sent in If-None-Match with its last poll."""
        self.seen_tags = ""
        """Tags of documents that the VM had at its last poll: those it sent, and the last one delivered."""
        self.documents: list[DeliveredDocument] = []

    def forget(self) -> None:
        """Forget what was delivered, because another program may poll from now on. A held poll still counts."""
        self.last_tag = ""
        self.seen_tags = self.sent_tags if self.in_progress else ""


class DeliveryTracker:
    """Records polls and delivered documents of VMs. The connections report them while `watching` is true."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_vm: dict[str, VMTracking] = {}
        self._waiting: set[asyncio.Event] = set()
        self._keeping = False
        self._approvers: dict[str, set[str]] = {}
        self.stopping = False
        self.watching: bool = engine.clock.virtual
        """Always true with a virtual clock: a poll that is held now may still be held when a wait begins."""

    def stop(self) -> None:
        """End all waits with an error."""
        self.stopping = True
        self._wake_waiting()

    def keep_documents(self) -> None:
        """Keep every delivered document from now on."""
        self._keeping = self.watching = True

    def documents(self, vm: str) -> list[DeliveredDocument]:
        """Return the documents delivered since `keep_documents`, in order, without immediate repeats."""
        return list(self._by_vm[vm].documents) if vm in self._by_vm else []

    def polls(self, vm: str) -> int:
        """Return the number of polls of the VM since tracking began."""
        return self._by_vm[vm].polls if vm in self._by_vm else 0

    def vms(self) -> dict[str, int]:
        """Return the VMs that have polled since tracking began, each with the number of its polls."""
        return {vm: tracking.polls for vm, tracking in self._by_vm.items() if tracking.polls}

    def approvers(self, event_id: str) -> set[str]:
        """Return all VMs whose approval of the event was accepted since `keep_documents`."""
        return set(self._approvers.get(event_id.lower(), ()))

    # --- Watching -------------------------------------------------------------------------------------

    @contextmanager
    def barrier(self, vms: Sequence[str], limit: timedelta) -> Iterator[PollBarrier]:
        """Return a barrier that waits for these VMs."""
        barrier = PollBarrier(self, self._engine, vms, limit)
        for name in vms:
            self.tracking(name).forget()
        self._waiting.add(barrier.polled)
        try:
            yield barrier
        finally:
            self._waiting.discard(barrier.polled)

    def _wake_waiting(self) -> None:
        for polled in self._waiting:
            polled.set()

    def has(self, vm: str, tag: str) -> bool:
        """Whether the VM has polled again after it received this document."""
        tracking = self._by_vm.get(vm)
        return tracking is not None and bool(tracking.seen_tags) and tag_matches(tracking.seen_tags, tag)

    def tracking(self, vm: str) -> VMTracking:
        return self._by_vm.setdefault(vm, VMTracking())

    # --- Reports of connections -----------------------------------------------------------------------

    def request_started(self, request: MetadataRequest) -> None:
        """Record the start of a request."""
        if request.caller is None or request.method != "GET" or not request.target.is_document:
            return
        tracking = request.tracking = self.tracking(request.caller.vm)
        tracking.in_progress += 1
        tracking.polls += 1
        tracking.sent_tags = _tags(request.values(b"if-none-match"))
        tracking.seen_tags = ",".join(filter(None, (tracking.sent_tags, tracking.last_tag)))
        self._wake_waiting()

    def response_sent(self, request: MetadataRequest, response: RenderedResponse) -> None:
        """Record a complete response."""
        tracking, caller = request.tracking, request.caller
        if tracking is not None:
            tracking.status = response.status
            if response.status == HTTPStatus.OK and response.body:
                tracking.last_tag = _tag_in(response.head)
                if self._keeping and (not tracking.documents or tracking.documents[-1].body != response.body):
                    tracking.documents.append(DeliveredDocument(self._engine.clock.now(), response.body))
        elif (
            self._keeping
            and caller is not None
            and request.method == "POST"
            and request.target.is_document
            and response.status == HTTPStatus.OK
        ):
            for event_id in parse_start_requests(request.body):  # history has only the first approval
                self._approvers.setdefault(event_id.lower(), set()).add(caller.vm)

    def request_failed(self, request: MetadataRequest, status: int) -> None:
        """Record a response that was sent only in part."""
        if request.tracking is not None:
            request.tracking.status = status

    def request_ended(self, request: MetadataRequest) -> None:
        """Record the end of a request, with or without a response."""
        if request.tracking is not None:
            request.tracking.in_progress -= 1
            request.tracking = None


def _tag_in(head: bytes) -> str:
    return head.partition(b"\r\netag: ")[2].partition(b"\r\n")[0].decode()


def _tags(sent_tags: list[str]) -> str:
    """Return the tags that the caller sent, without `*`."""
    return ",".join(tag for tag in ",".join(sent_tags).split(",") if tag.strip() not in ("", "*"))


class PollBarrier:
    """VMs that must receive every document before the clock moves on."""

    def __init__(self, tracker: DeliveryTracker, engine: Engine, vms: Sequence[str], limit: timedelta) -> None:
        self._tracker = tracker
        self._engine = engine
        self._vms = [engine.fleet.vm(name).name for name in vms]
        self._limit = limit
        self._cancelled = False
        self.polled = asyncio.Event()
        """Set with every poll."""

    @property
    def scopes(self) -> set[str]:
        """Scopes of these VMs, without VMs that have left the fleet."""
        fleet = self._engine.fleet
        return {fleet.scope_of(fleet.vms[name]) for name in self._vms if name in fleet.vms}

    def cancel(self) -> None:
        """End the wait with an error."""
        self._cancelled = True
        self.polled.set()

    def missing(self) -> list[str]:
        """Return the VMs that have not processed their current document, without those that left the fleet."""
        return [name for name in self._vms if name in self._engine.fleet.vms and not self._has_seen(name)]

    def _has_seen(self, name: str) -> bool:
        fleet = self._engine.fleet
        document = self._engine.document(fleet.scope_of(fleet.vms[name]))
        return document.enabled and self._tracker.has(name, entity_tag(document))

    async def wait(self) -> None:
        """Wait until all VMs have processed their document. Raise NotSeen after the timeout."""
        before = {name: self._tracker.polls(name) for name in self._vms}
        try:
            async with asyncio.timeout(self._limit.total_seconds()):
                while self.missing():
                    self.polled.clear()
                    if self._tracker.stopping:
                        raise ServiceStopping
                    if self._cancelled:
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
            did, remedy = "it did not poll", f"Start the program that polls for {name}, or set a longer timeout."
        elif polls == 1:
            did, remedy = (
                "it polled once and not again",
                "The application may have exited, or it needs a longer timeout.",
            )
        elif tracking.status != 200:
            remedy = "A fault with a duration does not end while the clock waits. Limit it by count instead."
        now = self._engine.clock.now()
        seconds = self._limit.total_seconds()
        return DocumentNotSeen(vm=name, limit=seconds, did=did, now=format_time(now), remedy=remedy)

"""Sees which documents VMs are given, and that they come back for more: by then they have taken in the last one.

Whoever moves a virtual clock for an application that polls in a process of its own can wait for that. It stands around
the whole application, so that what was spoilt on the way out does not count as given.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.errors import Abandoned, NotSeen, Stopping
from forewarn.server.lane import EVENTS_PATH
from forewarn.wire.document import entity_tag, parse_start_requests, tag_matches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from datetime import datetime, timedelta

    from forewarn.server.fastlane import FastLane
    from forewarn.server.lane import Lane
    from forewarn.server.metadata import Metadata
    from forewarn.server.request import Receive

    Send = Callable[[dict[str, Any]], Awaitable[None]]


class Given(NamedTuple):
    """A document as a VM was given it."""

    at: datetime
    body: bytes


class Sight:
    """What is known of one VM."""

    __slots__ = ("asks", "documents", "given", "known", "said", "status", "under_way")

    def __init__(self) -> None:
        self.asks = 0
        self.under_way = 0
        """How many of them are not answered yet."""
        self.status = 0
        """Of the last answer."""
        self.given = ""
        """The tag of the last document that went out whole."""
        self.said = ""
        """The tags that it named when it last asked."""
        self.known = ""
        """The documents that it had then: those that it named, and the one that it had been given."""
        self.documents: list[Given] = []

    def forget(self) -> None:
        """Whoever asks from now on may be another program than before. But a poll that is held is there now."""
        self.given = ""
        self.known = self.said if self.under_way else ""


class Witness:
    """The metadata service's application, watched."""

    def __init__(self, app: Metadata, lane: Lane) -> None:
        self._app = app
        self._lane = lane
        self._sights: dict[str, Sight] = {}
        self._watchers = 0
        self._waiting: set[asyncio.Event] = set()
        self._keeping = False
        self._approvers: dict[str, set[str]] = {}
        self.stopping = False

    @property
    def connection(self) -> type[FastLane]:
        """What a connection to it is made of."""
        return self._app.connection

    def stop(self) -> None:
        """Nobody is waited for any more."""
        self.stopping = True
        self._tell()
        self._app.stop()

    def keep_documents(self) -> None:
        """From now on, for good: remember every document that is given."""
        self._keeping = True
        self._begin()

    def documents(self, vm: str) -> list[Given]:
        """What the VM was given since `keep_documents`, in order; the same several times in a row is one."""
        return list(self._sights[vm].documents) if vm in self._sights else []

    def asks(self, vm: str) -> int:
        """How often the VM has asked since somebody began to watch."""
        return self._sights[vm].asks if vm in self._sights else 0

    def approvers(self, event_id: str) -> set[str]:
        """The VMs whose approval of the event was taken since `keep_documents`, the first and all others."""
        return set(self._approvers.get(event_id.lower(), ()))

    # --- Watching -------------------------------------------------------------------------------------

    @contextmanager
    def audience(self, vms: Sequence[str], limit: timedelta) -> Iterator[Audience]:
        """These VMs, to be waited for. Meanwhile every poll is looked at."""
        audience = Audience(self, self._lane, vms, limit)
        for name in vms:
            self.sight(name).forget()
        self._waiting.add(audience.asked)
        self._begin()
        try:
            yield audience
        finally:
            self._waiting.discard(audience.asked)
            self._watchers -= 1
            if not self._watchers:
                self._lane.go_fast()

    def _tell(self) -> None:
        for asked in self._waiting:
            asked.set()

    def _begin(self) -> None:
        """What the protocol answers by itself is not seen here: have it hand on everything."""
        self._watchers += 1
        if self._watchers == 1:
            self._lane.go_slow()

    def has(self, vm: str, tag: str) -> bool:
        """Whether the VM has come back with this document, or after it."""
        sight = self._sights.get(vm)
        return sight is not None and bool(sight.known) and tag_matches(sight.known, tag)

    def sight(self, vm: str) -> Sight:
        return self._sights.setdefault(vm, Sight())

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        caller = scope["state"]["caller"]
        if self._keeping and caller is not None and scope["method"] == "POST" and scope["path"].lower() == EVENTS_PATH:
            await self._watch_approval(caller.vm, scope, receive, send)
            return
        # Also while nobody waits: a poll that is held now may still be held when somebody does. But time that runs
        # by itself waits for nobody.
        if (
            not (self._lane.engine.clock.virtual or self._keeping)
            or caller is None
            or scope["method"] != "GET"
            or scope["path"].lower() != EVENTS_PATH
        ):
            await self._app(scope, receive, send)
            return
        sight = self.sight(caller.vm)
        sight.asks += 1
        sight.said = _tags(scope["headers"])
        sight.known = ",".join(filter(None, (sight.said, sight.given)))
        self._tell()
        tag, body = "", b""

        async def watched(message: dict[str, Any]) -> None:
            nonlocal tag, body
            await send(message)
            if message["type"] == "http.response.start":
                sight.status = message["status"]
                tag = next((value.decode() for name, value in message["headers"] if name == b"etag"), "")
            else:
                body += message.get("body", b"")
                if sight.status == 200 and body and not message.get("more_body", False):
                    sight.given = tag
                    if self._keeping and (not sight.documents or sight.documents[-1].body != body):
                        sight.documents.append(Given(self._lane.engine.clock.now(), body))

        sight.under_way += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            sight.under_way -= 1

    async def _watch_approval(self, vm: str, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Note who has approved what: history has only the first."""
        body = bytearray()

        async def received() -> dict[str, Any]:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def watched(message: dict[str, Any]) -> None:
            if message.get("status") == 200:  # before the client has it, and looks whether it is noted
                for event_id in parse_start_requests(bytes(body)):
                    self._approvers.setdefault(event_id.lower(), set()).add(vm)
            await send(message)

        await self._app(scope, received, watched)


def _tags(headers: list[tuple[bytes, bytes]]) -> str:
    """What the caller says that it has. A star says nothing of that."""
    said = [value.decode("latin-1") for name, value in headers if name == b"if-none-match"]
    return ",".join(tag for tag in ",".join(said).split(",") if tag.strip() not in ("", "*"))


class Audience:
    """Some VMs that are to take in every document before time goes on."""

    def __init__(self, witness: Witness, lane: Lane, vms: Sequence[str], limit: timedelta) -> None:
        self._witness = witness
        self._engine = lane.engine
        self._vms = [lane.engine.fleet.vm(name).name for name in vms]
        self._limit = limit
        self._abandoned = False
        self.asked = asyncio.Event()
        """Set whenever somebody asks."""

    @property
    def groups(self) -> set[str]:
        """The groups of those who are still in the fleet."""
        fleet = self._engine.fleet
        return {fleet.vms[name].group for name in self._vms if name in fleet.vms}

    def abandon(self) -> None:
        """Whoever wanted to wait does so no more."""
        self._abandoned = True
        self.asked.set()

    def missing(self) -> list[str]:
        """Who has not taken in the document that is true now. Who has left the fleet cannot."""
        return [name for name in self._vms if name in self._engine.fleet.vms and not self._has_seen(name)]

    def _has_seen(self, name: str) -> bool:
        document = self._engine.document(self._engine.fleet.vms[name].group)
        return document.enabled and self._witness.has(name, entity_tag(document))

    async def wait(self) -> None:
        """Until nobody is missing; an error when that takes too long."""
        before = {name: self._witness.asks(name) for name in self._vms}
        try:
            async with asyncio.timeout(self._limit.total_seconds()):
                while self.missing():
                    self.asked.clear()
                    if self._witness.stopping:
                        raise Stopping
                    if self._abandoned:
                        raise Abandoned
                    await self.asked.wait()
        except TimeoutError:
            raise self._not_seen(before) from None

    def _not_seen(self, before: dict[str, int]) -> NotSeen:
        name = self.missing()[0]
        sight = self._witness.sight(name)
        asks = sight.asks - before[name]
        did, remedy = f"it asked {asks} times, and was last answered {sight.status}", ""
        if asks == 0:
            did, remedy = "it did not ask", f"Start what polls for {name}, or allow more time with a longer limit."
        elif asks == 1:
            did, remedy = "it asked once, and did not come back", "It may have ended, or need a longer limit."
        elif sight.status != 200:
            remedy = "A fault that is bounded by time does not end while the clock waits: bound it by count."
        now = self._engine.clock.now()
        seconds = self._limit.total_seconds()
        return NotSeen(vm=name, limit=seconds, did=did, now=f"{now:%Y-%m-%d %H:%M:%S}", remedy=remedy)

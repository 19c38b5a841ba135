"""The whole service in this process, on free ports, in virtual time: what its two faces have in common."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core.events import Status
from forewarn.core.scenarios import Casting
from forewarn.errors import NeverStarted
from forewarn.files.fleet_file import parse_fleet
from forewarn.scenarios import library
from forewarn.testing.event import OPERATOR
from forewarn.testing.lengths import Length, limit_of
from forewarn.testing.making import Making
from forewarn.testing.names import name_of
from forewarn.testing.plays import check
from forewarn.wire.document_reader import ToldDocument, read_document

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from pathlib import Path

    from forewarn.core.scenarios import Run
    from forewarn.testing.event import Event
    from forewarn.testing.vm import VM


class Kit(Making):
    """A service that lives as long as a test."""

    # --- Time -----------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """What time it is for the service."""
        return self.look(lambda engine: engine.clock.now())

    async def _advance(self, length: timedelta, seen_by: list[str], limit: Length | None) -> datetime:
        service = self._running
        allowed = limit_of(limit, seen_by)
        if not seen_by:
            return await service.engine.advance(length)
        with service.metadata.seen.audience(seen_by, allowed) as audience:
            return await service.engine.advance(length, audience)

    async def _advance_to_start(self, event: Event | str, seen_by: list[str], limit: Length | None) -> datetime:
        engine = self._running.engine
        event = self.event(event) if isinstance(event, str) else event
        now = await event.look()
        if now.status is Status.SCHEDULED:
            left = max(now.not_before - engine.clock.now(), timedelta(0))
            await self._advance(left, seen_by, limit)
            now = await event.look()
        if now.started_at is None:
            raise NeverStarted(event_id=event.id, status=now.status.lower())
        return engine.clock.now()

    async def _play(self, name: str | Path, vms: Iterable[str], group: str, seen_by: Iterable[str]) -> Run:
        service = self._running
        scenario, _ = library.find(str(name))
        if not service.engine.fleet.vms and scenario.fleet:
            await self._apply(service, parse_fleet(scenario.fleet, f"the fleet of {scenario.name}"))
        casting = Casting(vms=tuple(vms), group=group, seen_by=tuple(seen_by))
        run = await service.player.start(scenario, casting, OPERATOR)
        return check(await service.player.finished(run.id))

    # --- What was seen --------------------------------------------------------------------------------

    def documents_seen_by(self, vm: VM | str) -> list[ToldDocument]:
        """Every document that the VM was given, in order; what it was given several times in a row is there once."""
        given = self.loop.call(self._running.metadata.seen.documents, self._once_known(vm))
        return [read_document(one.body) for one in given]

    def times_asked_by(self, vm: VM | str) -> int:
        """How often the VM has asked for its document."""
        return self.loop.call(self._running.metadata.seen.asks, self._once_known(vm))

    def _once_known(self, vm: VM | str) -> str:
        """The name of a VM that is there, or has asked while it was."""
        name = name_of(vm)
        if not self.loop.call(self._running.metadata.seen.asks, name):
            self.look(lambda engine: engine.fleet.vm(name))  # or it says which there are
        return name

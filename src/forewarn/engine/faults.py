"""Active faults and the number of their hits. In memory only: a restart ends them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from forewarn.core import faults
from forewarn.core.history import ENGINE
from forewarn.errors import FaultsNotAllowed, ForewarnError, LimitExceeded, UnknownResource, nearest
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from forewarn.core.events import Document
    from forewarn.core.faults import Fault, FaultSpec
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine, Published

    Decide = Callable[[Draft, datetime, OperatorLimits], Fault]


_log = get_logger(__name__)


def _nothing() -> None:
    pass


class Faults:
    """Faults that the metadata service injects into its responses, if the settings allow faults."""

    def __init__(self, engine: Engine, *, allowed: bool) -> None:
        self.allowed = allowed
        self.hits: Counter[str] = Counter()
        """Number of hits of each kind since the start of the service."""
        self._engine = engine
        self._active: dict[str, Fault] = {}
        """By id, oldest first."""
        self.on_change: Callable[[], None] = _nothing
        """Called when a fault is added: prepared responses are no longer valid."""
        self._last_number = 0
        self._documents: dict[str, tuple[Document, Document | None]] = {}
        """The current document of each scope, and the previous one since the scope was enabled."""
        self._recordings: set[asyncio.Task[None]] = set()
        if allowed:
            engine.subscribe(self._on_published)

    # --- Commands ---------------------------------------------------------------------------------

    async def add(self, spec: FaultSpec, by: str) -> Fault:
        """Add a fault, and record it in history."""
        fault = await self._engine.execute(self.command_to_add(spec, by))
        self.activate(fault)
        return fault

    def command_to_add(self, spec: FaultSpec, by: str) -> Decide:
        """Return the command that adds a fault, to combine it with others. Call `activate` when it is on disk."""
        if not self.allowed:
            raise FaultsNotAllowed
        if (count := len(self.list()) + 1) > faults.MAX_FAULTS:
            remedy = "Clear some, or use one fault for all VMs."
            raise LimitExceeded(count=count, things="faults", what="service", maximum=faults.MAX_FAULTS, remedy=remedy)
        spec = faults.fill_in(spec)
        if spec.vm:
            self._engine.fleet.vm(spec.vm)
        self._last_number += 1
        fault_id = f"f{self._last_number}"

        def decide(draft: Draft, now: datetime, limits: OperatorLimits) -> Fault:
            return faults.add(draft, now, limits, fault_id, spec, by)

        return decide

    def activate(self, fault: Fault) -> None:
        """Activate a fault that was added. A fault with an immediate effect is already spent."""
        self.hits[fault.spec.kind] += fault.hits
        if not fault.is_spent:
            self._add_active({fault.id: fault})

    def list(self) -> Sequence[Fault]:
        """Return the active faults, oldest first."""
        self._drop_expired()
        return list(self._active.values())

    async def wait_until_recorded(self) -> None:
        """Wait until all expired faults are recorded in history."""
        await asyncio.gather(*self._recordings)

    async def clear(self, fault_id: str | None, by: str) -> Sequence[Fault]:
        """Clear one fault, or all; return the cleared faults."""
        self._drop_expired()
        if fault_id is not None and fault_id not in self._active:
            hint = nearest(fault_id, self._active) or " List them with: forewarn fault list"
            raise UnknownResource(what="fault", name=fault_id, hint=hint)
        ids = list(self._active) if fault_id is None else [fault_id]
        cleared = {each: self._active.pop(each) for each in ids}
        try:
            await self._engine.execute(faults.record_cleared, list(cleared.values()), by)
        except ForewarnError:  # not written, so they stay active
            self._add_active(cleared)
            raise
        return list(cleared.values())

    def _add_active(self, more: dict[str, Fault]) -> None:
        self.on_change()
        merged = {**self._active, **more}
        self._active = dict(sorted(merged.items(), key=lambda each: int(each[0][1:])))

    # --- Hits -------------------------------------------------------------------------------------

    def find(self, vm: str, scope: str, method: str) -> Fault | None:
        """Return the oldest fault that matches a request. Does not count a hit: see `count_hit`."""
        self._remember_document(scope)
        self._drop_expired()
        for fault in self._active.values():
            if fault.fits(vm, method) and (fault.spec.kind != "stale" or self.previous_document(scope) is not None):
                return fault
        return None

    def count_hit(self, fault_id: str) -> bool:
        """Count a hit. Returns False if the fault has ended in the meantime."""
        self._drop_expired()
        fault = self._active.get(fault_id)
        if fault is None:
            return False
        fault = fault.hit()
        self.hits[fault.spec.kind] += 1
        if fault.is_spent:
            del self._active[fault_id]
            self._record_expired([fault])
        else:
            self._active[fault_id] = fault
        return True

    def previous_document(self, scope: str) -> Document | None:
        """Return the scope's previous document, if there is one since it was enabled."""
        known = self._documents.get(scope)
        return known[1] if known is not None else None

    def _drop_expired(self) -> None:
        now = self._engine.clock.now()
        expired = [fault for fault in self._active.values() if fault.is_over(now)]
        for fault in expired:
            del self._active[fault.id]
        if expired:
            self._record_expired(expired)

    def _record_expired(self, expired: Sequence[Fault]) -> None:
        """Record expired faults in the background, so that the request need not wait."""
        recording = asyncio.create_task(self._write_expired(expired))
        self._recordings.add(recording)
        recording.add_done_callback(self._recordings.discard)

    async def _write_expired(self, expired: Sequence[Fault]) -> None:
        try:
            await self._engine.execute(faults.record_expired, expired, ENGINE)
        except ForewarnError as error:
            _log.warning("fault_expiry_not_recorded", "Cannot record expired faults in history.", error=str(error))

    # --- Documents --------------------------------------------------------------------------------

    def _on_published(self, published: Published) -> None:
        for scope in published.scopes:
            self._remember_document(scope)

    def _remember_document(self, scope: str) -> None:
        """Remember the scope's document, and the previous one."""
        document = self._engine.document(scope)
        known = self._documents.get(scope)
        if not document.enabled:
            self._documents.pop(scope, None)
        elif known is None or known[0].enabling != document.enabling:
            self._documents[scope] = (document, None)
        elif known[0].incarnation != document.incarnation:
            self._documents[scope] = (document, known[0])

"""The faults that are active, and what they have struck. In memory only: a restart ends them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from forewarn.core import faults
from forewarn.core.history import ENGINE
from forewarn.errors import FaultsNotAllowed, ForewarnError, LimitExceeded, UnknownResource, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from forewarn.core.events import Document
    from forewarn.core.faults import Fault, FaultSpec
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine, Published

    Decide = Callable[[Draft, datetime, OperatorLimits], Fault]


logger = logging.getLogger(__name__)


def _nothing() -> None:
    pass


class Faults:
    """Which requests the endpoint fails on purpose. None unless that is allowed."""

    def __init__(self, engine: Engine, *, allowed: bool) -> None:
        self.allowed = allowed
        self.struck: Counter[str] = Counter()
        """How many requests each kind has struck, or groups, since the service was started."""
        self._engine = engine
        self._active: dict[str, Fault] = {}
        """By their ids, the oldest first."""
        self.on_change: Callable[[], None] = _nothing
        """Called when there is one more: answers that were laid ready do not hold any more."""
        self._added = 0
        self._documents: dict[str, tuple[Document, Document | None]] = {}
        """What each group was told last, and what before that in the same enabling."""
        self._notes: set[asyncio.Task[None]] = set()
        if allowed:
            engine.subscribe(self._on_published)

    # --- Orders -----------------------------------------------------------------------------------

    async def add(self, asked: FaultSpec, by: str) -> Fault:
        """Fail on purpose from now on. History says so when this returns."""
        fault = await self._engine.execute(self.adding(asked, by))
        self.take(fault)
        return fault

    def adding(self, asked: FaultSpec, by: str) -> Decide:
        """The order of which a fault comes, for who has more to write with it; `take` it when that is on disk."""
        if not self.allowed:
            raise FaultsNotAllowed
        if (count := len(self.list()) + 1) > faults.MAX_FAULTS:
            remedy = "Clear some, or use one fault for all VMs."
            raise LimitExceeded(count=count, things="faults", what="service", most=faults.MAX_FAULTS, remedy=remedy)
        asked = faults.fill_in(asked)
        if asked.vm:
            self._engine.fleet.vm(asked.vm)
        self._added += 1
        fault_id = f"f{self._added}"

        def decide(draft: Draft, now: datetime, limits: OperatorLimits) -> Fault:
            return faults.add(draft, now, limits, fault_id, asked, by)

        return decide

    def take(self, fault: Fault) -> None:
        """Let it strike. One that is over at once has struck already."""
        self.struck[fault.order.kind] += fault.hits
        if not fault.is_spent:
            self._put_back({fault.id: fault})

    def list(self) -> Sequence[Fault]:
        """Those that can still strike, the oldest first."""
        self._drop_expired()
        return list(self._active.values())

    async def noted(self) -> None:
        """Until history has what was found to be over."""
        await asyncio.gather(*self._notes)

    async def clear(self, fault_id: str | None, by: str) -> Sequence[Fault]:
        """End one, or all; says which."""
        self._drop_expired()
        if fault_id is not None and fault_id not in self._active:
            hint = nearest(fault_id, self._active) or " List them with: forewarn fault list"
            raise UnknownResource(what="fault", name=fault_id, hint=hint)
        wanted = list(self._active) if fault_id is None else [fault_id]
        cleared = {each: self._active.pop(each) for each in wanted}
        try:
            await self._engine.execute(faults.record_cleared, list(cleared.values()), by)
        except ForewarnError:  # it was not written, so it has not happened
            self._put_back(cleared)
            raise
        return list(cleared.values())

    def _put_back(self, more: dict[str, Fault]) -> None:
        self.on_change()
        together = {**self._active, **more}
        self._active = dict(sorted(together.items(), key=lambda each: int(each[0][1:])))

    # --- Strikes ----------------------------------------------------------------------------------

    def find(self, vm: str, group: str, method: str) -> Fault | None:
        """The oldest that fits a request, if there is one. It is not spent by that: see `strike`."""
        self._look(group)
        self._drop_expired()
        for fault in self._active.values():
            if fault.fits(vm, method) and (fault.order.kind != "stale" or self.older(group) is not None):
                return fault
        return None

    def strike(self, fault_id: str) -> bool:
        """Count a request that is struck; False when the fault has meanwhile come to its end."""
        self._drop_expired()
        fault = self._active.get(fault_id)
        if fault is None:
            return False
        fault = fault.hit()
        self.struck[fault.order.kind] += 1
        if fault.is_spent:
            del self._active[fault_id]
            self._note_over([fault])
        else:
            self._active[fault_id] = fault
        return True

    def older(self, group: str) -> Document | None:
        """What the group was told before what it is told now, within one enabling."""
        known = self._documents.get(group)
        return known[1] if known is not None else None

    def _drop_expired(self) -> None:
        now = self._engine.clock.now()
        over = [fault for fault in self._active.values() if fault.is_over(now)]
        for fault in over:
            del self._active[fault.id]
        if over:
            self._note_over(over)

    def _note_over(self, over: Sequence[Fault]) -> None:
        """Nobody waits for that row of history."""
        note = asyncio.create_task(self._write_over(over))
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

    async def _write_over(self, over: Sequence[Fault]) -> None:
        try:
            await self._engine.execute(faults.record_expired, over, ENGINE)
        except ForewarnError as error:
            logger.warning("History does not say that a fault is over: %s", error)

    # --- Documents --------------------------------------------------------------------------------

    def _on_published(self, published: Published) -> None:
        for group in published.groups:
            self._look(group)

    def _look(self, group: str) -> None:
        """Remember what the group is told, and what it was told before."""
        document = self._engine.document(group)
        known = self._documents.get(group)
        if not document.enabled:
            self._documents.pop(group, None)
        elif known is None or known[0].enabling != document.enabling:
            self._documents[group] = (document, None)
        elif known[0].incarnation != document.incarnation:
            self._documents[group] = (document, known[0])

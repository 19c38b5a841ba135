"""When each group last asked. Kept in memory at every poll, written each minute."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core.durations import from_text, to_text
from forewarn.errors import StoreFailed

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.ledger import Draft
    from forewarn.ports import Clock
    from forewarn.writer import Writer

WRITE_EVERY = timedelta(minutes=1)


class Hearing:
    """Who has asked since it was last looked at, and what of that is not yet on disk."""

    def __init__(self, clock: Clock, writer: Writer) -> None:
        self.asked: set[str] = set()
        """Groups that asked since `take`: the server adds to it, without a look at the clock."""
        self._clock = clock
        self._writer = writer
        self._unwritten: set[str] = set()
        self._written_at: datetime | None = None

    def take(self) -> None:
        """Note that all who asked were heard now."""
        if self.asked:
            known = self.asked & self._writer.ledger.deliveries.keys()  # others have left the fleet since
            self._writer.ledger.heard.update(dict.fromkeys(known, self._clock.now()))
            self._unwritten |= known
            self.asked.clear()

    def forgive_downtime(self) -> None:
        """The service's own downtime is not silence: move what was heard along by it."""
        alive_at = self._writer.ledger.facts.get("alive_at")
        if alive_at is None or self._clock.virtual:
            return
        downtime = max(self._clock.now() - from_text(alive_at), timedelta(0))
        heard = {group: heard_at + downtime for group, heard_at in self._writer.ledger.heard.items()}
        self._writer.ledger.heard = heard
        self._unwritten = set(heard)

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return self._written_at is None or self._clock.now() - self._written_at >= WRITE_EVERY

    async def write(self) -> None:
        """Put on disk who was heard when, and that the service is alive."""
        self.take()
        unwritten, self._unwritten = self._unwritten, set()

        def order(draft: Draft, now: datetime) -> None:
            moments = {group: draft.heard_at(group) for group in unwritten if draft.delivery(group)}
            draft.changes.heard = {group: moment for group, moment in moments.items() if moment}
            draft.changes.facts["alive_at"] = to_text(now)

        try:
            await self._writer.order(order)
        except StoreFailed:
            self._unwritten |= unwritten
            raise
        self._written_at = self._clock.now()

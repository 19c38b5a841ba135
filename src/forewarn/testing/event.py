"""An event, as a test sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.core.access import api_tokens
from forewarn.core.history import ENGINE
from forewarn.errors import UnknownEvent, UnknownVM, nearest
from forewarn.ports import HistoryFilter
from forewarn.testing.durations import read_time
from forewarn.testing.vm import name_of

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from forewarn.assembly import Assembly
    from forewarn.core import events as core
    from forewarn.testing.loop_thread import LoopThread
    from forewarn.testing.vm import VM

__tracebackhide__ = True

OPERATOR = "operator"
"""The name in history for what a test does as an operator."""


class Event:
    """An event of a group. Its properties are always current. After it has ended, they keep their last values."""

    def __init__(self, service: Assembly, loop: LoopThread, event_id: str) -> None:
        self._engine = service.engine
        self._tracker = service.metadata.delivery_tracker
        self._loop = loop
        self._id = event_id

    @property
    def id(self) -> str:
        """The id in upper case, as VMs see it. Messages show it in lower case, as everywhere else."""
        return self._id.upper()

    @property
    def type(self) -> str:
        return self._now().type

    @property
    def status(self) -> str:
        """Scheduled, Started, Advisory, Completed or Cancelled."""
        return self._now().status.value

    @property
    def vms(self) -> tuple[str, ...]:
        """The names of the VMs that it affects."""
        return self._now().resources

    @property
    def not_before(self) -> datetime:
        return self._now().not_before

    @property
    def description(self) -> str:
        return self._now().description

    @property
    def source(self) -> str:
        """Platform or User."""
        return self._now().source.value

    @property
    def duration(self) -> timedelta | None:
        """The expected interruption, or None if it is unknown."""
        return self._now().duration

    @property
    def approved_by(self) -> str | None:
        """The first approver, or None."""
        return self._now().approved_by

    @property
    def started_at(self) -> datetime | None:
        return self._now().started_at

    @property
    def ended_at(self) -> datetime | None:
        """When it was completed or cancelled."""
        return self._now().ended_at

    def was_approved_by(self, vm: VM | str) -> bool:
        """Return whether this VM has approved it, as the first or after others. `vm` can also name a token, or
        "forewarn" for an automatic approval. A name that never existed is an error."""
        return self._loop.run(self._was_approved_by(name_of(vm)))

    async def _was_approved_by(self, name: str) -> bool:
        event = await self.load()
        if event.approved_by == name or name in self._tracker.approvers(self._id):
            return True
        tokens = (token.name for token in api_tokens(self._engine.draft()))
        known = {*self._engine.fleet.vms, *self._tracker.vms(), *tokens, OPERATOR, ENGINE}
        was_vm = HistoryFilter(vm=name, limit=1)
        if name not in known and not (name and await self._engine.records.history(was_vm)):
            raise UnknownVM(name=name, hint=nearest(name, known))
        return False

    @property
    def was_approved(self) -> bool:
        """Whether a VM or an operator has approved it."""
        return self.approved_by is not None

    def approve(self) -> None:
        """Approve it as an operator."""
        self._loop.run(self._engine.approve([self._id], OPERATOR))

    def cancel(self) -> None:
        """Cancel it and all other events of its operation."""
        self._loop.run(self._engine.cancel(self._id, OPERATOR))

    def postpone(self, until: datetime) -> None:
        """Postpone its start, if its cause allows that."""
        self._loop.run(self._engine.postpone(self._id, OPERATOR, read_time("until", until)))

    def _now(self) -> core.Event:
        return self._loop.run(self.load())

    async def load(self) -> core.Event:
        """Return the current state of the event. Call it in the loop of the service."""
        found = await self._engine.records.event(self._id)
        if found is None:
            raise UnknownEvent(event_id=self._id, hint="")
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        try:
            now = self._now()
        except Exception as error:  # noqa: BLE001 - a repr must not hide the error that shows it
            return f"<Event {self._id}: {error}>"
        approved = f"approved by {now.approved_by}" if now.approved_by else "not approved"
        return f"<{now.type} of {', '.join(now.resources)}: {now.status}, {approved}, {self._id}>"

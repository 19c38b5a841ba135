"""How orders, and what the fabric reports, are written: each with what follows from it for rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

from forewarn.core import progress, rollout_commands

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft
    from forewarn.writer import Writer

T = TypeVar("T")
P = ParamSpec("P")


def whole(
    terms: Terms, decide: Callable[Concatenate[Draft, datetime, Terms, P], T], *args: P.args, **kwargs: P.kwargs
) -> Callable[[Draft, datetime], T]:
    """An order as the writer takes it. A rollout of which an operation has gone on goes on with it."""

    def order(draft: Draft, now: datetime) -> T:
        result = decide(draft, now, terms, *args, **kwargs)
        for rollout_id in draft.stirred:
            rollout_commands.step(draft, now, terms, rollout_id)
        return result

    return order


class Gate(NamedTuple):
    """The health gate of an operation in a rollout."""

    closes_at: datetime
    vms: tuple[str, ...]
    """Those that are to be well. One that was evicted or deleted meanwhile is not expected back."""


class Reports:
    """What the fabric has done. Nobody is answered by that, and after a crash the fabric is asked again."""

    def __init__(self, writer: Writer, terms: Terms) -> None:
        self._writer = writer
        self._terms = terms

    def carried_out(self, take: Callable[[], list[str]]) -> asyncio.Future[None]:
        """Note that the work of some operations is done: those that there are when the writer comes to it."""

        def note(draft: Draft, now: datetime, terms: Terms) -> None:
            for operation_id in take():
                progress.carried_out(draft, now, terms, operation_id)

        return self._writer.submit(whole(self._terms, note), can_wait=True)

    def failed(self, operation_id: str, why: str) -> asyncio.Future[None]:
        """Note that the work of an operation cannot be done."""
        return self._writer.submit(whole(self._terms, progress.failed_if_live, operation_id, why), can_wait=True)

    def checked(self, operation_id: str, bad: Sequence[str]) -> asyncio.Future[None]:
        """Note which VMs are not well after an operation of a rollout."""
        return self._writer.submit(whole(self._terms, progress.checked, operation_id, bad), can_wait=True)

    def gate(self, operation_id: str) -> Gate | None:
        """Who must be well until when after an operation; None: nobody asks any more."""
        ledger = self._writer.ledger
        operation = ledger.operation(operation_id)
        closes_at = rollout_commands.gate_closes_at(self._terms, operation) if operation is not None else None
        if operation is None or closes_at is None:
            return None
        return Gate(closes_at, operation.concerned(ledger.fleet))

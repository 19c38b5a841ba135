"""Approvals: sent in a thread, so that an endpoint that stalls holds up nothing else, and noted when they are taken."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING

from forewarn.agent.clock import real_seconds
from forewarn.agent.work.doing import pause_after
from forewarn.core.durations import to_text
from forewarn.errors import ForewarnError

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.agent.endpoint.client import Client
    from forewarn.agent.work.ledger import Ledger
    from forewarn.agent.work.work import Work

logger = logging.getLogger("forewarn.agent")


class Approver:
    """One request each; whether and when another is made is decided anew. Used under the agent's lock."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        done: Callable[[str, str], None],
        *,
        dry_run: bool,
    ) -> None:
        """`done` is called from a thread, with the id and the problem; what it is given is for `settle`."""
        self._client = client
        self._ledger = ledger
        self._done = done
        self._dry_run = dry_run
        self._tries: Counter[str] = Counter()
        self.under_way: set[str] = set()
        self.again_at: dict[str, float] = {}
        """When another try may be made, in real seconds."""

    def send(self, work: Work) -> None:
        """Return at once."""
        if self._dry_run:
            logger.info("would be approved", extra={"event": work.event})
            self._note(work)
            return
        self.under_way.add(work.id)
        threading.Thread(target=self._send, args=(work.id,), name="approver", daemon=True).start()

    def settle(self, event_id: str, problem: str) -> str:
        """Note what came of it, and return the word by which it is counted."""
        self.under_way.discard(event_id)
        work = self._ledger.works.get(event_id)
        if problem:
            self._tries[event_id] += 1
            self.again_at[event_id] = real_seconds() + pause_after(self._tries[event_id])
            if work is not None and self._tries[event_id] == 1:
                logger.warning("is not approved, and tried again: %s", problem, extra={"event": work.event})
            return "approve failed"
        if work is not None:
            self._note(work)
            logger.info("is approved", extra={"event": work.event})
        return "approved"

    def forget(self, event_id: str) -> None:
        self._tries.pop(event_id, None)
        self.again_at.pop(event_id, None)

    def _note(self, work: Work) -> None:
        self._ledger.keep(work._replace(approved_at=to_text(self._client.clock.now())))

    def _send(self, event_id: str) -> None:
        problem = ""
        try:
            self._client.approve(event_id)
        except ForewarnError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            problem = f"{type(error).__name__}: {error}"
        self._done(event_id, problem)

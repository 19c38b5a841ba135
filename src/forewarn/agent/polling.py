"""The thread that asks the endpoint, for as long as the agent runs."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from forewarn.agent.changes import Account
from forewarn.agent.clock import real_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.agent.endpoint.client import Client
    from forewarn.errors import EndpointTrouble
    from forewarn.wire.document_reader import ToldEvent

logger = logging.getLogger(__name__)

HOLD_SECONDS = 20
"""How long an answer may be held back. A connection that died in silence is noticed in time for a Preempt."""


class Poller:
    """Polls, and hands on what is told. Whatever happens, it goes on."""

    def __init__(
        self, client: Client, tell: Callable[[tuple[ToldEvent, ...]], None], may_hold: Callable[[], bool]
    ) -> None:
        self._client = client
        self._tell = tell
        self._may_hold = may_hold
        self._account = Account()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
        self._answers = 0
        self._troubles: Counter[str] = Counter()
        self._trouble: EndpointTrouble | None = None
        self._trouble_since = 0.0
        self._answered_at: float | None = None
        self._said = ("", "")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The client must have been closed: an answer that is waited for is given up with it."""
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pause = self._poll()
            except Exception:  # nothing may end the watch
                logger.exception("A poll went wrong in a way that nobody has thought of; it goes on.")
                pause = 1.0
            self._stop.wait(pause)

    def _poll(self) -> float:
        polled = self._client.poll(HOLD_SECONDS if self._may_hold() and not self._account.in_doubt() else 0)
        if self._stop.is_set():
            return 0
        if polled.trouble is not None:
            self._troubles[polled.trouble.kind] += 1
            if self._trouble is None:
                self._trouble_since = real_seconds()
            self._trouble = polled.trouble
        else:
            self._answers += 1
            self._trouble = None
            self._answered_at = real_seconds()
            self._say_where()
            if polled.document is not None:
                self._account.take(polled.document, real_seconds())
                self._tell(self._account.events)
        return polled.pause_seconds

    def _say_where(self) -> None:
        """Which endpoint has answered and who this is, once: it is the first question when nothing happens."""
        endpoint, me = self._client.known
        known = ("" if endpoint is None else endpoint.url, "" if me is None else me.name)
        if known != self._said:
            self._said = known
            logger.info("The endpoint is %s, and this machine is %s.", known[0], known[1] or "not named yet")

    def standing(self) -> dict[str, Any]:
        """How it goes."""
        seconds, trouble = real_seconds(), self._trouble
        return {
            "answers": self._answers,
            "troubles": dict(self._troubles),
            "trouble": None if trouble is None else str(trouble),
            "trouble_seconds": None if trouble is None else round(seconds - self._trouble_since, 1),
            "answered_seconds_ago": None if self._answered_at is None else round(seconds - self._answered_at, 1),
            "incarnation": self._account.incarnation,
            "long_poll": bool(self._client.offers_long_poll),
        }

"""Sending approvals: in a thread, so that an endpoint that stalls holds up nothing else."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from forewarn.errors import ForewarnError

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.agent.endpoint.client import Client


class Approver:
    """One request each; whether and when another is made is decided anew."""

    def __init__(self, client: Client, done: Callable[[str, str], None]) -> None:
        self._client = client
        self._done = done
        self.under_way: set[str] = set()

    def send(self, event_id: str) -> None:
        """Return at once; `done` is called with the id and the problem, empty when it was approved."""
        self.under_way.add(event_id)
        threading.Thread(target=self._send, args=(event_id,), name="approver", daemon=True).start()

    def _send(self, event_id: str) -> None:
        problem = ""
        try:
            self._client.approve(event_id)
        except ForewarnError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            problem = f"{type(error).__name__}: {error}"
        self._done(event_id, problem)

"""One who asks on another connection while a poll waits long for an answer.

After a silence an answer is waited for longer and longer, since the endpoint may be enabling this machine anew. But it
may also be well again, and only this connection dead: then nothing would be heard for minutes, and an eviction leaves
30 seconds.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from forewarn.agent.endpoint.exchange import Line
from forewarn.errors.agent import EndpointTrouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.agent.endpoint.address import Endpoint

EVERY_SECONDS = 2.0


class Scout:
    """Around the exchange of a line. When another connection is answered, whatever the answer, the line's is ended."""

    def __init__(self, line: Line, endpoint: Endpoint, ask: Callable[[Line], object], *, needed: bool) -> None:
        self._line = line
        self._own = Line(endpoint)
        self._ask = ask
        self._needed = needed

    def __enter__(self) -> None:
        if self._needed:
            threading.Thread(target=self._run, name="scout", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._own.close()

    def _run(self) -> None:
        while not self._own.rest(EVERY_SECONDS):
            if self._is_answered():
                self._line.hang_up()
                return

    def _is_answered(self) -> bool:
        try:
            self._ask(self._own)
        except EndpointTrouble:
            return False
        return True

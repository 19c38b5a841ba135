"""A service in this process, for as long as a test needs it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.assembly import Assembly
from forewarn.errors import Unavailable
from forewarn.testing.choices import read_settings
from forewarn.testing.reach import Reach
from forewarn.testing.thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.engine import Engine

T = TypeVar("T")


class Life(Reach):
    """Starts and ends the service, in a thread of its own, and knows the ways in."""

    def __init__(self, fleet: str | Path | None = None, *, listening: bool = True, **settings: Any) -> None:
        """Like `forewarn up` with these settings, but in memory, in virtual time and on free ports unless they say
        otherwise. `fleet` is a fleet file, or the text of one. Without `listening` nobody is told before it asks."""
        self._fleet = fleet
        self._listening = listening
        self._values = read_settings(settings)
        self._loop: LoopThread | None = None
        self._service: Assembly | None = None
        self._token = ""
        self._token_file = ""

    # --- Life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it; `with` does that, too."""
        self._loop = LoopThread()
        try:
            self._service = self._loop.run(self._started())
        except BaseException:
            self._loop.stop()
            self._loop = None
            raise

    def stop(self) -> None:
        """Stop it, and leave nothing behind."""
        loop, self._loop = self._loop, None
        if loop is not None and self._service is not None:
            loop.run(self._service.stop())
            loop.stop()
        if self._token_file:
            Path(self._token_file).unlink(missing_ok=True)
            self._token_file = ""

    async def _started(self) -> Assembly:
        service = Assembly(self._values)

        service.witness.keep_documents()
        await service.start(lambda: self._prepare(service), "", self._keep_token)
        return service

    async def _prepare(self, service: Assembly) -> None:
        """What comes before anybody can ask."""

    def _keep_token(self, token: str) -> None:
        self._token = token

    @property
    def _running(self) -> Assembly:
        if self._service is None or self._loop is None:
            raise Unavailable(problem="the service does not run: use it within `with Service() as forewarn:`")
        return self._service

    @property
    def loop(self) -> LoopThread:
        """Where it runs."""
        if self._loop is None:
            raise Unavailable(problem="the service does not run: use it within `with Service() as forewarn:`")
        return self._loop

    def look(self, at: Callable[[Engine], T]) -> T:
        """Read something of the engine, in its own thread."""
        return self.loop.call(at, self._running.engine)

    # --- The ways in ----------------------------------------------------------------------------------

    @property
    def metadata_url(self) -> str:
        return self._running.metadata_url

    @property
    def control_url(self) -> str:
        return self._running.control_url

    @property
    def token(self) -> str:
        return self._token

    @property
    def environment(self) -> dict[str, str]:
        if not self._token_file:
            number, self._token_file = tempfile.mkstemp(prefix="forewarn-token-")  # for the owner alone
            with os.fdopen(number, "w") as file:
                file.write(self.token)
        return {"FOREWARN_SERVER": self.control_url, "FOREWARN_TOKEN_FILE": self._token_file}

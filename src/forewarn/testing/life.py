"""A service in this process, for as long as a test needs it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.assembly import ORDERS_FOLDER, Assembly
from forewarn.errors import AlreadyRunning, NotRunning
from forewarn.settings import MEMORY
from forewarn.testing.choices import read_settings
from forewarn.testing.reach import WORD, Reach
from forewarn.testing.thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.engine.engine import Engine

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
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None

    # --- Life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it; `with` does that, too."""
        if self._loop is not None:
            raise AlreadyRunning
        self._loop = LoopThread()
        try:
            self._service = self._loop.run(self._started())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it, and leave nothing behind."""
        loop, self._loop = self._loop, None
        service, self._service = self._service, None
        try:
            if loop is not None and service is not None:
                loop.run(service.stop())
        finally:
            if loop is not None:
                loop.stop()
            self._forget()

    def _forget(self) -> None:
        """What was true of the service that has ended."""
        self._token = ""
        if self._token_file:
            Path(self._token_file).unlink(missing_ok=True)
            self._token_file = ""
        if self._own_folder is not None:
            self._own_folder.cleanup()
            self._own_folder = None

    async def _started(self) -> Assembly:
        values = self._values
        if values["fabric"] == "command" and values["data"] == MEMORY:
            values = {**values, ORDERS_FOLDER: self._folder()}
        service = Assembly(values)
        service.metadata.seen.keep_documents()
        await service.start(lambda: self._prepare(service), "", self._keep_token)
        return service

    async def _prepare(self, service: Assembly) -> None:
        """What comes before anybody can ask."""

    def _folder(self) -> str:
        """A folder for what cannot be without one; it goes with the service."""
        if self._own_folder is None:
            # Programs of a fabric may go on, and write there in the middle of that.
            self._own_folder = tempfile.TemporaryDirectory(prefix="forewarn-", ignore_cleanup_errors=True)
        return self._own_folder.name

    def _keep_token(self, token: str) -> None:
        self._token = token

    @property
    def _running(self) -> Assembly:
        if self._service is None or self._loop is None:
            raise NotRunning
        return self._service

    @property
    def loop(self) -> LoopThread:
        """Where it runs."""
        if self._loop is None:
            raise NotRunning
        return self._loop

    def look(self, at: Callable[[Engine], T]) -> T:
        """Read something of the engine, in its own thread."""
        __tracebackhide__ = True
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
        self._running  # noqa: B018 - or it says that it does not run
        return self._token

    @property
    def certificate(self) -> str:
        return str(self._values["tls_certificate"])

    @property
    def environment(self) -> dict[str, str]:
        if not self._token_file:
            number, self._token_file = tempfile.mkstemp(prefix="forewarn-token-")  # for the owner alone
            with os.fdopen(number, "w") as file:
                file.write(self.token)
        if not self.certificate:
            return {"FOREWARN_SERVER": self.control_url, "FOREWARN_TOKEN_FILE": self._token_file}
        # Only that of a service which has left word on this machine is trusted whatever name stands in it.
        word = {
            "control": self.control_url,
            "metadata": self.metadata_url,
            "token_file": self._token_file,
            "pid": os.getpid(),
            "certificate": str(Path(self.certificate).absolute()),
        }
        Path(self._folder(), WORD).write_text(json.dumps(word), "utf-8")
        return {"FOREWARN_SERVER": "", "FOREWARN_DATA": self._folder(), "FOREWARN_TOKEN_FILE": self._token_file}

"""The whole service in a thread of this process, and the settings that a test passes."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.assembly import ORDERS_FOLDER, Assembly
from forewarn.core.durations import format_duration
from forewarn.errors import AlreadyRunning, NotRunning
from forewarn.settings import SETTINGS, Setting, resolve, unknown_setting
from forewarn.system.service_files import (
    FILE,
    REGISTRY_VARIABLE,
    ServiceFile,
    identify_folder,
    identify_process,
    write,
)
from forewarn.system.user_folders import MEMORY
from forewarn.testing import failure_report
from forewarn.testing.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forewarn.assembly import FixedLimits
    from forewarn.engine.engine import Engine

__tracebackhide__ = True

T = TypeVar("T")


class RunningService:
    """Starts the service, stops it and removes its files. A test can start it again.

    Everything that needs a running service raises NotRunning if there is none.
    """

    def __init__(self, settings: dict[str, Any], limits: FixedLimits | None = None) -> None:
        self._settings = settings
        self._limits = limits
        self._loop: LoopThread | None = None
        self._assembly: Assembly | None = None
        self._token = ""
        self._token_file = ""
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, prepare: Callable[[Assembly], Awaitable[None]]) -> None:
        """Start it. `prepare` runs before the service handles requests."""
        if self._loop is not None:
            raise AlreadyRunning
        self._loop = LoopThread()
        try:
            self._assembly = self._loop.run(self._start(prepare))
        except BaseException:
            self.stop()
            raise
        failure_report.service_started(self)

    async def _start(self, prepare: Callable[[Assembly], Awaitable[None]]) -> Assembly:
        settings = self._settings
        if settings["fabric"] == "command" and settings["data"] == MEMORY:
            settings = {**settings, ORDERS_FOLDER: self._folder()}
        assembly = Assembly(settings, limits=self._limits)
        assembly.metadata.delivery_tracker.keep_documents()
        await assembly.start(lambda: prepare(assembly), "", self._keep_token)
        return assembly

    def _keep_token(self, token: str) -> None:
        self._token = token

    def stop(self) -> None:
        """Stop it, and remove its files."""
        if self._assembly is not None:
            failure_report.service_stopping(self)
        loop, self._loop = self._loop, None
        assembly, self._assembly = self._assembly, None
        try:
            if loop is not None and assembly is not None:
                loop.run(assembly.stop())
        finally:
            if loop is not None:
                loop.stop()
            self._remove_files()

    def _remove_files(self) -> None:
        self._token = ""
        if self._token_file:
            Path(self._token_file).unlink(missing_ok=True)
            self._token_file = ""
        if self._own_folder is not None:
            self._own_folder.cleanup()
            self._own_folder = None

    def _folder(self) -> str:
        """A temporary folder that is removed when the service stops."""
        if self._own_folder is None:
            # Programs that the fabric has started can still write to it.
            self._own_folder = tempfile.TemporaryDirectory(prefix="forewarn-", ignore_cleanup_errors=True)
        return self._own_folder.name

    @property
    def assembly(self) -> Assembly:
        """The parts of the service. Only its own thread may change them."""
        if self._assembly is None or self._loop is None:
            raise NotRunning
        return self._assembly

    @property
    def loop(self) -> LoopThread:
        """The thread in which it runs."""
        if self._loop is None:
            raise NotRunning
        return self._loop

    def read(self, function: Callable[[Engine], T]) -> T:
        """Call a function with the engine, in the thread of the service."""
        return self.loop.call(function, self.assembly.engine)

    # --- Addresses and credentials ----------------------------------------------------------------

    @property
    def metadata_url(self) -> str:
        return self.assembly.metadata_url

    @property
    def control_url(self) -> str:
        return self.assembly.control_url

    @property
    def token(self) -> str:
        self.assembly  # noqa: B018 - raises NotRunning
        return self._token

    @property
    def certificate(self) -> str:
        found = self.assembly.certificate
        return found.pem() if found is not None else ""

    @property
    def environment(self) -> dict[str, str]:
        if not self._token_file:
            number, self._token_file = tempfile.mkstemp(prefix="forewarn-token-")  # readable only by the owner
            with os.fdopen(number, "w") as file:
                file.write(self.token)
        if not self.certificate:
            return {
                "FOREWARN_SERVER": self.control_url,
                "FOREWARN_TOKEN_FILE": self._token_file,
                REGISTRY_VARIABLE: os.devnull,  # other services of this user are none of the test's business
            }
        # The command line ignores the name in a certificate only if it finds the service by its file.
        folder = self._folder()
        device, inode = identify_folder(folder)
        process = identify_process()
        service = ServiceFile(
            name="test",
            control=self.control_url,
            metadata=self.metadata_url,
            token_file=self._token_file,
            certificate=self.certificate,
            data=folder,
            device=device,
            inode=inode,
            pid=process.pid,
            started=process.started,
            proof_key=self.assembly.proof_key,
        )
        write(Path(folder, FILE), service)
        return {
            "FOREWARN_SERVER": "",
            "FOREWARN_DATA": folder,
            "FOREWARN_TOKEN_FILE": self._token_file,
            REGISTRY_VARIABLE: os.devnull,
        }


# --- Settings -------------------------------------------------------------------------------------

DEFAULTS = {
    "data": MEMORY,
    "clock": "virtual",
    "metadata": "127.0.0.1:0",
    "control": "127.0.0.1:0",
    # A test can poll as often as it needs. A test of the rate limit sets one.
    "rate_limit": "0",
    # A test can move the clock by a week, and no VM becomes inactive. The fault `disabled` tests inactivity.
    "inactivity_timeout": "3660d",
    "allow_faults": "true",
}


def read_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Read the settings as `forewarn up` reads its options. The configuration of this machine is ignored."""
    for name in settings:
        if name not in SETTINGS:
            raise unknown_setting(name, "Service(...)")
    options = {**DEFAULTS, **{name: _text(SETTINGS[name], value) for name, value in settings.items()}}
    return {name: value.value for name, value in resolve(options, {}, os.devnull).items()}


def _text(setting: Setting, value: Any) -> str:
    if isinstance(value, dict):
        return setting.join({name: _text(setting, each) for name, each in value.items()})
    if isinstance(value, bool):
        return str(value).lower()
    return format_duration(value) if isinstance(value, timedelta) else str(value)

"""The service in its own process, as a user starts it. A test can stop, kill and restart it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from forewarn.core.durations import from_text
from forewarn.errors import AlreadyRunning, NotRunning
from forewarn.system.service_files import FILE, REGISTRY_VARIABLE
from forewarn.testing.client import COMMAND, ServiceClient, expect_status
from forewarn.testing.durations import read_step
from forewarn.testing.vm import names_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta
    from typing import Self

__tracebackhide__ = True

STOP_SECONDS = 30
READY_LINE = "Try in another terminal"
"""The start of a line that the service writes when it is ready. With JSON logs, it writes only the log entry."""
READY_ENTRY = '"event": "service_started"'


class ProcessOutput:
    """The output of a process. A thread reads it, because a process with a full pipe would block."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._more = threading.Condition()
        self.is_ready = False
        self._known = threading.Event()
        self._thread = threading.Thread(target=self._read, name="forewarn-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            for line in self._stream:
                with self._more:
                    self._lines.append(line)
                    self._more.notify_all()
                if line.startswith(READY_LINE) or READY_ENTRY in line:
                    self.is_ready = True
                    self._known.set()
        self._known.set()

    def wait(self) -> bool:
        """Wait until the service is ready. Return False if it ends before that."""
        self._known.wait()
        return self.is_ready

    def wait_for(self, text: str) -> bool:
        """Wait until the output contains a text. Return False if it does not for a while."""
        with self._more:
            return self._more.wait_for(lambda: text in self.text, STOP_SECONDS)

    def close(self) -> None:
        """Wait until all output is read. A child of the service can keep the pipe open, so the wait has a limit."""
        self._thread.join(STOP_SECONDS)

    @property
    def text(self) -> str:
        return "".join(self._lines)


class ServiceProcess(ServiceClient):
    """`forewarn up` on free ports. Its data is in a folder that stays when the process ends.

    `with ServiceProcess().start("--clock", "virtual") as service:` always ends the process.
    """

    command: tuple[str, ...] = COMMAND
    """The program that is started. A subclass can start it in another way."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self._own_folder = None if folder else tempfile.TemporaryDirectory(prefix="forewarn-")
        self.folder = Path(folder or (self._own_folder.name if self._own_folder else ""))
        self.process: subprocess.Popen[str] | None = None
        self._output: ProcessOutput | None = None
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def output(self) -> str:
        """Everything that it has written since its last start, with its log."""
        return self._output.text if self._output is not None else ""

    def until_output(self, text: str) -> None:
        """Wait until the output contains a text. A line of the log can arrive after the response that it is about."""
        if self._output is None or not self._output.wait_for(text):
            raise AssertionError(f"{text!r} is not in the output: {self.output}")

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def start(self, *arguments: str, **variables: str) -> Self:
        """Start it with these arguments and variables, and wait until it is ready. If it ends before that, an error
        shows its output. JSON logs need the level info or debug: without them, nothing says that it is ready."""
        if self.process is not None:
            if self.process.poll() is None:
                raise AlreadyRunning
            self._reap()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
        self._environment = {
            "HOME": str(self.folder),
            "XDG_DATA_HOME": str(self.folder / "share"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            REGISTRY_VARIABLE: str(self.folder / "run"),
            "FOREWARN_DATA": self.data,
            "FOREWARN_METADATA": "127.0.0.1:0",
            "FOREWARN_CONTROL": "127.0.0.1:0",
            "FOREWARN_RATE_LIMIT": "0",
            **variables,
        }
        self.process = subprocess.Popen(  # noqa: S603 - it is this very program
            [*self.command, "up", *arguments],
            env={**inherited, **self._environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._output = ProcessOutput(cast("IO[str]", self.process.stdout))
        if not self._output.wait():
            code = self._reap()
            raise RuntimeError(f"forewarn up ended with {code}: {self.output}")
        return self

    def stop(self) -> int:
        """Send SIGTERM, as an init system does. Return the exit code."""
        self._running.terminate()
        return self._reap()

    def kill(self) -> int:
        """Send SIGKILL. Return the exit code."""
        self._running.kill()
        return self._reap()

    def close(self) -> None:
        """Kill it if it runs, and remove its folder if the folder is temporary."""
        if self.process is not None:
            self.kill()
        if self._own_folder is not None:
            self._own_folder.cleanup()

    @property
    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            raise NotRunning
        return self.process

    def _reap(self) -> int:
        process = self._running
        code = process.wait(timeout=STOP_SECONDS)
        if self._output is not None:
            self._output.close()
        self.process = None
        return code

    # --- Addresses and credentials ----------------------------------------------------------------

    def _service_file(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((Path(self.data) / FILE).read_text())
        return found

    @property
    def metadata_url(self) -> str:
        return str(self._service_file()["metadata"])

    @property
    def control_url(self) -> str:
        return str(self._service_file()["control"])

    @property
    def token(self) -> str:
        """The admin token, which the first start writes."""
        return (Path(self.data) / "admin-token").read_text().strip()

    @property
    def certificate(self) -> str:
        return str(self._service_file()["certificate"])

    @property
    def environment(self) -> dict[str, str]:
        return dict(self._environment)

    def request_operation(self, cause: str, *vms: str, **options: Any) -> dict[str, Any]:
        """Request an operation. Return it as JSON, or the first if there are several."""
        body = {"cause": cause, **({"vms": vms} if vms else {}), **options}
        operation: dict[str, Any] = expect_status(self.control("POST", "/v1/operations", body), 201).json()[
            "operations"
        ][0]
        return operation

    def advance(
        self, duration: timedelta | str | None = None, *, seen_by: str | Iterable[str] | None = None, **units: float
    ) -> datetime:
        """Move its clock, which must be virtual: as Service.advance."""
        vms = names_of(seen_by)
        by = f"{read_step(duration, units).total_seconds():f}s"
        response = self.control("POST", "/v1/clock/advance", {"by": by, **({"seen_by": vms} if vms else {})})
        if response.status != 200:
            raise RuntimeError(response.json()["detail"])
        return from_text(response.json()["now"])

"""The service in a process of its own, as a user starts it: it can be stopped, killed and started again."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forewarn.testing.choices import length_of
from forewarn.testing.reach import COMMAND, Reach

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta
    from typing import Self

STOP_SECONDS = 30
UP = "Try in another terminal"
"""How the line begins that the service writes when it is up."""


class ServiceProcess(Reach):
    """`forewarn up` on free ports over a folder of its own. What it keeps there outlives it.

    `with ServiceProcess().start("--clock", "virtual") as service:` ends it, however the test ends.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self._own_folder = None if folder else tempfile.TemporaryDirectory(prefix="forewarn-")
        self.folder = Path(folder or (self._own_folder.name if self._own_folder else ""))
        self.process: subprocess.Popen[str] | None = None
        self.greeting = ""
        """What it has written."""
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def start(self, *arguments: str, **variables: str) -> Self:
        """Start it with these arguments and variables; returns when it says that it is up. An early end is an error
        with its words."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
        self._environment = {
            "HOME": str(self.folder),
            "XDG_DATA_HOME": str(self.folder / "share"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "FOREWARN_DATA": self.data,
            "FOREWARN_METADATA": "127.0.0.1:0",
            "FOREWARN_CONTROL": "127.0.0.1:0",
            "FOREWARN_RATE_LIMIT": "0",
            **variables,
        }
        self.process = subprocess.Popen(  # noqa: S603 - it is this very program
            [*COMMAND, "up", *arguments],
            env={**ours, **self._environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = []
        for line in self.process.stdout or ():
            lines.append(line)
            if line.startswith(UP):
                break
        self.greeting = "".join(lines)
        if not lines or not lines[-1].startswith(UP):
            code = self._reap()
            raise RuntimeError(f"forewarn up ended with {code}: {self.greeting}")
        return self

    def stop(self) -> int:
        """SIGTERM, as an init system does it. The exit code."""
        self._running.terminate()
        return self._reap()

    def kill(self) -> int:
        """kill -9. The exit code."""
        self._running.kill()
        return self._reap()

    def close(self) -> None:
        """End it, if it runs, and remove what it left in a folder that it was not given."""
        if self.process is not None:
            self.kill()
        if self._own_folder is not None:
            self._own_folder.cleanup()

    @property
    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            raise RuntimeError("It does not run: start it first.")
        return self.process

    def _reap(self) -> int:
        process = self._running
        code = process.wait(timeout=STOP_SECONDS)
        if process.stdout is not None:
            self.greeting += process.stdout.read()
            process.stdout.close()
        self.process = None
        return code

    # --- The ways in ----------------------------------------------------------------------------------

    def _word(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((Path(self.data) / "service.json").read_text())
        return found

    @property
    def metadata_url(self) -> str:
        return str(self._word()["metadata"])

    @property
    def control_url(self) -> str:
        return str(self._word()["control"])

    @property
    def token(self) -> str:
        """The admin token that the first start has left."""
        return (Path(self.data) / "admin-token").read_text().strip()

    @property
    def environment(self) -> dict[str, str]:
        return dict(self._environment)

    def advance(
        self, length: timedelta | str | None = None, *, seen_by: str | Iterable[str] = (), **units: float
    ) -> datetime:
        """Move its clock, which must be virtual: as Service.advance."""
        vms = [seen_by] if isinstance(seen_by, str) else [*seen_by]
        by = f"{length_of(length, units).total_seconds():f}s"
        answer = self.control("POST", "/v1/clock/advance", {"by": by, **({"seen_by": vms} if vms else {})})
        if answer.status != 200:
            raise RuntimeError(answer.json()["detail"])
        return datetime.fromisoformat(answer.json()["now"])

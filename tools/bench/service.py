"""`forewarn up` with its own folder, on free loopback ports, on the core for servers."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.bench.connection import Connection, Control, poll_bytes
from tools.bench.processes import SERVER_CORE, Processes

if TYPE_CHECKING:
    import subprocess

FOREWARN = str(Path(sys.executable).with_name("forewarn"))
START_TIMEOUT_SECONDS = 60
POLLER = "poller"
"""The VM at 127.0.0.1."""


def fleet_text(vms: int, size: str = "") -> str:
    """Return a fleet file with this number of standalone VMs. The first is the poller at 127.0.0.1."""
    text = f'[[vm]]\nname = "{POLLER}"\naddress = "127.0.0.1"\n'
    if vms > 1:
        text += f'\n[[vm]]\nname = "vm-{{n}}"\ncount = {vms - 1}\naddresses = "10.0.0.1-10.255.255.255"\n'
        text += f'size = "{size}"\n' if size else ""
    return text


class Service:
    """A service that can stop, and start again with the same data."""

    def __init__(self, processes: Processes, folder: Path, fleet: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.data = folder / "data"
        self.fleet_file = folder / "fleet.toml"
        self.fleet_file.write_text(fleet)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")},
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / "share"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "FOREWARN_RUNTIME_DIR": str(folder / "run"),
            "FOREWARN_DATA": str(self.data),
            "FOREWARN_METADATA": "127.0.0.1:0",
            "FOREWARN_CONTROL": "127.0.0.1:0",
        }
        self._processes = processes
        self._process: subprocess.Popen[bytes] | None = None
        self._service_file: dict[str, Any] = {}

    def start(self, *options: str) -> float:
        """Start the service without a rate limit. Return the seconds until the response to the first poll."""
        started = time.perf_counter()
        command = [FOREWARN, "up", "--fleet", str(self.fleet_file), "--rate-limit", "0", *options]
        log = self.folder / "log"
        self._process = self._processes.start(command, SERVER_CORE, environment=self.environment, log=log)
        self._service_file = self._wait_until_started(started + START_TIMEOUT_SECONDS)
        self.poll()
        return time.perf_counter() - started

    def _wait_until_started(self, deadline: float) -> dict[str, Any]:
        assert self._process is not None  # noqa: S101 - for the type checker
        path = self.data / "service.json"
        while time.perf_counter() < deadline and self._process.poll() is None:
            if path.exists():
                content: dict[str, Any] = json.loads(path.read_text())
                if content["pid"] == self._process.pid:
                    return content
            time.sleep(0.002)
        raise RuntimeError(f"forewarn up did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        if self._process is not None:
            self._processes.end(self._process)
            self._process = None

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def metadata(self) -> tuple[str, int]:
        return _address(self._service_file["metadata"])

    @property
    def control_url(self) -> str:
        url: str = self._service_file["control"]
        return url

    @property
    def control_address(self) -> tuple[str, int]:
        return _address(self._service_file["control"])

    @property
    def token(self) -> str:
        """The token of an admin."""
        return Path(self._service_file["token_file"]).read_text().strip()

    @property
    def pid(self) -> int:
        pid: int = self._service_file["pid"]
        return pid

    def control(self) -> Control:
        """Return a new connection to the control API."""
        return Control(self.control_address, self.token)

    def poll(self, source: str = "127.0.0.1") -> None:
        """Poll once. The first poll of a group enables its events."""
        connection = Connection(self.metadata, source)
        connection.exchange(poll_bytes())
        connection.close()

    def cpu_seconds(self) -> float:
        assert self._process is not None  # noqa: S101 - for the type checker
        return self._processes.cpu_seconds(self._process)

    def resident_bytes(self) -> int:
        """Return the resident memory of the service (VmRSS)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)

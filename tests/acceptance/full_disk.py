"""Run in a mount namespace of its own: starts services whose data folder is on a full disk, and checks what they do.

The disk is a small tmpfs. The arguments are a folder, and the name of a scenario.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from forewarn.testing import ServiceProcess
from tcp_ports import free_port

FLEET = """
[[vm]]
name = "one"
address = "127.0.0.1"

[[vm]]
name = "two"
address = "127.0.0.2"
"""
NOTHING_CHANGED = "Nothing was changed"


class FullDisk:
    """A data folder on a small disk, and a service with constant ports that uses it."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir(mode=0o700)
        options = "size=16m,mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.data)], check=True)
        self.fleet = folder / "fleet.toml"
        self.fleet.write_text(FLEET)
        self.service = ServiceProcess(folder)
        self._addresses = {f"FOREWARN_{name}": f"127.0.0.1:{free_port()}" for name in ("METADATA", "CONTROL")}

    def start(self) -> None:
        self.service.start("--fleet", str(self.fleet), **self._addresses)

    def fill(self) -> None:
        """Use all space of the disk. The file with the addresses stays for this test, because they are constant."""
        addresses = {name: f"http://{address}" for name, address in self._addresses.items()}
        names = {"metadata": addresses["FOREWARN_METADATA"], "control": addresses["FOREWARN_CONTROL"]}
        (self.data / "service.json").write_text(json.dumps(names | {"token_file": "", "pid": 1, "certificate": ""}))
        with (self.data / "filler").open("wb", buffering=0) as filler:
            for size in (65536, 4096, 1):
                try:
                    while filler.write(bytes(size)):
                        pass
                except OSError:
                    continue
        assert os.statvfs(self.data).f_bavail == 0

    def make_room(self) -> None:
        (self.data / "filler").unlink()

    def check_not_ready(self) -> None:
        for _ in range(5):
            ready = self.service.control("GET", "/readyz")
            assert ready.status == 503, ready
            assert "disk" in str(ready.json()["problems"]), ready

    def check(self, event: str) -> None:
        """Polls work, and changes are rejected until there is room."""
        service = self.service
        assert [found["EventId"].lower() for found in service.document()["Events"]] == [event]
        refused = service.control("POST", "/v1/operations", {"cause": "redeploy", "vms": ["two"]})
        while refused.status == 201:  # the log may still have room
            refused = service.control("POST", "/v1/tokens", {"name": os.urandom(8).hex(), "role": "viewer"})
        assert refused.status == 503, refused
        assert NOTHING_CHANGED in refused.json()["detail"], refused
        self.check_not_ready()
        assert service.document()["Events"]
        assert service.control("GET", "/v1/events").json()["events"][0]["id"] == event
        self.make_room()
        assert service.approve(event).status == 200
        problems = service.control("GET", "/readyz").json()["problems"]
        assert not [problem for problem in problems if "fleet file" not in problem], problems
        service.kill()
        self.start()
        assert service.control("GET", f"/v1/events/{event}").json()["approved_at"]


def prepare(disk: FullDisk) -> str:
    """Start the service, and return the id of an event."""
    disk.start()
    disk.service.document()
    event: str = disk.service.request_operation("restart", "one")["events"][0]["id"]
    return event


def after_a_stop(disk: FullDisk) -> None:
    event = prepare(disk)
    disk.service.stop()
    disk.fill()
    disk.start()
    disk.check(event)


def after_a_kill(disk: FullDisk) -> None:
    event = prepare(disk)
    disk.service.kill()
    disk.fill()
    disk.start()
    disk.check(event)


def with_something_due(disk: FullDisk) -> None:
    """An approved event starts while the service is down: a start has to write that, and cannot yet."""
    disk.start()
    disk.service.document()
    disk.service.kill()
    disk.start()
    event = disk.service.request_operation("restart", "one")["events"][0]["id"]
    disk.service.stop()
    disk.fill()
    disk.service.start("--fleet", str(disk.fleet), "--inactivity-timeout", "1s", **disk._addresses)
    disk.check(event)


def with_a_changed_fleet(disk: FullDisk) -> None:
    event = prepare(disk)
    disk.service.stop()
    disk.fleet.write_text(FLEET.replace("two", "three"))
    disk.fill()
    disk.start()
    names = [vm["name"] for vm in disk.service.control("GET", "/v1/vms").json()["vms"]]
    assert names == ["one", "two"], "the stored fleet stays"
    assert "fleet_not_applied" in disk.service.output
    disk.check(event)
    names = [vm["name"] for vm in disk.service.control("GET", "/v1/vms").json()["vms"]]
    assert names == ["one", "three"], "the restart with room has applied it"


def without_the_token_file(disk: FullDisk) -> None:
    event = prepare(disk)
    token = disk.service.token
    disk.service.stop()
    (disk.data / "admin-token").unlink()
    disk.fill()
    disk.start()
    assert "admin_token_not_written" in disk.service.output
    assert disk.service.document()["Events"]
    assert disk.service.control("GET", "/v1/vms", token=token).status == 200, "the old token is valid"
    assert event


def while_it_runs(disk: FullDisk) -> None:
    """Nobody has written anything since the disk is full, or everything is written that there is room for."""
    event = prepare(disk)
    assert disk.service.control("GET", "/readyz").status == 200
    disk.fill()
    disk.check_not_ready()
    disk.check(event)


if __name__ == "__main__":
    full_disk = FullDisk(Path(sys.argv[1]))
    try:
        globals()[sys.argv[2]](full_disk)
    finally:
        full_disk.service.close()

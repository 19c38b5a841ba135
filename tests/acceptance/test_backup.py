"""`forewarn backup` of a service at work, and `forewarn restore` of what it wrote, as an operator types them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.feed_client import Feed
from forewarn.testing.client import COMMAND
from webhook_receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forewarn.testing import ServiceProcess

FLEET = """
[[group]]
name = "web"
kind = "scale-set"

[[vm]]
group = "web"
count = 3
addresses = "127.0.0.2"
"""
HOSTS = """
[[host]]
name = "rack-0"

[[host]]
name = "rack-1"

[[vm]]
name = "vm-0"
host = "rack-0"
address = "127.0.0.2"

[[vm]]
name = "vm-1"
host = "rack-1"
address = "127.0.0.3"
"""
SKIPPED = 1_000_000


@pytest.fixture
def service(make_service: Callable[..., ServiceProcess]) -> ServiceProcess:
    return make_service("--clock", "virtual", fleet=FLEET)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "backup.db"


def forewarn(service: ServiceProcess, *arguments: str | Path, code: int = 0, **variables: str) -> str:
    """Run a command in a process of its own. Returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
    result = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env={**environment, **service.environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == code, result
    assert "Traceback" not in result.stderr
    if code:
        assert result.stderr.count("\n") == 1, result.stderr
    return result.stdout + result.stderr


def poll(service: ServiceProcess) -> dict[str, Any]:
    document: dict[str, Any] = service.request(source="127.0.0.2").json()
    return document


def history(service: ServiceProcess) -> list[dict[str, Any]]:
    return service.list_all("/v1/history")


def restart(service: ServiceProcess) -> None:
    """Start a stopped service again, with the fleet of its store."""
    service.start("--clock", "virtual")


class Load:
    """Requests and cancels operations until it is stopped. Knows what was acknowledged."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        self._stopped = threading.Event()
        self.acknowledged: list[str] = []
        self.several = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            operation = self._service.request_operation("restart", "web_0")["id"]
            self.acknowledged.append(operation)
            self._service.control("POST", f"/v1/operations/{operation}/cancel", {})
            if len(self.acknowledged) == 20:
                self.several.set()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_a_backup_under_load_has_every_change_before_it(
    service: ServiceProcess, make_service: Callable[..., ServiceProcess], file: Path
) -> None:
    poll(service)
    load = Load(service)
    assert load.several.wait(60)
    for _ in range(3):
        before = list(load.acknowledged)
        forewarn(service, "backup", file)
    load.stop()
    document, rows = poll(service), history(service)

    other = make_service("--clock", "virtual", fleet=FLEET, folder="other")
    other.stop()
    forewarn(other, "restore", file, "--yes")
    restart(other)
    found = {operation["id"] for operation in other.list_all("/v1/operations?all=true")}
    assert [operation for operation in before if operation not in found] == []
    assert poll(other)["DocumentIncarnation"] >= SKIPPED
    assert poll(other)["DocumentIncarnation"] > document["DocumentIncarnation"]
    other.request_operation("restart", "web_1")
    assert ["web_1"] in [event["Resources"] for event in poll(other)["Events"]]
    (restored,) = [row for row in history(other) if row["kind"] == "restored"]
    assert restored["sequence"] > rows[-1]["sequence"]


def test_clients_continue_after_a_restore(service: ServiceProcess, file: Path) -> None:
    poll(service)
    service.request_operation("restart", "web_0")
    forewarn(service, "backup", file)
    service.request_operation("restart", "web_1")
    seen, row = poll(service)["DocumentIncarnation"], history(service)[-1]["sequence"]
    service.stop()
    forewarn(service, "restore", file)
    restart(service)
    assert [event["Resources"] for event in poll(service)["Events"]] == [["web_0"]]
    assert poll(service)["DocumentIncarnation"] > seen
    with Feed(service, last_id=str(row)) as feed:
        next_row = next(feed.rows())
    assert next_row["kind"] == "restored"
    assert next_row["sequence"] > row + SKIPPED / 2
    assert service.control("GET", "/v1/tokens").status == 200, "the token in the folder still works"


def test_a_webhook_continues_with_new_ids_and_drops_nothing(
    make_service: Callable[..., ServiceProcess], file: Path
) -> None:
    receiver = Receiver()
    options = ("--webhook-private-networks", "127.0.0.1/32", "--clock", "virtual")
    service = make_service(*options, fleet=FLEET)
    body = {"name": "hook", "url": receiver.url(), "kinds": ["requested", "restored"]}
    assert service.control("POST", "/v1/webhooks", body).status == 201
    forewarn(service, "backup", file)
    service.request_operation("restart", "web_0")
    receiver.until(lambda: len(receiver.taken) == 1)
    service.stop()
    forewarn(service, "restore", file)
    service.start(*options)
    service.request_operation("restart", "web_0")
    receiver.until(lambda: len(receiver.taken) == 3)
    assert len({request.id for request in receiver.taken}) == 3
    assert "dropped" not in service.output
    metrics = service.control("GET", "/metrics").body.decode()
    assert [line for line in metrics.splitlines() if "dropped" in line and line.endswith("999999")] == []
    receiver.close()


def test_pending_operations_are_listed_and_can_be_cancelled(service: ServiceProcess, file: Path) -> None:
    poll(service)
    operation = service.request_operation("restart", "web_0")["id"]
    forewarn(service, "backup", file)
    service.stop()
    shown = forewarn(service, "restore", file)
    assert shown.endswith("Start the service with: forewarn up\n")
    assert "Operations that are pending again: 1. Due when the service starts: 0." in shown
    assert f"{operation}  restart of web_0" in shown
    assert "--cancel-pending" in shown
    shown = forewarn(service, "restore", file, "--cancel-pending")
    assert "Operations that the restore cancels: 1." in shown
    restart(service)
    assert poll(service)["Events"] == []
    assert service.control("GET", f"/v1/operations/{operation}").json()["status"] == "cancelled"
    assert [row["kind"] for row in history(service)[-2:]] == ["restored", "cancelled"]


def test_rollouts_are_cancelled_with_their_operations(make_service: Callable[..., ServiceProcess], file: Path) -> None:
    service = make_service("--clock", "virtual", fleet=HOSTS)
    poll(service)
    service.request(source="127.0.0.3")
    assert service.control("POST", "/v1/rollouts", {"hosts": ["rack-*"]}).status == 201
    forewarn(service, "backup", file)
    service.stop()
    forewarn(service, "restore", file, "--cancel-pending")
    restart(service)
    service.advance(hours=2)
    assert service.list_all("/v1/operations") == []
    (rollout,) = service.list_all("/v1/rollouts?all=true")
    assert rollout["status"] == "cancelled"


def test_a_new_folder_gets_a_new_admin_token(service: ServiceProcess, file: Path, tmp_path: Path) -> None:
    forewarn(service, "backup", file)
    service.stop()
    old = service.token
    service.folder = tmp_path / "elsewhere"
    shown = forewarn(service, "restore", file, "--data", service.data)
    assert shown.endswith(f"Start the service with: forewarn up --data {service.data}\n")
    restart(service)
    assert service.token != old
    assert service.control("GET", "/v1/vms").status == 200
    service.kill()


def test_json(service: ServiceProcess, file: Path) -> None:
    found = json.loads(forewarn(service, "backup", file, "--keep", "2", "--json"))
    assert found["file"] == str(file)
    assert found["bytes"] == file.stat().st_size
    assert (found["vms"], found["pending_operations"]) == (3, 0)
    service.stop()
    restored = json.loads(forewarn(service, "restore", file, "--json"))
    assert restored["sequence"] == found["sequence"]
    assert Path(restored["replaced"]).exists()


def test_errors_are_one_line(service: ServiceProcess, file: Path) -> None:
    forewarn(service, "backup", file)
    assert "Stop it" in forewarn(service, "restore", file, code=4)
    remote = forewarn(service, "backup", file, "--server", "http://127.0.0.1:1", code=2)
    assert "Run it on the machine of the service, with --data DIR." in remote
    variable = forewarn(service, "restore", file, code=2, FOREWARN_SERVER="http://127.0.0.1:1")
    assert variable.endswith("with --data DIR.\n")
    assert "has no files" in forewarn(service, "backup", file, "--data", ":memory:", code=2)
    assert "has no database" in forewarn(service, "backup", file, "--data", file.parent, code=3)
    assert "it is in the data folder" in forewarn(service, "backup", Path(service.data) / "b.db", code=2)
    file.write_bytes(b"x" * 5000)
    assert "not a usable backup" in forewarn(service, "restore", file, code=2)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize(("answer", "replaced"), [("n", False), ("y", True)])
def test_on_a_terminal_it_asks_first(
    service: ServiceProcess, file: Path, terminal: tuple[int, int], answer: str, replaced: bool
) -> None:
    forewarn(service, "backup", file)
    service.stop()
    ours, theirs = terminal
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
    os.write(ours, f"{answer}\n".encode())
    command = subprocess.run(
        [*COMMAND, "restore", str(file)],
        env={**environment, **service.environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        timeout=120,
        check=False,
    )
    assert (command.returncode == 0) is replaced
    assert "Replace the database in" in os.read(ours, 10_000).decode()
    assert bool(list(Path(service.data).glob("*.before-restore-1"))) is replaced
    assert list(Path(service.data).glob(".*")) == []


def test_without_a_folder_the_running_service_is_backed_up(service: ServiceProcess, file: Path) -> None:
    # The default folder of this user has no database.
    forewarn(service, "backup", file, FOREWARN_DATA="")
    assert "history up to row" in forewarn(service, "backup", file, "--service", "data", FOREWARN_DATA="")
    assert "No service named 'other'" in forewarn(service, "backup", file, "--service", "other", code=3)

"""Several services on one machine: their names, how a command selects one, and the proof before the token is sent."""

from __future__ import annotations

import json
import os
import pty
import shutil
import stat
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from command_line import run_command
from forewarn.testing import ServiceProcess
from forewarn.testing.client import COMMAND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FLEET = '[[vm]]\nname = "one"\naddress = "127.0.0.1"\n'
MEMORY = ("--data", ":memory:", "--clock", "virtual")


@pytest.fixture
def registry(tmp_path: Path) -> dict[str, str]:
    """One registry for all services of a test, as for the services of one user."""
    return {"FOREWARN_RUNTIME_DIR": str(tmp_path / "run")}


@pytest.fixture
def make(make_service: Callable[..., ServiceProcess], registry: dict[str, str]) -> Callable[..., ServiceProcess]:
    def start(folder: str, *arguments: str, **variables: str) -> ServiceProcess:
        return make_service(*arguments, fleet=FLEET, folder=folder, **{**registry, **variables})

    return start


def listed(service: ServiceProcess, **variables: str) -> list[dict[str, Any]]:
    found = run_command(service, "service", "list", "--json", **variables)
    assert found.returncode == 0, found.stderr
    services: list[dict[str, Any]] = json.loads(found.stdout)["services"]
    return services


def operations(service: ServiceProcess, name: str) -> int:
    """The number of operations of the service with this name."""
    found = run_command(service, "operation", "list", "--all", "--json", "--service", name)
    return len(json.loads(found.stdout)["operations"])


# --- Names and selection ----------------------------------------------------------------------------


def test_two_services_in_memory_keep_their_own_address_and_token(make: Callable[..., ServiceProcess]) -> None:
    first, second = make("one", *MEMORY), make("two", *MEMORY)
    names = [each["name"] for each in listed(first)]
    assert [each["state"] for each in listed(first)] == ["running", "running"]
    assert sorted(names) == sorted(f"memory-{service.process.pid}" for service in (first, second) if service.process)
    refused = run_command(first, "vm", "restart", "one")
    assert refused.returncode == 2
    assert all(f"{name} (data :memory:, control http://127.0.0.1:" in refused.stderr for name in names)
    assert "Choose one with --service NAME or the variable FOREWARN_SERVICE." in refused.stderr
    assert refused.stderr.count("\n") == 1
    done = run_command(first, "vm", "restart", "one", "--service", names[1])
    assert (done.returncode, done.stderr) == (0, f"Service: {names[1]}\n")
    assert run_command(first, "vm", "redeploy", "one", FOREWARN_SERVICE=names[1]).returncode == 0
    assert [operations(first, name) for name in names] == [0, 2]
    assert "--service memory-" in second.output, "the commands to try select the service"
    assert "--service" not in first.output
    second.stop()
    assert run_command(first, "vm", "restart", "one").stderr == "", "one service needs no selection and no name"


def test_a_change_names_the_service_only_if_others_run(make: Callable[..., ServiceProcess]) -> None:
    service = make("one", "--name", "production")
    make("two", *MEMORY)
    assert run_command(service, "vm", "list", "--data", service.data).stderr == ""
    assert run_command(service, "vm", "restart", "one", "--data", service.data, "--dry-run").stderr == ""
    changed = run_command(service, "vm", "restart", "one", "--data", service.data)
    assert (changed.returncode, changed.stderr) == (0, "Service: production\n")
    remote = {"FOREWARN_SERVER": "http://127.0.0.1:1", "FOREWARN_TOKEN_FILE": f"{service.data}/admin-token"}
    assert run_command(service, "vm", "redeploy", "one", **remote).stderr.startswith("Service: http://127.0.0.1:1\n")


def test_a_question_names_the_service_first(make: Callable[..., ServiceProcess]) -> None:
    service = make("one", "--name", "production")
    make("two", *MEMORY)
    terminal, program_side = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "vm", "delete", "one", "--service", "production"],
        env={**os.environ, **service.environment},
        stdin=program_side,
        stdout=program_side,
        stderr=program_side,
    ) as program:
        os.close(program_side)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(terminal, 1000)
        os.write(terminal, b"n\n")
        assert program.wait(timeout=30) == 1
    os.close(terminal)
    lines = said.decode().split("\r\n")
    assert lines[0] == "Service: production"
    assert lines[1].startswith("No notice: one")
    assert lines[2].startswith("Delete one?")


def test_names_are_unique(make: Callable[..., ServiceProcess]) -> None:
    service = make("one")
    second = make("two")
    assert [each["name"] for each in listed(service)] == ["data", "data-2"]
    assert "  name      data-2\n" in second.output
    taken = service.cli("up", "--data", ":memory:", "--name", "data")
    assert taken.returncode == 4
    assert taken.stderr.startswith("forewarn: Another service (process ")
    assert taken.stderr.endswith("is named 'data'. Stop it, or choose another name with --name.\n")
    bad = service.cli("up", "--data", ":memory:", "--name", "../x")
    assert (bad.returncode, "Invalid setting name = '../x' (from --name): write 1 to 64" in bad.stderr) == (2, True)
    unknown = run_command(service, "vm", "list", "--service", "dato-2")
    assert (unknown.returncode, "Did you mean 'data-2'?" in unknown.stderr) == (3, True)
    service.kill()
    second.stop()
    again = make("three", "--name", "data")
    assert [each["name"] for each in listed(again)] == ["data"], "the name of a killed service is free"


def test_contradicting_selections_are_errors(make: Callable[..., ServiceProcess]) -> None:
    service = make("one")
    for options in (("--service", "data", "--data", service.data), ("--service", "data", "--server", "http://x")):
        refused = run_command(service, "vm", "list", *options)
        assert (refused.returncode, "Use one of them." in refused.stderr) == (2, True), refused
    variables = {"FOREWARN_SERVICE": "data", "FOREWARN_SERVER": service.control_url}
    refused = run_command(service, "vm", "list", **variables)
    assert (refused.returncode, "Use one of them." in refused.stderr) == (2, True)
    assert run_command(service, "vm", "list", "--data", service.data, **variables).returncode == 0
    assert run_command(service, "vm", "list", "--service", "data", FOREWARN_SERVER="http://x").returncode == 0


def test_a_data_folder_in_the_environment_does_not_hide_a_service_in_memory(
    make: Callable[..., ServiceProcess], tmp_path: Path
) -> None:
    memory = make("one", *MEMORY)
    assert "virtual clock" in run_command(memory, "clock", "show").stdout
    assert "virtual clock" in run_command(memory, "clock", "show", "--data", ":memory:").stdout
    stored = make("two")
    assert run_command(stored, "clock", "show").returncode == 2, "each of them can be meant"
    assert "system clock" in run_command(stored, "clock", "show", "--data", stored.data).stdout
    assert "virtual clock" in run_command(stored, "clock", "show", "--data", ":memory:").stdout
    memory.kill()
    assert run_command(stored, "clock", "show", "--data", ":memory:").returncode == 3
    other = run_command(stored, "clock", "show", FOREWARN_DATA=str(tmp_path / "other"))
    assert other.returncode == 3, "a service with another data folder is not the one that is meant"
    assert "(from FOREWARN_DATA). Running: data (data " in other.stderr
    assert "system clock" in run_command(stored, "clock", "show", FOREWARN_DATA="").stdout


def test_a_service_in_memory_needs_no_home(tmp_path: Path) -> None:
    variables = {"HOME": "/dev/null", "XDG_DATA_HOME": "/dev/null/share", "XDG_CONFIG_HOME": "/dev/null/config"}
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    folders = {"FOREWARN_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(tmp_path)}
    with ServiceProcess(tmp_path).start(*MEMORY, **variables, **folders) as service:
        assert "virtual clock" in run_command(service, "clock", "show").stdout
        files = sorted((runtime / "forewarn").iterdir())
        assert [file.suffix for file in files] == [".json", ".token"]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert stat.S_IMODE((runtime / "forewarn").stat().st_mode) == 0o700
        assert service.stop() == 0
        assert list((runtime / "forewarn").iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_registry_that_others_could_have_made_is_not_used(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / f"forewarn-{os.geteuid()}"
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    if kind == "link":
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "open":
        folder.mkdir()
        folder.chmod(0o755)
    else:
        folder.touch()
    folders = {"FOREWARN_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": "/dev/null", "TMPDIR": str(tmp_path)}
    with ServiceProcess(tmp_path).start(**folders) as service:
        assert "WARNING service_file_not_written: " in service.output
        assert not list((tmp_path / "elsewhere").iterdir())
        if kind == "open":
            assert f"path={folder} " in service.output
            hidden = {"FOREWARN_DATA": "", "XDG_DATA_HOME": str(tmp_path / "none")}
            for command, found in (("service", "Found no service: "), ("vm", "Found no Forewarn service: ")):
                result = run_command(service, command, "list", **hidden)
                problem = f"other users can access {folder} (mode 0755). Run: chmod 0700 {folder}"
                assert f"{found}{problem}" in result.stdout + result.stderr
        assert run_command(service, "vm", "list").returncode == 0, "the data folder has a service file, too"


# --- Copies and stale files -------------------------------------------------------------------------


class Thief(BaseHTTPRequestHandler):
    """Another program that now has the port of the service. It records what it gets."""

    requests: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.requests.append((self.path.partition("?")[0], self.headers["Authorization"]))
        body = b'{"proof": "0000", "vms": [], "next": null}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        pass


@pytest.fixture
def thief() -> Iterator[ThreadingHTTPServer]:
    Thief.requests = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Thief) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_token_is_not_sent_to_another_program_on_the_port(
    make: Callable[..., ServiceProcess], thief: ThreadingHTTPServer
) -> None:
    service = make("one")
    path = Path(service.data) / "service.json"
    stale = json.loads(path.read_text())
    stale["control"] = f"http://127.0.0.1:{thief.server_port}"
    service.stop()
    # As if the process id had been reused.
    stale["pid"] = os.getpid()
    path.write_text(json.dumps(stale))
    command = run_command(service, "vm", "list", "--data", service.data)
    assert command.returncode == 3, "the process has another start time"
    path.write_text(json.dumps({**stale, "started": 0}))  # not known on every system
    command = run_command(service, "vm", "list", "--data", service.data)
    assert command.returncode == 6
    assert command.stderr == (
        f"forewarn: The program at {stale['control']} did not prove that it is the service 'data'. Another program may "
        "use this address. The token was not sent. List the services with: forewarn service list\n"
    )
    assert Thief.requests == [("/v1/proof", None)]
    assert "not responding" in run_command(service, "service", "list").stdout


def test_a_copied_data_folder_does_not_lead_to_the_original(
    make: Callable[..., ServiceProcess], tmp_path: Path
) -> None:
    service = make("one", "--name", "original")
    copy = tmp_path / "copy"
    shutil.copytree(service.data, copy)
    for options, variables in ((("--data", str(copy)), {}), ((), {"FOREWARN_DATA": str(copy)})):
        command = run_command(service, "vm", "restart", "one", *options, **variables)
        assert (command.returncode, f"no running service uses {copy}" in command.stderr) == (3, True), command
    assert operations(service, "original") == 0
    link = tmp_path / "link"
    link.symlink_to(service.data)
    assert run_command(service, "vm", "list", "--data", str(link)).returncode == 0


def test_the_proof_needs_no_token_and_depends_on_the_start(make: Callable[..., ServiceProcess]) -> None:
    service = make("one")
    target = "/v1/proof?challenge=abc"
    first = service.control("GET", target, token="").json()["proof"]
    assert service.control("GET", target, token="").json()["proof"] == first
    assert service.control("GET", "/v1/proof?challenge=abd", token="").json()["proof"] != first
    service.stop()
    service.start()
    assert service.control("GET", target, token="").json()["proof"] != first


# --- Files that cannot be written -------------------------------------------------------------------


def appears(path: Path, service: ServiceProcess) -> None:
    """Wait for a file. The service must not end before that."""
    assert service.process is not None
    while not path.is_file():
        with pytest.raises(subprocess.TimeoutExpired):
            service.process.wait(0.05)


def test_a_service_whose_files_cannot_be_written_starts_and_tries_again(make: Callable[..., ServiceProcess]) -> None:
    service = make("one")
    service.stop()
    service_file, entry = Path(service.data) / "service.json", service.folder.parent / "run" / "data.json"
    service_file.mkdir()  # nobody can write it, not even root
    service = make("one")
    assert "WARNING service_file_not_written: Commands may not find this service." in service.output
    assert run_command(service, "vm", "list").returncode == 0, "by the registry"
    assert run_command(service, "vm", "list", "--data", service.data).returncode == 0
    service_file.rmdir()
    appears(service_file, service)
    entry.unlink()
    appears(entry, service)


def test_an_admin_token_that_cannot_be_written_is_written_later(make: Callable[..., ServiceProcess]) -> None:
    service = make("one")
    service.stop()
    token = Path(service.data) / "admin-token"
    token.unlink()
    token.mkdir()
    service = make("one")
    assert 'file="admin token"' in service.output
    token.rmdir()
    appears(token, service)
    assert run_command(service, "vm", "list").returncode == 0

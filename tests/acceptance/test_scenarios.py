"""Scenarios with a real service and the command line."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import foreground
from command_line import run_command
from forewarn.scenarios import library
from forewarn.testing.client import COMMAND, DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from subprocess import CompletedProcess

    from forewarn.testing import ServiceProcess

    Make = Callable[..., ServiceProcess]

ROOT = Path(__file__).parents[2]
FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
name = "web-0"
group = "web"
address = "127.0.0.1"
[[vm]]
name = "web-1"
group = "web"
address = "127.0.0.2"
"""
MINE = """
title = "Mine"
[[step]]
do = "restart"
expect = { type = "Reboot", status = "Scheduled" }
[[step]]
until = "Started"
within = "15m"
[[step]]
until = "gone"
within = "10m"
"""
SLOW = ("--vm", "web-0", "--enable", "--speed", "0.001")
"""A run that stands still as far as a test is concerned: a virtual second is a quarter of an hour."""


def own_fleet_commands(name: str) -> list[str]:
    """The commands of the page that run a scenario with its own fleet, for this scenario."""
    page = (ROOT / "docs" / "how-to" / "scenarios.md").read_text().partition("\nEach scenario contains a fleet file")[2]
    blocks = [part.partition("```")[0] for part in page.split("```sh\n")[1:3]]
    return "".join(blocks).replace("rolling-update", name).splitlines()


def run_with_own_fleet(make_service: Make, commands: list[str]) -> tuple[ServiceProcess, CompletedProcess[str]]:
    """Run the three commands as a user types them, in the current folder. Only the ports are free ones."""
    show, up, run = commands
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-c", show], env={**os.environ, "PATH": path}, timeout=60, check=True)
    assert up.startswith("forewarn up --fleet fleet.toml ")
    service = make_service(*shlex.split(up)[2:], folder="own", FOREWARN_DATA=":memory:")
    assert run.startswith("forewarn scenario run ")
    return service, run_command(service, *shlex.split(run)[1:])


@pytest.mark.parametrize("name", library.names())
def test_every_built_in_scenario_runs_with_its_own_fleet_as_the_page_says(
    name: str, make_service: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    service, played = run_with_own_fleet(make_service, own_fleet_commands(name))
    assert (played.returncode, played.stderr) == (0, ""), played.stdout
    title, *steps, verdict = played.stdout.splitlines()
    scenario, _ = library.find(name)
    assert title.startswith(scenario.title)
    assert [line[0] for line in steps] == ["✓"] * len(scenario.steps)
    assert verdict.startswith(f"Passed: {len(steps)} steps in ")
    assert json.loads(run_command(service, "event", "list", "--json").stdout)["events"] == []
    assert service.stop() == 0
    assert "Traceback" not in service.output


def commands_of(refused: CompletedProcess[str]) -> list[str]:
    """The commands in the message of a refused run."""
    text = refused.stderr.partition(" stop the service and run these commands: ")[2]
    return text.strip().replace("then, in another terminal, ", "then ").split(", then ")


@pytest.mark.parametrize("name", ["correlated-eviction", "rolling-update", "scale-in", "spot-eviction"])
def test_the_commands_of_a_refused_run_lead_to_a_run(
    name: str, make_service: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    service = make_service("--clock", "virtual")  # its fleet is this machine
    refused = run_command(service, "scenario", "run", name)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "but the fleet has no such VMs." in refused.stderr
    assert service.stop() == 0
    commands = commands_of(refused)
    assert commands == own_fleet_commands(name)
    _, played = run_with_own_fleet(make_service, commands)
    assert (played.returncode, played.stderr) == (0, ""), played.stdout


def test_the_commands_of_a_refused_run_of_a_file_lead_to_a_run(
    make_service: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my own.toml").write_text(library.text("scale-in"))
    service = make_service("--clock", "virtual", fleet=FLEET)
    refused = run_command(service, "scenario", "run", "my own.toml")
    assert service.stop() == 0
    _, played = run_with_own_fleet(make_service, commands_of(refused))
    assert (played.returncode, played.stderr) == (0, ""), played.stdout
    Path("my own.toml").write_text(MINE)  # it has no fleet
    service = make_service("--clock", "virtual", fleet=FLEET)
    refused = run_command(service, "scenario", "run", "my own.toml")
    assert refused.stderr.endswith("Choose with --vm: web-0, web-1.\n")


def test_on_the_system_clock_only_the_run_is_faster(make_service: Make) -> None:
    service = make_service(fleet=FLEET)
    service.document()
    other = service.request_operation("restart", "web-1")["events"][0]
    played = run_command(service, "scenario", "run", "user-reboot", "--vm", "web-0", "--speed", "900", "--json")
    assert played.returncode == 0, played.stdout
    run = json.loads(played.stdout)
    assert (run["status"], run["speed"], run["vms"]) == ("passed", 900, ["web-0"])
    assert service.get_json(f"/v1/events/{other['id']}")["status"] == "scheduled"


class Application(threading.Thread):
    """An application that waits for changes of its document. If it is eager, it approves every event."""

    def __init__(self, service: ServiceProcess, *, eager: bool) -> None:
        super().__init__(daemon=True)
        self.service = service
        self.eager = eager
        self.approved: list[str] = []
        self.seen: list[list[str]] = []
        self.document = service.request()

    def run(self) -> None:
        with suppress(OSError):  # until the service goes
            while True:
                events = self.document.json()["Events"]
                self.seen.append([event["EventStatus"] for event in events])
                for event in events if self.eager else ():
                    if event["EventStatus"] == "Scheduled" and event["EventId"] not in self.approved:
                        self.approved.append(event["EventId"])
                        self.service.approve(event["EventId"])
                headers = {"Metadata": "true", "If-None-Match": self.document.headers["etag"], "Prefer": "wait=10"}
                answer = self.service.request("GET", DOCUMENT, headers)
                self.document = answer if answer.status == 200 else self.document


@pytest.mark.parametrize("name", ["host-maintenance", "cancelled-maintenance"])
def test_an_application_that_approves_at_once_breaks_nothing(name: str, make_service: Make) -> None:
    service = make_service(fleet=FLEET)
    application = Application(service, eager=True)
    application.start()
    played = run_command(service, "scenario", "run", name, "--vm", "web-0", "--speed", "300")
    assert played.returncode == 0, played.stdout
    assert len(application.approved) == 1
    assert ("– cancel" in played.stdout) == (name == "cancelled-maintenance")


def test_an_application_in_seen_by_sees_every_step(make_service: Make) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    application = Application(service, eager=False)
    application.start()
    played = run_command(service, "scenario", "run", "degraded-hardware", "--vm", "web-0", "--seen-by", "web-0")
    assert played.returncode == 0, played.stdout + played.stderr
    assert [statuses for statuses, _ in groupby(application.seen)] == [[], ["Scheduled"], ["Started"], []]
    refused = run_command(service, "scenario", "run", "user-reboot", "--vm", "web-0", "--seen-by", "web-9")
    assert (refused.returncode, "Unknown VM 'web-9'" in refused.stderr) == (3, True)


def test_a_users_own_by_its_path(make_service: Make, tmp_path: Path) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    played = run_command(service, "scenario", "run", str(file), "--vm", "web-0", "--enable")
    assert (played.returncode, played.stdout.splitlines()[-1]) == (
        0,
        "Passed: 3 steps in 25m on the service's clock.",
    )
    file.write_text(MINE.replace('"Reboot"', '"Freeze"'))
    played = run_command(service, "scenario", "run", str(file), "--vm", "web-0")
    assert (played.returncode, played.stdout.splitlines()[-1]) == (
        1,
        "Failed at step 1, restart: web-0: expected type 'Freeze', got 'Reboot'.",
    )
    file.write_text(MINE.replace("restart", "rstart"))
    played = run_command(service, "scenario", "run", str(file), "--vm", "web-0")
    assert played.returncode == 2
    assert f"{file}:4: step[0].do: 'rstart' is not one of" in played.stderr
    assert "Did you mean 'restart'?" in played.stderr
    played = run_command(service, "scenario", "run", str(tmp_path / "none.toml"))
    assert (played.returncode, "No such file" in played.stderr) == (2, True)


def test_the_error_lists_what_the_scenario_needs(make_service: Make) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    for arguments, code, words in (
        (("user-reboot",), 2, "the fleet has more than one choice. Choose with --vm: web-0, web-1."),
        (("spot-eviction", "--vm", "web-0"), 2, "needs 1 Spot VM, but web-0 is regular."),
        (("user-reboot", "--vm", "web-0"), 4, "web has never polled. The run would send the group no events."),
        (("user-reboot", "--vm", "web-9"), 3, "Unknown VM 'web-9'."),
        (("user-rebot", "--vm", "web-0"), 3, "Unknown scenario 'user-rebot'. Did you mean 'user-reboot'?"),
        (("user-reboot", "--vm", "web-0", "--speed", "0"), 2, "0"),
    ):
        played = run_command(service, "scenario", "run", *arguments)
        assert (played.returncode, played.stdout) == (code, ""), arguments
        assert words in played.stderr
    assert service.list_all("/v1/operations?all=true") == []


@contextmanager
def running(service: ServiceProcess, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with foreground.running([*COMMAND, "scenario", "run", *arguments], service.environment) as program:
        yield program


def until_line(program: subprocess.Popen[str], start: str) -> None:
    assert program.stdout is not None
    for line in program.stdout:
        if line.startswith(start):
            return
    raise AssertionError(program.communicate())


def interrupted(program: subprocess.Popen[str]) -> str:
    """Press Ctrl-C, and return what the command reports."""
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=60)
    assert program.returncode == 130, said
    return said


def test_ctrl_c_cancels_the_scheduled_events_and_names_what_goes_on(make_service: Make, tmp_path: Path) -> None:
    service = make_service("--clock", "virtual", "--allow-faults", fleet=FLEET)
    service.document()
    file = tmp_path / "mine.toml"
    file.write_text(
        'title = "t"\n[needs]\nvms = 2\n[[step]]\nfault = { kind = "410", method = "POST", count = 9 }\n'
        '[[step]]\ndo = "hardware-failure"\nvms = [1]\n[[step]]\ndo = "restart"\nvms = [2]\n[[step]]\nwait = "1h"\n'
    )
    with running(service, str(file), "--group", "web", "--speed", "0.001") as program:
        until_line(program, "✓ restart")
        assert len(service.document()["Events"]) == 2
        said = interrupted(program)
    (left,) = service.list_all("/v1/operations")
    assert said == (
        "The run was stopped. Its scheduled events were cancelled.\n"
        f"Still in progress: operation {left['id']} (hardware-failure, web-0)\n"
    )
    assert [event["EventType"] for event in service.document()["Events"]] == ["Reboot"]
    assert service.list_all("/v1/faults") == []


def test_ctrl_c_ends_the_wait_for_a_vm(make_service: Make) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    arguments = ("user-reboot", "--vm", "web-0", "--seen-by", "web-0")
    service.document()
    with running(service, *arguments) as program:
        while not service.document()["Events"]:  # polls until it sees the event, and never again
            pass
        until_line(program, "✓ restart")
        assert interrupted(program).startswith("The run was stopped.")
    assert service.document()["Events"] == []
    service.advance("1m")  # nothing else moves the clock


def test_the_display_on_a_terminal_shows_every_step(make_service: Make) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "scenario", "run", "user-reboot", "--vm", "web-0", "--enable"],
        env={**os.environ, **service.environment, "TERM": "xterm", "COLUMNS": "120"},
        stdout=theirs,
    ) as watching:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the way a terminal says that nobody is there any more
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert watching.returncode == 0
    for words in (
        "A user restarts the VM: web-0",
        "until Started, within 15m",
        "Passed: 3 steps in 25m",
    ):
        assert words in shown.decode()


def test_a_fault_of_a_scenario_affects_its_vms(make_service: Make, tmp_path: Path) -> None:
    service = make_service("--clock", "virtual", "--allow-faults", fleet=FLEET)
    file = tmp_path / "mine.toml"
    file.write_text('title = "t"\n[[step]]\nfault = { kind = "500", count = 2 }\n[[step]]\nwait = "1m"\n')
    with running(service, str(file), *SLOW) as program:
        until_line(program, "✓ fault 500")
        assert service.request(source="127.0.0.2").status == 200
        assert [service.request().status for _ in range(3)] == [500, 500, 200]
        interrupted(program)


def test_without_allow_faults_such_a_run_is_rejected(make_service: Make, tmp_path: Path) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    file = tmp_path / "mine.toml"
    file.write_text('title = "t"\n[[step]]\nfault = { kind = "500" }\n')
    refused = run_command(service, "scenario", "run", str(file), *SLOW)
    assert (refused.returncode, "--allow-faults" in refused.stderr) == (5, True)


def test_a_run_ends_with_the_service_and_its_operations_continue(make_service: Make) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    with running(service, "user-reboot", *SLOW) as program:
        until_line(program, "✓ restart")
        assert service.stop() == 0
        _, said = program.communicate(timeout=60)
    assert program.returncode == 6, said
    ended, error = said.splitlines()
    assert ended == "The run has ended. Its operations and faults may still be in the service."
    assert error.startswith("forewarn: ")
    assert "Traceback" not in service.output
    service.start("--clock", "virtual")
    assert [event["EventType"] for event in service.document()["Events"]] == ["Reboot"]


def test_a_run_needs_an_operator(make_service: Make, tmp_path: Path) -> None:
    service = make_service(fleet=FLEET)
    token = tmp_path / "token"
    token.write_text(service.control("POST", "/v1/tokens", {"name": "vic", "role": "viewer"}).json()["token"])
    refused = service.cli("scenario", "run", "user-reboot", "--vm", "web-0", "--token-file", str(token))
    assert (refused.returncode, "operator or admin" in refused.stderr) == (5, True), refused.stderr
    assert refused.stdout == ""

"""The command line: help, output for people and as JSON, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from command_line import run_command
from forewarn.cli import NOUNS, SECTIONS, root
from forewarn.testing import ServiceProcess
from forewarn.testing.client import DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLEET = """
[[group]]
name = "web"
kind = "availability-set"

[[host]]
name = "host-a"

[[vm]]
name = "web-0"
group = "web"
host = "host-a"
address = "127.0.0.1"

[[vm]]
name = "web-1"
group = "web"
address = "127.0.0.2"

[[vm]]
name = "quiet"
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "fleet.toml").write_text(FLEET)
    started = ServiceProcess(folder).start("--clock", "virtual", "--fleet", str(folder / "fleet.toml"))
    started.document()
    yield started
    started.stop()


def run(service: ServiceProcess, *arguments: str) -> str:
    result = run_command(service, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def parsed(service: ServiceProcess, *arguments: str) -> Any:
    return json.loads(run(service, *arguments, "--json"))


def test_vm_list_and_vm_show(service: ServiceProcess) -> None:
    table = run(service, "vm", "list")
    assert "host-a" in table
    assert "never" in table
    assert [vm["name"] for vm in parsed(service, "vm", "list")["vms"]] == ["quiet", "web-0", "web-1"]
    assert "host-a" in run(service, "vm", "show", "web-0")
    assert parsed(service, "vm", "show", "web-1")["update_domain"] == 1


def test_a_restart_from_request_to_end(service: ServiceProcess) -> None:
    said = run(service, "vm", "restart", "web-0")
    assert "Reboot scheduled: restart of web-0, not before " in said
    assert " UTC (in 15m)." in said
    event_id = said.split()[-1]
    assert "scheduled" in run(service, "event", "list")
    assert "not before" in run(service, "event", "show", event_id[:8])
    assert "(virtual clock)" in run(service, "clock", "advance", "14m50s")
    assert "(in 10s)" in run(service, "event", "list")
    approved = parsed(service, "event", "approve", event_id)
    assert (approved["status"], approved["approved_by"]) == ("started", "admin")
    assert "by admin" in run(service, "event", "list")
    run(service, "clock", "advance", "10m")
    assert run(service, "event", "list") == "No active events.\n"
    assert event_id[:8] in run(service, "event", "list", "--all")
    assert "completed" in run(service, "event", "show", event_id[:8])
    history = [entry["kind"] for entry in parsed(service, "history", "--event", event_id)["history"]]
    assert history == ["requested", "scheduled", "approved", "started", "executed", "completed"]
    assert "executed" in run(service, "history", "--event", event_id)


def test_a_redeploy_that_is_cancelled(service: ServiceProcess) -> None:
    (operation,) = parsed(service, "vm", "redeploy", "web-1")["operations"]
    event = operation["events"][0]
    assert (event["type"], event["source"]) == ("Redeploy", "user")
    assert parsed(service, "event", "cancel", event["id"])["status"] == "cancelled"
    again = run_command(service, "event", "cancel", event["id"])
    assert again.returncode == 4
    assert f"{event['id']} has ended (cancelled)" in again.stderr


def test_an_unknown_vm_rejects_the_whole_request(service: ServiceProcess) -> None:
    before = parsed(service, "event", "list", "--all")
    refused = run_command(service, "vm", "restart", "web-0", "wbe-1")
    assert refused.returncode == 3
    assert "Unknown VM 'wbe-1'. Did you mean 'web-1'?" in refused.stderr
    assert parsed(service, "event", "list", "--all") == before
    for operation in parsed(service, "vm", "restart", "web-0", "web-1")["operations"]:
        run(service, "event", "cancel", operation["events"][0]["id"])


def test_a_vm_that_never_polled_gets_no_notice(service: ServiceProcess) -> None:
    said = run(service, "vm", "restart", "quiet")
    assert said.startswith("No notice: quiet has never polled. The restart of quiet starts now.\n")


def test_the_document_has_the_same_bytes_as_a_poll(service: ServiceProcess) -> None:
    for version in ("2017-08-01", "2020-07-01"):
        result = run_command(service, "vm", "document", "web-1", "--api-version", version)
        target = DOCUMENT.replace("2020-07-01", version)
        assert result.stdout.encode() == service.request(target=target, source="127.0.0.2").body
    unknown = run_command(service, "vm", "document", "web-1", "--api-version", "2020-01-01")
    assert unknown.returncode == 3
    assert "2019-08-01" in unknown.stderr


def test_reading_a_document_does_not_enable(service: ServiceProcess) -> None:
    assert run(service, "vm", "document", "quiet") == '{"DocumentIncarnation":0,"Events":[]}'
    assert parsed(service, "vm", "show", "quiet")["events_enabled"] is False


def test_fleet_check_apply_and_show(service: ServiceProcess, tmp_path: Path) -> None:
    assert "host-a" in run(service, "fleet", "show")
    assert parsed(service, "fleet", "show")["vms"] == 3
    more = tmp_path / "more.toml"
    more.write_text(FLEET + '\n[[vm]]\nname = "new-0"\n')
    assert "is valid: 4 VMs" in run(service, "fleet", "check", str(more))
    assert parsed(service, "fleet", "apply", str(more))["added"] == ["new-0"]
    assert "No changes: " in run(service, "fleet", "apply", str(more))
    more.write_text(FLEET)
    assert "new-0" in run(service, "fleet", "apply", str(more))
    (operation,) = parsed(service, "vm", "restart", "web-1")["operations"]
    fewer = tmp_path / "fewer.toml"
    fewer.write_text(FLEET.split('[[vm]]\nname = "web-1"')[0])
    refused = run_command(service, "fleet", "apply", str(fewer))
    assert refused.returncode == 4
    assert "web-1 would leave" in refused.stderr
    assert "--force" in refused.stderr
    assert "web-1" in run(service, "fleet", "apply", "--force", str(fewer))
    assert parsed(service, "event", "show", operation["events"][0]["id"])["status"] == "cancelled"
    run(service, "fleet", "apply", str(more))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[[vm]]\nname = "a"\nhots = "b"\n', ':3: vm "a".hots: '),
        ('[[vm]\nname = "a"\n', ":1: TOML: "),
        ('[[vm]]\nname = "a"\naddress = "10.0.0.256"\n', ':3: vm "a".address: '),
    ],
)
def test_an_error_in_a_fleet_file_has_line_and_key(
    service: ServiceProcess, tmp_path: Path, text: str, where: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    checked, applied = (
        run_command(service, "fleet", "check", str(path)),
        run_command(service, "fleet", "apply", str(path)),
    )
    assert checked.returncode == applied.returncode == 2
    assert f"{path}{where}" in checked.stderr
    assert f"{path}{where}" in applied.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("vm", "show", "web-00"), 3, "Did you mean 'web-0'?"),
        (("event", "show", "nonsense"), 3, "Unknown event 'nonsense'."),
        (("clock", "advance", "soon"), 2, "DURATION: 'soon' is not a duration. Write it like 90s, 14m50s, 2h or 7d."),
        (("vn", "list"), 2, "Did you mean 'vm'?"),
        (("vm", "restart"), 2, "Missing argument 'NAME...'"),
        (("fleet", "check", "nowhere.toml"), 2, "Cannot read nowhere.toml: No such file or directory"),
        (("vm", "list", "--data", "/nonexistent"), 3, "Start one with: forewarn up"),
        (("up", "--speed", "fast"), 2, "must be a number from 0.001 to 1,000,000"),
        (("up", "--clock", "broken"), 2, "must be system or virtual"),
        (("up", "--metadata", "8169"), 2, "HOST:PORT"),
        (("settings", "--config", "nowhere.toml"), 2, "the file does not exist"),
    ],
)
def test_an_invalid_command_has_a_clear_error(
    service: ServiceProcess, arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = run_command(service, *arguments)
    assert result.returncode == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_settings_show_the_origin_of_each_value(service: ServiceProcess, tmp_path: Path) -> None:
    config = tmp_path / "forewarn.toml"
    config.write_text("speed = 30\nrate_limit = 7\npreview_versions = true\n")
    result = run_command(
        service,
        "settings",
        "--json",
        "--config",
        str(config),
        "--rate-limit",
        "9",
        FOREWARN_SPEED="60",
        FOREWARN_CLOCK="virtual",
    )
    values = json.loads(result.stdout)
    assert values["rate_limit"] == {"value": "9", "from": "--rate-limit"}
    assert values["speed"] == {"value": "60", "from": "FOREWARN_SPEED"}
    assert values["preview_versions"] == {"value": "true", "from": str(config)}
    assert values["inactivity_timeout"] == {"value": "1d", "from": "default"}
    assert "FOREWARN_DATA" in run_command(service, "settings").stdout
    config.write_text("sped = 30\n")
    unknown = run_command(service, "settings", "--config", str(config))
    assert unknown.returncode == 2
    assert "Did you mean 'speed'?" in unknown.stderr


def test_the_system_clock_cannot_be_moved(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path).start()
    try:
        refused = run_command(service, "clock", "advance", "1m")
        assert refused.returncode == 4
        assert "--clock virtual" in refused.stderr
    finally:
        service.stop()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("vm", "restart", "web-0", "--notice", "soon"), "--notice: 'soon' is not a duration."),
        (("vm", "migrate", "web-0", "--postpone-deadline", "never"), "--postpone-deadline: 'never' is not a time."),
        (("rollout", "start", "--hosts", "host-a", "--max-unavailable", "0"), "Invalid --max-unavailable '0': "),
        (("host", "update", "host-a", "--duration", "0.5s"), "Invalid --duration '0.5s': "),
        (("fault", "add", "429", "--vm", ""), "--vm: must be the name of a VM."),
        (("clock", "advance", "soon"), "DURATION: 'soon' is not a duration."),
        (("clock", "advance", "1s", "--seen-by", "web-0", "--timeout", "0s"), "--timeout: must be more than 0s"),
        (("history", "--since", "yesterday"), "--since: "),
        (("event", "watch", "--after", "x"), "--after: 'x' is not a whole number"),
        (("token", "create", "ci", "--role", "viewer", "--expires", "never"), "--expires: 'never' is not a time."),
        (("group", "policy", "web", "--window", "saz 02:00 4h"), "--window: "),
    ],
)
def test_an_error_names_the_option_and_not_the_member_of_the_request(
    service: ServiceProcess, arguments: tuple[str, ...], message: str
) -> None:
    result = run_command(service, *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith(f"forewarn: {message}")


def groups() -> dict[str, click.Group]:
    found = {noun: root.get_command(click.Context(root), noun) for noun in NOUNS}
    return {noun: command for noun, command in found.items() if isinstance(command, click.Group)}


def test_the_help_fits_on_a_screen() -> None:
    lines = CliRunner().invoke(root, ["--help"]).output.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) < 80
    assert [line for line in lines if line.endswith(":")] == [f"{title}:" for title in SECTIONS]


def test_the_help_of_a_command_begins_with_its_line_in_the_list() -> None:
    for noun, text in NOUNS.items():
        command = root.get_command(click.Context(root), noun)
        assert command is not None
        assert (command.help or "").partition("\n\n")[0] == text


@pytest.mark.parametrize("noun", groups())
def test_no_help_is_cut_in_a_list_of_commands(noun: str) -> None:
    output = CliRunner().invoke(root, [noun, "--help"]).output
    assert "..." not in output.partition("Commands:")[2]
    for verb in groups()[noun].commands.values():
        assert len((verb.help or "").partition("\n\n")[0]) <= 70


def test_only_up_loads_the_servers() -> None:
    modules = [f"forewarn.cli.{noun}" for noun in NOUNS if noun != "up"]
    code = (
        f"import sys, {', '.join(modules)}; print({{'uvicorn', 'uvloop', 'httptools', 'starlette'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

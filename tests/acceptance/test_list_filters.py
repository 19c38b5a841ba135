"""Lists of the command line: filters, patterns, names only, and the maximum number of rows."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from command_line import run_command
from forewarn.assembly import Assembly
from forewarn.errors import BadSetting
from forewarn.settings import resolve
from forewarn.testing import Service
from forewarn.testing.client import COMMAND
from terminal import on_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLEET = """
[[group]]
name = "web"
kind = "availability-set"

[[host]]
name = "rack-1-a"

[[host]]
name = "rack-2-a"

[[vm]]
name = "web-{n}"
group = "web"
count = 3
addresses = "10.0.0.1-10.0.0.9"

[[vm]]
name = "db-0"
host = "rack-1-a"
address = "127.0.0.1"

[[vm]]
name = "batch"
priority = "spot"
eviction_policy = "deallocate"
"""
NAMES = {1: "web[0]", 2: "web0"}


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(FLEET) as service:
        for name in ("web-0", "db-0", "batch"):
            service.vm(name).poll()
        yield service


def run(service: Service, *arguments: str, **variables: str) -> str:
    result = run_command(service, *arguments, **variables)
    assert result.returncode == 0, result.stderr
    return result.stdout


def request(service: Service, cause: str, *vms: str, **options: str) -> dict[str, Any]:
    """Request an operation, and return it."""
    body = {"cause": cause, **({"vms": vms} if vms else {}), **options}
    found: dict[str, Any] = service.control("POST", "/v1/operations", body).json()["operations"][0]
    return found


def quiet(service: Service, *arguments: str) -> list[str]:
    return run(service, *arguments, "-q").splitlines()


def error(service: Service, *arguments: str) -> str:
    result = run_command(service, *arguments)
    assert result.returncode in (2, 3), result
    assert result.stdout == ""
    return result.stderr


def test_vms_by_name_group_host_and_state(service: Service) -> None:
    everything = ["batch", "db-0", "web-0", "web-1", "web-2"]
    assert quiet(service, "vm", "list") == everything
    assert quiet(service, "vm", "list", "web-*") == ["web-0", "web-1", "web-2"]
    assert quiet(service, "vm", "list", "?b-0", "web-[02]", "db-0") == ["db-0", "web-0", "web-2"]
    assert quiet(service, "vm", "list", "--group", "web") == ["web-0", "web-1", "web-2"]
    assert quiet(service, "vm", "list", "--group", "batch") == ["batch"]
    assert quiet(service, "vm", "list", "--host", "rack-1-a") == ["db-0"]
    assert quiet(service, "vm", "list", "--host", "rack-1-a", "--group", "web") == []
    assert quiet(service, "vm", "list", "--state", "running") == everything
    assert run(service, "vm", "list", "--state", "Deallocated") == "No matching VMs.\n"
    assert run(service, "vm", "list", "x*") == "No matching VMs.\n"
    service.request_operation("eviction", "batch")
    service.advance(minutes=10)
    assert quiet(service, "vm", "list", "--state", "deallocated") == ["batch"]


def test_hosts_by_name_and_state(service: Service) -> None:
    assert quiet(service, "host", "list", "rack-*") == ["rack-1-a", "rack-2-a"]
    service.request_operation("hardware-failure", host="rack-1-a")
    assert quiet(service, "host", "list", "--state", "failed") == ["rack-1-a"]
    assert quiet(service, "host", "list", "rack-2-*", "--state", "failed") == []
    assert "Did you mean 'rack-1-a'?" in error(service, "host", "list", "rack-1-b")


def test_the_name_of_a_vm_wins_over_a_pattern() -> None:
    fleet = "".join(f'[[vm]]\nname = "{name}"\naddress = "127.0.0.{number}"\n' for number, name in NAMES.items())
    with Service(fleet) as service:
        operations = {}
        for name in NAMES.values():
            service.vm(name).poll()
            operations[name] = request(service, "restart", name)["id"]
        ids = set(operations.values())
        assert quiet(service, "vm", "list", "web[0]") == ["web[0]"]
        assert quiet(service, "vm", "list", "web[01]") == ["web0"]
        for name, operation in operations.items():
            assert quiet(service, "operation", "list", "--vm", name) == [operation]
            events = service.control("GET", f"/v1/events?vm={quote(name)}").json()["events"]
            assert [event["operation"] for event in events] == [operation]
        for operation in ids:
            service.control("POST", f"/v1/operations/{operation}/cancel", {})
        assert quiet(service, "operation", "list", "--vm", "web[0]", "--all") == [operations["web[0]"]]


@pytest.mark.parametrize(
    ("path", "patterns", "problem"),
    [
        ("/v1/vms?", ("name", 21, "*a"), "Too many patterns for one request: 21. The maximum is 20."),
        ("/v1/hosts?", ("name", 21, "*a"), "Too many patterns for one request: 21. The maximum is 20."),
        ("/v1/vms?", ("name", 1, "*a" * 11), "Too many * for one pattern: 11. The maximum is 10."),
        ("/v1/hosts?", ("name", 1, "*a" * 11), "Too many * for one pattern: 11. The maximum is 10."),
        ("/v1/events?", ("vm", 1, "*a" * 11), "Too many * for one pattern: 11. The maximum is 10."),
        ("/v1/operations?all=true&", ("vm", 1, "*a" * 11), "Too many * for one pattern: 11. The maximum is 10."),
    ],
)
def test_the_work_for_patterns_is_limited(
    service: Service, path: str, patterns: tuple[str, int, str], problem: str
) -> None:
    name, count, pattern = patterns
    response = service.control("GET", path + "&".join([f"{name}={pattern}"] * count))
    assert (response.status, problem in response.json()["detail"]) == (400, True)


def test_events_and_operations_by_their_properties(service: Service) -> None:
    restart = request(service, "restart", "web-0")
    update = request(service, "host-update", host="rack-1-a")
    (restarted,), (updated,) = ([event["id"] for event in each["events"]] for each in (restart, update))
    for options, event, operation in [
        (("--vm", "web-0"), restarted, restart["id"]),
        (("--vm", "web-*"), restarted, restart["id"]),
        (("--group", "web"), restarted, restart["id"]),
        (("--type", "reboot"), restarted, restart["id"]),
        (("--cause", "restart"), restarted, restart["id"]),
        (("--host", "rack-1-a"), updated, update["id"]),
        (("--cause", "host-update", "--vm", "d*"), updated, update["id"]),
    ]:
        assert quiet(service, "event", "list", *options) == [event]
        assert quiet(service, "operation", "list", *options) == [operation]
    assert quiet(service, "event", "list", "--status", "scheduled") == [restarted, updated]
    assert quiet(service, "operation", "list", "--status", "pending") == [restart["id"], update["id"]]
    assert quiet(service, "event", "list", "--vm", "web-1") == []
    service.control("POST", f"/v1/events/{restarted}/cancel")
    assert quiet(service, "event", "list") == [updated]
    assert quiet(service, "event", "list", "--status", "cancelled") == [restarted]
    assert quiet(service, "operation", "list", "--status", "cancelled") == [restart["id"]]
    assert quiet(service, "event", "list", "--all", "--vm", "web-0") == [restarted]
    for noun in ("event", "operation"):
        assert run(service, noun, "list", "--all", "--vm", "web-1") == f"No matching {noun}s.\n"
    assert run(service, "operation", "list", "--todo", "--vm", "web-1") == "No matching operations.\n"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("event list --status done", "Completed"),
        ("operation list --status finished", "done"),
        ("vm list --state stopped", "deallocated"),
        ("token create x --role oprator", "operator"),
        ("vm delete web-0 --as repiar", "repair"),
    ],
)
def test_a_wrong_value_suggests_the_right_one(service: Service, arguments: str, hint: str) -> None:
    assert f"Did you mean '{hint}'?" in error(service, *arguments.split())


@pytest.mark.parametrize("noun", ["vm", "host", "event", "operation"])
def test_a_filter_that_can_never_match_is_an_error_with_the_nearest_name(service: Service, noun: str) -> None:
    service.request_operation("restart", "web-0")
    wrong = {
        "vm": [(("wbe-0",), "web-0"), (("--group", "wbe"), "web"), (("--host", "rak-1-a"), "rack-1-a")],
        "host": [(("rak-1-a",), "rack-1-a"), (("--state", "faild"), "failed")],
    }
    several = [
        (("--vm", "wbe-0"), "web-0"),
        (("--group", "wbe"), "web"),
        (("--host", "rak-1-a"), "rack-1-a"),
        (("--type", "rebot"), "Reboot"),
        (("--cause", "restrat"), "restart"),
    ]
    for options, name in wrong.get(noun, several):
        assert f"Did you mean '{name}'?" in error(service, noun, "list", *options)


def test_a_deleted_vm_is_still_a_filter(service: Service) -> None:
    service.request_operation("delete", "db-0")
    service.advance(hours=1)
    assert "db-0" not in quiet(service, "vm", "list")
    assert quiet(service, "operation", "list", "--vm", "db-0") == []
    assert len(quiet(service, "operation", "list", "--vm", "db-0", "--all")) == 1
    assert "Terminate" in run(service, "history", "--vm", "db-0")


def test_history_rejects_filters_that_can_never_match(service: Service) -> None:
    service.request_operation("restart", "web-0")
    assert "Did you mean 'web-0'?" in error(service, "history", "--vm", "wbe-0")
    for command in ("history", "event approve"):
        assert "patterns cannot be used here" in error(service, *command.split(), "--vm", "web-*")
    assert "Did you mean 'web'?" in error(service, "history", "--group", "wbe")
    assert "Did you mean 'rack-1-a'?" in error(service, "history", "--host", "rak-1-a")
    assert "Did you mean 'admin'?" in error(service, "history", "--by", "admn")
    assert "--since: '1d' is after '2d', so nothing can match" in error(
        service, "history", "--since", "1d", "--until", "2d"
    )
    assert "'2021-02-01' is after '2020'" in error(service, "history", "--during", "2020", "--since", "2021-02-01")
    for option in ("--since", "--during"):
        assert f"{option}: '2199-01-01' is in the future" in error(service, "history", option, "2199-01-01")
    assert run(service, "history", "--vm", "web-2") == "No entries.\n"


MANY = '[[vm]]\nname = "vm-{n}"\ncount = 1003\naddresses = "10.0.0.1-10.0.9.255"\n'


def test_a_table_stops_at_a_thousand_rows_and_counts_the_rest() -> None:
    with Service(MANY) as service:
        shown = run_command(service, "vm", "list")
        assert len(shown.stdout.splitlines()) == 2 + 1000
        assert shown.stderr == (
            "forewarn: 3 more of 1,003 VMs are not shown. Use a filter, or --limit 0 to show all.\n"
        )
        assert len(run_command(service, "vm", "list", "--limit", "0").stdout.splitlines()) == 2 + 1003
        # Programs get all rows, unless they ask for fewer.
        assert len(quiet(service, "vm", "list")) == 1003
        found: dict[str, Any] = json.loads(run(service, "vm", "list", "--json"))
        assert (list(found), len(found["vms"])) == (["vms"], 1003)
        limited = run_command(service, "vm", "list", "vm-1*", "vm-2*", "--limit", "2", "--json")
        assert len(json.loads(limited.stdout)["vms"]) == 2
        assert json.loads(limited.stdout)["total"] == 225
        assert "223 more of 225" in limited.stderr
        assert run_command(service, "vm", "list", "vm-7", "--limit", "1").stderr == ""


def test_events_and_operations_are_counted_too(service: Service) -> None:
    for name in ("web-0", "web-1", "db-0"):
        service.request_operation("restart", name)
    for noun in ("event", "operation"):
        result = run_command(service, noun, "list", "--vm", "web-*", "--limit", "1", "-q")
        assert (len(result.stdout.splitlines()), "1 more of 2" in result.stderr) == (1, True)


# --- Approve several events -----------------------------------------------------------------------


def approved(service: Service) -> set[str]:
    return {vm for event in service.get_json("/v1/events")["events"] if event["approved_at"] for vm in event["vms"]}


def test_approve_the_events_of_a_vm(service: Service) -> None:
    for name in ("web-0", "web-1", "db-0"):
        service.request_operation("restart", name)
    assert "would be approved" in run(service, "event", "approve", "--vm", "web-0", "--dry-run")
    assert approved(service) == set()
    output = run(service, "event", "approve", "--vm", "web-0")
    assert output.startswith("Reboot of web-0 approved: event ")
    assert approved(service) == {"web-0"}
    assert run(service, "event", "approve", "--vm", "web-0") == "No event waits for an approval.\n"
    assert "Did you mean 'web-0'?" in error(service, "event", "approve", "--vm", "wbe-0")


def test_approve_all_events_asks_on_a_terminal(service: Service) -> None:
    for name in ("web-0", "web-1", "db-0"):
        service.request_operation("restart", name)
    service.request_operation("rebalance", "batch")  # a recommendation never waits for an approval
    assert "Approve 3 events? [y/N]" in on_terminal(service, "event", "approve", "--all", answer="n")
    assert approved(service) == set()
    found = json.loads(run(service, "event", "approve", "--all", "--json"))
    assert len(found["events"]) == 3
    assert approved(service) == {"web-0", "web-1", "db-0"}


@pytest.mark.parametrize("arguments", [(), ("4caea225", "--all"), ("--vm", "web-0", "--all")])
def test_approve_needs_exactly_one_selection(service: Service, arguments: tuple[str, ...]) -> None:
    assert "Give one of: an ID, --vm NAME, --all." in error(service, "event", "approve", *arguments)


def test_a_tenant_approves_only_the_events_of_its_group(service: Service, tmp_path: Path) -> None:
    for name in ("web-0", "db-0"):
        service.request_operation("restart", name)
    file = tmp_path / "token"
    run(service, "token", "create", "t", "--role", "tenant", "--group", "web", "--out", str(file))
    assert "Unknown VM 'db-0'" in error(service, "event", "approve", "--vm", "db-0", "--token-file", str(file))
    run(service, "event", "approve", "--all", "--token-file", str(file))
    assert approved(service) == {"web-0"}


# --- Manual work, ids and widths ------------------------------------------------------------------


@pytest.mark.forewarn(fabric="manual", fleet=FLEET)
def test_the_work_to_do_by_hand(forewarn: Service) -> None:
    assert run(forewarn, "operation", "list", "--todo") == "Nothing to do.\n"
    forewarn.vm("db-0").poll()
    moved = request(forewarn, "live-migration", "db-0")
    assert run(forewarn, "operation", "list", "--todo") == "Nothing to do.\n"
    run(forewarn, "event", "approve", "--all")
    table = run(forewarn, "operation", "list", "--todo")
    assert "migrate db-0 to rack-2-a" in table
    assert quiet(forewarn, "operation", "list", "--todo") == [moved["id"]]
    run(forewarn, "operation", "done", moved["id"])
    assert run(forewarn, "operation", "list", "--todo") == "Nothing to do.\n"


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("/no/such/program --fast", "there is no program '/no/such/program'."),
        ("no-such-program", "there is no program 'no-such-program' in the folders of PATH."),
        ("./notes.txt", "./notes.txt is not an executable file."),
        (" ", "there is no program '' in the folders of PATH."),
    ],
)
def test_a_fabric_program_that_cannot_run_is_rejected_at_start(tmp_path: Path, program: str, problem: str) -> None:
    (tmp_path / "notes.txt").touch(0o644)
    options = ["--data", str(tmp_path / "data"), "--metadata", "127.0.0.1:0", "--control", "127.0.0.1:0"]
    done = subprocess.run(
        [*COMMAND, "up", *options, "--fabric", "command", "--fabric-command", program],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "FOREWARN_RUNTIME_DIR": str(tmp_path / "run")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"(from --fabric-command): {problem}\n")
    assert len(done.stderr.splitlines()) == 1


def test_an_error_of_the_fabric_program_names_the_file_that_sets_it(tmp_path: Path) -> None:
    config = tmp_path / "forewarn.toml"
    config.write_text('fabric = "command"\nfabric_command = "/no/such/program"\n')
    settings = resolve({}, {"FOREWARN_DATA": ":memory:"}, str(config))
    values = {name: value.value for name, value in settings.items()}
    values |= {"metadata": "127.0.0.1:0", "control": "127.0.0.1:0"}
    with pytest.raises(BadSetting, match=f"from {config}"):
        Assembly(values, {name: value.origin for name, value in settings.items()})


def test_ids_are_accepted_in_any_letter_case_and_shown_in_lower_case(service: Service) -> None:
    operation = request(service, "restart", "web-0")
    event_id = operation["events"][0]["id"]
    for found in (event_id.upper(), event_id[:9].upper()):
        assert event_id in run(service, "event", "show", found)
    assert operation["id"] in run(service, "operation", "show", operation["id"].upper())
    assert event_id == event_id.lower()
    # On the wire of the VM, as on Azure, they are in upper case.
    assert json.loads(run(service, "vm", "document", "web-0"))["Events"][0]["EventId"] == event_id.upper()


def on_narrow_terminal(service: Service, *arguments: str) -> list[str]:
    """Run a command on a terminal with 80 columns, and return the lines of its output."""
    main, terminal = pty.openpty()
    environment = {**os.environ, **service.environment, "COLUMNS": "80"}
    process = subprocess.Popen([*COMMAND, *arguments], env=environment, stdin=terminal, stdout=terminal)
    os.close(terminal)
    output = b""
    try:
        while part := os.read(main, 10_000):
            output += part
    except OSError:  # the command has ended
        pass
    finally:
        process.wait(timeout=60)
        os.close(main)
    return output.decode().replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize("noun", ["vm", "host", "event", "operation"])
def test_lists_fit_on_a_terminal_with_80_columns(service: Service, noun: str) -> None:
    service.request_operation("restart", "web-0")
    service.request_operation("host-update", host="rack-1-a")
    lines = on_narrow_terminal(service, noun, "list")
    assert max(map(len, lines)) <= 80
    # Names and ids are not broken.
    words = {line.split()[0] for line in lines[2:] if not line.startswith(" ")}
    assert words >= set(quiet(service, noun, "list")) or noun in ("event", "operation")

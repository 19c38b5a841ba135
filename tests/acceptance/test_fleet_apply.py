"""Applying a fleet file: the dry run, the question before VMs are removed, and policies that were set at run time."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from command_line import run_command
from forewarn.control import fleet
from forewarn.control.fleet import is_last_applied
from forewarn.files.fleet_file import MAX_FLEET_BYTES
from terminal import on_terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from forewarn.testing import Service, ServiceProcess

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
auto_approve = ["reboot"]

[[group]]
name = "pool"
kind = "scale-set"

[[vm]]
name = "web-0"
group = "web"

[[vm]]
name = "mail"

[[vm]]
group = "pool"
count = 2
"""
MORE = FLEET + '\n[[vm]]\nname = "extra"\n'
FEWER = FLEET.replace('[[vm]]\nname = "mail"\n', "")

pytestmark = pytest.mark.forewarn(fleet=FLEET)


def apply(service: Service, text: str, **query: str) -> Any:
    found = service.control("PUT", f"/v1/fleet?{urlencode(query)}", text.encode())
    assert found.status == 200, found.json()
    return found.json()


def changed(difference: Any) -> dict[str, list[str]]:
    return {what: names for what, names in difference.items() if names}


def vm_names(service: Service | ServiceProcess) -> list[str]:
    return [vm["name"] for vm in service.list_all("/v1/vms")]


# --- The dry run ----------------------------------------------------------------------------------------


def test_a_dry_run_returns_the_difference_and_changes_nothing(forewarn: Service) -> None:
    names, history = vm_names(forewarn), forewarn.list_all("/v1/history")
    new = MORE.replace('[[vm]]\nname = "mail"\n', "")
    expected = apply(forewarn, new, dry_run="true")
    assert changed(expected) == {"added": ["extra"], "removed": ["mail"]}
    assert (vm_names(forewarn), forewarn.list_all("/v1/history")) == (names, history)
    assert apply(forewarn, new) == expected
    assert vm_names(forewarn) != names


def test_a_dry_run_is_rejected_for_the_same_reason_as_the_file(forewarn: Service) -> None:
    forewarn.vm("mail").restart()
    for query in ("dry_run=true", "dry_run=false"):
        found = forewarn.control("PUT", f"/v1/fleet?{query}", FEWER.encode())
        assert found.status == 409
        assert "mail would leave the fleet" in found.json()["detail"]
    assert changed(apply(forewarn, FEWER, dry_run="true", force="true")) == {"removed": ["mail"]}
    assert forewarn.get_json("/v1/vms/mail")["events"], "its event goes on"


def test_fleet_apply_can_run_dry(forewarn: Service, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(MORE)
    shown = run_command(forewarn, "fleet", "apply", "--dry-run", str(file))
    assert shown.stdout == "Dry run: nothing was changed.\nVMs added                     1  extra\n"
    assert "extra" not in vm_names(forewarn)


def test_a_dry_run_is_not_the_last_file_applied(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    path = service.folder / "fleet.toml"
    path.write_text(MORE)
    assert service.cli("fleet", "apply", "--dry-run", str(path)).returncode == 0
    service.stop()
    service.start("--fleet", str(path))
    assert "extra" in vm_names(service)


# --- The question ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "removed"), [("n", False), ("y", True)])
def test_removing_vms_asks_on_a_terminal(forewarn: Service, tmp_path: Path, answer: str, removed: bool) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(FEWER)
    shown = on_terminal(forewarn, "fleet", "apply", str(file), answer=answer)
    assert "VMs removed                   1  mail\nRemove 1 VM from the fleet? [y/N]" in shown
    assert ("mail" not in vm_names(forewarn)) is removed


@pytest.mark.parametrize(
    ("fleet", "question"),
    [
        (FLEET.replace('name = "mail"', 'name = "mail"\ngroup = "web"'), "Revoke 1 token?"),
        (FEWER, "Remove 1 VM from the fleet and revoke 1 token?"),
    ],
)
def test_revoking_tokens_asks_on_a_terminal(forewarn: Service, tmp_path: Path, fleet: str, question: str) -> None:
    forewarn.control("POST", "/v1/tokens", {"name": "mail-team", "role": "tenant", "group": "mail"})
    file = tmp_path / "fleet.toml"
    file.write_text(fleet)
    shown = on_terminal(forewarn, "fleet", "apply", str(file), answer="n")
    assert f"tokens revoked                1  mail-team\n{question} [y/N]" in shown
    assert len(forewarn.list_all("/v1/tokens")) == 2


def test_nothing_else_asks_and_yes_answers(forewarn: Service, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(MORE)
    assert "extra" in on_terminal(forewarn, "fleet", "apply", str(file))
    file.write_text(FLEET)
    assert "extra" in on_terminal(forewarn, "fleet", "apply", "--yes", str(file))
    file.write_text(FEWER)
    assert run_command(forewarn, "fleet", "apply", str(file)).returncode == 0, "there is no terminal"
    assert vm_names(forewarn) == ["pool_0", "pool_1", "web-0"]


# --- Policies that were set at run time -----------------------------------------------------------------


def set_policy(service: Service, name: str, **policy: Any) -> Any:
    found = service.control("POST", f"/v1/groups/{name}/policy", policy)
    assert found.status == 200, found.json()
    return found.json()


def policy_of(service: Service, name: str) -> tuple[Any, ...]:
    found = service.get_json(f"/v1/groups/{name}")
    return found["auto_approve"], found["terminate_notice"], found["windows"], found["policy_changed"]


def test_a_file_keeps_what_was_set_at_run_time(forewarn: Service) -> None:
    window = "sat 02:00 4h Europe/Berlin"
    assert set_policy(forewarn, "web", auto_approve=[], windows=[window])["policy_changed"]
    assert set_policy(forewarn, "mail", terminate_notice="PT10M")["policy_changed"]
    assert changed(apply(forewarn, MORE)) == {"added": ["extra"]}
    assert changed(apply(forewarn, FLEET)) == {"removed": ["extra"]}
    assert policy_of(forewarn, "web") == ([], None, [window], True)
    assert policy_of(forewarn, "mail") == ([], "PT10M", [], True)
    assert policy_of(forewarn, "pool") == ([], None, [], False)


def test_a_file_that_changes_the_policy_of_a_group_sets_it(forewarn: Service) -> None:
    set_policy(forewarn, "web", auto_approve=["redeploy"])
    set_policy(forewarn, "mail", terminate_notice="PT10M")
    set_policy(forewarn, "pool", terminate_notice="PT5M")
    new = FLEET.replace('auto_approve = ["reboot"]', 'windows = ["daily 01:00 2h"]')
    new = new.replace('name = "mail"', 'name = "mail"\nauto_approve = ["reboot"]')
    assert changed(apply(forewarn, new)) == {"changed": ["mail"], "groups": ["web", "mail"]}
    assert policy_of(forewarn, "web") == ([], None, ["daily 01:00 2h UTC"], False)
    assert policy_of(forewarn, "mail") == (["reboot"], None, [], False)
    assert policy_of(forewarn, "pool") == ([], "PT5M", [], True), "the file did not change it"


def test_other_keys_of_the_group_change_and_its_policy_stays(forewarn: Service) -> None:
    set_policy(forewarn, "web", auto_approve=[])
    new = FLEET.replace('auto_approve = ["reboot"]', 'auto_approve = ["reboot"]\nupdate_domains = 3')
    assert changed(apply(forewarn, new)) == {"groups": ["web"]}
    assert policy_of(forewarn, "web") == ([], None, [], True)
    assert forewarn.get_json("/v1/groups/web")["update_domains"] == 3


def test_a_policy_that_is_set_back_is_that_of_the_file_again(forewarn: Service) -> None:
    set_policy(forewarn, "web", auto_approve=[])
    assert not set_policy(forewarn, "web", auto_approve=["reboot"])["policy_changed"]
    assert changed(apply(forewarn, FLEET.replace('auto_approve = ["reboot"]', ""))) == {"groups": ["web"]}
    assert policy_of(forewarn, "web") == ([], None, [], False)


def test_a_group_of_another_kind_has_the_policy_of_the_file(forewarn: Service) -> None:
    """A terminate notice of a scale set is not possible in an availability set."""
    set_policy(forewarn, "pool", terminate_notice="PT5M")
    other = FLEET.replace("scale-set", "availability-set").replace("count = 2", 'name = "pool_{n}"\ncount = 2')
    assert changed(apply(forewarn, other))["groups"] == ["pool"]
    assert policy_of(forewarn, "pool") == ([], None, [], False)


def test_a_file_with_a_spot_vm_in_a_group_with_a_terminate_notice_of_run_time_is_rejected(forewarn: Service) -> None:
    set_policy(forewarn, "pool", terminate_notice="PT5M")
    found = forewarn.control("PUT", "/v1/fleet", FLEET.replace("count = 2", 'count = 2\npriority = "spot"').encode())
    assert found.status == 400
    assert "pool cannot have a terminate notice, because pool_0 is a Spot VM." in found.json()["detail"]


def test_a_policy_of_run_time_survives_a_restart_and_is_shown(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    options = ("--window", "sat 02:00 4h", "--auto-approve", "none")
    assert service.cli("group", "policy", "web", *options).returncode == 0
    service.kill()
    path = service.folder / "fleet.toml"
    path.write_text(MORE)
    service.start("--fleet", str(path))
    shown = run_command(service, "group", "show", "web").stdout
    assert "windows            sat 02:00 4h" in shown
    assert "policy             changed at run time; the fleet file has another" in shown
    assert "policy " not in run_command(service, "group", "show", "pool").stdout


# --- Large files ----------------------------------------------------------------------------------------


def test_the_event_loop_neither_decodes_nor_hashes_a_large_file(forewarn: Service) -> None:
    """Polls wait while the loop does that. So a thread does it, in small pieces."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == fleet.__file__:
            called.add(frame.f_code.co_name)

    loop = forewarn._running.loop
    loop.call(sys.setprofile, note)
    apply(forewarn, FLEET + "# filler\n" * 200_000)
    loop.call(sys.setprofile, None)
    assert {"replace_fleet", "apply_fleet"} <= called
    assert {"_hash", "_decode", "_read_fleet"}.isdisjoint(called)


def test_a_file_that_is_too_large_is_rejected_with_its_limit(forewarn: Service) -> None:
    found = forewarn.control("PUT", "/v1/fleet", b"#" * (MAX_FLEET_BYTES + 1))
    assert found.status == 413
    assert f"The maximum is {MAX_FLEET_BYTES:,} bytes. Write sets of VMs with count." in found.json()["detail"]


@pytest.mark.parametrize("command", ["check", "apply"])
def test_the_command_rejects_a_file_that_is_too_large(forewarn: Service, tmp_path: Path, command: str) -> None:
    file = tmp_path / "large.toml"
    with file.open("wb") as large:
        large.truncate(MAX_FLEET_BYTES + 1)
    found = run_command(forewarn, "fleet", command, str(file))
    assert found.returncode == 2
    assert f"it has more than {MAX_FLEET_BYTES // 1_048_576} MiB" in found.stderr


def test_the_same_file_has_the_same_hash_with_the_line_ends_of_any_system(forewarn: Service) -> None:
    text = FLEET + "# ü\n" * 50_000
    apply(forewarn, text.replace("\n", "\r\n"))
    loop, engine = forewarn._running.loop, forewarn._running.assembly.engine
    assert loop.run(is_last_applied(engine, text))
    assert not loop.run(is_last_applied(engine, text + "\n"))

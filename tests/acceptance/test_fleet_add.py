"""Changes of a part of a running fleet: adding, changing and removing VMs, groups and hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from command_line import run_command
from forewarn.control.input import MAX_BODY_BYTES
from forewarn.core.fleet_parts import MAX_PART_ITEMS
from forewarn.system.http_client import origin_of
from forewarn.testing.client import DOCUMENT, HTTPResponse, send
from tcp_ports import free_port
from terminal import on_terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.testing import Service, ServiceProcess

FLEET = """
[[group]]
name = "web"
kind = "availability-set"

[[host]]
name = "A"

[[host]]
name = "B"

[[vm]]
name = "web-0"
group = "web"
host = "A"

[[vm]]
name = "mail"
host = "B"
"""
NEW = '[[vm]]\nname = "new"\nhost = "B"\n'

pytestmark = pytest.mark.forewarn(fleet=FLEET)


def patch(service: Service | ServiceProcess, text: str, key: str = "", **query: str) -> HTTPResponse:
    headers = {"Idempotency-Key": key} if key else {}
    return service.control("PATCH", f"/v1/fleet?{urlencode(query)}", text.encode(), None, headers)


def remove(service: Service | ServiceProcess, key: str = "", **body: Any) -> HTTPResponse:
    headers = {"Idempotency-Key": key} if key else {}
    return service.control("POST", "/v1/fleet/remove", body, None, headers)


def changed(answer: HTTPResponse) -> dict[str, list[str]]:
    assert answer.status == 200, answer.json()
    return {what: names for what, names in answer.json().items() if names}


def vm_names(service: Service | ServiceProcess) -> list[str]:
    return [vm["name"] for vm in service.list_all("/v1/vms")]


def poll(port: int) -> Any:
    return send(origin_of(f"http://127.0.0.1:{port}", ""), "GET", DOCUMENT, {"Metadata": "true"}, None).json()


# --- Adding and changing --------------------------------------------------------------------------------


def test_a_part_is_added_and_the_rest_stays(forewarn: Service) -> None:
    text = '[[group]]\nname = "db"\nkind = "availability-set"\n[[host]]\nname = "C"\n'
    text += (
        '[[vm]]\nname = "db-{n}"\ncount = 2\ngroup = "db"\nhosts = ["A", "C"]\n' + '[[vm]]\nname = "mail"\nsize = "l"\n'
    )
    expected = {"added": ["db-0", "db-1"], "changed": ["mail"], "groups": ["db"], "hosts": ["C"]}
    assert changed(patch(forewarn, text, dry_run="true")) == expected
    assert vm_names(forewarn) == ["mail", "web-0"], "the dry run has changed nothing"
    assert changed(patch(forewarn, text, source="db.toml")) == expected
    assert vm_names(forewarn) == ["db-0", "db-1", "mail", "web-0"]
    mail = forewarn.get_json("/v1/vms/mail")
    assert (mail["size"], mail["host"]) == ("l", "mail-host"), "the entry replaces the earlier one"
    row = forewarn.list_all("/v1/history")[-1]
    assert (row["kind"], row["reason"]) == ("fleet-applied", "db.toml: 2 added, 1 changed, 0 removed")
    assert changed(patch(forewarn, text)) == {}, "and again changes nothing"


def test_mistakes_name_the_line_and_nothing_changes(forewarn: Service) -> None:
    found = patch(forewarn, NEW + '[[vm]]\nname = "other"\nhost = "Z"\n', source="more.toml")
    assert found.status == 400
    assert found.json()["detail"] == "more.toml:6: vm \"other\".host: No [[host]] is named 'Z'."
    assert "new" not in vm_names(forewarn)


def test_a_part_is_bounded(forewarn: Service) -> None:
    found = patch(forewarn, f'[[vm]]\nname = "n-{{n}}"\ncount = {MAX_PART_ITEMS + 1}\n')
    assert found.status == 400
    assert f"at most {MAX_PART_ITEMS} VMs, groups and hosts" in found.json()["detail"]
    assert patch(forewarn, "#" * (MAX_BODY_BYTES + 1)).status == 413
    assert remove(forewarn, vms=["x"] * (MAX_PART_ITEMS + 1)).status == 400
    assert patch(forewarn, f'[[vm]]\nname = "n-{{n}}"\ncount = {MAX_PART_ITEMS}\n').status == 200
    assert len(vm_names(forewarn)) == MAX_PART_ITEMS + 2


def test_a_new_vm_is_notified_of_work_on_its_host(forewarn: Service) -> None:
    forewarn.control("POST", "/v1/operations", {"cause": "host-update", "host": "B"})
    patch(forewarn, '[[vm]]\nname = "web-1"\ngroup = "web"\nhost = "B"\nupdate_domain = 1\n')
    (event,) = forewarn.get_json("/v1/vms/web-1")["events"]
    assert forewarn.get_json(f"/v1/events/{event}")["status"] == "scheduled"


def test_a_new_vm_is_not_placed_on_a_host_out_of_service_unless_it_has_a_choice(forewarn: Service) -> None:
    forewarn.control("POST", "/v1/operations", {"cause": "hardware-failure", "host": "B"})
    found = patch(forewarn, NEW)
    assert (found.status, "this host is failed" in found.json()["detail"]) == (409, True)
    assert changed(patch(forewarn, '[[vm]]\nname = "new-{n}"\ncount = 1\nhosts = ["B", "A"]\n')) == {"added": ["new-0"]}
    assert forewarn.get_json("/v1/vms/new-0")["host"] == "A"


def test_a_new_vm_has_its_own_address_at_once_and_a_removed_one_loses_it(forewarn: Service) -> None:
    port = free_port()
    patch(forewarn, f'{NEW}listen = "127.0.0.1:{port}"\n')
    assert poll(port)["Events"] == []
    taken = patch(forewarn, f'[[vm]]\nname = "other"\nlisten = "127.0.0.1:{port}"\n')
    assert f"'127.0.0.1:{port}' is already used by vm \"new\"" in taken.json()["detail"]
    remove(forewarn, vms=["new"])
    with pytest.raises(OSError, match="refused"):
        poll(port)
    assert changed(patch(forewarn, f'[[vm]]\nname = "other"\nlisten = "127.0.0.1:{port}"\n')) == {"added": ["other"]}


def test_an_address_that_is_taken_on_this_machine_rejects_the_part(forewarn: Service) -> None:
    used = forewarn.control_url.rpartition(":")[2]
    found = patch(forewarn, f'{NEW}listen = "127.0.0.1:{used}"\n')
    assert found.status >= 400
    assert "new" not in vm_names(forewarn)


# --- Removing -------------------------------------------------------------------------------------------


def test_vms_groups_and_hosts_are_removed_together(forewarn: Service) -> None:
    forewarn.control("POST", "/v1/tokens", {"name": "web-team", "role": "tenant", "group": "web"})
    everything: dict[str, Any] = {"vms": ["web-0"], "groups": ["web"], "hosts": ["A"]}
    expected = {"removed": ["web-0"], "groups_removed": ["web"], "hosts_removed": ["A"], "tokens_revoked": ["web-team"]}
    assert changed(remove(forewarn, **everything, dry_run=True)) == expected
    assert "web-0" in vm_names(forewarn)
    assert changed(remove(forewarn, **everything)) == expected
    assert vm_names(forewarn) == ["mail"]
    assert forewarn.list_all("/v1/history")[-1]["reason"] == "removed web-0, web, A: 0 added, 0 changed, 1 removed"


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({}, 400, "names nothing to remove"),
        ({"vms": ["nope"]}, 404, "Unknown VM 'nope'"),
        (
            {"hosts": ["A"]},
            409,
            "The host A cannot be removed, because it still has web-0. Move or remove its VMs first.",
        ),
        ({"groups": ["web"]}, 409, "The group web cannot be removed, because it still has web-0."),
        ({"machines": ["web-0"]}, 400, "not a known member"),
    ],
)
def test_what_cannot_be_removed_is_a_clear_error(forewarn: Service, body: Any, status: int, problem: str) -> None:
    found = remove(forewarn, **body)
    assert (found.status, problem in found.json()["detail"]) == (status, True), found.json()
    assert vm_names(forewarn) == ["mail", "web-0"]


def test_a_vm_with_an_active_event_leaves_only_with_force(forewarn: Service) -> None:
    forewarn.vm("mail").restart()
    (event,) = forewarn.get_json("/v1/vms/mail")["events"]
    assert remove(forewarn, vms=["mail"]).status == 409
    assert changed(remove(forewarn, vms=["mail"], force=True)) == {"removed": ["mail"]}
    assert forewarn.get_json(f"/v1/events/{event}")["status"] == "cancelled"


def test_a_repeated_request_has_the_response_of_the_first(forewarn: Service) -> None:
    first = patch(forewarn, NEW, "k1")
    assert changed(first) == {"added": ["new"]}
    gone = remove(forewarn, "k2", vms=["new"])
    for again, answer in ((patch(forewarn, NEW, "k1"), first), (remove(forewarn, "k2", vms=["new"]), gone)):
        assert (again.status, again.json()) == (200, answer.json())
        assert again.headers["idempotency-replayed"] == "true"
    assert "new" not in vm_names(forewarn), "the first request was not executed again"
    assert patch(forewarn, NEW + "# other", "k1").status == 409


# --- Together with whole files --------------------------------------------------------------------------


def test_a_whole_file_removes_what_it_does_not_name_and_its_plan_says_so(forewarn: Service) -> None:
    patch(forewarn, NEW)
    for query in ("dry_run=true", "dry_run=false"):
        assert changed(forewarn.control("PUT", f"/v1/fleet?{query}", FLEET.encode())) == {"removed": ["new"]}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_restart_with_an_unchanged_file_keeps_what_was_added(
    make_service: Callable[..., ServiceProcess], end: str
) -> None:
    service = make_service(fleet=FLEET)
    patch(service, NEW)
    remove(service, vms=["mail"])
    getattr(service, end)()
    service.start("--fleet", str(service.folder / "fleet.toml"))
    assert vm_names(service) == ["new", "web-0"]


# --- The command line -----------------------------------------------------------------------------------


def test_commands_add_and_remove(forewarn: Service, tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text(NEW)
    shown = run_command(forewarn, "fleet", "add", "--dry-run", str(file))
    assert shown.stdout == "Dry run: nothing was changed.\nVMs added                     1  new\n"
    assert run_command(forewarn, "fleet", "add", str(file)).stdout == "VMs added                     1  new\n"
    shown = run_command(forewarn, "fleet", "remove", "vm", "new", "mail")
    assert shown.stdout == "VMs removed                   2  new, mail\n"
    assert run_command(forewarn, "fleet", "remove", "host", "B").stdout == "hosts removed                 1  B\n"
    refused = run_command(forewarn, "fleet", "remove", "group", "web")
    assert (refused.returncode, "it still has web-0" in refused.stderr) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (("vm", "mail"), "Remove 1 VM from the fleet?"),
        (("host", "C"), "Remove 1 host?"),
        (("group", "db"), "Remove 1 group?"),
    ],
)
@pytest.mark.parametrize(("answer", "removed"), [("n", False), ("y", True)])
def test_removing_asks_on_a_terminal(
    forewarn: Service, arguments: tuple[str, str], question: str, answer: str, removed: bool
) -> None:
    patch(forewarn, '[[host]]\nname = "C"\n[[group]]\nname = "db"\nkind = "availability-set"\n')
    shown = on_terminal(forewarn, "fleet", "remove", *arguments, answer=answer)
    assert f"{question} [y/N]" in shown
    found = forewarn.control("GET", f"/v1/{arguments[0]}s/{arguments[1]}").status
    assert found == (404 if removed else 200)

"""`forewarn up`: start, stop, a full disk, a second service, and the files that it leaves."""

from __future__ import annotations

import resource
import signal
import socket
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tcp_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import ServiceProcess

FLEET = """
[[vm]]
name = "one"
address = "127.0.0.1"

[[vm]]
name = "two"
address = "127.0.0.2"
"""


def held_get(service: ServiceProcess) -> tuple[threading.Thread, list[Any]]:
    """Send a delayed GET in a thread. The response is added to the list."""
    answers: list[Any] = []
    connected = threading.Event()

    def get() -> None:
        with service.connect() as connection:
            connection.sendall(b"GET /metadata/versions HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n\r\n")
            versions = b""
            while not versions.endswith(b"]}"):  # so that the connection is known to be served
                versions += connection.recv(65536)
            connection.sendall(
                b"GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n\r\n"
            )
            connected.set()
            received = b""
            while part := connection.recv(65536):
                received += part
            answers.append(received)

    thread = threading.Thread(target=get, daemon=True)
    thread.start()
    connected.wait(timeout=20)
    return thread, answers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_completes_open_requests_and_loses_nothing(
    make_service: Callable[..., ServiceProcess], number: signal.Signals
) -> None:
    service = make_service("--first-get-delay", "1h")
    thread, answers = held_get(service)
    # One round trip on another connection: by then the held request has been read.
    service.request(target="/metadata/versions")
    assert service.process is not None
    service.process.send_signal(number)
    thread.join(timeout=30)
    assert service._reap() == 0
    assert answers[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" in answers[0]
    assert answers[0].endswith(b'{"DocumentIncarnation":0,"Events":[]}')
    assert not (Path(service.data) / "service.json").exists()
    service.start()
    listening = service.control("GET", "/v1/vms").json()["vms"][0]["events_enabled"]
    assert listening, "enabling was on disk before its first answer"


def test_with_no_fleet_there_is_this_machine(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service()
    name = socket.gethostname()
    assert [vm["name"] for vm in service.control("GET", "/v1/vms").json()["vms"]] == [name]
    service.document()
    service.request_operation("restart", name)
    assert service.document()["Events"][0]["Resources"] == [name]


def test_a_second_service_over_the_same_data_is_rejected(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service()
    second = service.cli("up")
    assert second.returncode == 4
    assert "Another Forewarn service (process" in second.stderr
    assert "Traceback" not in second.stderr
    service.document()


def test_a_port_in_use_is_a_clear_error(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service()
    taken = "{}:{}".format(*service.metadata_address)
    second = service.cli("up", "--metadata", taken, "--data", ":memory:")
    assert second.returncode == 2
    assert f"Cannot listen on {taken}: another program or setting uses this port." in second.stderr


def test_one_port_for_two_listeners_is_a_clear_error(
    make_service: Callable[..., ServiceProcess], tmp_path: Path
) -> None:
    """Both can be bound while neither listens, so the service compares the addresses."""
    free = free_port()
    address = f"127.0.0.1:{free}"
    service = make_service()
    same = service.cli("up", "--metadata", address, "--control", address, "--data", ":memory:")
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(f'[[vm]]\nname = "a"\nlisten = "{address}"\n')
    arguments = ("--metadata", "127.0.0.1:0", "--control", address, "--data", ":memory:")
    of_vm = service.cli("up", "--fleet", str(fleet), *arguments)
    assert same.stderr == (
        f"forewarn: The settings metadata = '{address}' and control = '{address}' need the same address. "
        "Give each its own port.\n"
    )
    assert of_vm.stderr == (
        f"forewarn: listen = '{address}' of VM 'a' and the setting control = '{address}' need the same address. "
        "Give each its own port.\n"
    )
    assert [same.returncode, of_vm.returncode] == [2, 2]
    everywhere = f"0.0.0.0:{free}"
    overlapping = service.cli("up", "--metadata", everywhere, "--control", address, "--data", ":memory:")
    assert (overlapping.returncode, f"metadata = '{everywhere}' and control = '{address}'" in overlapping.stderr) == (
        2,
        True,
    )


def test_a_fleet_with_an_address_of_the_service_names_the_setting(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    path = service.folder / "new.toml"
    for setting, (host, port) in (("metadata", service.metadata_address), ("control", service.control_address)):
        path.write_text(f'[[vm]]\nname = "a"\nlisten = "{host}:{port}"\n')
        refused = service.cli("fleet", "apply", str(path))
        assert (refused.returncode, f"of VM 'a' and the setting {setting} = " in refused.stderr) == (2, True), refused


def test_an_address_that_the_machine_lacks_is_a_clear_error(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service()
    second = service.cli("up", "--metadata", "192.0.2.1:8169", "--data", ":memory:")
    assert second.returncode == 2
    assert "ip address add 192.0.2.1/32 dev lo" in second.stderr


def test_a_damaged_database_is_rejected_and_kept(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service()
    service.stop()
    database = Path(service.data) / "forewarn.db"
    database.write_bytes(b"\0" * 5000)
    refused = service.cli("up")
    assert refused.returncode == 6
    assert "is damaged" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert database.read_bytes() == b"\0" * 5000


def test_with_a_full_disk_changes_get_503_and_reads_work(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    service.document()
    event = service.request_operation("restart", "one")["events"][0]["id"]
    assert service.process is not None
    pid = service.process.pid
    # No file may grow: for the service that is a full disk, also as root.
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    refused = service.approve(event)
    assert refused.status == 503
    assert refused.json()["error"] == "Service unavailable. Try again in a while."
    service.until_output("Cannot write the change")  # the reason is for operators
    assert service.control("POST", "/v1/operations", {"cause": "redeploy", "vms": ["one"]}).status == 503
    assert service.request(source="127.0.0.2").status == 503, "enabling must be on disk before its first answer"
    document = service.document()
    assert [event["EventStatus"] for event in document["Events"]] == ["Scheduled"]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert service.approve(event).status == 200
    assert service.request(source="127.0.0.2").status == 200
    assert service.document()["Events"][0]["EventStatus"] == "Started"
    service.kill()
    service.start()
    assert service.document()["Events"][0]["EventStatus"] == "Started"


def test_the_clients_file_is_for_the_owner_alone_and_the_token_is_needed(
    make_service: Callable[..., ServiceProcess],
) -> None:
    service = make_service()
    word = Path(service.data) / "service.json"
    assert stat.S_IMODE(word.stat().st_mode) == 0o600
    assert service.control("GET", "/v1/vms", token="wrong").status == 401  # noqa: S106
    assert service.control("POST", "/v1/operations", {"cause": "restart", "vms": ["x"]}, token="").status == 401
    assert service.control("GET", "/healthz", token="").json()["status"] == "ok"


def test_virtual_time_does_not_run_and_is_stored(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--clock", "virtual")
    start = service.now
    service.advance("3h")
    later = service.now
    assert later != start
    service.kill()
    service.start("--clock", "virtual")
    assert service.now == later


def vm_names(service: ServiceProcess) -> list[str]:
    return [vm["name"] for vm in service.list_all("/v1/vms")]


def test_up_applies_its_fleet_file_if_another_file_was_applied_last(
    make_service: Callable[..., ServiceProcess],
) -> None:
    service = make_service(fleet=FLEET)
    path = service.folder / "fleet.toml"
    other = service.folder / "other.toml"
    other.write_text(FLEET.replace("two", "three"))
    assert service.cli("fleet", "apply", str(other)).returncode == 0
    service.stop()
    service.start("--fleet", str(path))
    assert vm_names(service) == ["one", "two"]
    difference, _, greeting = service.output.partition("Forewarn ")
    assert difference.splitlines() == [
        f"Applied {path}:",
        "VMs added                     1  two",
        "VMs removed                   1  three",
        "",
    ]
    assert "is running with 2 VMs" in greeting
    assert service.control("PUT", "/v1/fleet", other.read_bytes()).status == 200
    service.stop()
    service.start("--fleet", str(path))
    assert vm_names(service) == ["one", "two"], "a file that came by the API counts too"


def test_a_start_with_the_fleet_file_applied_last_brings_back_nothing(
    make_service: Callable[..., ServiceProcess],
) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    service.request_operation("delete", "two")
    service.advance("10m")
    assert vm_names(service) == ["one"]
    service.stop()
    same = service.folder / "same.toml"
    same.write_text(FLEET)
    service.start("--clock", "virtual", "--fleet", str(same))
    assert vm_names(service) == ["one"], "the text counts, not the path"
    assert service.output.startswith("Forewarn "), "nothing was applied"
    service.stop()
    same.write_text(FLEET.replace("two", "four"))
    service.start("--clock", "virtual", "--fleet", str(same))
    assert vm_names(service) == ["four", "one"]


def test_vms_with_addresses_of_their_own(make_service: Callable[..., ServiceProcess]) -> None:
    port = free_port()
    fleet = FLEET + f'[[vm]]\nname = "three"\nlisten = "127.0.0.1:{port}"\n'
    service = make_service(fleet=fleet)
    address = ("127.0.0.1", port)
    leaf = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    assert service.request(target=leaf, address=address, source="127.0.0.2").body == b"three"
    assert service.request(target=leaf, source="127.0.0.2").body == b"two"
    (service.folder / "fleet.toml").write_text(FLEET)
    assert service.cli("fleet", "apply", str(service.folder / "fleet.toml")).returncode == 0
    with pytest.raises(OSError, match="refused"):
        service.connect(address)


def test_a_fleet_with_an_address_in_use_is_not_applied(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = service.folder / "new.toml"
        path.write_text(f'[[vm]]\nname = "three"\nlisten = "127.0.0.1:{port}"\n')
        refused = service.cli("fleet", "apply", str(path))
    assert refused.returncode == 2
    assert f"Cannot listen on 127.0.0.1:{port}" in refused.stderr
    assert [vm["name"] for vm in service.control("GET", "/v1/vms").json()["vms"]] == ["one", "two"]

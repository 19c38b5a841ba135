"""SIGHUP and systemd's notifications: the service reloads its fleet file and its certificate, and keeps running."""

from __future__ import annotations

import os
import pty
import signal
import ssl
import subprocess
from typing import TYPE_CHECKING

import trustme

from forewarn.testing.client import COMMAND
from systemd_socket import SECONDS, SystemdSocket, wait_for_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.testing import ServiceProcess

FLEET = '[[vm]]\nname = "web-0"\naddress = "127.0.0.1"\n'
TWO = FLEET + '[[vm]]\nname = "web-1"\naddress = "127.0.0.2"\n'


def hang_up(service: ServiceProcess) -> None:
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)


def vm_names(service: ServiceProcess) -> list[str]:
    return [vm["name"] for vm in service.list_all("/v1/vms")]


def test_systemd_is_notified_of_start_reload_watchdog_and_stop(
    make_service: Callable[..., ServiceProcess], tmp_path: Path
) -> None:
    with SystemdSocket(tmp_path, watchdog_seconds=0.3) as systemd:
        service = make_service(fleet=FLEET, **systemd.variables)
        status = f"1 VM; control API at {service.control_url}"
        assert systemd.receive() == {"READY": "1", "STATUS": status}
        for _ in range(3):
            assert systemd.receive() == {"WATCHDOG": "1", "STATUS": status}
        (service.folder / "fleet.toml").write_text(TWO)
        hang_up(service)
        begun = systemd.wait_for("RELOADING")
        assert int(begun["MONOTONIC_USEC"]) > 0
        assert systemd.wait_for("READY") == {"READY": "1", "STATUS": status.replace("1 VM", "2 VMs")}
        assert service.stop() == 0
        assert systemd.wait_for("STOPPING") == {"STOPPING": "1"}


def test_a_stopped_event_loop_sends_nothing(make_service: Callable[..., ServiceProcess], tmp_path: Path) -> None:
    with SystemdSocket(tmp_path, watchdog_seconds=0.3) as systemd:
        service = make_service(fleet=FLEET, **systemd.variables)
        systemd.wait_for("READY")
        systemd.wait_for("WATCHDOG")
        assert service.process is not None
        service.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, service.process.pid, os.WSTOPPED)
        try:
            assert systemd.receive_within(1.0) is None
        finally:
            service.process.send_signal(signal.SIGCONT)
        systemd.wait_for("WATCHDOG")


def test_a_hangup_applies_the_changed_fleet_file(make_service: Callable[..., ServiceProcess], tmp_path: Path) -> None:
    with SystemdSocket(tmp_path) as systemd:
        service = make_service(fleet=FLEET, **systemd.variables)
        systemd.wait_for("READY")

        def reload(text: str) -> None:
            (service.folder / "fleet.toml").write_text(text)
            hang_up(service)
            systemd.wait_for("RELOADING")
            systemd.wait_for("READY")

        reload(TWO)
        assert vm_names(service) == ["web-0", "web-1"]
        assert "added=web-1" in wait_for_log(service, "fleet_reloaded")
        reload(TWO)
        wait_for_log(service, "fleet_unchanged")
        # An invalid file changes nothing, and the log has the line.
        reload(FLEET + "[[vm]]\nnamme = 1\n")
        assert "fleet.toml:5: vm[1].namme" in wait_for_log(service, "fleet_reload_failed")
        assert "ERROR reload_failed: " in wait_for_log(service, "failed=fleet")
        assert service.output.count("reload_completed") == 2
        assert vm_names(service) == ["web-0", "web-1"]
        (service.folder / "fleet.toml").unlink()
        hang_up(service)
        systemd.wait_for("RELOADING")
        systemd.wait_for("READY")
        assert "No such file" in wait_for_log(service, "fleet_reload_failed", times=2)
        # A VM with an active event stays.
        service.document()  # the first poll enables events
        service.request_operation("restart", "web-0")
        reload('[[vm]]\nname = "web-2"\n')
        assert "web-0" in wait_for_log(service, "fleet_reload_failed", times=3)
        assert "web-0" in vm_names(service)
        assert service.stop() == 0


def test_a_hangup_loads_the_renewed_certificate(make_service: Callable[..., ServiceProcess], tmp_path: Path) -> None:
    authority = trustme.CA()
    files = tmp_path / "tls.pem", tmp_path / "tls.key"

    def renew() -> bytes:
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(str(files[0]))
        issued.private_key_pem.write_to_path(str(files[1]))
        return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())

    first = renew()
    with SystemdSocket(tmp_path) as systemd:
        service = make_service(
            "--tls-certificate", str(files[0]), "--tls-key", str(files[1]), fleet=FLEET, **systemd.variables
        )
        systemd.wait_for("READY")
        host, port = service.control_url.removeprefix("https://").split(":")

        def served() -> bytes:
            return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port))))

        def reload() -> None:
            hang_up(service)
            systemd.wait_for("RELOADING")
            systemd.wait_for("READY")

        def runs_commands() -> bool:
            return service.cli("vm", "list").returncode == 0

        assert served() == first
        second = renew()
        assert runs_commands(), "local commands trust the certificate in use, not the new file"
        reload()
        assert served() == second
        assert runs_commands()
        files[0].write_text("no certificate")
        reload()
        assert served() == second
        assert runs_commands()
        assert "Keeping the current certificate" in wait_for_log(service, "certificate_reload_failed")
        assert "ERROR reload_failed: " in wait_for_log(service, "failed=certificate")
        assert service.output.count("reload_completed") == 1


def test_the_service_ends_with_its_terminal(tmp_path: Path) -> None:
    main, terminal = pty.openpty()
    environment = {**os.environ, "FOREWARN_DATA": ":memory:", "HOME": str(tmp_path)}
    addresses = ("--metadata", "127.0.0.1:0", "--control", "127.0.0.1:0")
    # setsid --ctty gives it the terminal as its own, as that of a login.
    command = ["setsid", "--ctty", *COMMAND, "up", *addresses]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as service:
        try:
            os.close(terminal)
            seen = b""
            while b"Try in another terminal" not in seen:
                seen += os.read(main, 4096)
            service.send_signal(signal.SIGHUP)  # the terminal is still there
            while b"reload_completed" not in seen:
                seen += os.read(main, 4096)
            os.close(main)
            assert service.wait(SECONDS) == 0
        finally:
            service.kill()  # without effect if it has ended

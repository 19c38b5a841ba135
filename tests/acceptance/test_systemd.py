"""The units of the service and of the agent under a real systemd, in a container that is gone afterwards."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import forewarn
from programs import need, need_root

if TYPE_CHECKING:
    from collections.abc import Sequence

PLACE = "/opt/forewarn-test"
PYTHON = f"{PLACE}/python/bin/{Path(sys.executable).resolve().name}"
"""In the container, because the Python of this machine may be in the home directory of root."""
TARGET = "[Unit]\nRequires=sysinit.target\nWants=check.service\nAfter=sysinit.target\n"
CHECK = """
[Unit]
After=sysinit.target
[Service]
Type=oneshot
ExecStart={python} {place}/check.py {place}/forewarn {place}/out
"""
LAUNCHER = """#!/bin/sh
export LD_LIBRARY_PATH={place}/python/lib PYTHONPATH={place}/src:{place}/site-packages PYTHONDONTWRITEBYTECODE=1
exec {python} -c 'import sys; sys.argv[0] = "{place}/forewarn"; from forewarn.__main__ import main; main()' "$@"
"""


def in_container(folder: Path, binds: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Boot the file system of this machine in a container. Changes go to memory, and are lost.

    The container has no network, and starts nothing but the check.
    """
    (folder / "root").mkdir()
    command = [
        "systemd-nspawn", "--quiet", f"--directory={folder}/root", f"--machine=forewarn-{folder.name[:40]}",
        "--volatile=overlay", "--private-network", "--register=no", "--keep-unit", "--link-journal=no",
        "--console=pipe", *binds, "--boot", "systemd.unit=check.target",
    ]  # fmt: skip
    # In its own mount namespace: systemd-nspawn leaves a folder in /run.
    mounts = f"mount -t tmpfs tmpfs /run && mount --bind / {shlex.quote(f'{folder}/root')}"
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{mounts} && exec {shlex.join(command)}"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    need("systemd-nspawn", "systemd", "runuser", "useradd")
    need_root()
    folder = tmp_path_factory.mktemp("systemd")
    (folder / "out").mkdir()
    (folder / "check.target").write_text(TARGET)
    (folder / "check.service").write_text(CHECK.format(python=PYTHON, place=PLACE))
    (folder / "forewarn").write_text(LAUNCHER.format(python=PYTHON, place=PLACE))
    (folder / "forewarn").chmod(0o755)
    shutil.copy(Path(__file__).with_name("systemd_check.py"), folder / "check.py")
    places = {
        sys.base_prefix: f"{PLACE}/python",
        str(Path(forewarn.__file__).parents[1]): f"{PLACE}/src",
        sysconfig.get_path("purelib"): f"{PLACE}/site-packages",
        **{str(folder / name): f"{PLACE}/{name}" for name in ("forewarn", "check.py")},
        **{str(folder / name): f"/etc/systemd/system/{name}" for name in ("check.target", "check.service")},
    }
    binds = [f"--bind-ro={source}:{place}" for source, place in places.items()]
    done = in_container(folder, [*binds, f"--bind={folder / 'out'}:{PLACE}/out"])
    file = folder / "out" / "results.json"
    assert file.exists(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    assert "error" not in found, (found, (folder / "out" / "journal").read_text())
    return found


@pytest.mark.deep
def test_the_service_runs_with_nothing_but_its_own_files_and_low_ports(results: dict[str, Any]) -> None:
    assert "Created the system user forewarn." in results["install"]
    assert "Wrote /etc/forewarn/forewarn.toml." in results["install"]
    assert results["install again"].startswith("/etc/systemd/system/forewarn.service is up to date.")
    assert results["start"] == ""
    assert results["started"]["ActiveState"] == "active"
    assert results["started"]["User"] == "forewarn"
    assert results["started"]["StatusText"].startswith("1 VM; control API at http://127.0.0.1:8170")
    only_low_ports = f"{1 << 10:016x}"
    assert results["process"] == {
        "CapEff": only_low_ports, "CapBnd": only_low_ports, "NoNewPrivs": "1", "Seccomp": "2",
    }  # fmt: skip
    assert results["kinds"] == ["700 forewarn", "600 forewarn", "700 forewarn"]


@pytest.mark.deep
def test_commands_of_its_user_find_the_service(results: dict[str, Any]) -> None:
    assert [vm["name"] for vm in json.loads(results["vms"])["vms"]] == ["web-0"]
    assert "The service of this machine belongs to the user forewarn: sudo -u forewarn forewarn" in results["as root"]


@pytest.mark.deep
def test_reload_and_watchdog(results: dict[str, Any]) -> None:
    assert results["reload"] == ""
    assert [vm["name"] for vm in json.loads(results["vms after reload"])["vms"]] == ["web-0", "web-1"]
    assert results["agent start"] == results["agent reload"] == ""
    assert results["agent"] == {"ActiveState": "active", "NRestarts": "0"}
    assert results["pid after hang"]
    assert int(results["restarts"]) >= 1


@pytest.mark.deep
def test_uninstall_keeps_the_data(results: dict[str, Any]) -> None:
    for name in ("uninstall", "agent uninstall"):
        assert results[name].startswith("Removed /etc/systemd/system/forewarn"), results[name]
    assert "  data: /var/lib/forewarn\n" in results["uninstall"]
    assert "  your changes to the unit: /etc/systemd/system/forewarn.service.d\n" in results["uninstall"]
    assert "ended with" not in results["stop"]  # systemd warns that the file is gone
    assert results["after"] == [{"LoadState": "not-found", "ActiveState": "inactive"}] * 2
    assert results["links"] == []
    assert "admin-token" in results["data"]

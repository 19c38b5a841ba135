"""A real DHCP server gives out option 245, real clients take a lease, and the agent finds the endpoint in it.

In namespaces of their own: the machine's network and files are not touched, and nothing leaves them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from programs import need, need_root

HERE = Path(__file__).parent
SEALED = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
SERVICE = "10.45.0.2"


def find_on_a_lan(client: str, option: str, folder: Path) -> dict[str, Any]:
    need_root()
    inside = [sys.executable, str(HERE / "dhcp_lan.py"), client, option, str(folder)]
    source = HERE.parents[1] / "src"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (source, HERE.parent)))}
    result = subprocess.run(
        [*SEALED, *inside], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    ("client", "programs", "kept_in"),
    [
        ("dhclient", ["dhclient"], "/var/lib/dhcp/dhclient.leases"),
        ("udhcpc", ["udhcpc"], "/run/udhcpc.eth0.lease"),
        ("networkd", ["systemd-networkd"], "/run/systemd/netif/leases/"),
        ("network-manager", ["NetworkManager", "dbus-daemon"], "/run/NetworkManager/devices/"),
        ("network-manager-dhclient", ["NetworkManager", "dbus-daemon", "dhclient"], "NetworkManager/"),
    ],
)
def test_the_endpoint_is_in_the_lease(client: str, programs: list[str], kept_in: str, tmp_path: Path) -> None:
    need("dnsmasq", "ip", *programs)
    found = find_on_a_lan(client, SERVICE, tmp_path)
    assert found["url"] == f"http://{SERVICE}:80"
    assert found["origin"].startswith("DHCP option 245 in ")
    assert kept_in in found["origin"]
    assert found["name"] == "classic-0"
    assert json.loads(found["document"]) == {"DocumentIncarnation": 0, "Events": []}


@pytest.mark.parametrize("address", ["100.65.96.90", "100.34.92.36", "34.92.96.39"])
def test_bytes_that_dhclient_writes_as_text(address: str, tmp_path: Path) -> None:
    """dA`Z, and signs that it escapes. Nobody answers there, and it is taken all the same: nothing else is known."""
    need("dnsmasq", "ip", "dhclient")
    assert find_on_a_lan("dhclient", address, tmp_path)["url"] == f"http://{address}:80"

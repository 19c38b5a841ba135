"""docs/network.md: its commands carry the requests of VMs to the service with their source addresses.

The network is in namespaces of its own. Nothing leaves them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from doc_pages import ROOT, Block, blocks, blocks_in
from programs import need, need_root

PAGE = ROOT / "docs" / "network.md"
LAB = Path(__file__).with_name("network_lab.py")
SEALED = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
WEB, MAIL = ("web-0", "10.0.1.10"), ("mail", "10.0.1.11")
FORGED = ("web-0", "10.0.1.11")
"""A poll of web-0 with the address of mail."""


def section(heading: str) -> list[Block]:
    """The blocks of a section that this test runs."""
    text = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [block for block in blocks_in(text) if block.comment.startswith("run by")]


def commands(heading: str, place: str) -> list[str]:
    return [block.text for block in section(heading) if block.comment.endswith(f", {place}")]


def polls(folder: Path, heading: str, *who: tuple[str, str], **plan: Any) -> list[str | None]:
    """Set up the network of a section, poll, and return which VM the service takes each caller for."""
    need_root()
    need("nft", "ip", "curl")
    whole = {
        "metadata": "169.254.169.254:80",
        "bridged": False,
        "dnsmasq": "",
        "nginx": "",
        "metadata_host": commands(heading, "on the metadata host"),
        "hypervisor": commands(heading, "on the hypervisor"),
        "polls": who,
        **plan,
    }
    source = ROOT / "src"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
    environment = {
        "PYTHONPATH": os.pathsep.join([str(source), str(ROOT / "tests")]),
        "HOME": str(folder),
        "FOREWARN_RUNTIME_DIR": str(folder / "run"),
    }
    result = subprocess.run(
        [*SEALED, sys.executable, str(LAB), json.dumps(whole), str(folder)],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found: list[str | None] = json.loads(result.stdout)
    return found


def test_routed(tmp_path: Path) -> None:
    assert polls(tmp_path, "Routed", WEB, MAIL) == ["web-0", "mail"]


def test_dnat(tmp_path: Path) -> None:
    assert polls(tmp_path, "DNAT", WEB, MAIL, metadata="192.0.2.5:8169") == ["web-0", "mail"]


def test_bridged_with_routes_by_dhcp(tmp_path: Path) -> None:
    need("dnsmasq", "udhcpc")
    [dnsmasq] = commands("Bridged", "as the configuration of dnsmasq")
    lines = "dhcp-host=web-0,10.0.1.10\ndhcp-host=mail,10.0.1.11\n"
    found = polls(tmp_path, "Bridged", WEB, MAIL, bridged=True, dnsmasq=dnsmasq + lines)
    assert sorted(map(str, found)) == ["mail", "web-0"]


def test_without_a_filter_a_vm_can_use_the_address_of_another(tmp_path: Path) -> None:
    assert polls(tmp_path, "Routed", FORGED) == ["mail"]


def test_the_filter_stops_a_false_source_address(tmp_path: Path) -> None:
    routed = commands("Routed", "on the hypervisor")
    host = commands("Routed", "on the metadata host")
    rules = commands("Who can pretend to be whom", "on the hypervisor")
    found = polls(tmp_path, "Routed", WEB, MAIL, FORGED, hypervisor=[*routed, *rules], metadata_host=host)
    assert found == ["web-0", "mail", None]


def test_a_proxy_chooses_the_endpoint_by_the_source_address(tmp_path: Path) -> None:
    need("nginx")
    [nginx] = commands("Another metadata service", "as the configuration of nginx")
    plan = {"hypervisor": commands("Routed", "on the hypervisor"), "metadata": "127.0.0.1:8169", "nginx": nginx}
    host = commands("Routed", "on the metadata host")
    assert polls(tmp_path, "Another metadata service", WEB, MAIL, metadata_host=host, **plan) == ["web-0", "mail"]


def test_every_block_for_this_test_belongs_to_a_place() -> None:
    places = (
        "on the metadata host",
        "on the hypervisor",
        "as the configuration of dnsmasq",
        "as the configuration of nginx",
    )
    ours = [block for block in blocks(PAGE) if block.comment.startswith("run by")]
    assert ours
    assert all(block.comment.endswith(tuple(f", {place}" for place in places)) for block in ours)

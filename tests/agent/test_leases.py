"""Option 245 in the lease files of four DHCP clients."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.discovery import (
    LEASES,
    find_option_245,
    read_dhclient,
    read_network_manager,
    read_networkd,
    read_udhcpc,
    to_address,
)


def lease(option: str, interface: str = "eth0") -> str:
    return f"""lease {{
  interface "{interface}";
  fixed-address 10.0.0.5;
  option subnet-mask 255.255.255.0;
  option dhcp-server-identifier 168.63.129.16;
  {option}
  option domain-name "x.internal.cloudapp.net";
  renew 1 2026/11/16 09:12:04;
}}
"""


@pytest.mark.parametrize(
    ("option", "address"),
    [
        ("option unknown-245 a8:3f:81:10;", "168.63.129.16"),
        ("option unknown-245 A8:3F:81:10;", "168.63.129.16"),
        ("option unknown-245 a:2d:0:2;", "10.45.0.2"),
        ("option option-245 64:41:60:82;", "100.65.96.130"),
        ("option option-245 168.63.129.16;", "168.63.129.16"),
        ('option unknown-245 "dA`Z";', "100.65.96.90"),
        (r'option unknown-245 "d\"A\\";', "100.34.65.92"),
        (r'option unknown-245 "d\001A\177";', "100.1.65.127"),
        (r'option unknown-245 "d\$\`\'";', "100.36.96.39"),
        ('option unknown-245 "a;}{";', "97.59.125.123"),
        ("  option   unknown-245\n  a8:3f:81:10 ;", "168.63.129.16"),
    ],
)
def test_the_forms_that_dhclient_writes(option: str, address: str) -> None:
    assert read_dhclient(lease(option)) == [address]


@pytest.mark.parametrize(
    "option",
    [
        "",
        "option unknown-244 a8:3f:81:10;",
        "option unknown-2450 a8:3f:81:10;",
        "option unknown-245 a8:3f:81;",
        "option unknown-245 a8:3f:81:10:0;",
        "option unknown-245 a8:3f:81:100;",
        'option unknown-245 "dA`";',
        'option unknown-245 "dA`ZZ";',
        "option unknown-245 168.63.129;",
        "# option unknown-245 a8:3f:81:10;",
        'option domain-name "option unknown-245 a8:3f:81:10;";',
    ],
)
def test_invalid_addresses_of_dhclient(option: str) -> None:
    assert read_dhclient(lease(option)) == []


def test_the_last_lease_is_used() -> None:
    old, new = lease("option unknown-245 a:0:0:1;"), lease("option unknown-245 a:0:0:2;")
    assert read_dhclient(old + new) == ["10.0.0.2"]
    assert read_dhclient(new + old) == ["10.0.0.1"]
    assert read_dhclient(old + lease("")) == []


def test_each_interface_has_a_last_lease() -> None:
    text = (
        lease("option unknown-245 a:0:0:1;", "eth0")
        + lease("option unknown-245 a:0:0:2;", "eth1")
        + lease("option unknown-245 a:0:0:3;", "eth0")
    )
    assert read_dhclient(text) == ["10.0.0.3", "10.0.0.2"]


def test_a_lease_that_is_still_being_written_does_not_count() -> None:
    whole = lease("option unknown-245 a:0:0:1;")
    assert read_dhclient(whole + 'lease {\n  interface "eth0";\n  option unknown-245 a:0:0:2;\n') == ["10.0.0.1"]


NETWORKD = "# This is private data. Do not parse.\nADDRESS=10.45.0.48\nLIFETIME=3600\nOPTION_245=0a2d0002\n"


def test_systemd_networkd() -> None:
    assert read_networkd(NETWORKD) == ["10.45.0.2"]
    assert read_networkd(NETWORKD.replace("245", "246")) == []
    assert read_networkd("#OPTION_245=0a2d0002\n") == []
    assert read_networkd("OPTION_245=0a2d00\n") == []


DEVICE = """[device]
managed=true
connection-uuid=6604b755-b04f-33a3-8a74-8eec86f491b6

[dhcp4]
dhcp4.ip_address=10.45.0.49
dhcp4.private_245=0a:2d:00:02
dhcp4.subnet_mask=255.255.255.0
"""


@pytest.mark.parametrize(
    "text",
    [
        DEVICE,
        DEVICE.replace("private", "unknown").replace("0a:2d:00:02", "a:2d:0:2"),
        NETWORKD,  # its own client, when that was still the one of systemd
        lease("option unknown-245 a:2d:0:2;"),
    ],
)
def test_network_manager(text: str) -> None:
    assert read_network_manager(text) == ["10.45.0.2"]


def test_network_manager_without_it() -> None:
    assert read_network_manager("# This is private data. Do not parse.\nADDRESS=10.45.0.49\n") == []
    assert read_network_manager(DEVICE.replace("private_245", "private_244")) == []


@pytest.mark.parametrize(
    "text",
    [
        "PATH=/bin\nopt53=05\nopt245=0a2d0002\nip=10.45.0.158\n",
        "export opt245='0a2d0002'\n",
        'opt245="0a2d0002"',
        '{"interface": "eth0", "opt245": "0a2d0002"}',
        "opt245=0affffff\nopt245=0a2d0002\n",
        "opt245=10.45.0.2\n",
    ],
)
def test_udhcpc(text: str) -> None:
    assert read_udhcpc(text) == ["10.45.0.2"]


@pytest.mark.parametrize("text", ["opt24=0a2d0002", "myopt245=0a2d0002", "opt2455=0a2d0002", "opt245=", "opt245=0a2d"])
def test_invalid_addresses_of_udhcpc(text: str) -> None:
    assert read_udhcpc(text) == []


@pytest.mark.parametrize("value", ["0:0:0:0", "00000000", "0.0.0.1", "255.255.255.255", "224.0.0.1", "240.0.0.1"])
def test_addresses_that_no_host_has(value: str) -> None:
    assert to_address(value) is None


@given(st.integers(1, 223), st.binary(min_size=3, max_size=3))
def test_one_address_in_every_form(first: int, others: bytes) -> None:
    octets = bytes([first]) + others
    dotted = ".".join(map(str, octets))
    quoted = '"' + "".join(f"\\{octet:03o}" for octet in octets) + '"'
    forms = (dotted, octets.hex(), octets.hex(":"), ":".join(f"{octet:x}" for octet in octets), quoted)
    assert {to_address(form) for form in forms} == {dotted}


def place(root: Path, name: str, content: str | bytes, age: int) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (1_700_000_000 - age, 1_700_000_000 - age))
    return path


FILES = [
    ("run/systemd/netif/leases/2", "OPTION_245={hex}\n"),
    ("run/NetworkManager/devices/3", "[dhcp4]\ndhcp4.private_245={colons}\n"),
    ("var/lib/NetworkManager/dhclient-6604b755-eth0.lease", "lease {{ option unknown-245 {colons}; }}"),
    ("var/lib/NetworkManager/internal-6604b755-eth0.lease", "OPTION_245={hex}\n"),
    ("run/NetworkManager/dhcp/dhclient-eth0.lease", "lease {{ option unknown-245 {colons}; }}"),
    ("var/lib/dhcp/dhclient.leases", "lease {{ option unknown-245 {colons}; }}"),
    ("var/lib/dhcp/dhclient.eth0.leases", "lease {{ option unknown-245 {colons}; }}"),
    ("var/lib/dhclient/dhclient-eth0.leases", "lease {{ option unknown-245 {colons}; }}"),
    ("var/lib/dhclient/eth0.lease", "lease {{ option unknown-245 {colons}; }}"),
    ("run/dhclient.lease", "lease {{ option unknown-245 {colons}; }}"),
    ("run/udhcpc.eth0.lease", "opt245={hex}"),
    ("run/udhcpc.eth0.env", "opt245={hex}"),
    ("run/udhcpc/eth0", "opt245={hex}"),
    ("var/lib/udhcpc/eth0.lease", "opt245={hex}"),
    ("var/cache/udhcpc-eth0.lease", "opt245={hex}"),
]


@pytest.mark.parametrize(("name", "content"), FILES, ids=[name for name, _ in FILES])
def test_the_locations_of_lease_files(tmp_path: Path, name: str, content: str) -> None:
    path = place(tmp_path, name, content.format(hex="0a2d0002", colons="a:2d:0:2"), age=0)
    assert find_option_245(tmp_path) == [("10.45.0.2", path)]


def test_files_of_every_pattern_are_read() -> None:
    patterns = [pattern for files in LEASES for pattern in files.patterns]
    unseen = [pattern for pattern in patterns if not any(Path(name).match(pattern) for name, _ in FILES)]
    assert unseen == ["var/lib/dhcp/dhclient*.lease", "run/dhclient*.leases"]  # the other ending is shown


def test_the_newest_file_is_first(tmp_path: Path) -> None:
    middle = place(tmp_path, "run/systemd/netif/leases/2", "OPTION_245=0a000002", age=20)
    oldest = place(tmp_path, "var/lib/dhcp/dhclient.eth0.leases", lease("option unknown-245 a:0:0:3;"), age=30)
    newest = place(tmp_path, "run/udhcpc.eth1.lease", "opt245=0a000001", age=10)
    assert find_option_245(tmp_path) == [("10.0.0.1", newest), ("10.0.0.2", middle), ("10.0.0.3", oldest)]


def test_a_file_keeps_its_own_order(tmp_path: Path) -> None:
    text = lease("option unknown-245 a:0:0:1;", "eth0") + lease("option unknown-245 a:0:0:2;", "eth1")
    place(tmp_path, "var/lib/dhcp/dhclient.leases", text, age=0)
    assert [address for address, _ in find_option_245(tmp_path)] == ["10.0.0.2", "10.0.0.1"]


def test_other_files_are_not_read(tmp_path: Path) -> None:
    for name in ("tmp/udhcpc.eth0.lease", "var/lib/dhcp/dhcpd.leases", "var/lib/NetworkManager/timestamps", "run/x"):
        place(tmp_path, name, "opt245=0a2d0002\nOPTION_245=0a2d0002\nlease { option unknown-245 a:2d:0:2; }", age=0)
    assert find_option_245(tmp_path) == []


def test_unreadable_files_are_skipped(tmp_path: Path) -> None:
    good = place(tmp_path, "run/systemd/netif/leases/9", "OPTION_245=0a2d0002", age=0)
    (tmp_path / "run/systemd/netif/leases/1").mkdir()
    (tmp_path / "run/systemd/netif/leases/2").symlink_to("nowhere")
    (tmp_path / "run/systemd/netif/leases/3").symlink_to("3")
    os.mkfifo(tmp_path / "run/systemd/netif/leases/4")
    place(tmp_path, "run/systemd/netif/leases/5", b"\0\xff\xfeOPTION_245=zz", age=0)
    place(tmp_path, "var/lib/dhcp", "a file where a folder should be", age=0)
    (tmp_path / "run/NetworkManager").symlink_to("/proc/self/mem")
    assert find_option_245(tmp_path) == [("10.45.0.2", good)]


def test_nothing_there(tmp_path: Path) -> None:
    assert find_option_245(tmp_path) == []
    assert find_option_245(tmp_path / "nowhere") == []


def test_of_a_file_that_has_grown_the_end_is_read(tmp_path: Path) -> None:
    many = lease("option unknown-245 a:0:0:1;") * 5000 + lease("option unknown-245 a:0:0:2;")
    assert len(many) > 1 << 20
    place(tmp_path, "var/lib/dhcp/dhclient.leases", many, age=0)
    assert [address for address, _ in find_option_245(tmp_path)] == ["10.0.0.2"]


PIECES = st.sampled_from(
    [
        "lease {",
        "}",
        "{",
        ";",
        '"',
        "\\",
        "\n",
        "#",
        "option unknown-245 ",
        "a:0:0:2",
        "OPTION_245=",
        "opt245=",
        "0a2d0002",
    ]
)


@given(st.binary(max_size=300) | st.lists(PIECES | st.text(max_size=3), max_size=30).map(lambda p: "".join(p).encode()))
def test_any_bytes_are_read_without_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.mktemp("root")
    for name in (
        "run/systemd/netif/leases/2",
        "run/NetworkManager/devices/2",
        "run/dhclient.lease",
        "run/udhcpc.lease",
    ):
        place(root, name, content, age=0)
    for address, _ in find_option_245(root):
        assert to_address(address) == address

"""Finds the endpoint: the given address, else Azure's link-local address, else DHCP option 245.

Option 245 holds the address of the endpoint's host. It is in the lease files of the machine's DHCP client.
"""

from __future__ import annotations

import os
import re
import socket
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.address import PORTS, EndpointAddress, read_endpoint
from forewarn.agent.transport import is_link_local
from forewarn.errors import EndpointNotFound
from forewarn.system.addresses import is_ipv4

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


# --- DHCP option 245 in lease files ---------------------------------------------------------------


_MAX_BYTES = 1 << 20
"""Read only the end of larger files: dhclient appends to its file with each renewal."""

_DHCLIENT_WORDS = re.compile(r'#[^\n]*|"(?:\\.|[^"\\])*"|[{};]|[^\s{};"]+', re.DOTALL)
_ESCAPED = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_NETWORKD_LINE = re.compile(r"^OPTION_245=([0-9A-Fa-f]{8})\s*$", re.MULTILINE)
_NETWORK_MANAGER_LINE = re.compile(r"^(?:dhcp4\.)?(?:private|unknown|option)_245=(\S+)\s*$", re.MULTILINE)
_UDHCPC_LINE = re.compile(r"""(?<!\w)opt245["']?[ \t]*[=:][ \t]*["']?([0-9A-Fa-f.:]+)""")


def read_dhclient(text: str) -> list[str]:
    """Read `option unknown-245 a8:3f:81:10;` from the lease blocks; for each interface, from its last lease."""
    by_interface: dict[str, str | None] = {}
    interface, address = "", None
    statement: list[str] = []
    for word in _DHCLIENT_WORDS.findall(text):
        if word == "{":
            interface, address, statement = "", None, []
        elif word == "}":
            # Remove first, so that the order is that of the last leases.
            by_interface.pop(interface, None)
            by_interface[interface] = address
            statement = []
        elif word == ";":
            if len(statement) == 2 and statement[0] == "interface":
                interface = statement[1]
            elif len(statement) == 3 and statement[:2] in (["option", "unknown-245"], ["option", "option-245"]):
                address = to_address(statement[2])
            statement = []
        elif not word.startswith("#"):
            statement.append(word)
    return [address for address in reversed(by_interface.values()) if address]


def read_networkd(text: str) -> list[str]:
    """Read `OPTION_245=a83f8110`."""
    return _last(_NETWORKD_LINE, text)


def read_network_manager(text: str) -> list[str]:
    """Read `dhcp4.private_245=a8:3f:81:10` from a device's state, or the lease files of its two kinds of client."""
    return _last(_NETWORK_MANAGER_LINE, text) or read_networkd(text) or read_dhclient(text)


def read_udhcpc(text: str) -> list[str]:
    """Read `opt245=a83f8110`, as a script has stored it: from `env`, as shell assignments, or as JSON."""
    return _last(_UDHCPC_LINE, text)


def _last(line: re.Pattern[str], text: str) -> list[str]:
    found = line.findall(text)
    address = to_address(found[-1]) if found else None
    return [address] if address else []


def to_address(value: str) -> str | None:
    """Return the IPv4 address for four bytes in any notation; None: they are not a host's address."""
    if value.startswith('"'):
        # dhclient writes printable bytes as text: d"A is "d\"A", and a byte that is not printable is \001.
        octets = _ESCAPED.sub(_unescaped, value[1:-1]).encode("latin-1", "replace")
    elif re.fullmatch("[0-9A-Fa-f]{8}", value):
        octets = bytes.fromhex(value)
    elif re.fullmatch("[0-9A-Fa-f]{1,2}(?::[0-9A-Fa-f]{1,2}){3}", value):
        octets = bytes(int(number, 16) for number in value.split(":"))
    else:
        octets = bytes(map(int, value.split("."))) if is_ipv4(value) else b""
    # 0.x.x.x is invalid; 224 and above are multicast, reserved and broadcast addresses.
    return ".".join(map(str, octets)) if len(octets) == 4 and 0 < octets[0] < 224 else None


def _unescaped(escape: re.Match[str]) -> str:
    sign = escape[1]
    return chr(int(sign, 8) & 0xFF) if sign[0] in "01234567" else sign


class LeaseFiles(NamedTuple):
    """The lease files of one DHCP client."""

    client: str
    patterns: tuple[str, ...]
    """Relative to the root; only the last part has wildcards."""
    read: Callable[[str], list[str]]


# No folder that everybody can write to, such as /tmp: the author of a lease decides which endpoint the agent uses.
LEASES = (
    LeaseFiles("systemd-networkd", ("run/systemd/netif/leases/*",), read_networkd),
    LeaseFiles(
        "NetworkManager",
        ("run/NetworkManager/devices/*", "var/lib/NetworkManager/*.lease", "run/NetworkManager/dhcp/*.lease"),
        read_network_manager,
    ),
    LeaseFiles(
        "dhclient",
        (
            "var/lib/dhcp/dhclient*.lease",
            "var/lib/dhcp/dhclient*.leases",
            "var/lib/dhclient/*.lease",
            "var/lib/dhclient/*.leases",
            "run/dhclient*.lease",
            "run/dhclient*.leases",
        ),
        read_dhclient,
    ),
    LeaseFiles(
        "udhcpc",
        (
            "run/udhcpc*.lease",
            "run/udhcpc*.env",
            "run/udhcpc/*",
            "var/lib/udhcpc/*",
            "var/cache/udhcpc-*.lease",
        ),
        read_udhcpc,
    ),
)


def find_option_245(root: Path = Path("/")) -> list[tuple[str, Path]]:
    """Return each address in the machine's lease files, with its file; the newest file first.

    Skip files that cannot be read or understood.
    """
    found = []
    for files in LEASES:
        for path in _matching(root, files.patterns):
            written, text = _contents(path)
            found += [(written, address, path) for address in files.read(text)]
    # Sort by time only: addresses from the same file keep their order.
    found.sort(key=lambda row: row[0], reverse=True)
    return [(address, path) for _, address, path in found]


def _matching(root: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        folder, _, name = pattern.rpartition("/")
        try:
            names = sorted(os.listdir(root / folder))  # noqa: PTH208 - only the names are needed
        except OSError:
            continue
        yield from (root / folder / one for one in names if fnmatchcase(one, name))


def _contents(path: Path) -> tuple[float, str]:
    """Return a file's modification time and text; empty if it cannot be read."""
    try:
        # Opening a named pipe without a writer would block forever.
        if not path.is_file():
            return 0.0, ""
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MAX_BYTES))
            text = file.read(_MAX_BYTES).decode("latin-1")
            written = os.stat(file.fileno()).st_mtime  # noqa: PTH116 - of the open file
    except (OSError, ValueError):
        return 0.0, ""
    if size > _MAX_BYTES:
        # Start at the first complete lease, if there is one.
        text = text[max(0, text.find("\nlease {")) :]
    return written, text


# --- Finding the endpoint -------------------------------------------------------------------------


VARIABLE = "FOREWARN_ENDPOINT"
LINK_LOCAL = "169.254.169.254"
_CONNECT_SECONDS = 3.0
"""Connection timeout in seconds. The endpoint is on the machine's own host, so it responds at once or not at all."""


def accepts(host: str, port: int) -> bool:
    """Whether a direct connection can be made. A proxy would be another machine, with events of its own.

    A prohibited link-local address counts, too. Requests open systemd's lock, or their error says how.
    """
    try:
        with socket.create_connection((host, port), _CONNECT_SECONDS):
            return True
    except PermissionError:
        return is_link_local(host)
    except OSError:
        return False


def find_endpoint(
    given: str = "",
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/"),
    reachable: Callable[[str, int], bool] = accepts,
    *,
    given_by: str = "--endpoint",
) -> EndpointAddress:
    """Find the endpoint of Scheduled Events.

    If an endpoint or FOREWARN_ENDPOINT is given, return it without checking whether it responds. Otherwise search. The
    search changes nothing and can be repeated.
    """
    if given.strip():
        return read_endpoint(given, given_by)
    from_environment = (os.environ if environment is None else environment).get(VARIABLE, "")
    if from_environment.strip():
        return read_endpoint(from_environment, VARIABLE)
    port = PORTS["http"]
    if reachable(LINK_LOCAL, port):
        return EndpointAddress("http", LINK_LOCAL, port, "the link-local address")
    candidates: dict[str, Path] = {}
    for address, path in find_option_245(root):
        candidates.setdefault(address, path)
    if not candidates:
        clients = ", ".join(files.client for files in LEASES)
        problem = f"{LINK_LOCAL} accepts no connection, and no DHCP lease has option 245 (searched: {clients})."
        raise EndpointNotFound(problem=problem)
    # If none responds, use the first: it may respond later.
    first = next(iter(candidates))
    chosen = next((address for address in candidates if address != LINK_LOCAL and reachable(address, port)), first)
    return EndpointAddress("http", chosen, port, f"DHCP option 245 in {candidates[chosen]}")

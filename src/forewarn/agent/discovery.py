"""Finds the endpoint: the address that was given, else Azure's own address, else DHCP option 245.

Option 245 is in the lease files of the machine's DHCP client. It holds the address of the endpoint's host.
"""

from __future__ import annotations

import os
import re
import socket
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.address import PORTS, Endpoint, read_endpoint
from forewarn.errors import EndpointNotFound
from forewarn.system.addresses import is_ipv4

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


# --- DHCP option 245 in lease files ---------------------------------------------------------------


_MOST_BYTES = 1 << 20
"""Of a file, from its end: what dhclient keeps grows with each renewal."""

_DHCLIENT_WORDS = re.compile(r'#[^\n]*|"(?:\\.|[^"\\])*"|[{};]|[^\s{};"]+', re.DOTALL)
_ESCAPED = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_NETWORKD_LINE = re.compile(r"^OPTION_245=([0-9A-Fa-f]{8})\s*$", re.MULTILINE)
_NETWORK_MANAGER_LINE = re.compile(r"^(?:dhcp4\.)?(?:private|unknown|option)_245=(\S+)\s*$", re.MULTILINE)
_UDHCPC_LINE = re.compile(r"""(?<!\w)opt245["']?[ \t]*[=:][ \t]*["']?([0-9A-Fa-f.:]+)""")


def read_dhclient(text: str) -> list[str]:
    """`option unknown-245 a8:3f:81:10;` in its lease blocks: the last one of each interface counts."""
    by_interface: dict[str, str | None] = {}
    interface, address = "", None
    statement: list[str] = []
    for word in _DHCLIENT_WORDS.findall(text):
        if word == "{":
            interface, address, statement = "", None, []
        elif word == "}":
            # Put in anew, so that the order is that of the last leases.
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
    """`OPTION_245=a83f8110`."""
    return _last(_NETWORKD_LINE, text)


def read_network_manager(text: str) -> list[str]:
    """`dhcp4.private_245=a8:3f:81:10` of a device's state; the lease files of its two kinds of client."""
    return _last(_NETWORK_MANAGER_LINE, text) or read_networkd(text) or read_dhclient(text)


def read_udhcpc(text: str) -> list[str]:
    """`opt245=a83f8110`, as its script has it in the environment: written down with env, as assignments, or as JSON."""
    return _last(_UDHCPC_LINE, text)


def _last(line: re.Pattern[str], text: str) -> list[str]:
    found = line.findall(text)
    address = to_address(found[-1]) if found else None
    return [address] if address else []


def to_address(value: str) -> str | None:
    """The address that four bytes are, however they are written; None: they are no address of a host."""
    if value.startswith('"'):
        # dhclient writes bytes that can be printed as text: d"A is "d\"A" and a byte among it that cannot be is \001.
        octets = _ESCAPED.sub(_unescaped, value[1:-1]).encode("latin-1", "replace")
    elif re.fullmatch("[0-9A-Fa-f]{8}", value):
        octets = bytes.fromhex(value)
    elif re.fullmatch("[0-9A-Fa-f]{1,2}(?::[0-9A-Fa-f]{1,2}){3}", value):
        octets = bytes(int(number, 16) for number in value.split(":"))
    else:
        octets = bytes(map(int, value.split("."))) if is_ipv4(value) else b""
    # 0.x is nowhere, and from 224 on are groups, what is reserved, and everybody.
    return ".".join(map(str, octets)) if len(octets) == 4 and 0 < octets[0] < 224 else None


def _unescaped(escape: re.Match[str]) -> str:
    sign = escape[1]
    return chr(int(sign, 8) & 0xFF) if sign[0] in "01234567" else sign


class LeaseFiles(NamedTuple):
    """What one DHCP client writes, and where."""

    client: str
    patterns: tuple[str, ...]
    """From the root; only the last part has wildcards."""
    read: Callable[[str], list[str]]


# Never in a folder that everybody may write to, such as /tmp: who writes a lease says where the agent asks.
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


def option_245(root: Path = Path("/")) -> list[tuple[str, Path]]:
    """Each address in the machine's lease files, with the file that has it; the newest file first.

    What cannot be read, or makes no sense, is passed over.
    """
    found = []
    for files in LEASES:
        for path in _matching(root, files.patterns):
            written, text = _contents(path)
            found += [(written, address, path) for address in files.read(text)]
    # By time alone: what one file has stays in its order.
    found.sort(key=lambda row: row[0], reverse=True)
    return [(address, path) for _, address, path in found]


def _matching(root: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        folder, _, name = pattern.rpartition("/")
        try:
            names = sorted(os.listdir(root / folder))  # noqa: PTH208 - the names alone are wanted
        except OSError:
            continue
        yield from (root / folder / one for one in names if fnmatchcase(one, name))


def _contents(path: Path) -> tuple[float, str]:
    """When it was written, and what; nothing, if it cannot be read."""
    try:
        # A pipe, which nobody may be writing to, would keep the agent waiting for ever.
        if not path.is_file():
            return 0.0, ""
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST_BYTES))
            text = file.read(_MOST_BYTES).decode("latin-1")
            written = os.stat(file.fileno()).st_mtime  # noqa: PTH116 - of the file that was read
    except (OSError, ValueError):
        return 0.0, ""
    if size > _MOST_BYTES:
        # Begin with a whole lease, where there are any.
        text = text[max(0, text.find("\nlease {")) :]
    return written, text


# --- Finding the endpoint -------------------------------------------------------------------------


VARIABLE = "FOREWARN_ENDPOINT"
LINK_LOCAL = "169.254.169.254"
_PATIENCE = 3.0
"""Seconds for a connection. The endpoint is in the machine's own host: it is there at once, or it is not there."""


def accepts(host: str, port: int) -> bool:
    """Whether a connection can be made. Straight to there: a proxy is another machine, whose events are not ours."""
    try:
        with socket.create_connection((host, port), _PATIENCE):
            return True
    except OSError:
        return False


def find_endpoint(
    given: str = "",
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/"),
    reachable: Callable[[str, int], bool] = accepts,
    *,
    given_by: str = "--endpoint",
) -> Endpoint:
    """Where to ask for Scheduled Events.

    What is given, or else FOREWARN_ENDPOINT, is used, whether it answers or not, and nothing else is tried.
    Changes nothing: it can be called again whenever there is trouble.
    """
    if given.strip():
        return read_endpoint(given, given_by)
    from_environment = (os.environ if environment is None else environment).get(VARIABLE, "")
    if from_environment.strip():
        return read_endpoint(from_environment, VARIABLE)
    port = PORTS["http"]
    if reachable(LINK_LOCAL, port):
        return Endpoint("http", LINK_LOCAL, port, "the link-local address")
    told: dict[str, Path] = {}
    for address, path in option_245(root):
        told.setdefault(address, path)
    if not told:
        clients = ", ".join(files.client for files in LEASES)
        problem = (
            f"{LINK_LOCAL} takes no connection, and no DHCP lease has option 245 (looked for in what {clients} keep)."
        )
        raise EndpointNotFound(problem=problem)
    # None that answers: the first is as good as any, and may be up again soon.
    first = next(iter(told))
    chosen = next((address for address in told if address != LINK_LOCAL and reachable(address, port)), first)
    return Endpoint("http", chosen, port, f"DHCP option 245 in {told[chosen]}")

"""A small network with a DHCP server that gives out option 245, and one client on it. Run inside namespaces of its own.

Two network namespaces and a cable between them: dnsmasq and the service on one side, the DHCP client and the agent's
search on the other. What the client writes to /run, /etc and its lease folder stays in a mount namespace; all of it is
gone when this process, the first of its PID namespace, ends. As arguments: the client, the address that option 245
has, and a folder to work in. What was found is written as JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.discovery import find_endpoint, find_option_245
from forewarn.agent.identity import choose_identity
from namespace import bring_up_loopback
from programs import SEARCHED

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.agent.address import EndpointAddress

SERVER, SERVICE, CLIENT = "10.45.0.1", "10.45.0.2", "10.45.0.77"
LONGEST = 30
"""Seconds for a lease, far more than it takes."""

FLEET = f"""
[[vm]]
name = "classic-0"
address = "{CLIENT}"
"""

NETWORKD = """
[Match]
Name=eth0
[Network]
DHCP=ipv4
LinkLocalAddressing=no
"""

NETWORK_MANAGER = """
[main]
plugins=keyfile
dhcp={client}
auth-polkit=false
"""

CONNECTION = """
[connection]
id=eth0
uuid=6604b755-b04f-33a3-8a74-8eec86f491b6
type=ethernet
interface-name=eth0
[ipv4]
method=auto
[ipv6]
method=disabled
"""

# How an administrator stores the options that the script gets: see docs/reference/agent-discovery.md.
UDHCPC_HOOK = """#!/bin/sh
case $1 in
bound | renew)
  env | grep '^opt245=' >"/run/udhcpc.$interface.lease"
  ip addr add "$ip/$mask" dev "$interface"
  ;;
esac
"""


def run(*command: str) -> None:
    # What a daemon leaves running keeps its output: not ours, which ends with us.
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=LONGEST)


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)


def until_line(process: subprocess.Popen[str], beginning: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return
    sys.exit(f"{process.args!r} has ended")


def hide_the_machine() -> None:
    """Its files, from what the clients write; and udev, which does not know this network."""
    run("mount", "-t", "sysfs", "-o", "ro", "sysfs", "/sys")  # where it cannot be written, nobody waits for udev
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    shutil.copytree("/etc", "/run/etc", symlinks=True)
    Path("/run/etc/resolv.conf").unlink(missing_ok=True)
    Path("/run/etc/resolv.conf").touch()
    shutil.rmtree("/run/etc/NetworkManager", ignore_errors=True)
    run("mount", "--bind", "/run/etc", "/etc")
    for folder in ("/var/lib/dhcp", "/var/lib/NetworkManager"):
        if Path(folder).is_dir():
            run("mount", "-t", "tmpfs", "tmpfs", folder)


def lay_the_cable() -> None:
    run("ip", "netns", "add", "server")
    run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    run("ip", "link", "set", "eth1", "netns", "server")
    for command in ("link set lo up", f"addr add {SERVER}/24 dev eth1", f"addr add {SERVICE}/24 dev eth1"):
        run("ip", "-n", "server", *command.split())
    run("ip", "-n", "server", "link", "set", "eth1", "up")
    run("ip", "link", "set", "eth0", "up")


def serve_dhcp(option: str) -> None:
    options = [
        *("--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--no-ping"),
        *("--interface=eth1", "--bind-interfaces", "--dhcp-authoritative", "--dhcp-leasefile=/run/dnsmasq.leases"),
        *("--pid-file=/run/dnsmasq.pid", "--log-facility=-", f"--dhcp-range={CLIENT},{CLIENT},1h"),
        "--dhcp-option=option:router",  # none, so that 169.254.169.254 is nowhere, and known to be
        f"--dhcp-option-force=245,{option}",  # sent even if the client does not request it, as on Azure
    ]
    # It is ready when it has bound its socket. An earlier client retries.
    start("ip", "netns", "exec", "server", "dnsmasq", *options)


def serve_events(folder: Path) -> None:
    (folder / "fleet.toml").write_text(FLEET)
    forewarn = str(Path(sys.executable).with_name("forewarn"))
    service = start(
        *("ip", "netns", "exec", "server", forewarn, "up", "--data", str(folder / "data")),
        *("--fleet", str(folder / "fleet.toml"), "--metadata", f"{SERVICE}:80"),
    )
    until_line(service, "Try")


def until_leased(*folders: str) -> None:
    """Wait until a file in one of them has the option. inotify reports changes, so there is no polling."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
    changes = fcntl.DN_CREATE | fcntl.DN_MODIFY | fcntl.DN_RENAME | fcntl.DN_MULTISHOT
    watched = [os.open(folder, os.O_RDONLY) for folder in folders]
    for folder in watched:
        fcntl.fcntl(folder, fcntl.F_NOTIFY, changes)
    while not find_option_245():
        if signal.sigtimedwait({signal.SIGIO}, LONGEST) is None:
            sys.exit(f"no lease with option 245 in {folders}")
    for folder in watched:
        os.close(folder)


def dhclient() -> None:
    run("dhclient", "-4", "-1", "-v", "eth0")


def udhcpc() -> None:
    hook = Path("/run/hook")
    hook.write_text(UDHCPC_HOOK)
    hook.chmod(0o755)
    run("udhcpc", "-f", "-n", "-q", "-i", "eth0", "-s", str(hook))


def networkd() -> None:
    folders = [Path("/run/systemd/netif", name) for name in ("", "leases", "links", "lldp")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.chown(folder, "systemd-network", "systemd-network")
    Path("/run/systemd/network").mkdir()
    Path("/run/systemd/network/eth0.network").write_text(NETWORKD)
    start("systemd-networkd")
    until_leased("/run/systemd/netif/leases")
    run("systemd-networkd-wait-online", "--interface=eth0", f"--timeout={LONGEST}")  # the address comes after the file


def network_manager(client: str) -> None:
    Path("/run/dbus").mkdir()
    bus = start("dbus-daemon", "--system", "--nofork", "--nopidfile", "--print-address=1")
    until_line(bus, "unix:")
    for folder in ("/run/NetworkManager/system-connections", "/run/NetworkManager/devices"):
        Path(folder).mkdir(parents=True)
    Path("/run/NetworkManager.conf").write_text(NETWORK_MANAGER.format(client=client))
    connection = Path("/run/NetworkManager/system-connections/eth0.nmconnection")
    connection.write_text(CONNECTION)
    connection.chmod(0o600)
    start("NetworkManager", "--no-daemon", "--config=/run/NetworkManager.conf")
    until_leased("/run/NetworkManager/devices", "/var/lib/NetworkManager")
    run("nm-online", "--quiet", "--timeout", str(LONGEST))


CLIENTS: dict[str, Callable[[], None]] = {
    "dhclient": dhclient,
    "udhcpc": udhcpc,
    "networkd": networkd,
    "network-manager": lambda: network_manager("internal"),
    "network-manager-dhclient": lambda: network_manager("dhclient"),
}


def ask(endpoint: EndpointAddress, path: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(endpoint.url + path, headers={"Metadata": "true"})  # noqa: S310 - http only
    with opener.open(request, timeout=LONGEST) as answer:
        return str(answer.read().decode())


def main() -> None:
    client, option, folder = sys.argv[1:]
    os.environ["PATH"] = SEARCHED
    bring_up_loopback()
    hide_the_machine()
    lay_the_cable()
    serve_dhcp(option)
    if option == SERVICE:
        serve_events(Path(folder))
    CLIENTS[client]()
    endpoint = find_endpoint("", {})
    found = {"url": endpoint.url, "origin": endpoint.origin}
    if option == SERVICE:
        name = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        found["name"] = choose_identity("", lambda: ask(endpoint, name), socket.gethostname()).name
        found["document"] = ask(endpoint, "/metadata/scheduledevents?api-version=2020-07-01")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

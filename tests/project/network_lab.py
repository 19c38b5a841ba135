"""The network of docs/network.md, in namespaces of its own: two VMs, their hypervisor, the metadata host.

Run inside `unshare`. The argument is a JSON object:

- `hypervisor`, `metadata_host`: shell commands, run in these namespaces
- `metadata`: address of the metadata service
- `bridged`: whether the metadata host also has an interface in the network of the VMs
- `dnsmasq`: its configuration, on the hypervisor; the VM `web-0` then gets its address by DHCP
- `nginx`: the part of its configuration inside `http`, on the metadata host
- `polls`: pairs of a VM and the source address of its poll

Prints a JSON array: for each poll, the name of the VM that the service takes the caller for; null without a response.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from namespace import bring_up_loopback
from programs import SEARCHED

VMS = {"web-0": "10.0.1.10", "mail": "10.0.1.11"}
FLEET = """
[[vm]]
name = "web-0"
address = "10.0.1.10"
listen = "{listen}:9000"

[[vm]]
name = "mail"
address = "10.0.1.11"
listen = "{listen}:9001"
"""
NAME_URL = "http://169.254.169.254/metadata/instance/compute/name?api-version=2021-02-01&format=text"
DHCP_CLIENT = """#!/bin/sh
[ "$1" = bound ] || exit 0
ip address add "$ip/$mask" dev "$interface"
set -- $staticroutes
while [ $# -gt 1 ]; do ip route add "$1" via "$2" dev "$interface"; shift 2; done
"""
CONNECT_SECONDS = "2"
"""A request that the filter drops gets no response. This is how long curl waits for one."""


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def inside(namespace: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, *command]


def lay_cables(*, bridged: bool) -> None:
    for name in (*VMS, "hypervisor", "metadata-host"):
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def cable(one: str, interface: str, other: str, other_interface: str) -> None:
        run("ip", "link", "add", interface, "netns", one, "type", "veth", "peer", other_interface, "netns", other)
        run("ip", "-n", one, "link", "set", interface, "up")
        run("ip", "-n", other, "link", "set", other_interface, "up")

    run("ip", "-n", "hypervisor", "link", "add", "br0", "type", "bridge", "forward_delay", "0")
    run("ip", "-n", "hypervisor", "link", "set", "br0", "up")
    run("ip", "-n", "hypervisor", "address", "add", "10.0.1.1/24", "dev", "br0")
    for name in VMS:
        cable(name, "eth0", "hypervisor", f"tap-{name}")
        run("ip", "-n", "hypervisor", "link", "set", f"tap-{name}", "master", "br0")
    cable("hypervisor", "uplink", "metadata-host", "eth0")
    run("ip", "-n", "hypervisor", "address", "add", "192.0.2.11/24", "dev", "uplink")
    run("ip", "-n", "metadata-host", "address", "add", "192.0.2.5/24", "dev", "eth0")
    if bridged:
        cable("hypervisor", "port", "metadata-host", "eth1")
        run("ip", "-n", "hypervisor", "link", "set", "port", "master", "br0")
        run("ip", "-n", "metadata-host", "address", "add", "10.0.1.5/24", "dev", "eth1")


def give_addresses(folder: Path, dnsmasq: str) -> None:
    for name, address in VMS.items():
        if not dnsmasq:
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", name, "route", "add", "default", "via", "10.0.1.1")
    if dnsmasq:
        (folder / "dnsmasq.conf").write_text(f"port=0\nuser=root\nno-ping\ninterface=br0\nbind-interfaces\n{dnsmasq}")
        (folder / "dhcp-client").write_text(DHCP_CLIENT)
        (folder / "dhcp-client").chmod(0o755)
        options = ("--keep-in-foreground", f"--conf-file={folder / 'dnsmasq.conf'}", "--pid-file", "--log-facility=-")
        leases = f"--dhcp-leasefile={folder / 'leases'}"
        subprocess.Popen(inside("hypervisor", "dnsmasq", *options, leases), stderr=subprocess.DEVNULL)
        client = (
            "udhcpc",
            "--foreground",
            "--now",
            "--quit",
            "--interface",
            "eth0",
            "--retries",
            "20",
            "--timeout",
            "1",
        )
        for name in VMS:
            run(*inside(name, *client, "--script", str(folder / "dhcp-client"), "-O", "121", "-O", "245"))


def start_service(folder: Path, metadata: str) -> None:
    listen = metadata.rpartition(":")[0] if metadata.startswith("192") else "127.0.0.1"
    (folder / "fleet.toml").write_text(FLEET.format(listen=listen))
    forewarn = str(Path(sys.executable).with_name("forewarn"))
    options = ("--data", ":memory:", "--metadata", metadata, "--fleet", str(folder / "fleet.toml"))
    service = subprocess.Popen(
        inside("metadata-host", forewarn, "up", *options),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert service.stdout is not None
    if not any(line.startswith("Try") for line in service.stdout):
        sys.exit("The service has ended.")


def start_nginx(folder: Path, configuration: str) -> None:
    (folder / "nginx.conf").write_text(
        f"daemon on; pid {folder}/nginx.pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;"
        f" fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;\n"
        f"{configuration}}}\n"
    )
    run(*inside("metadata-host", "nginx", "-c", str(folder / "nginx.conf")))


def poll(vm: str, source: str) -> str | None:
    addresses = run("ip", "-n", vm, "-o", "address", "show", "dev", "eth0")
    if f" {source}/" not in addresses:
        run("ip", "-n", vm, "address", "add", f"{source}/24", "dev", "eth0")
    curl = ("curl", "-s", "--connect-timeout", CONNECT_SECONDS, "--interface", source, "-H", "Metadata:true", NAME_URL)
    found = subprocess.run(inside(vm, *curl), stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    return found.stdout if found.returncode == 0 else None


def main(plan: dict[str, Any], folder: Path) -> None:
    bring_up_loopback()
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    lay_cables(bridged=plan["bridged"])
    for place in ("metadata_host", "hypervisor"):
        for commands in plan[place]:
            run(*inside(place.replace("_", "-"), "sh", "-euc", commands))
    start_service(folder, plan["metadata"])
    give_addresses(folder, plan["dnsmasq"])
    if plan["nginx"]:
        start_nginx(folder, plan["nginx"])
    sys.stdout.write(json.dumps([poll(*each) for each in plan["polls"]]))


if __name__ == "__main__":
    import os

    os.environ["PATH"] = SEARCHED
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))

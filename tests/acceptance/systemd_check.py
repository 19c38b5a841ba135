"""Runs as root in a container with systemd: installs, starts, reloads and removes the units. Writes what it saw.

    systemd_check.py PROGRAM FOLDER

PROGRAM is the command `forewarn`. The results go to the file results.json in FOLDER. It uses the standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM, FOLDER = sys.argv[1:]
CONFIG = Path("/etc/forewarn")
FLEET = '[[vm]]\nname = "web-0"\naddress = "127.0.0.1"\n'
RESULTS: dict[str, object] = {}


def run(*words: str) -> str:
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=90)
    return done.stdout if done.returncode == 0 else f"{' '.join(words)} ended with {done.returncode}: {done.stdout}"


def show(unit: str, *names: str) -> dict[str, str]:
    lines = run("systemctl", "show", unit, "--property", ",".join(names)).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def as_user(*words: str) -> str:
    return run("runuser", "-u", "forewarn", "--", PROGRAM, *words)


def until(unit: str, name: str, old: str) -> str:
    """Wait until the property has another value, which is not empty or 0."""
    for _ in range(300):
        value = show(unit, name).get(name, "")
        if value not in ("", "0", old):
            return value
        time.sleep(0.1)
    return f"still {old}"


def kind(path: str) -> str:
    found = Path(path).stat()
    import pwd

    return f"{found.st_mode & 0o777:o} {pwd.getpwuid(found.st_uid).pw_name}"


def check() -> None:
    RESULTS["install"] = run(PROGRAM, "install")
    config = CONFIG / "forewarn.toml"
    text = config.read_text()
    text = text.replace('# fleet = ""', 'fleet = "/etc/forewarn/fleet.toml"')
    config.write_text(text.replace('# metadata = "127.0.0.1:8169"', 'metadata = "127.0.0.1:80"'))
    (CONFIG / "fleet.toml").write_text(FLEET)
    RESULTS["install again"] = run(PROGRAM, "install")
    drop_in = Path("/etc/systemd/system/forewarn.service.d/test.conf")
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nWatchdogSec=3\nRestartSec=0\n")
    run("systemctl", "daemon-reload")
    RESULTS["start"] = run("systemctl", "enable", "--now", "--quiet", "forewarn.service")
    RESULTS["started"] = show("forewarn", "ActiveState", "User", "StatusText")
    pid = show("forewarn", "MainPID")["MainPID"]
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    RESULTS["process"] = {name: status[name] for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}
    RESULTS["kinds"] = [kind("/var/lib/forewarn"), kind("/var/lib/forewarn/admin-token"), kind("/run/forewarn")]
    RESULTS["vms"] = as_user("vm", "list", "--json")
    RESULTS["as root"] = run(PROGRAM, "vm", "list")
    (CONFIG / "fleet.toml").write_text(f'{FLEET}[[vm]]\nname = "web-1"\n')
    RESULTS["reload"] = run("systemctl", "reload", "forewarn.service")
    RESULTS["vms after reload"] = as_user("vm", "list", "--json")
    (CONFIG / "agent.toml").write_text("[[rule]]\n")
    options = ("--config", "/etc/forewarn/agent.toml", "--endpoint", "http://127.0.0.1:80", "--vm-name", "web-0")
    RESULTS["agent install"] = run(PROGRAM, "agent", "install", *options)
    run("systemctl", "daemon-reload")
    RESULTS["agent start"] = run("systemctl", "enable", "--now", "--quiet", "forewarn-agent.service")
    RESULTS["agent reload"] = run("systemctl", "reload", "forewarn-agent.service")
    RESULTS["agent"] = show("forewarn-agent", "ActiveState", "NRestarts")
    # A process that hangs is restarted.
    os.kill(int(pid), signal.SIGSTOP)
    RESULTS["pid after hang"] = until("forewarn", "MainPID", pid) != pid
    RESULTS["restarts"] = until("forewarn", "NRestarts", "0")
    RESULTS["uninstall"] = run(PROGRAM, "uninstall")
    RESULTS["agent uninstall"] = run(PROGRAM, "agent", "uninstall")
    RESULTS["stop"] = run("systemctl", "stop", "forewarn.service", "forewarn-agent.service")
    run("systemctl", "daemon-reload")
    RESULTS["after"] = [show(unit, "LoadState", "ActiveState") for unit in ("forewarn", "forewarn-agent")]
    RESULTS["links"] = [str(path) for path in Path("/etc/systemd/system").rglob("forewarn*.service")]
    RESULTS["data"] = sorted(path.name for path in Path("/var/lib/forewarn").iterdir() if path.suffix != ".db-wal")


try:
    check()
except BaseException as error:  # noqa: BLE001 - the test shows it
    RESULTS["error"] = repr(error)
finally:
    journal = run("journalctl", "--unit", "forewarn", "--unit", "forewarn-agent", "--output", "short", "--no-pager")
    Path(FOLDER, "journal").write_text(journal)
    Path(FOLDER, "results.json").write_text(json.dumps(RESULTS))
    run("systemctl", "poweroff", "--force")

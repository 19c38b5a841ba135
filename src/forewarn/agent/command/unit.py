"""The systemd unit that runs an agent. Pure: what is where is an argument."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from forewarn.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "forewarn-agent.service"
_PLAIN = re.compile(r"[A-Za-z0-9@+=:,./_-]+")
_HOMES = (PurePosixPath("/home"), PurePosixPath("/root"), PurePosixPath("/run/user"))


class Unit(NamedTuple):
    """What a unit is made of."""

    command: tuple[str, ...]
    """The program with its options, each path absolute."""
    user: str = ""
    """Empty: root."""
    state: str = ""
    """A folder that was chosen; empty: the one that systemd makes."""
    files: tuple[str, ...] = ()
    """What else it reads, each path absolute."""


_UNIT = """\
[Unit]
Description=Forewarn agent: prepares this machine for scheduled events
# The endpoint is asked over the network.
Wants=network-online.target
After=network-online.target
# It is needed most when things go wrong: systemd never gives up starting it.
StartLimitIntervalSec=0
"""

_SERVICE = """\
# It says when it has started, and every minute that it does not hang.
Type=notify
WatchdogSec=180
# Whatever has ended it: what it has prepared must be undone.
Restart=always
RestartSec=5
# It stops within seconds: what is under way is on disk, and the next run goes on from there.
TimeoutStopSec=30
# Only the agent is ended. It ends the handlers that it runs by itself, and an application that a handler has started
# again must not die with it.
KillMode=process
# When memory is short others go first; and an application that a handler has started does not take it along.
OOMScoreAdjust=-250
OOMPolicy=continue
# It reads texts from a network: nothing that it runs gets more rights than it has itself.
NoNewPrivileges=yes
# Handlers work on applications, not on the kernel, the clock or the host's name.
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
# The network, and the sockets of HAProxy, D-Bus and the journal.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
# Nobody needs these to stop and start applications.
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
"""

_AS_ROOT = """\
# Handlers may write where data and configuration are, but not where programs are.
ProtectSystem=yes
# Root may do what handlers are for (stop units, end processes, mount, talk to devices), but not this.
CapabilityBoundingSet=~CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_TIME CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_SYSLOG
SystemCallFilter=~@clock @cpu-emulation @module @obsolete @raw-io @swap
"""

_AS_USER = """\
# All is read-only but its own folder. Where a handler writes something else, allow that in a drop-in:
# ReadWritePaths=/var/lib/checkpoints
ProtectSystem=strict
# A handler that talks to a socket in /tmp needs PrivateTmp=no in a drop-in.
PrivateTmp=yes
# This user's handlers need no device, no capability, no namespace and nobody else's processes.
PrivateDevices=yes
CapabilityBoundingSet=
AmbientCapabilities=
RestrictNamespaces=yes
ProtectProc=invisible
RemoveIPC=yes
# What ordinary programs call. No MemoryDenyWriteExecute: handlers may be written in Java or JavaScript.
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
"""

_STATE = """\
# What it has done and must undo, readable by it alone; it outlives the unit.
StateDirectory=forewarn-agent
StateDirectoryMode=0700
"""

_INSTALL = """\
[Install]
WantedBy=multi-user.target
"""


def render_unit(unit: Unit) -> str:
    """The text of the unit's file, with a reason at each line that is not plain."""
    start = f"[Service]\nExecStart={command_line(unit.command)}\n"
    if unit.user:
        start += f"User={_escaped(unit.user)}\n"
    bounds = _AS_USER + _homes(unit) if unit.user else _AS_ROOT
    return "\n".join([_UNIT, start + _state(unit) + _SERVICE + bounds, _INSTALL])


def _state(unit: Unit) -> str:
    if unit.state:
        return f"# What it has done is kept here. The folder must be there.\nReadWritePaths={_word(unit.state)}\n"
    return _STATE


def _homes(unit: Unit) -> str:
    words = (
        unit.state,
        *unit.files,
        *(word.partition("=")[2] if word.startswith("--") else word for word in unit.command),
    )
    paths = [PurePosixPath(word) for word in words if word.startswith("/")]
    if any(home in path.parents for path in paths for home in _HOMES):
        return "# The agent, its config, a handler or its state is in somebody's home.\nProtectHome=read-only\n"
    return "# Nothing of it is in anybody's home.\nProtectHome=yes\n"


def command_line(words: Sequence[str]) -> str:
    """The words as ExecStart= takes them: quoted, and without what systemd would expand."""
    if set(words[0]) & set("'\"\\"):
        raise BadOption(name="the program", value=words[0], problem="systemd starts none with quotes in its path.")
    # A colon before the program switches variables off. Doubling the $ would be wrong in the program's own path.
    if any("$" in word for word in words):
        words = [f":{words[0]}", *words[1:]]
    return " ".join(_word(word) for word in words)


def _word(word: str) -> str:
    escaped = _escaped(word)
    if _PLAIN.fullmatch(word):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(word: str) -> str:
    if not word.isprintable():
        raise BadOption(name="the path", value=word, problem="a unit cannot hold it. Use one that can be printed.")
    return word.replace("%", "%%")

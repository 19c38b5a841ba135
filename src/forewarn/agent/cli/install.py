"""forewarn agent install: write a systemd unit that runs the agent."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.cli.options import Parser, add_places, choose_places, config_path, load_config, read_address
from forewarn.errors import BadOption, NotPermitted, UnitDiffers, UnitMasked
from forewarn.system.files import refuse_other_than_file, write_atomically

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


# --- The unit -------------------------------------------------------------------------------------


UNIT_NAME = "forewarn-agent.service"
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


# --- The command ----------------------------------------------------------------------------------


UNIT_FOLDER = "/etc/systemd/system"


def parser() -> Parser:
    found = Parser(
        "install",
        "Write a systemd unit that runs the agent.\n\n"
        "The config is checked first. The unit starts this very program, by its whole path. Nothing is started.",
        "forewarn agent install --config /etc/forewarn/agent.toml",
        "forewarn agent install --config /etc/forewarn/agent.toml --print",
    )
    add_places(found)
    found.add_argument("--listen", metavar="HOST:PORT", help="serve metrics and health there")
    found.add_argument(
        "--user", metavar="NAME", default="", help="run as that user, with tighter bounds (default: root)"
    )
    found.add_argument(
        "--unit-dir", metavar="DIR", default=UNIT_FOLDER, help=f"where units are (default: {UNIT_FOLDER})"
    )
    found.add_argument("--print", action="store_true", help="print the unit, and write nothing")
    found.add_argument("--force", action="store_true", help="write over a unit that says something else")
    return found


def run(options: Namespace) -> int:
    path = config_path(options)
    config = load_config(path)
    choose_places(options, config, {})  # refuses what is empty
    owner = _check_user(options.user) if options.user else None
    _check_addresses(options)
    state = str(Path(options.state).absolute()) if options.state else ""
    # What stands in the environment of whoever installs is not there when systemd starts it.
    given = {
        "--config": "" if path is None else str(path.absolute()),
        "--endpoint": options.endpoint,
        "--vm-name": options.vm_name,
        "--listen": options.listen,
        "--state": state,
    }
    # In one word each: a value may look like an option.
    command = [*started_by(), "run", *(f"{flag}={value}" for flag, value in given.items() if value)]
    chosen = state or config.state
    own = tuple(str(named.table["file"]) for named in config.handlers.values() if "file" in named.table)
    text = render_unit(Unit(tuple(command), options.user, chosen, own))
    if options.print:
        sys.stdout.write(text)
        return 0
    file = Path(options.unit_dir) / UNIT_NAME
    if chosen:
        _make_folder(Path(chosen), owner)
    sys.stdout.write(f"{_write(file, text, force=options.force)}\n")
    sys.stdout.write(
        f"Start it now and at every boot:\n  systemctl daemon-reload\n  systemctl enable --now {UNIT_NAME}\n"
    )
    return 0


def started_by() -> list[str]:
    """How this program was started, so that systemd can do the same: each path absolute."""
    import forewarn

    archive = getattr(forewarn.__loader__, "archive", None)
    if archive is not None:
        return [sys.executable, str(Path(archive).absolute())]
    program = Path(sys.argv[0]).absolute()
    if program.name == "forewarn" and os.access(program, os.X_OK):
        return [str(program), "agent"]
    return [sys.executable, "-m", "forewarn.agent"]


def _check_addresses(options: Namespace) -> None:
    """As run will: a unit that it refuses would be started again for ever."""
    from forewarn.agent.address import read_endpoint

    if options.endpoint:
        read_endpoint(options.endpoint, "--endpoint")
    if options.listen is not None:
        read_address(options.listen, "--listen")


def _make_folder(folder: Path, owner: tuple[int, int] | None) -> None:
    """systemd starts no unit that may write to a folder which is not there. One that is there stays as it is."""
    try:
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True)
            if owner is not None:
                os.chown(folder, *owner)
    except OSError as error:
        problem = error.strerror
        raise NotPermitted(action="make the folder", path=folder, problem=problem, flag="--state") from error


def _check_user(name: str) -> tuple[int, int]:
    """Who that is, in numbers."""
    import pwd

    try:
        found = pwd.getpwnam(name)
    except KeyError:
        problem = f"there is no such user. Make one with: useradd --system --no-create-home {name}"
        raise BadOption(name="--user", value=name, problem=problem) from None
    return found.pw_uid, found.pw_gid


def _write(file: Path, text: str, *, force: bool) -> str:
    """Write it, whole or not at all; what was done, in words."""
    content = text.encode()
    try:
        if file.is_symlink() and os.path.realpath(file) == os.path.realpath(os.devnull):
            raise UnitMasked(path=file, unit=file.name)
        refuse_other_than_file(file)
        there = _beginning(file, len(content) + 1)
        if there == content:
            return f"{file} is as it should be already."
        if there is not None and not force:
            raise UnitDiffers(path=file)
        write_atomically(file, content, 0o644, follow_links=True)
    except OSError as error:
        raise NotPermitted(action="write", path=file, problem=error.strerror, flag="--unit-dir") from error
    return f"Wrote {file}."


def _beginning(file: Path, size: int) -> bytes | None:
    """So much of what is there; None: nothing is."""
    try:
        with file.open("rb") as stream:
            return stream.read(size)
    except FileNotFoundError:
        return None

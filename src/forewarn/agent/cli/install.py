"""forewarn agent install: write a systemd unit that runs the agent."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.cli.options import (
    AgentParser,
    add_common_options,
    config_path,
    load_config,
    read_address,
    resolve_options,
)
from forewarn.errors import BadOption, NotPermitted, UnitDiffers, UnitMasked
from forewarn.system.files import check_regular_file, write_atomically

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


# --- The unit -------------------------------------------------------------------------------------


UNIT_NAME = "forewarn-agent.service"
_PLAIN = re.compile(r"[A-Za-z0-9@+=:,./_-]+")
_HOMES = (PurePosixPath("/home"), PurePosixPath("/root"), PurePosixPath("/run/user"))


class SystemdUnit(NamedTuple):
    """The variable parts of the unit file."""

    command: tuple[str, ...]
    """The program and its options, with absolute paths."""
    user: str = ""
    """Empty: root."""
    state: str = ""
    """The configured state folder; empty: the one that systemd creates."""
    files: tuple[str, ...] = ()
    """Other files that the agent reads, with absolute paths."""


_UNIT = """\
[Unit]
Description=Forewarn agent: prepares this VM for scheduled events
# The agent polls the endpoint over the network.
Wants=network-online.target
After=network-online.target
# The agent must always run: no limit on restarts.
StartLimitIntervalSec=0
"""

_SERVICE = """\
# The agent notifies systemd when it has started, and every minute while its loop runs.
Type=notify
WatchdogSec=180
# Restart after any exit: the agent must undo what it has prepared.
Restart=always
RestartSec=5
# The agent stops within seconds. Unfinished work is on disk, and the next run continues it.
TimeoutStopSec=30
# Stop only the agent. It ends its running handlers itself. An application that a handler has started must keep
# running.
KillMode=process
# When memory runs out, other processes are killed first. If an application that a handler has started is killed, the
# agent keeps running.
OOMScoreAdjust=-250
OOMPolicy=continue
# The agent reads data from the network: programs that it runs cannot get additional privileges.
NoNewPrivileges=yes
# Handlers manage applications. They do not change the kernel, the clock or the host name.
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
# The network, and the Unix sockets of HAProxy, D-Bus and the journal.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
# Not needed to stop and start applications.
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
"""

_AS_ROOT = """\
# Handlers may write data and configuration, but not the folders of programs.
ProtectSystem=yes
# As root, handlers may stop units, end processes, mount, and use devices. They do not need these capabilities.
CapabilityBoundingSet=~CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_TIME CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_SYSLOG
SystemCallFilter=~@clock @cpu-emulation @module @obsolete @raw-io @swap
"""

_AS_USER = """\
# Only the agent's own folder is writable. Allow other folders for handlers in a drop-in:
# ReadWritePaths=/var/lib/checkpoints
ProtectSystem=strict
# A handler that uses a socket in /tmp needs PrivateTmp=no in a drop-in.
PrivateTmp=yes
# Handlers of this user need no devices, capabilities or namespaces, and no access to processes of other users.
PrivateDevices=yes
CapabilityBoundingSet=
AmbientCapabilities=
RestrictNamespaces=yes
ProtectProc=invisible
RemoveIPC=yes
# System calls of ordinary programs. MemoryDenyWriteExecute is not set: handlers may use Java or JavaScript.
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
"""

_STATE = """\
# The agent's record of what it has done and must undo. Only the agent can read it. It stays when the unit is removed.
StateDirectory=forewarn-agent
StateDirectoryMode=0700
"""

_INSTALL = """\
[Install]
WantedBy=multi-user.target
"""


def render_unit(unit: SystemdUnit) -> str:
    """Return the content of the unit file, with comments that give the reason for each setting."""
    start = f"[Service]\nExecStart={command_line(unit.command)}\n"
    if unit.user:
        start += f"User={_escaped(unit.user)}\n"
    limits = _AS_USER + _homes(unit) if unit.user else _AS_ROOT
    return "\n".join([_UNIT, start + _state(unit) + _SERVICE + limits, _INSTALL])


def _state(unit: SystemdUnit) -> str:
    if unit.state:
        folder = _quote_argument(unit.state)
        return f"# The agent's record of what it has done. The folder must exist.\nReadWritePaths={folder}\n"
    return _STATE


def _homes(unit: SystemdUnit) -> str:
    words = (
        unit.state,
        *unit.files,
        *(word.partition("=")[2] if word.startswith("--") else word for word in unit.command),
    )
    paths = [PurePosixPath(word) for word in words if word.startswith("/")]
    if any(home in path.parents for path in paths for home in _HOMES):
        return "# The agent, its policy, a handler or its state is in a home directory.\nProtectHome=read-only\n"
    return "# The agent uses no file in a home directory.\nProtectHome=yes\n"


def command_line(words: Sequence[str]) -> str:
    """Return the words as a value of ExecStart=: quoted, and with systemd's expansions disabled."""
    if set(words[0]) & set("'\"\\"):
        raise BadOption(
            name="the program", value=words[0], problem="systemd cannot start a program with quotes in its path."
        )
    # A colon before the program disables variable expansion. Doubling the $ does not work in the program's path.
    if any("$" in word for word in words):
        words = [f":{words[0]}", *words[1:]]
    return " ".join(_quote_argument(word) for word in words)


def _quote_argument(word: str) -> str:
    escaped = _escaped(word)
    if _PLAIN.fullmatch(word):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(word: str) -> str:
    if not word.isprintable():
        raise BadOption(name="the path", value=word, problem="a unit file cannot contain it. Use printable characters.")
    return word.replace("%", "%%")


# --- The command ----------------------------------------------------------------------------------


UNIT_FOLDER = "/etc/systemd/system"


def parser() -> AgentParser:
    parser = AgentParser(
        "install",
        "Write a systemd unit that runs the agent.\n\n"
        "The command checks the policy file first. The unit starts this program by its absolute path.\n"
        "The command does not start the unit.",
        "forewarn agent install --config /etc/forewarn/agent.toml",
        "forewarn agent install --config /etc/forewarn/agent.toml --print",
    )
    add_common_options(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", help="address for metrics and health")
    parser.add_argument(
        "--user", metavar="NAME", default="", help="run the agent as this user, with stricter limits (default: root)"
    )
    parser.add_argument(
        "--unit-dir", metavar="DIR", default=UNIT_FOLDER, help=f"folder for the unit file (default: {UNIT_FOLDER})"
    )
    parser.add_argument("--print", action="store_true", help="print the unit and write nothing")
    parser.add_argument("--force", action="store_true", help="replace a unit file whose content differs")
    return parser


def run(options: Namespace) -> int:
    path = config_path(options)
    config = load_config(path)
    resolve_options(options, config, {})  # rejects empty values
    owner = _check_user(options.user) if options.user else None
    _check_addresses(options)
    state = str(Path(options.state).absolute()) if options.state else ""
    # Variables of this environment do not exist when systemd starts the unit: only options go into it.
    given = {
        "--config": "" if path is None else str(path.absolute()),
        "--endpoint": options.endpoint,
        "--vm-name": options.vm_name,
        "--listen": options.listen,
        "--state": state,
    }
    # --name=value, because a value may start with a dash.
    command = [*own_command(), "run", *(f"{flag}={value}" for flag, value in given.items() if value)]
    state_folder = state or config.state
    handler_files = tuple(str(named.table["file"]) for named in config.handlers.values() if "file" in named.table)
    text = render_unit(SystemdUnit(tuple(command), options.user, state_folder, handler_files))
    if options.print:
        sys.stdout.write(text)
        return 0
    file = Path(options.unit_dir) / UNIT_NAME
    if state_folder:
        _make_folder(Path(state_folder), owner)
    sys.stdout.write(f"{_write(file, text, force=options.force)}\n")
    sys.stdout.write(
        f"To start the agent now and at every boot:\n  systemctl daemon-reload\n  systemctl enable --now {UNIT_NAME}\n"
    )
    return 0


def own_command() -> list[str]:
    """Return the command that started this program, with absolute paths."""
    import forewarn

    archive = getattr(forewarn.__loader__, "archive", None)
    if archive is not None:
        return [sys.executable, str(Path(archive).absolute())]
    program = Path(sys.argv[0]).absolute()
    if program.name == "forewarn" and os.access(program, os.X_OK):
        return [str(program), "agent"]
    return [sys.executable, "-m", "forewarn.agent"]


def _check_addresses(options: Namespace) -> None:
    """Reject values that `run` would reject: systemd would restart such a unit without end."""
    from forewarn.agent.address import read_endpoint

    if options.endpoint:
        read_endpoint(options.endpoint, "--endpoint")
    if options.listen is not None:
        read_address(options.listen, "--listen")


def _make_folder(folder: Path, owner: tuple[int, int] | None) -> None:
    """Create the folder if it is missing: systemd does not start a unit whose ReadWritePaths= does not exist."""
    try:
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True)
            if owner is not None:
                os.chown(folder, *owner)
    except OSError as error:
        problem = error.strerror
        raise NotPermitted(action="create the folder", path=folder, problem=problem, flag="--state") from error


def _check_user(name: str) -> tuple[int, int]:
    """Return the user id and group id of a user."""
    import pwd

    try:
        found = pwd.getpwnam(name)
    except KeyError:
        problem = f"there is no such user. Create it with: useradd --system --no-create-home {name}"
        raise BadOption(name="--user", value=name, problem=problem) from None
    return found.pw_uid, found.pw_gid


def _write(file: Path, text: str, *, force: bool) -> str:
    """Write the unit file atomically and return a message for the user."""
    content = text.encode()
    try:
        if file.is_symlink() and os.path.realpath(file) == os.path.realpath(os.devnull):
            raise UnitMasked(path=file, unit=file.name)
        check_regular_file(file)
        current = _read_start(file, len(content) + 1)
        if current == content:
            return f"{file} is up to date."
        if current is not None and not force:
            raise UnitDiffers(path=file)
        write_atomically(file, content, 0o644, follow_links=True)
    except OSError as error:
        raise NotPermitted(action="write", path=file, problem=error.strerror, flag="--unit-dir") from error
    return f"Wrote {file}."


def _read_start(file: Path, size: int) -> bytes | None:
    """Return the first bytes of a file; None if it does not exist."""
    try:
        with file.open("rb") as stream:
            return stream.read(size)
    except FileNotFoundError:
        return None

"""forewarn agent install: write a systemd unit that runs the agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.cli.options import (
    AgentParser,
    add_common_options,
    add_run_options,
    config_path,
    load_config,
    read_address,
    resolve_options,
)
from forewarn.errors import BadOption
from forewarn.system.systemd_unit import (
    UNIT_FOLDER,
    existing_folder,
    find_user,
    make_folder,
    own_program,
    render_unit,
    start_hint,
    write_unit,
)

if TYPE_CHECKING:
    from argparse import Namespace


# --- The unit -------------------------------------------------------------------------------------


UNIT_NAME = "forewarn-agent.service"


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
# If systemd has locked 169.254.169.254 (systemd.imds.network=locked), set both to CAP_NET_ADMIN in a drop-in.
CapabilityBoundingSet=
AmbientCapabilities=
"""

_STATE = """\
# The agent's record of what it has done and must undo. Only the agent can read it. It stays when the unit is removed.
StateDirectory=forewarn-agent
StateDirectoryMode=0700
"""


def agent_unit(unit: SystemdUnit) -> str:
    """Return the content of the unit file, with comments that give the reason for each setting."""
    limits = _AS_USER if unit.user else _AS_ROOT
    return render_unit(_UNIT, unit.command, unit.user, _state(unit) + _SERVICE, limits, (unit.state, *unit.files))


def _state(unit: SystemdUnit) -> str:
    if unit.state:
        return f"# The agent's record of what it has done. The folder must exist.\n{existing_folder(unit.state)}"
    return _STATE


# --- The command ----------------------------------------------------------------------------------


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
    add_run_options(parser)
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
        "--preview-versions": options.preview_versions,
        "--state": state,
    }
    # --name=value, because a value may start with a dash.
    command = [*own_command(), "run", *(f"{flag}={value}" for flag, value in given.items() if value)]
    state_folder = state or config.state
    handler_files = tuple(str(named.table["file"]) for named in config.handlers.values() if "file" in named.table)
    text = agent_unit(SystemdUnit(tuple(command), options.user, state_folder, handler_files))
    if options.print:
        sys.stdout.write(text)
        return 0
    file = Path(options.unit_dir) / UNIT_NAME
    if state_folder:
        make_folder(Path(state_folder), owner, "--state")
    sys.stdout.write(f"{write_unit(file, text, force=options.force)}\n")
    sys.stdout.write(start_hint("the agent", UNIT_NAME))
    return 0


def own_command() -> list[str]:
    """Return the command that started this program, with absolute paths."""
    import forewarn

    archive = getattr(forewarn.__loader__, "archive", None)
    if archive is not None:
        return [sys.executable, str(Path(archive).absolute())]
    program = own_program()
    return [program, "agent"] if program else [sys.executable, "-m", "forewarn.agent"]


def _check_addresses(options: Namespace) -> None:
    """Reject values that `run` would reject: systemd would restart such a unit without end."""
    from forewarn.agent.address import read_endpoint

    if options.endpoint:
        read_endpoint(options.endpoint, "--endpoint")
    if options.listen is not None:
        read_address(options.listen, "--listen")


def _check_user(name: str) -> tuple[int, int]:
    """Return the user id and group id of a user."""
    found = find_user(name)
    if found is None:
        problem = f"there is no such user. Create it with: useradd --system --no-create-home {name}"
        raise BadOption(name="--user", value=name, problem=problem)
    return found

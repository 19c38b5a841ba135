"""forewarn install: write a systemd unit that runs the service, and its config file."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import click

from forewarn.cli.fleet import read_fleet_file
from forewarn.errors import BadOption, NotPermitted
from forewarn.files.fleet_file import parse_fleet
from forewarn.settings import SECTIONS, Setting, resolve
from forewarn.system.files import write_atomically
from forewarn.system.service_files import REGISTRY_VARIABLE, SYSTEM_REGISTRY, TOKEN_FILE
from forewarn.system.systemd_unit import (
    STATE_PARENT,
    UNIT_FOLDER,
    existing_folder,
    find_user,
    make_folder,
    own_program,
    render_unit,
    start_hint,
    write_unit,
)
from forewarn.system.user_folders import MEMORY

UNIT_NAME = "forewarn.service"
USER = "forewarn"
CONFIG_FILE = "/etc/forewarn/forewarn.toml"
STATE_NAME = "forewarn"
DATA_FOLDER = f"{STATE_PARENT}/{STATE_NAME}"


# --- The unit -------------------------------------------------------------------------------------


class ServiceUnit(NamedTuple):
    """The variable parts of the unit file."""

    command: tuple[str, ...]
    """The program and its options, with absolute paths."""
    user: str
    data: str
    """The data folder."""
    files: tuple[str, ...] = ()
    """Other files that the service reads."""


_UNIT = """\
[Unit]
Description=Forewarn: notifies VMs before maintenance
Wants=network-online.target
After=network-online.target
"""

_FOLDERS = f"""\
# {SYSTEM_REGISTRY} has the file by which commands of this user find the service.
RuntimeDirectory={SYSTEM_REGISTRY.name}
RuntimeDirectoryMode=0700
Environment={REGISTRY_VARIABLE}={SYSTEM_REGISTRY}
ConfigurationDirectory=forewarn
"""

_STATE = f"""\
# The database and the admin token. Only the service can read them. They stay when the unit is removed.
StateDirectory={STATE_NAME}
StateDirectoryMode=0700
"""

_SERVICE = """\
# The service notifies systemd when it has started, and every 20 seconds while its event loop runs.
Type=notify
WatchdogSec=60
Restart=always
RestartSec=5
# The start can include a migration of a large database.
TimeoutStartSec=10min
# The service finishes open requests first.
TimeoutStopSec=60
# Stop only the service. A program of the fabric continues its work, and the next start waits for it.
KillMode=process
# When memory runs out, other processes are killed first. If a program of the fabric is killed, the service keeps
# running.
OOMScoreAdjust=-250
OOMPolicy=continue
# To listen on port 80.
AmbientCapabilities=CAP_NET_BIND_SERVICE
CapabilityBoundingSet=CAP_NET_BIND_SERVICE
UMask=0077
# Only the folders of the service are writable. Allow others for programs of the fabric in a drop-in:
# ReadWritePaths=/var/lib/host-work
ProtectSystem=strict
PrivateTmp=yes
"""


def service_unit(unit: ServiceUnit) -> str:
    """Return the content of the unit file, with comments that give the reason for each setting."""
    state = _STATE
    if unit.data not in (DATA_FOLDER, MEMORY):
        state = f"# The database and the admin token. The folder must exist.\n{existing_folder(unit.data)}"
    settings = state + _FOLDERS + _SERVICE
    return render_unit(_UNIT, unit.command, unit.user, settings, paths=(unit.data, *unit.files))


# --- The config file ------------------------------------------------------------------------------

_HEADER = f"""\
# Settings of the Forewarn service. A line that begins with "# NAME =" shows the default.
# After a change: systemctl restart {UNIT_NAME.removesuffix(".service")}
"""


def config_template() -> str:
    """Return a config file with all settings. Only the data folder differs from the default."""
    parts, tables = [_HEADER], []
    for title, settings in SECTIONS.items():
        parts.append(f"# --- {title} ---\n")
        for setting in settings:
            text = setting.help.partition("  [")[0].replace(" Can be repeated.", "")
            if setting.name == "data":
                parts.append(f'# {text}\ndata = "{DATA_FOLDER}"\n')
            elif setting.is_repeatable:
                tables.append(f"# {text}\n# [{setting.name}]\n{_examples(setting)}\n")
            else:
                parts.append(f"# {text}\n# {setting.name} = {_toml(setting.default)}\n")
    return "\n".join([*parts, *tables])


def _examples(setting: Setting) -> str:
    pairs = [pair.split("=", 1) for pair in setting.default.split(setting.separator) if pair]
    pairs = pairs or [["host-update", "Host server is undergoing maintenance."]]
    return "\n".join(f"# {key} = {_toml(value)}" for key, value in pairs)


def _toml(text: str) -> str:
    if text in ("true", "false"):
        return text
    with suppress(ValueError):
        float(text)
        return text
    return json.dumps(text)


# --- The command ----------------------------------------------------------------------------------


@click.command()
@click.option("--config", metavar="FILE", default=CONFIG_FILE, help=f"The config file.  [default: {CONFIG_FILE}]")
@click.option("--user", metavar="NAME", default=USER, help=f"Run the service as this user.  [default: {USER}]")
@click.option(
    "--unit-dir", metavar="DIR", default=UNIT_FOLDER, help=f"Folder for the unit file.  [default: {UNIT_FOLDER}]"
)
@click.option("--print", "prints", is_flag=True, help="Print the unit and write nothing.")
@click.option("--force", is_flag=True, help="Replace a unit file whose content differs.")
def command(config: str, user: str, unit_dir: str, prints: bool, force: bool) -> None:
    """Write a systemd unit that runs the service.

    The command also writes a config file, if there is none, and creates the system user. It checks an existing config
    file and its fleet file. It does not start the service.

    \b
    Example:
      forewarn install --print
      sudo forewarn install
    """
    file = Path(config).absolute()
    unit = _unit_for(file, user)
    text = service_unit(unit)
    if prints:
        click.echo(text, nl=False)
        return
    owner = _user_ids(user)
    _check_program(unit.command[: unit.command.index("up")], user, owner)
    if not file.exists():
        _write_config(file)
        click.echo(f"Wrote {file}.")
    if unit.data not in (DATA_FOLDER, MEMORY):
        make_folder(Path(unit.data), owner, "data in the config file")
    click.echo(write_unit(Path(unit_dir) / UNIT_NAME, text, force=force))
    click.echo(start_hint("the service", UNIT_NAME) + _token_hint(unit), nl=False)


def _unit_for(config: Path, user: str) -> ServiceUnit:
    """Return the unit for a config file. Raises an error if the service would not start with it."""
    command = [*_own_command(), "up", f"--config={config}"]
    if not config.exists():
        return ServiceUnit(tuple(command), user, DATA_FOLDER)
    # The variables of this environment do not exist when systemd starts the unit.
    values = resolve({}, {}, str(config))
    data = str(values["data"].value)
    if values["data"].origin == "default":
        data = DATA_FOLDER
        command.append(f"--data={data}")
    if fleet := values["fleet"].value:
        parse_fleet(read_fleet_file(fleet), fleet)
    files = tuple(values[name].value for name in ("fleet", "tls_certificate", "tls_key") if values[name].value)
    return ServiceUnit(tuple(command), user, data, files)


def _own_command() -> list[str]:
    program = own_program()
    return [program] if program else [sys.executable, "-m", "forewarn"]


def _user_ids(name: str) -> tuple[int, int]:
    """Return the user id and group id of the user. Create the system user if it is missing."""
    found = find_user(name)
    if found is not None:
        return found
    folders = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    program = shutil.which("useradd", path=folders)
    words = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", DATA_FOLDER]
    words += ["--shell", "/usr/sbin/nologin", name]
    if program is None or os.geteuid() != 0:
        raise BadOption(name="--user", value=name, problem=f"there is no such user. As root, run: {shlex.join(words)}")
    done = subprocess.run([program, *words[1:]], capture_output=True, text=True, check=False)  # noqa: S603
    found = find_user(name)
    if found is None:
        problem = f"the user cannot be created: {done.stderr.strip() or f'useradd ended with {done.returncode}'}"
        raise BadOption(name="--user", value=name, problem=problem)
    click.echo(f"Created the system user {name}.")
    return found


def _check_program(words: tuple[str, ...], user: str, owner: tuple[int, int]) -> None:
    """Run the program as the user: it may be in a folder that only root can read."""
    if os.geteuid() != 0:
        return
    uid, gid = owner
    try:
        subprocess.run(  # noqa: S603 - it is this very program
            [*words, "--version"], user=uid, group=gid, extra_groups=[], cwd="/", capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "strerror", None) or f"it ended with {getattr(error, 'returncode', error)}"
        place = "Install Forewarn where every user can read it, for example in /opt/forewarn."
        problem = f"this user cannot run {shlex.join(words)}: {reason}. {place}"
        raise BadOption(name="--user", value=user, problem=problem) from error


def _write_config(file: Path) -> None:
    try:
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomically(file, config_template().encode(), 0o644)
    except OSError as error:
        raise NotPermitted(action="write", path=file, problem=error.strerror, flag="--config") from error


def _token_hint(unit: ServiceUnit) -> str:
    program = shlex.join(_own_command())
    where = "a file in " + str(SYSTEM_REGISTRY) if unit.data == MEMORY else f"{unit.data}/{TOKEN_FILE}"
    return (
        f"The first start writes an admin token to {where}. Commands of the user {unit.user} use it:\n"
        f"  sudo -u {unit.user} {program} vm list\n"
        f"  sudo -u {unit.user} {program} token create NAME --role operator\n"
    )

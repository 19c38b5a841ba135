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

import click

from forewarn.cli.fleet import read_fleet_file
from forewarn.errors import BadOption, NotPermitted
from forewarn.files.fleet_file import parse_fleet
from forewarn.settings import SECTIONS, Setting, resolve
from forewarn.system.files import write_atomically
from forewarn.system.service_files import SYSTEM_REGISTRY, TOKEN_FILE
from forewarn.system.systemd_unit import (
    UNIT_FOLDER,
    fill_in,
    find_user,
    make_folder,
    own_program,
    read_unit,
    write_unit,
)
from forewarn.system.user_folders import MEMORY

UNIT_NAME = "forewarn.service"
USER = "forewarn"
CONFIG_FILE = "/etc/forewarn/forewarn.toml"
DATA_FOLDER = "/var/lib/forewarn"


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
    command, data = _command_and_data(file)
    text = fill_in(read_unit(UNIT_NAME), command, user, "" if data in (DATA_FOLDER, MEMORY) else data)
    if prints:
        click.echo(text, nl=False)
        return
    owner = _user_ids(user)
    _check_program(command[: command.index("up")], user, owner)
    if not file.exists():
        _write_config(file)
        click.echo(f"Wrote {file}.")
    if data not in (DATA_FOLDER, MEMORY):
        make_folder(Path(data), owner, "data in the config file")
    click.echo(write_unit(Path(unit_dir) / UNIT_NAME, text, force=force) + _token_hint(user, data), nl=False)


def _command_and_data(config: Path) -> tuple[list[str], str]:
    """Return the command of the unit and the data folder. Raises an error if the service would not start with it."""
    command = [*_own_command(), "up", f"--config={config}"]
    if not config.exists():
        return command, DATA_FOLDER
    # The variables of this environment do not exist when systemd starts the unit.
    values = resolve({}, {}, str(config))
    if fleet := values["fleet"].value:
        parse_fleet(read_fleet_file(fleet), fleet)
    if values["data"].origin == "default":
        return [*command, f"--data={DATA_FOLDER}"], DATA_FOLDER
    return command, str(values["data"].value)


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


def _check_program(words: list[str], user: str, owner: tuple[int, int]) -> None:
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


def _token_hint(user: str, data: str) -> str:
    program = shlex.join(_own_command())
    where = f"a file in {SYSTEM_REGISTRY}" if data == MEMORY else f"{data}/{TOKEN_FILE}"
    return (
        f"The first start writes an admin token to {where}. Commands of the user {user} use it:\n"
        f"  sudo -u {user} {program} vm list\n"
        f"  sudo -u {user} {program} token create NAME --role operator\n"
    )

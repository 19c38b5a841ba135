"""forewarn agent install: write a systemd unit that runs the agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

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
    fill_in,
    find_user,
    make_folder,
    own_program,
    read_unit,
    write_unit,
)

if TYPE_CHECKING:
    from argparse import Namespace


UNIT_NAME = "forewarn-agent.service"
USER_LIMITS = "forewarn-agent-user.conf"
"""Settings that the unit gets with --user."""


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
    unit = read_unit(UNIT_NAME)
    if options.user:
        unit = unit.replace("\n[Install]\n", f"{read_unit(USER_LIMITS)}\n[Install]\n")
    text = fill_in(unit, command, options.user, state_folder)
    if options.print:
        sys.stdout.write(text)
        return 0
    if state_folder:
        make_folder(Path(state_folder), owner, "--state")
    sys.stdout.write(write_unit(Path(options.unit_dir) / UNIT_NAME, text, force=options.force))
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

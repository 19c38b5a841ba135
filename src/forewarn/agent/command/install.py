"""forewarn agent install: write a systemd unit that runs the agent."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.command.parser import Parser, add_places, choose_places, config_path, load_config, read_address
from forewarn.agent.command.writing import refuse_other_than_file, write_whole
from forewarn.errors import BadOption, NotPermitted, UnitDiffers, UnitMasked

if TYPE_CHECKING:
    from argparse import Namespace

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
    from forewarn.agent.command.unit import NAME, Unit, render_unit

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
    file = Path(options.unit_dir) / NAME
    if chosen:
        _make_folder(Path(chosen), owner)
    sys.stdout.write(f"{_write(file, text, force=options.force)}\n")
    sys.stdout.write(f"Start it now and at every boot:\n  systemctl daemon-reload\n  systemctl enable --now {NAME}\n")
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
    from forewarn.agent.endpoint.address import read_endpoint

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
        write_whole(file, content, 0o644)
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

"""systemd units: files in the folder `units`, with at most three values of this machine filled in."""

from __future__ import annotations

import os
import pkgutil
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.errors import BadOption, NotPermitted, UnitDiffers, UnitMasked
from forewarn.system.files import check_regular_file, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

UNIT_FOLDER = "/etc/systemd/system"
_PLAIN = re.compile(r"[A-Za-z0-9@+=:,./_-]+")


def read_unit(name: str) -> str:
    """Return a file of the folder `units`."""
    return (pkgutil.get_data(__package__, f"units/{name}") or b"").decode()


def fill_in(unit: str, command: Sequence[str], user: str, folder: str) -> str:
    """Return the unit with the program and its options, the user, and the folder to write to; empty: as in the file."""
    values = {"ExecStart": command_line(command), "User": user, "ReadWritePaths": _quoted(folder)}
    lines = []
    for line in unit.splitlines(keepends=True):
        key = line.partition("=")[0]
        value = values.pop(key, "")
        lines.append(f"{key}={value}\n" if value else line)
    return "".join(lines)


def command_line(words: Sequence[str]) -> str:
    """Return the words as a value of ExecStart=: quoted, and with systemd's expansions disabled."""
    if set(words[0]) & set("'\"\\"):
        problem = "systemd cannot start a program with quotes in its path."
        raise BadOption(name="the program", value=words[0], problem=problem)
    if any("$" in word for word in words):  # a colon disables variables. A doubled $ works in arguments only.
        words = [f":{words[0]}", *words[1:]]
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    if not word.isprintable():
        raise BadOption(name="the path", value=word, problem="a unit file cannot contain it. Use printable characters.")
    if not word or _PLAIN.fullmatch(word):
        return word
    return '"' + word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"') + '"'


def own_program() -> str | None:
    """Return the absolute path of the program `forewarn` that runs now; None if Python runs the package."""
    program = Path(sys.argv[0]).absolute()
    return str(program) if program.name == "forewarn" and os.access(program, os.X_OK) else None


def find_user(name: str) -> tuple[int, int] | None:
    """Return user id and group id of a user; None if there is no such user."""
    import pwd  # here: Windows has none

    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid


def make_folder(folder: Path, owner: tuple[int, int] | None, flag: str) -> None:
    """Create the folder if it is missing: systemd does not start a unit whose ReadWritePaths= does not exist."""
    try:
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True)
            if owner is not None:
                os.chown(folder, *owner)
    except OSError as error:
        problem = error.strerror
        raise NotPermitted(action="create the folder", path=folder, problem=problem, flag=flag) from error


def write_unit(file: Path, text: str, *, force: bool) -> str:
    """Write the unit file. Return what was done, and how to start the unit."""
    try:
        _check_not_masked(file)
        check_regular_file(file)
        current = file.read_bytes() if file.exists() else None
        if current not in (None, text.encode()) and not force:
            raise UnitDiffers(path=file)
        if current != text.encode():
            write_atomically(file, text.encode(), 0o644, follow_links=True)
    except OSError as error:
        raise NotPermitted(action="write", path=file, problem=error.strerror, flag="--unit-dir") from error
    done = f"{file} is up to date." if current == text.encode() else f"Wrote {file}."
    start = f"systemctl daemon-reload\n  systemctl enable --now {file.name}"
    return f"{done}\nTo start it now and at every boot:\n  {start}\n"


def remove_unit(file: Path) -> str:
    """Remove the unit file, and the link that starts it at boot. Return a message that says what is kept."""
    try:
        _check_not_masked(file)
        text = file.read_text("utf-8", "replace")
        links = [path for path in file.parent.glob(f"*.wants/{file.name}") if path.is_symlink()]
        for path in (*links, file):
            path.unlink()
    except FileNotFoundError:
        return f"{file} does not exist, so there is nothing to remove.\n"
    except OSError as error:
        raise NotPermitted(action="remove", path=file, problem=error.strerror, flag="--unit-dir") from error
    kept = _named_in(text)
    if (drop_ins := file.with_name(f"{file.name}.d")).is_dir():
        kept.append(f"your changes to the unit: {drop_ins}")
    lines = [f"Removed {file}. If it is running, stop it:", f"  systemctl stop {file.name}"]
    return "\n".join([*lines, "  systemctl daemon-reload", "Not removed:", *(f"  {line}" for line in kept), ""])


def _named_in(unit: str) -> list[str]:
    """Return the config file, the user and the data folder that the text of a unit names."""
    found = []
    for key, value in re.findall(r"^(ExecStart|User|ReadWritePaths)=(.*)", unit, re.MULTILINE):
        with suppress(ValueError):  # somebody has edited the unit
            for word in shlex.split(value.replace("%%", "%")):
                if key != "ExecStart":
                    found.append(f"user: {word}" if key == "User" else f"data: {word.removeprefix('-')}")
                elif word.startswith("--config="):
                    found.append(f"config: {word.removeprefix('--config=')}")
    return found


def _check_not_masked(file: Path) -> None:
    if file.is_symlink() and os.path.realpath(file) == os.path.realpath(os.devnull):
        raise UnitMasked(path=file, unit=file.name)

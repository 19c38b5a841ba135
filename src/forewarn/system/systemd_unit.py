"""systemd units of this program: their common settings, and writing and removing them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from forewarn.errors import BadOption, NotPermitted, UnitDiffers, UnitMasked
from forewarn.system.files import check_regular_file, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UNIT_FOLDER = "/etc/systemd/system"
STATE_PARENT = "/var/lib"
"""Where systemd creates a StateDirectory=."""

# --- Settings that several units have -------------------------------------------------------------

_RELOAD = """\
ExecReload=/bin/sh -c "kill -HUP $MAINPID"
"""

_SANDBOX = """\
# This program reads data from the network: programs that it runs cannot get additional privileges.
NoNewPrivileges=yes
# Nothing here changes the kernel, the clock or the host name.
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
# The network, and the Unix sockets of D-Bus, the journal and other programs.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
"""

_USER_SANDBOX = """\
# Programs of this user need no devices and no namespaces, and no access to processes of other users.
PrivateDevices=yes
RestrictNamespaces=yes
ProtectProc=invisible
RemoveIPC=yes
# System calls of ordinary programs. MemoryDenyWriteExecute is not set: your programs may use Java or JavaScript.
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
"""

_INSTALL = """\
[Install]
WantedBy=multi-user.target
"""


def render_unit(
    head: str, command: Sequence[str], user: str, settings: str, limits: str = "", paths: Iterable[str] = ()
) -> str:
    """Return the content of a unit file.

    `head` is its section [Unit]. `settings` and `limits` are of the section [Service]. Empty `user`: root. `paths` are
    files and folders that the program uses.
    """
    start = f"[Service]\nExecStart={command_line(command)}\n{_RELOAD}"
    if user:
        start += f"User={_escaped(user)}\n"
        limits += _USER_SANDBOX + _protect_home((*paths, *command))
    return "\n".join([head, start + settings + _SANDBOX + limits, _INSTALL])


def existing_folder(folder: str) -> str:
    """Return the setting that lets a unit write to a folder which systemd does not create."""
    return f"ReadWritePaths={_quoted(folder)}\n"


_HOMES = (PurePosixPath("/home"), PurePosixPath("/root"), PurePosixPath("/run/user"))


def _protect_home(words: Iterable[str]) -> str:
    """Return the setting ProtectHome= for a unit with these paths and options."""
    values = (word.partition("=")[2] if word.startswith("--") else word for word in words)
    paths = [PurePosixPath(value) for value in values if value.startswith("/")]
    if any(home in path.parents for path in paths for home in _HOMES):
        return "# The program, or a file that it reads, is in a home directory.\nProtectHome=read-only\n"
    return "# No file in a home directory is needed.\nProtectHome=yes\n"


# --- Text that systemd reads as it is -------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z0-9@+=:,./_-]+")


def command_line(words: Sequence[str]) -> str:
    """Return the words as a value of ExecStart=: quoted, and with systemd's expansions disabled."""
    if set(words[0]) & set("'\"\\"):
        raise BadOption(
            name="the program", value=words[0], problem="systemd cannot start a program with quotes in its path."
        )
    # A colon before the program disables variable expansion. Doubling the $ does not work in the program's path.
    if any("$" in word for word in words):
        words = [f":{words[0]}", *words[1:]]
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    """Return the word as one value of a setting with several values."""
    found = _escaped(word)
    if _PLAIN.fullmatch(word):
        return found
    return '"' + found.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(word: str) -> str:
    """Return the word as the value of a setting."""
    if not word.isprintable():
        raise BadOption(name="the path", value=word, problem="a unit file cannot contain it. Use printable characters.")
    return word.replace("%", "%%")


# --- This program and its user --------------------------------------------------------------------


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


# --- The unit file --------------------------------------------------------------------------------


def write_unit(file: Path, text: str, *, force: bool) -> str:
    """Write the unit file atomically and return a message for the user."""
    content = text.encode()
    try:
        _check_not_masked(file)
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


def start_hint(what: str, name: str) -> str:
    return f"To start {what} now and at every boot:\n  systemctl daemon-reload\n  systemctl enable --now {name}\n"


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
    drop_ins = file.with_name(f"{file.name}.d")
    kept = [*_named_in(text), *([("your changes to the unit", str(drop_ins))] if drop_ins.is_dir() else [])]
    lines = [
        f"Removed {file}. If it is running, stop it:",
        f"  systemctl stop {file.name}",
        "  systemctl daemon-reload",
    ]
    if kept:
        lines += ["Not removed:", *(f"  {what}: {value}" for what, value in kept)]
    return "\n".join([*lines, ""])


def _named_in(unit: str) -> list[tuple[str, str]]:
    """Return the config file, the data folders and the user that the text of a unit names."""
    found = []
    for line in unit.splitlines():
        key, _, value = line.partition("=")
        words = _words(value)
        if key == "ExecStart":
            found += [("config", word.partition("=")[2]) for word in words if word.startswith("--config=")]
        elif key == "StateDirectory":
            found += [("data", f"{STATE_PARENT}/{word}") for word in words]
        elif key == "ReadWritePaths":
            found += [("data", word) for word in words]
        elif key == "User":
            found += [("user", word) for word in words]
    return found


def _words(value: str) -> list[str]:
    try:
        return [word.replace("%%", "%") for word in shlex.split(value)]
    except ValueError:  # somebody has edited the unit
        return []


def _check_not_masked(file: Path) -> None:
    if file.is_symlink() and os.path.realpath(file) == os.path.realpath(os.devnull):
        raise UnitMasked(path=file, unit=file.name)


def _read_start(file: Path, size: int) -> bytes | None:
    """Return the first bytes of a file; None if it does not exist."""
    try:
        with file.open("rb") as stream:
            return stream.read(size)
    except FileNotFoundError:
        return None

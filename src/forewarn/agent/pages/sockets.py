"""The socket in an agent's state folder, where it is asked."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from forewarn.errors import CannotListen, StateInUse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "agent.sock"
_SECONDS = 2


@contextmanager
def reachable(folder: Path, name: str = NAME) -> Iterator[str]:
    """A path to the socket that is short whatever the folder's is: the kernel takes 107 bytes of one."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{number}/{name}"
    finally:
        os.close(number)


def connect(folder: Path) -> socket.socket:
    """To the agent that works in this folder; OSError if none does."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(_SECONDS)
        with reachable(folder) as path:
            line.connect(path)
    except OSError:
        line.close()
        raise
    return line


def listen_in(folder: Path) -> tuple[socket.socket, int]:
    """A socket in the folder, for its owner alone, and its inode. One that a killed agent has left is replaced."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _answered(folder):
            raise StateInUse(folder=folder)
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Under another name first: what is there under its own can be asked from the first moment on.
            passing = f"{NAME}.{os.getpid()}"
            (folder / passing).unlink(missing_ok=True)
            with reachable(folder, passing) as path:
                line.bind(path)
            (folder / passing).chmod(0o600)
            line.listen(16)
            number = (folder / passing).lstat().st_ino
            (folder / passing).rename(folder / NAME)
        except OSError:
            line.close()
            raise
    except OSError as error:
        raise CannotListen(address=folder / NAME, problem=error.strerror) from error
    return line, number


def _answered(folder: Path) -> bool:
    """Whether somebody listens there already; one who is too busy to answer does."""
    try:
        connect(folder).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except (BlockingIOError, TimeoutError):
        return True
    return True


def remove_from(folder: Path, number: int) -> None:
    """Take the socket out of the folder, unless another agent's stands there by now."""
    with suppress(OSError):
        if (folder / NAME).lstat().st_ino == number:
            (folder / NAME).unlink()

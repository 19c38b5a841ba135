"""The file by which the command line finds the local service: its address and its token, for the owner alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from forewarn.errors import NoService, NotPermitted
from forewarn.settings import MEMORY, user_data_folder

FILE = "service.json"
MEMORY_FILE = "service-in-memory.json"
"""A service that keeps nothing has no folder: it leaves word in the user's, beside that of the one that has."""


class Found(NamedTuple):
    """A running service."""

    control: str
    metadata: str
    token: str
    pid: int


def path_for(data: str) -> Path:
    """Where the service over this data leaves word."""
    return user_data_folder() / MEMORY_FILE if data == MEMORY else Path(data) / FILE


def write(data: str, found: Found) -> None:
    """Leave word. Written whole under another name first: a reader never sees half of it."""
    path = path_for(data)
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished.unlink(missing_ok=True)
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(found._asdict(), file)
        unfinished.replace(path)
    except OSError as error:
        raise NotPermitted(action="write", path=path, problem=error.strerror, flag="--data") from error


def remove(data: str) -> None:
    """Take word back, if it is still this process's own."""
    found = _read(path_for(data))
    if found is not None and found.pid == os.getpid():
        path_for(data).unlink(missing_ok=True)


def find(data: str | None) -> Found:
    """The service over this data; with none given, the user's own."""
    folders = [data] if data else [MEMORY, str(user_data_folder())]
    for folder in folders:
        found = _read(path_for(folder))
        if found is not None and _alive(found.pid):
            return found
    looked = " or ".join(str(path_for(folder)) for folder in folders)
    raise NoService(problem=f"nothing running has left word in {looked}.")


def _read(path: Path) -> Found | None:
    try:
        return Found(**json.loads(path.read_text("utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    except OSError as error:
        raise NotPermitted(action="read", path=path, problem=error.strerror, flag="--data") from error


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

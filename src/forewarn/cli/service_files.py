"""The files by which the command line finds the local service and its token. Only the owner can read them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from forewarn.errors import NoService, NotPermitted
from forewarn.settings import MEMORY, user_data_folder
from forewarn.system.files import write_atomically

FILE = "service.json"
MEMORY_FILE = "service-in-memory.json"
"""A service in memory has no data folder. Its file is in the user's, beside that of a service with data."""
TOKEN_FILE = "admin-token"  # noqa: S105 - where it is, not what it is
MEMORY_TOKEN_FILE = "admin-token-in-memory"  # noqa: S105


class ServiceFile(NamedTuple):
    """The content of a service's file: where the running service is."""

    control: str
    metadata: str
    token_file: str
    pid: int
    certificate: str = ""
    """The file with the certificate of the control API, where it has one."""


def path_for(data: str) -> Path:
    """The file of the service with this data."""
    return user_data_folder() / MEMORY_FILE if data == MEMORY else Path(data) / FILE


def token_path(data: str) -> Path:
    """The file with the first token of the service with this data."""
    return user_data_folder() / MEMORY_TOKEN_FILE if data == MEMORY else Path(data) / TOKEN_FILE


def read_token(data: str) -> str:
    """The token in that file; empty if there is none."""
    try:
        return token_path(data).read_text("utf-8").strip()
    except (OSError, UnicodeError):
        return ""


def write_token(data: str, token: str) -> None:
    _write(token_path(data), f"{token}\n")


def write(data: str, found: ServiceFile) -> None:
    """Write the file of a service that has started."""
    _write(path_for(data), json.dumps(found._asdict()))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, text.encode())
    except OSError as error:
        raise NotPermitted(action="write", path=path, problem=error.strerror, flag="--data") from error


def remove(data: str) -> None:
    """Remove the file, if this process has written it."""
    found = _read(path_for(data))
    if found is not None and found.pid == os.getpid():
        path_for(data).unlink(missing_ok=True)


def find(data: str | None) -> ServiceFile:
    """The running service with this data; if none is given, the user's own."""
    folders = [data] if data else [MEMORY, str(user_data_folder())]
    for folder in folders:
        found = _read(path_for(folder))
        if found is not None and _alive(found.pid):
            return found
    looked = " or ".join(str(path_for(folder)) for folder in folders)
    raise NoService(problem=f"no running service is recorded in {looked}.")


def _read(path: Path) -> ServiceFile | None:
    try:
        return ServiceFile(**json.loads(path.read_text("utf-8")))
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

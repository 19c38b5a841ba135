"""Files that tell the command line where the local service and its token are. Only the owner can read them."""

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
"""A service with --data :memory: has no data folder. Its file is in the data folder of the user."""
TOKEN_FILE = "admin-token"  # noqa: S105 - the name of a file, not a token
MEMORY_TOKEN_FILE = "admin-token-in-memory"  # noqa: S105


class ServiceFile(NamedTuple):
    """Content of the file: the addresses of the running service."""

    control: str
    metadata: str
    token_file: str
    pid: int
    certificate: str = ""
    """The file with the TLS certificate of the control API, if it has one."""


def path_for(data: str) -> Path:
    """Return the path of the service file for this data folder."""
    return user_data_folder() / MEMORY_FILE if data == MEMORY else Path(data) / FILE


def token_path(data: str) -> Path:
    """Return the path of the file with the first token for this data folder."""
    return user_data_folder() / MEMORY_TOKEN_FILE if data == MEMORY else Path(data) / TOKEN_FILE


def read_token(data: str) -> str:
    """Return the token in that file, or an empty string."""
    try:
        return token_path(data).read_text("utf-8").strip()
    except (OSError, UnicodeError):
        return ""


def write_token(data: str, token: str) -> None:
    _write(token_path(data), f"{token}\n")


def write(data: str, found: ServiceFile) -> None:
    """Write the service file after the start."""
    _write(path_for(data), json.dumps(found._asdict()))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, text.encode())
    except OSError as error:
        raise NotPermitted(action="write", path=path, problem=error.strerror, flag="--data") from error


def remove(data: str) -> None:
    """Remove the service file, if this process wrote it."""
    found = _read(path_for(data))
    if found is not None and found.pid == os.getpid():
        path_for(data).unlink(missing_ok=True)


def find(data: str | None) -> ServiceFile:
    """Return the running service with this data folder. Default: a service of this user."""
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

"""Files by which the command line finds the services of this machine. Only their owner can read them.

A service writes its file into its data folder, and into the registry. The registry is a private folder of the user,
with one file for each running service.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forewarn.errors import ServiceNameTaken
from forewarn.system.files import write_atomically
from forewarn.system.processes import Process, find_process

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = "service.json"
TOKEN_FILE = "admin-token"  # noqa: S105 - the name of a file, not a token
REGISTRY_VARIABLE = "FOREWARN_RUNTIME_DIR"
SYSTEM_REGISTRY = Path("/run/forewarn")
"""The registry of a service that systemd runs. systemd creates it, for the user of the service."""


class ServiceFile(NamedTuple):
    """Content of the file: how to reach the running service, and how it proves its identity."""

    name: str
    control: str
    metadata: str
    token_file: str
    certificate: str
    """The TLS certificate of the control API that is in use, as PEM. Empty: it has none."""
    data: str
    """The data folder, or `:memory:`."""
    device: int
    inode: int
    """Device and inode of the data folder. In a copied folder, they differ from those in the file."""
    pid: int
    started: int
    """Start time of the process, because process ids are reused. 0: unknown."""
    proof_key: str
    """A random secret of this start. Only the service and the readers of this file know it."""

    @property
    def lives(self) -> bool:
        """Whether the process of the service is running."""
        if self.started:
            return Process(self.pid, self.started).lives
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def uses(self, folder: str) -> bool:
        """Whether this is the data folder of the service."""
        return self.inode > 0 and (self.device, self.inode) == identify_folder(folder)


def identify_folder(folder: str) -> tuple[int, int]:
    """Return device and inode of a folder. Both are 0 if there is no such folder."""
    try:
        found = Path(os.path.expanduser(folder)).stat()  # noqa: PTH111 - Path.expanduser can fail
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def identify_process() -> Process:
    """Return this process. Its start time is 0 if this system does not tell it."""
    return find_process(os.getpid()) or Process(os.getpid(), 0)


def proof_of(key: str, challenge: str) -> str:
    """Return the response to a challenge. Only a process that knows the key can compute it."""
    return hmac.new(key.encode(), challenge.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def read(path: Path) -> ServiceFile | None:
    """Return the content of the file; None if there is no such file, or if it is not a service file."""
    try:
        content = json.loads(path.read_text("utf-8"))
        values = {name: content[name] for name in ServiceFile._fields}
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, KeyError, TypeError):
        return None
    numbers = ("device", "inode", "pid", "started")
    good = all(type(value) is (int if name in numbers else str) for name, value in values.items())
    return ServiceFile(**values) if good and values["pid"] > 0 else None


def write(path: Path, found: ServiceFile) -> None:
    write_atomically(path, json.dumps(found._asdict()).encode())


def remove(path: Path, found: ServiceFile) -> None:
    """Remove the file, if it is the file of this start of the service."""
    with suppress(OSError):
        if read(path) == found:
            path.unlink()


# --- The registry ---------------------------------------------------------------------------------


def registry_folders() -> list[Path]:
    """Folders in which a service of this user can be registered, the preferred one first."""
    if own := os.environ.get(REGISTRY_VARIABLE):
        return [Path(own)]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    temporary = Path(os.environ.get("TMPDIR") or "/tmp") / f"forewarn-{os.geteuid()}"  # noqa: S108 - see _check_private
    return [Path(runtime) / "forewarn", temporary] if runtime else [temporary]


def system_service_user() -> str:
    """Return the user of the service that systemd runs, if it is another user than this one."""
    import pwd

    try:
        owner = SYSTEM_REGISTRY.stat().st_uid
        return "" if owner == os.geteuid() else pwd.getpwuid(owner).pw_name
    except (OSError, KeyError):
        return ""


def _check_private(folder: Path) -> None:
    """Raise OSError if others could have made the folder, or can change it."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(None, f"{folder} is not a folder", str(folder))
    if found.st_uid != os.geteuid():
        raise PermissionError(None, f"{folder} belongs to another user", str(folder))
    if (mode := stat.S_IMODE(found.st_mode)) & 0o077:
        raise PermissionError(
            None, f"other users can access {folder} (mode {mode:04o}). Run: chmod 0700 {folder}", str(folder)
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _entries() -> Iterator[tuple[Path, ServiceFile]]:
    own = os.environ.get(REGISTRY_VARIABLE)
    for folder in registry_folders() if own else [*registry_folders(), SYSTEM_REGISTRY]:
        with suppress(OSError):
            _check_private(folder)
            for path in sorted(folder.glob("*.json")):
                file = read(path)
                if file is not None:
                    yield path, file


def registry_problem() -> str:
    """Return why a folder of the registry is not used, if other users could have changed it."""
    for folder in registry_folders():
        try:
            _check_private(folder)
        except PermissionError as error:
            return error.strerror or str(error)
        except OSError:  # there is no such folder yet
            continue
    return ""


def registered() -> list[ServiceFile]:
    """Return the running services of this user. Remove the files of services that have ended."""
    found = []
    for path, file in _entries():
        if file.lives:
            found.append(file)
        else:
            with suppress(OSError), _locked(path.parent):
                remove(path, file)
                path.with_suffix(".token").unlink(missing_ok=True)
    return found


def register(wanted: ServiceFile, *, exact: bool) -> tuple[Path, ServiceFile]:
    """Register a service. Return its path, and the file with the name that it got.

    With `exact`, raises ServiceNameTaken if another service has the name; otherwise a number is added. Raises OSError
    if no folder can be used.
    """
    problem = OSError(None, "there is no folder for it")
    for folder in registry_folders():
        try:
            folder.mkdir(mode=0o700, parents=bool(os.environ.get(REGISTRY_VARIABLE)), exist_ok=True)
            _check_private(folder)
            with _locked(folder):
                named = wanted._replace(name=_free_name(wanted, exact=exact))
                path = folder / f"{named.name}.json"
                if not named.inode:  # it has no data folder, so its token is here
                    named = named._replace(token_file=str(path.with_suffix(".token").absolute()))
                write(path, named)
                return path, named
        except OSError as error:
            problem = error
    raise problem


def _free_name(wanted: ServiceFile, *, exact: bool) -> str:
    taken = {other.name: other for _, other in _entries() if other.lives and other.proof_key != wanted.proof_key}
    if exact and wanted.name in taken:
        other = taken[wanted.name]
        raise ServiceNameTaken(name=wanted.name, pid=other.pid, data=other.data)
    number, name = 1, wanted.name
    while name in taken:
        number += 1
        name = f"{wanted.name}-{number}"
    return name

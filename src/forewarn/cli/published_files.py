"""The files of a running service: its entry in the registry, its service file and its admin token.

A file that cannot be written is no reason to stop: the service logs a warning, and tries again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.errors import ServiceNameTaken
from forewarn.system import service_files
from forewarn.system.files import write_atomically
from forewarn.system.logs import get_logger
from forewarn.system.user_folders import MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.system.service_files import ServiceFile

_log = get_logger(__name__)

CHECK_SECONDS = 2.0
"""Also brings back files that a cleaner of temporary folders has removed."""


class PublishedFiles:
    """Writes the files, and removes them at the end."""

    def __init__(self, file: ServiceFile, certificate: Callable[[], str], *, is_name_fixed: bool) -> None:
        """Take the file to write. If its name is not fixed, it gets a number when another service has the name.

        `certificate` returns the certificate in use.
        """
        self.file = file._replace(certificate=certificate())
        self._certificate = certificate
        self._is_name_fixed = is_name_fixed
        self._folder = None if file.data == MEMORY else Path(file.data)
        self._entry: Path | None = None
        """The file in the registry."""
        self._unsaved_token = ""
        self._problems: dict[str, str] = {}
        self._refreshing = asyncio.Lock()

    def register(self) -> None:
        """Take the name, before the service starts. Raises ServiceNameTaken."""
        self._try("registry entry", self._register)
        self._is_name_fixed = True

    def read_token(self) -> str:
        """Return the stored admin token, or an empty string. A service in memory has no earlier token."""
        try:
            return Path(self.file.token_file).read_text("utf-8").strip() if self._folder else ""
        except (OSError, UnicodeError):
            return ""

    def save_token(self, token: str) -> None:
        self._unsaved_token = token
        self._try("admin token", self._write_token)

    def write_missing(self) -> None:
        """Write the files that are missing, or that have another certificate than the one in use."""
        self.file = self.file._replace(certificate=self._certificate())
        if self._entry is None or not self._is_written(self._entry):
            self._try("registry entry", self._register_again)
        if self._unsaved_token:
            self._try("admin token", self._write_token)
        if self._folder is not None and not self._is_written(self._folder / service_files.FILE):
            self._try("service file", self._write_file)

    async def refresh(self) -> None:
        """Write the files that are missing or out of date, in a thread."""
        async with self._refreshing:
            await asyncio.to_thread(self.write_missing)

    async def keep(self) -> None:
        """Write missing files again and again."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.refresh()

    def remove(self) -> None:
        """Remove the files. The admin token of a data folder stays."""
        if self._folder is not None:
            service_files.remove(self._folder / service_files.FILE, self.file)
        if self._entry is not None:
            service_files.remove(self._entry, self.file)
            with suppress(OSError):
                self._entry.with_suffix(".token").unlink()

    def _register(self) -> None:
        self._entry, self.file = service_files.register(self.file, exact=self._is_name_fixed)

    def _register_again(self) -> None:
        try:
            self._register()
        except ServiceNameTaken as error:  # meanwhile, while the entry was missing
            raise OSError(None, str(error)) from error

    def _write_token(self) -> None:
        if not self.file.token_file:
            raise OSError(None, "there is no folder for it")
        write_atomically(Path(self.file.token_file), f"{self._unsaved_token}\n".encode())
        self._unsaved_token = ""

    def _is_written(self, path: Path) -> bool:
        try:
            return service_files.read(path) == self.file
        except OSError:
            return False

    def _write_file(self) -> None:
        assert self._folder is not None  # noqa: S101 - for the type checker
        service_files.write(self._folder / service_files.FILE, self.file)

    def _try(self, what: str, write: Callable[[], None]) -> None:
        """Write a file, and log a problem once."""
        try:
            write()
        except OSError as error:
            problem = error.strerror or str(error)
            if self._problems.get(what) != problem:
                _log.warning(
                    "service_file_not_written",
                    "Commands may not find this service. Trying again.",
                    file=what,
                    path=error.filename or "",
                    error=problem,
                )
            self._problems[what] = problem
        else:
            if self._problems.pop(what, ""):
                _log.info("service_file_written", "Commands can find this service again.", file=what)

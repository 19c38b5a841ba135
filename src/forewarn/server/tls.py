"""TLS for the control API, by certificate files. A renewed certificate is taken without a restart."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from forewarn.errors import BadCertificate

logger = logging.getLogger(__name__)

LOOK_EVERY_SECONDS = 60


class Certificate:
    """A certificate with its key, as the files have them."""

    def __init__(self, certificate: str, key: str) -> None:
        self.path = certificate
        self._key = key
        self._files = [Path(certificate), *([Path(key)] if key else [])]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = self._changes()
        self._load()

    async def keep(self) -> None:
        """Look again and again whether the files are others."""
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            self.look_again()

    def look_again(self) -> None:
        """Take the files if they have changed; while they cannot be used, those from before stay."""
        try:
            seen = self._changes()
            if seen == self._seen:
                return
            # Tried apart first: a certificate whose key is still to be written must not spoil what works.
            Certificate(self.path, self._key)
            self._load()
        except BadCertificate as error:
            logger.warning("The certificate stays as it is: %s", error)
        else:
            self._seen = seen
            logger.warning("The certificate of the control API was renewed.")

    def _changes(self) -> list[tuple[int, int]]:
        try:
            return [(found.st_mtime_ns, found.st_ino) for found in map(Path.stat, self._files)]
        except OSError as error:
            raise BadCertificate(path=error.filename, problem=error.strerror) from error

    def _load(self) -> None:
        try:
            # Without a password to ask for: a service has nobody to answer.
            self.context.load_cert_chain(self.path, self._key or None, password="")
        except (OSError, ValueError) as error:
            problem = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise BadCertificate(path=" and ".join(map(str, self._files)), problem=problem) from error

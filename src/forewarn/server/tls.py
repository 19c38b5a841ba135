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
        self._seen = self._changes()
        self.context = self._in_use = self._loaded()
        self.context.sni_callback = self._choose

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
            # A context of its own: one that had another key would keep it beside the new one.
            self._in_use = self._loaded()
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

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """Called with each handshake, whether or not it names a server."""
        connection.context = self._in_use

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Without a password to ask for: a service has nobody to answer.
            context.load_cert_chain(self.path, self._key or None, password="")
        except (OSError, ValueError) as error:
            problem = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise BadCertificate(path=" and ".join(map(str, self._files)), problem=problem) from error
        return context

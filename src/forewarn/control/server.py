"""Runs the control API: uvicorn's HTTP protocol behind a guard for each connection, with TLS by certificate files.

uvicorn does not listen itself, because it cannot limit the time of a TLS handshake. It does not take the signals
either: those belong to the program.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from forewarn.control.connection_guard import ControlLimits, Guard, track_answers
from forewarn.errors import BadCertificate
from forewarn.system.connections import Connections

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

    from forewarn.control.connection_guard import HttpProtocol


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


# --- The server -----------------------------------------------------------------------------------


class ControlServer:
    """Serves an ASGI application on a bound socket, from `start` to `stop`."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        certificate: Certificate | None = None,
        limits: ControlLimits | None = None,
    ) -> None:
        self.listener = listener
        self._certificate = certificate
        self._limits = limits or ControlLimits()
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                track_answers(app),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,  # else a forged X-Forwarded-For would be the client's address
                server_header=False,
                # The guard closes idle connections. uvicorn would do it in the middle of a head.
                timeout_keep_alive=math.ceil(self._limits.idle_seconds + self._limits.header_seconds),
            )
        )
        self._connections: Connections[Guard] = Connections("control API", self._limits)
        self._listening: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        config = self._uvicorn.config
        config.load()
        self._tasks.append(asyncio.create_task(self._uvicorn.main_loop()))  # the date of the answers
        tls: dict[str, Any] = {}
        if self._certificate is not None:
            self._tasks.append(asyncio.create_task(self._certificate.keep()))
            tls = {"ssl": self._certificate.context, "ssl_handshake_timeout": self._limits.handshake_seconds}
        self._listening = await asyncio.get_running_loop().create_server(
            lambda: Guard(self._limits, self._connections, self._make_protocol),
            sock=self.listener,
            backlog=config.backlog,
            **tls,
        )

    def _make_protocol(self, state: dict[str, Any]) -> HttpProtocol:
        make: Any = self._uvicorn.config.http_protocol_class
        protocol: HttpProtocol = make(
            config=self._uvicorn.config, server_state=self._uvicorn.server_state, app_state=state
        )
        return protocol

    async def stop(self) -> None:
        """Take no more requests, and answer those that the application works on."""
        if self._listening is not None:
            self._listening.close()
        self.listener.close()
        for guard in self._connections.close():
            guard.stop()
        try:
            async with asyncio.timeout(self._limits.stop_seconds):
                await self._connections.drain()
                # The application may have something left to do when its client is gone.
                if self._uvicorn.server_state.tasks:
                    await asyncio.wait(self._uvicorn.server_state.tasks)
        except TimeoutError:
            self._end_requests()
        for task in self._tasks:
            task.cancel()

    def _end_requests(self) -> None:
        tasks = list(self._uvicorn.server_state.tasks)
        logger.error("The time for a graceful stop is over. %d requests to the control API are cancelled.", len(tasks))
        for guard in self._connections.all():
            guard.abort()
        for task in tasks:
            task.cancel()

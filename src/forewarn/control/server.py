"""Runs the control API: uvicorn's HTTP protocol, a guard for each connection, and TLS with certificate files.

uvicorn does not open the socket itself, because it cannot limit the duration of a TLS handshake. It does not handle
signals either: the program does.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from forewarn.control.connection_guard import ConnectionGuard, ControlLimits, track_responses
from forewarn.errors import BadCertificate
from forewarn.system.connections import Connections
from forewarn.system.logs import get_logger
from forewarn.system.sockets import start_listening

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from starlette.types import ASGIApp

    from forewarn.control.connection_guard import HttpProtocol


_log = get_logger(__name__)

CHECK_INTERVAL_SECONDS = 60
ACCEPT_RETRY_SECONDS = 1.0


class Certificate:
    """A TLS certificate and its key. Changed files are loaded without a restart."""

    def __init__(self, certificate: str, key: str) -> None:
        self.path = certificate
        self._key = key
        self._files = [Path(certificate), *([Path(key)] if key else [])]
        self._loaded_versions = self._file_versions()
        self.context = self._current = self._load()
        self.context.sni_callback = self._select_context
        self.on_reload: Callable[[], None] = lambda: None
        """Called when another certificate was loaded."""

    async def watch(self) -> None:
        """Reload the files whenever they change."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Reload the files if they have changed."""
        self.reload(only_if_changed=True)

    def reload(self, *, only_if_changed: bool = False) -> bool:
        """Load the files, for new connections. If they are not valid, keep the current certificate, return False."""
        try:
            versions = self._file_versions()
            if only_if_changed and versions == self._loaded_versions:
                return True
            # A new context: an existing one would keep the old key beside the new one.
            self._current = self._load()
        except BadCertificate as error:
            _log.warning("certificate_reload_failed", "Keeping the current certificate.", error=str(error))
            return False
        self._loaded_versions = versions
        _log.info("certificate_reloaded", "Loaded the certificate. New connections use it.", path=self.path)
        self.on_reload()
        return True

    def pem(self) -> str:
        """Return the certificate in use, without its chain and its key."""
        return self._pem

    def _file_versions(self) -> list[tuple[int, int]]:
        try:
            return [(found.st_mtime_ns, found.st_ino) for found in map(Path.stat, self._files)]
        except OSError as error:
            raise BadCertificate(path=error.filename, problem=error.strerror) from error

    def _select_context(self, connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """Use the current certificate for a new connection. Called at each handshake, with or without SNI."""
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # An empty password, because OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.path, self._key or None, password="")
            self._pem = _first_certificate(Path(self.path).read_text("ascii", errors="replace"))
        except (OSError, ValueError) as error:
            problem = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise BadCertificate(path=" and ".join(map(str, self._files)), problem=problem) from error
        return context


def _first_certificate(text: str) -> str:
    """Return the first certificate of a PEM file. Raises ValueError."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if begin not in text or end not in text:
        raise ValueError(f"it has no {begin}")
    return text[text.index(begin) : text.index(end) + len(end)]


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
                track_responses(app),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,  # otherwise X-Forwarded-For could forge the client's address
                server_header=False,
                # The guard closes idle connections. uvicorn would also close them in the middle of a request header.
                timeout_keep_alive=math.ceil(self._limits.idle_seconds + self._limits.header_seconds),
            )
        )
        self.connections: Connections[ConnectionGuard] = Connections("control API", self._limits)
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes = set[asyncio.Task[None]]()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        config = self._uvicorn.config
        config.load()
        self._tasks.append(asyncio.create_task(self._uvicorn.main_loop()))  # updates the date header of responses
        if self._certificate is not None:
            self._tasks.append(asyncio.create_task(self._certificate.watch()))
        self.listener.setblocking(False)
        start_listening(self.listener, config.backlog)
        self._accepting = asyncio.create_task(self._accept())
        # Not earlier: the loop must have stopped watching the socket.
        self._accepting.add_done_callback(lambda _: self.listener.close())

    async def _accept(self) -> None:
        """Accept connections. They count from here on: `create_server` hides those in a TLS handshake."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self.listener)
            except OSError as error:  # for example, the limit of open files is reached
                _log.warning("accept_failed", "Cannot accept a connection; retrying.", error=str(error))
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            guard = ConnectionGuard(self._limits, self.connections, self._make_protocol)
            if self.connections.add(guard, peer[0]):
                guard.connecting = accepted
                self._handshakes.add(task := asyncio.create_task(self._connect(guard, accepted)))
                task.add_done_callback(self._handshakes.discard)
            else:
                accepted.close()
            await asyncio.sleep(0)  # other tasks get their turn, however many clients connect

    async def _connect(self, guard: ConnectionGuard, accepted: socket.socket) -> None:
        tls: dict[str, Any] = {}
        if self._certificate is not None:
            tls = {"ssl": self._certificate.context, "ssl_handshake_timeout": self._limits.handshake_seconds}
        with suppress(OSError):  # the client has disconnected, or the handshake failed
            await asyncio.get_running_loop().connect_accepted_socket(lambda: guard, accepted, **tls)
        if guard.connecting is not None:
            self.connections.remove(guard)
            accepted.close()

    def _make_protocol(self, state: dict[str, Any]) -> HttpProtocol:
        make: Any = self._uvicorn.config.http_protocol_class
        protocol: HttpProtocol = make(
            config=self._uvicorn.config, server_state=self._uvicorn.server_state, app_state=state
        )
        return protocol

    async def stop(self) -> None:
        """Accept no further requests, and finish those in progress."""
        if self._accepting is not None:
            self._accepting.cancel()
        else:
            self.listener.close()
        for guard in self.connections.close():
            guard.stop()
        try:
            async with asyncio.timeout(self._limits.stop_seconds):
                await self.connections.drain()
                # The application may still have work to do after its client has disconnected.
                if self._uvicorn.server_state.tasks:
                    await asyncio.wait(self._uvicorn.server_state.tasks)
        except TimeoutError:
            self._abort_requests()
        for task in self._tasks:
            task.cancel()
        if self._accepting is not None:
            await asyncio.wait([self._accepting])

    def _abort_requests(self) -> None:
        tasks = list(self._uvicorn.server_state.tasks)
        _log.error(
            "requests_cancelled",
            "The graceful stop took too long. Cancelling the remaining requests to the control API.",
            count=len(tasks),
        )
        for guard in self.connections.all():
            guard.abort()
        for task in tasks:
            task.cancel()

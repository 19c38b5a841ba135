"""HTTP client for webhooks: one timeout for each POST, and only to allowed addresses. Resolves names in threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from contextlib import AsyncExitStack, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import httpcore

from forewarn import __version__
from forewarn.core.webhooks import SETTING, check_url
from forewarn.errors import ForbiddenWebhookAddress, ForewarnError, NameNotFound
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.core.webhooks import AllowedNetworks


MAX_ADDRESSES = 16
"""Maximum number of addresses of a name. A name server can return thousands, and each is checked."""
TIMEOUT_SECONDS = 10.0
"""Of a POST, from the lookup of the name to the status."""


class HostResolver:
    """Resolves names with the system's resolver. Concurrent requests for a name share one lookup."""

    def __init__(self) -> None:
        self._lookups: dict[tuple[str, int], asyncio.Future[list[str] | str]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the first addresses of a host, in the resolver's order. An IP address is returned as it is."""
        with contextlib.suppress(ValueError):
            return [str(ip_address(host))]
        key = (host, port)
        if key not in self._lookups:
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._resolve, args=(key, loop), name="resolver", daemon=True).start()
            self._lookups[key] = loop.create_future()  # the thread sets it in a later loop iteration
        found = await asyncio.shield(self._lookups[key])
        if isinstance(found, str):
            raise NameNotFound(name=host, problem=found)
        return found

    def _resolve(self, key: tuple[str, int], loop: asyncio.AbstractEventLoop) -> None:
        found: list[str] | str
        try:
            results = socket.getaddrinfo(*key, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(address[0]) for *_, address in results))[:MAX_ADDRESSES]
        except (OSError, UnicodeError) as error:
            found = str(getattr(error, "strerror", None) or error)
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            loop.call_soon_threadsafe(self._finish, key, found)

    def _finish(self, key: tuple[str, int], found: list[str] | str) -> None:
        self._lookups.pop(key).set_result(found)


# --- Requests -------------------------------------------------------------------------------------


_log = get_logger(__name__)

MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 307, 308)
MAX_RESPONSE_BYTES = 16_384
"""Of all responses to a request, with informational ones. What follows is not read."""
_READ_BYTES = 1024
"""How much of a response is parsed in one iteration of the event loop. It can have hundreds of parts."""
_READ_SECONDS = 1.0
"""Limit for reading a response body. It is read only so that the connection can be reused."""
_NEXT_ADDRESS_SECONDS = 3.0
"""Connect timeout of an address if there are more addresses to try."""
_IDLE_SECONDS, _MAX_CONNECTIONS = 15.0, 2
"""Limits for connections that are kept for reuse: one to the receiver, and one to where it redirects."""
MAX_ERROR_LENGTH = 300
TOO_LONG = f"the response has more than {MAX_RESPONSE_BYTES:,} bytes before its body"

_CONNECTION_ERRORS = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
    ssl.SSLError,
    OSError,
)


class DeliveryOutcome(NamedTuple):
    """Result of a POST."""

    delivered: bool
    status: int | None = None
    error: str = ""


class OutboundClient:
    """Sends POST requests to allowed addresses."""

    def __init__(
        self,
        targets: AllowedNetworks,
        timeout_seconds: float = TIMEOUT_SECONDS,
        network: _OutboundNetwork | None = None,
    ) -> None:
        self._targets = targets
        self._timeout_seconds = timeout_seconds
        self._network = network or _OutboundNetwork(targets)
        self._pool: httpcore.AsyncConnectionPool | None = None

    def with_own_connections(self) -> OutboundClient:
        """Return another client for one receiver. A pool of httpcore looks at all its connections for each request."""
        return OutboundClient(self._targets, self._timeout_seconds, self._network)

    async def _connection_pool(self) -> httpcore.AsyncConnectionPool:
        if self._pool is None:
            context = await self._network.tls_context()
            # No proxy from the environment: it would bypass the address check.
            self._pool = self._pool or httpcore.AsyncConnectionPool(
                ssl_context=context,
                max_connections=None,
                max_keepalive_connections=_MAX_CONNECTIONS,
                keepalive_expiry=_IDLE_SECONDS,
                network_backend=self._network,
            )
        return self._pool

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> DeliveryOutcome:
        """Send one request. Every error becomes an outcome."""
        try:
            return await self._post(url, headers, body)
        except TimeoutError:
            text = f"no response within {self._timeout_seconds:g} seconds"
        except ForewarnError as error:
            text = str(error)
        except _CONNECTION_ERRORS as error:
            text = _error_text(error)
        except Exception as error:  # noqa: BLE001 - must not end the webhook
            _log.exception("webhook_request_failed", "Unexpected error while sending to a webhook.")
            text = f"{type(error).__name__}: {error}"
        return DeliveryOutcome(delivered=False, error=text[:MAX_ERROR_LENGTH])

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> DeliveryOutcome:
        pool = await self._connection_pool()
        await self._network.next_turn()
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds
        for _ in range(MAX_REDIRECTS + 1):
            status, location = await self._exchange(pool, url, headers, body, deadline)
            if 200 <= status < 300:
                return DeliveryOutcome(delivered=True, status=status)
            if status not in _REDIRECTS or not location:
                return DeliveryOutcome(delivered=False, status=status, error=f"HTTP {status}")
            try:
                target = urljoin(url, location)
                is_downgrade = urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https"
            except ValueError:
                return DeliveryOutcome(False, status, "redirect to an invalid URL")
            if is_downgrade:
                return DeliveryOutcome(False, status, "redirect from https to http, which is not encrypted")
            url = target
        return DeliveryOutcome(delivered=False, status=status, error=f"more than {MAX_REDIRECTS} redirects")

    async def _exchange(
        self, pool: httpcore.AsyncConnectionPool, url: str, headers: dict[str, str], body: bytes, deadline: float
    ) -> tuple[int, str]:
        """Send one request; return the status and the Location header. An endless body is cut off."""
        parts = check_url(url, self._targets)
        sent = {"Host": parts.netloc, "User-Agent": f"Forewarn/{__version__}", "Accept": "*/*", **headers}
        async with AsyncExitStack() as stack:
            async with asyncio.timeout_at(deadline):
                request = pool.stream("POST", url, headers=list(sent.items()), content=body)
                response = await stack.enter_async_context(request)
            with suppress(TimeoutError, *_CONNECTION_ERRORS):
                async with asyncio.timeout(_READ_SECONDS):
                    async for _ in response.aiter_stream():
                        pass
            locations = [value for name, value in response.headers if name.lower() == b"location"]
            return response.status, locations[0].decode("latin-1") if locations else ""


def _error_text(error: BaseException) -> str:
    """Return the text of the original system error, because "all attempts failed" does not help."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    # OpenSSL has its own error numbers and texts.
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


class _OutboundNetwork(httpcore.AsyncNetworkBackend):
    """Connects only to allowed addresses. All clients share it."""

    def __init__(self, targets: AllowedNetworks) -> None:
        self._targets = targets
        self._resolver = HostResolver()
        self._network = httpcore.AnyIOBackend()
        self._turn = asyncio.Lock()
        self._loading = asyncio.Lock()
        self._tls_context: ssl.SSLContext | None = None

    async def tls_context(self) -> ssl.SSLContext:
        """Return the context of all TLS connections. A thread loads the CA certificates, because that is slow."""
        async with self._loading:
            if self._tls_context is None:
                self._tls_context = await asyncio.to_thread(ssl.create_default_context)
            return self._tls_context

    async def next_turn(self) -> None:
        """Wait for an iteration of the event loop in which nothing else is sent or parsed here."""
        async with self._turn:
            await asyncio.sleep(0)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature; the caller has a timeout
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._resolver.addresses(host, port)
        for address in addresses:  # check all: a name with one forbidden address is suspicious
            if not self._targets.allow(address):
                where = address if address == host else f"{host} ({address})"
                raise ForbiddenWebhookAddress(address=where, setting=SETTING)
        for address in addresses[:-1]:
            with suppress(TimeoutError, httpcore.NetworkError):
                async with asyncio.timeout(_NEXT_ADDRESS_SECONDS):
                    return self._limited(await self._network.connect_tcp(address, port))
        return self._limited(await self._network.connect_tcp(addresses[-1], port))

    def _limited(self, stream: httpcore.AsyncNetworkStream) -> httpcore.AsyncNetworkStream:
        return _LimitedStream(stream, self)


class _LimitedStream(httpcore.AsyncNetworkStream):
    """Reads responses in small parts, and not more than the limit. All streams take turns."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, network: _OutboundNetwork) -> None:
        self._stream = stream
        self._network = network
        self._bytes_read = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as above
        if self._bytes_read >= MAX_RESPONSE_BYTES:
            raise httpcore.ReadError(TOO_LONG)
        data = await self._stream.read(min(max_bytes, _READ_BYTES), timeout)
        self._bytes_read += len(data)
        await self._network.next_turn()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        self._bytes_read = 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> httpcore.AsyncNetworkStream:
        return _LimitedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._network)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

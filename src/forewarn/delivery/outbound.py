"""One POST to an outside address: within one time limit, to allowed addresses only, names looked up in threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import threading
from contextlib import AsyncExitStack, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin, urlsplit

import httpcore

from forewarn import __version__
from forewarn.core.webhooks import SETTING, check_url
from forewarn.errors import ForbiddenWebhookAddress, ForewarnError, NameNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.core.webhooks import AllowedNetworks


class Lookup:
    """Asks the system's resolver, once for all who ask for the same name at the same time."""

    def __init__(self) -> None:
        self._lookups: dict[tuple[str, int], asyncio.Future[list[str] | str]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """Every address of a host, the likeliest first. An address is its own."""
        with contextlib.suppress(ValueError):
            return [str(ip_address(host))]
        key = (host, port)
        if key not in self._lookups:
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._ask, args=(key, loop), name="look-up", daemon=True).start()
            self._lookups[key] = loop.create_future()  # nobody is told before this turn of the loop is over
        found = await asyncio.shield(self._lookups[key])
        if isinstance(found, str):
            raise NameNotFound(name=host, problem=found)
        return found

    def _ask(self, key: tuple[str, int], loop: asyncio.AbstractEventLoop) -> None:
        found: list[str] | str
        try:
            answers = socket.getaddrinfo(*key, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(address[0]) for *_, address in answers))
        except (OSError, UnicodeError) as error:
            found = str(getattr(error, "strerror", None) or error)
        with contextlib.suppress(RuntimeError):  # the loop may be over by now
            loop.call_soon_threadsafe(self._tell, key, found)

    def _tell(self, key: tuple[str, int], found: list[str] | str) -> None:
        self._lookups.pop(key).set_result(found)


# --- Requests -------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

MOST_HOPS = 3
_REDIRECTS = (301, 302, 307, 308)
_MOST_READ = 65_536
_READ_SECONDS = 1.0
"""How much of an answer's body is read, and how long: only so that the connection can be used again."""
_NEXT_ADDRESS_SECONDS = 3.0
"""How long one of several addresses has to take a connection before the next is tried."""
_IDLE_SECONDS, _MOST_IDLE = 15.0, 100
"""How long, and how many, connections are kept for what comes next."""
MAX_ERROR_LENGTH = 300

_BROKEN = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
    ssl.SSLError,
    OSError,
)


class DeliveryOutcome(NamedTuple):
    """What came of a POST."""

    delivered: bool
    status: int | None = None
    error: str = ""


class Outbound:
    """Sends what it is given to where it may go."""

    def __init__(self, targets: AllowedNetworks, timeout_seconds: float) -> None:
        self._targets = targets
        self._timeout_seconds = timeout_seconds
        self._pool: httpcore.AsyncConnectionPool | None = None

    async def _connections(self) -> httpcore.AsyncConnectionPool:
        """Made when it is first needed, since the system's authorities take a moment to load: polls go on meanwhile."""
        if self._pool is None:
            context = await asyncio.to_thread(ssl.create_default_context)
            # No proxy from the environment: it would connect where nobody has looked.
            self._pool = self._pool or httpcore.AsyncConnectionPool(
                ssl_context=context,
                max_connections=None,
                max_keepalive_connections=_MOST_IDLE,
                keepalive_expiry=_IDLE_SECONDS,
                network_backend=_Checked(self._targets),
            )
        return self._pool

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> DeliveryOutcome:
        """Send it once. Whatever goes wrong is an outcome."""
        try:
            return await self._post(url, headers, body)
        except TimeoutError:
            text = f"no response within {self._timeout_seconds:g} seconds"
        except ForewarnError as error:
            text = str(error)
        except _BROKEN as error:
            text = _words(error)
        except Exception as error:  # whatever it is, it must not be the end of the webhook
            logger.exception("A webhook could not be sent.")
            text = f"{type(error).__name__}: {error}"
        return DeliveryOutcome(delivered=False, error=text[:MAX_ERROR_LENGTH])

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> DeliveryOutcome:
        pool = await self._connections()
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds
        for _ in range(MOST_HOPS + 1):
            status, location = await self._exchange(pool, url, headers, body, deadline)
            if 200 <= status < 300:
                return DeliveryOutcome(delivered=True, status=status)
            if status not in _REDIRECTS or not location:
                return DeliveryOutcome(delivered=False, status=status, error=f"HTTP {status}")
            try:
                after = urljoin(url, location)
                less_safe = urlsplit(url).scheme == "https" and urlsplit(after).scheme != "https"
            except ValueError:
                return DeliveryOutcome(False, status, "redirect to an invalid URL")
            if less_safe:
                return DeliveryOutcome(False, status, "redirect from https to http, which is not encrypted")
            url = after
        return DeliveryOutcome(delivered=False, status=status, error=f"more than {MOST_HOPS} redirects")

    async def _exchange(
        self, pool: httpcore.AsyncConnectionPool, url: str, headers: dict[str, str], body: bytes, deadline: float
    ) -> tuple[int, str]:
        """The status, and where it says to go instead. A body that never ends does not change the answer."""
        parts = check_url(url, self._targets)
        sent = {"Host": parts.netloc, "User-Agent": f"Forewarn/{__version__}", "Accept": "*/*", **headers}
        async with AsyncExitStack() as stack:
            async with asyncio.timeout_at(deadline):
                request = pool.stream("POST", url, headers=list(sent.items()), content=body)
                response = await stack.enter_async_context(request)
            with suppress(TimeoutError, *_BROKEN):
                async with asyncio.timeout(_READ_SECONDS):
                    await _read_some(response)
            locations = [value for name, value in response.headers if name.lower() == b"location"]
            return response.status, locations[0].decode("latin-1") if locations else ""


async def _read_some(response: httpcore.Response) -> None:
    size = 0
    async for part in response.aiter_stream():
        size += len(part)
        if size > _MOST_READ:
            return


def _words(error: BaseException) -> str:
    """What the system said, where that is what is behind it: "all attempts failed" helps nobody."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    # OpenSSL and the resolver have numbers of their own, and words for them.
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


class _Checked(httpcore.AsyncNetworkBackend):
    """Connects to allowed addresses alone."""

    def __init__(self, targets: AllowedNetworks) -> None:
        self._targets = targets
        self._lookup = Lookup()
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature; the limit is around the whole
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._lookup.addresses(host, port)
        for address in addresses:  # all of them: a name with a forbidden one among others is up to no good
            if not self._targets.allow(address):
                where = address if address == host else f"{host} ({address})"
                raise ForbiddenWebhookAddress(address=where, setting=SETTING)
        for address in addresses[:-1]:
            with suppress(TimeoutError, httpcore.NetworkError):
                async with asyncio.timeout(_NEXT_ADDRESS_SECONDS):
                    return await self._network.connect_tcp(address, port)
        return await self._network.connect_tcp(addresses[-1], port)

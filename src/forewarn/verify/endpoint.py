"""The server under test at one address. Requests use no proxy, follow no redirect and respect a rate limit."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forewarn.clock import real_seconds
from forewarn.errors import BadVerifyURL, EndpointUnreachable
from forewarn.verify.check import CheckFailed, CheckSkipped
from forewarn.verify.exchange import METADATA_TRUE, HttpConnection, HttpRequest, HttpResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

PATH = "/metadata/scheduledevents"
NEWEST = "2020-07-01"
INSTANCE_PATH = "/metadata/instance"
FIRST_TIMEOUT_SECONDS = 150
"""The server may take two minutes for the first GET of a group."""
_RETRY_DELAY_SECONDS = 0.21
"""Long enough for a server that accepts five requests per second."""
_MAX_TRIES = 60
_MAX_TRIES_WHEN_LIMITED = 2
_MAX_UNANSWERED = 3
_UNANSWERED_TIMEOUT_SECONDS = 1.0
"""Timeout after several requests in a row without a response."""
MAX_KEPT_BYTES = 16_000_000
"""Maximum size of all kept responses. Equal bodies are kept once."""


def pause(seconds: float) -> None:
    """Wait in real time."""
    Event().wait(seconds)


def target_for(version: str, path: str = PATH) -> str:
    """Return the request target for an api-version."""
    return f"{path}?api-version={version}"


class TargetEndpoint:
    """The endpoint as one VM sees it. It keeps every response, because some rules apply to all of them."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self.url = url
        self.timeout_seconds = timeout_seconds
        self.responses: list[HttpResponse] = []
        self._max_tries = _MAX_TRIES
        self._unanswered = 0
        self._bodies: dict[bytes, bytes] = {}
        self._kept_bytes = 0
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise BadVerifyURL(url=url) from None
        plain = not (parts.query or parts.fragment or parts.username or parts.password)
        path = parts.path.rstrip("/").lower()
        if parts.scheme != "http" or not parts.hostname or not plain or path not in ("", PATH):
            raise BadVerifyURL(url=url)
        self.address = (parts.hostname, port or 80)

    def probe(self) -> HttpResponse:
        """Send the first GET. Raise EndpointUnreachable if there is no HTTP response."""
        try:
            with self.connect(FIRST_TIMEOUT_SECONDS) as connection:
                request = HttpRequest("GET", target_for(NEWEST))
                connection.send(request.raw)
                return connection.read_response(request)
        except UnicodeError as error:
            raise BadVerifyURL(url=self.url) from error  # not a valid host name
        except OSError as error:
            raise EndpointUnreachable(url=self.url, problem=error.strerror or str(error)) from error
        except CheckFailed as failure:
            raise EndpointUnreachable(url=self.url, problem=failure.actual) from failure

    def connect(self, timeout_seconds: float | None = None) -> HttpConnection:
        """Open a new connection."""
        default = self.timeout_seconds
        if self._unanswered >= _MAX_UNANSWERED:
            default = min(default, _UNANSWERED_TIMEOUT_SECONDS)
        return HttpConnection(self.address, timeout_seconds or default)

    def request(
        self,
        method: str = "GET",
        target: str = target_for(NEWEST),
        headers: Iterable[tuple[str, str]] = METADATA_TRUE,
        body: bytes | None = None,
        *,
        protocol: str = "1.1",
        host: str | None = "169.254.169.254",
    ) -> HttpResponse:
        """Send a request and return the response. Retry after 429."""
        request = HttpRequest(method, target, tuple(headers), body, protocol, host)
        for _ in range(self._max_tries):
            response = self.request_once(request)
            if response.status != 429:
                return response
            pause(_RETRY_DELAY_SECONDS)
        self._max_tries = _MAX_TRIES_WHEN_LIMITED
        return response

    def request_once(self, request: HttpRequest) -> HttpResponse:
        """Send a request over a new connection and return the response, 429 included."""
        try:
            with self.connect() as connection:
                connection.send(request.raw)
                response = connection.read_response(request)
        except OSError as error:
            self._unanswered += 1
            actual = error.strerror or str(error)
            raise CheckFailed("a response", request=request.summary, actual=actual) from error
        except CheckFailed:
            self._unanswered += 1
            raise
        self._unanswered = 0
        return self._keep(response)

    def responds(self, seconds: float) -> bool:
        """Return whether the server still responds. If it did not respond last time, poll for up to this time."""
        deadline = real_seconds() + seconds
        while self._unanswered:
            with suppress(CheckFailed, CheckSkipped):
                self.request_once(HttpRequest("GET", target_for(NEWEST)))
            if self._unanswered and real_seconds() >= deadline:
                return False
            pause(_RETRY_DELAY_SECONDS)
        return True

    def _keep(self, response: HttpResponse) -> HttpResponse:
        size = sum(len(name) + len(value) for name, value in response.headers)
        size += 0 if response.body in self._bodies else len(response.body)
        if self._kept_bytes + size > MAX_KEPT_BYTES:
            raise CheckSkipped(
                f"the responses of this run exceed {MAX_KEPT_BYTES} bytes; start the server with fewer events"
            )
        self._kept_bytes += size
        kept = replace(response, body=self._bodies.setdefault(response.body, response.body))
        self.responses.append(kept)
        return kept

    def pipeline(self, *requests: HttpRequest) -> list[HttpResponse]:
        """Send requests in one write over one connection. Return the responses up to one that closes it."""
        for _ in range(self._max_tries):
            responses: list[HttpResponse] = []
            with self.connect() as connection:
                connection.send(b"".join(request.raw for request in requests))
                for request in requests:
                    responses.append(connection.read_response(request))
                    if responses[-1].closes:
                        break
            if all(response.status != 429 for response in responses):
                break
            pause(len(requests) * _RETRY_DELAY_SECONDS)
        return [self._keep(response) for response in responses]

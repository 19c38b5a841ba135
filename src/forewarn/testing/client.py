"""Requests to a running service: as a VM, as an operator, from the command line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from forewarn.core.durations import from_text
from forewarn.errors import EXIT_CODES
from forewarn.system.http_client import Origin, opened, origin_of
from forewarn.wire.document_reader import start_requests

if TYPE_CHECKING:
    from datetime import datetime

__tracebackhide__ = True

NEWEST_VERSION = "2020-07-01"
EVENTS_PATH = "/metadata/scheduledevents"
DOCUMENT = f"{EVENTS_PATH}?api-version={NEWEST_VERSION}"
TIMEOUT_SECONDS = 60
MAX_ROWS = 1000
COMMAND = (sys.executable, "-m", "forewarn")
"""The command line of this installation, without arguments."""


@dataclass(frozen=True)
class HTTPResponse:
    """The response to a request of a test."""

    status: int
    headers: dict[str, str]
    """Names are in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class UnexpectedResponse(AssertionError):
    """The service sent another status than the test expects."""


def send(
    origin: Origin,
    method: str,
    target: str,
    headers: dict[str, str],
    body: bytes | str | None = None,
    source: str = "",
) -> HTTPResponse:
    """Send one request on its own connection."""
    with opened(origin, method, target, headers, body, seconds=TIMEOUT_SECONDS, source=source) as response:
        received = {name.lower(): value for name, value in response.getheaders()}
        return HTTPResponse(response.status, received, response.read())


def address_in(url: str) -> tuple[str, int]:
    """Return host and port of a URL."""
    origin = origin_of(url)
    return origin.host, origin.port


class ServiceClient(ABC):
    """Requests to a running service over the network.

    A subclass provides its addresses and its credentials.
    """

    @property
    @abstractmethod
    def metadata_url(self) -> str:
        """The metadata service, which identifies a VM by the address of the caller."""

    @property
    @abstractmethod
    def control_url(self) -> str:
        """The control API, for the command line and other programs."""

    @property
    @abstractmethod
    def token(self) -> str:
        """An admin token for the control API."""

    @property
    @abstractmethod
    def certificate(self) -> str:
        """The certificate of the control API as PEM, or an empty string if it has none."""

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The environment variables with which the command line finds this service."""

    @property
    def metadata_address(self) -> tuple[str, int]:
        return address_in(self.metadata_url)

    @property
    def control_address(self) -> tuple[str, int]:
        return address_in(self.control_url)

    # --- As a VM ----------------------------------------------------------------------------------

    def connect(self, address: tuple[str, int] | None = None, source: str = "127.0.0.1") -> socket.socket:
        """Open a TCP connection, from any loopback address."""
        return socket.create_connection(address or self.metadata_address, timeout=20, source_address=(source, 0))

    def request(
        self,
        method: str = "GET",
        target: str = DOCUMENT,
        headers: dict[str, str] | None = None,
        body: bytes | str | None = None,
        *,
        source: str = "127.0.0.1",
        address: tuple[str, int] | None = None,
    ) -> HTTPResponse:
        """Send a request to the metadata service. Without `headers` it has only the Metadata header."""
        headers = {"Metadata": "true"} if headers is None else headers
        return send(Origin(*(address or self.metadata_address)), method, target, headers, body, source)

    def document(self, **options: Any) -> Any:
        """Return the document of scheduled events, as JSON."""
        return expect_status(self.request(**options), 200).json()

    def approve(self, *ids: str, source: str = "127.0.0.1") -> HTTPResponse:
        """Approve events, as the VM with the address `source`."""
        return self.request("POST", body=start_requests(*ids), source=source)

    # --- As an operator ---------------------------------------------------------------------------

    def control(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> HTTPResponse:
        """Send a request to the control API. The default token is the admin token."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.token if token is None else token}", **(headers or {})}
        return send(origin_of(self.control_url, self.certificate), method, path, sent, content)

    @property
    def now(self) -> datetime:
        """The service's time."""
        return from_text(self.get_json("/v1/clock")["now"])

    def get_json(self, path: str) -> Any:
        """GET a path of the control API, and return the JSON."""
        return expect_status(self.control("GET", path), 200).json()

    def list_all(self, path: str) -> list[Any]:
        """Return a whole list of the control API. It is read page by page."""
        found: list[Any] = []
        query = ("&" if "?" in path else "?") + f"limit={MAX_ROWS}"
        cursor = ""
        while True:
            page = self.get_json(path + query + cursor)
            (name,) = page.keys() - {"next"}
            found += page[name]
            if page["next"] is None:
                return found
            cursor = f"&cursor={page['next']}"

    # --- From the command line --------------------------------------------------------------------

    def cli(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command line with this service, as in another terminal."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
        return subprocess.run(  # noqa: S603 - it is this very program
            [*COMMAND, *arguments],
            env={**inherited, **self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )


def expect_status(response: HTTPResponse, status: int, sender: str = "") -> HTTPResponse:
    """Return the response if it has this status."""
    if response.status != status:
        problem = f"expected status {status}, got {response.status}: {response.body.decode(errors='replace')}"
        raise UnexpectedResponse(f"{sender}: {problem}" if sender else problem)
    return response


_FAMILIES = {family.__name__: family for family in EXIT_CODES}


class ControlRequests:
    """Requests to the control API whose error responses are raised as errors of Forewarn."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service

    def get(self, *path: str, **query: str) -> Any:
        return self._send("GET", path, query)

    def all(self, name: str, *path: str, **query: str) -> dict[str, list[Any]]:
        """Return a complete list, read page by page."""
        found: list[Any] = []
        cursor = {"limit": str(MAX_ROWS)}
        while True:
            page = self._send("GET", (name, *path), {**query, **cursor})
            found += page[name]
            if page["next"] is None:
                return {name: found}
            cursor["cursor"] = page["next"]

    def post(self, *path: str, body: dict[str, Any] | None = None) -> Any:
        return self._send("POST", path, {}, body or {})

    def delete(self, *path: str) -> Any:
        return self._send("DELETE", path, {})

    def _send(self, method: str, path: tuple[str, ...], query: dict[str, str], body: Any = None) -> Any:
        target = "/v1/" + "/".join(quote(part, safe="") for part in path) + (f"?{urlencode(query)}" if query else "")
        response = self._service.control(method, target, body)
        answer = response.json()
        if response.status >= 400:
            raise _FAMILIES[answer["title"]].relayed(answer["detail"])
        return answer

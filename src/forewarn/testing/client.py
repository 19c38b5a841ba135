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

from forewarn.core.durations import from_text
from forewarn.system.http_client import Origin, opened, origin_of
from forewarn.wire.document_reader import start_requests

if TYPE_CHECKING:
    from datetime import datetime

NEWEST_VERSION = "2020-07-01"
EVENTS_PATH = "/metadata/scheduledevents"
DOCUMENT = f"{EVENTS_PATH}?api-version={NEWEST_VERSION}"
TIMEOUT_SECONDS = 60
MOST_ROWS = 1000
COMMAND = (sys.executable, "-m", "forewarn")
"""The command line of this installation, without arguments."""
SERVICE_FILE = "service.json"
"""The file in its data folder by which the command line finds a service on this machine."""


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Unexpected(AssertionError):
    """The service gave another answer than the test expects."""


def send(
    origin: Origin,
    method: str,
    target: str,
    headers: dict[str, str],
    body: bytes | str | None = None,
    source: str = "",
) -> Answer:
    """One request on a connection of its own."""
    with opened(origin, method, target, headers, body, seconds=TIMEOUT_SECONDS, source=source) as answer:
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read())


def address_in(url: str) -> tuple[str, int]:
    """Host and port of a URL."""
    origin = origin_of(url)
    return origin.host, origin.port


class Reachable(ABC):
    """A running service that can be reached over the network, and requests to it.

    A subclass says where it is.
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
        """The file with the certificate of the control API; empty if it has none."""

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The variables with which the command line finds this service, and no other."""

    @property
    def metadata_address(self) -> tuple[str, int]:
        return address_in(self.metadata_url)

    @property
    def control_address(self) -> tuple[str, int]:
        return address_in(self.control_url)

    # --- As a VM ----------------------------------------------------------------------------------

    def connect(self, address: tuple[str, int] | None = None, source: str = "127.0.0.1") -> socket.socket:
        """A bare connection, from any loopback address."""
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
    ) -> Answer:
        """A request to the metadata service; with the Metadata header unless headers are given."""
        headers = {"Metadata": "true"} if headers is None else headers
        return send(Origin(*(address or self.metadata_address)), method, target, headers, body, source)

    def document(self, **options: Any) -> Any:
        """The document of scheduled events, as JSON."""
        return _good(self.request(**options), 200).json()

    def approve(self, *ids: str, source: str = "127.0.0.1") -> Answer:
        """Approve events, as the VM at that address."""
        return self.request("POST", body=start_requests(*ids), source=source)

    # --- As an operator ---------------------------------------------------------------------------

    def control(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """A request to the control API, with the admin token unless another is given."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.token if token is None else token}", **(headers or {})}
        return send(origin_of(self.control_url, self.certificate), method, path, sent, content)

    @property
    def now(self) -> datetime:
        """The service's time."""
        return from_text(self.answer("/v1/clock")["now"])

    def answer(self, path: str) -> Any:
        """The JSON at a path of the control API."""
        return _good(self.control("GET", path), 200).json()

    def all(self, path: str) -> list[Any]:
        """A list of the control API, page by page."""
        found: list[Any] = []
        query = ("&" if "?" in path else "?") + f"limit={MOST_ROWS}"
        cursor = ""
        while True:
            page = self.answer(path + query + cursor)
            (name,) = page.keys() - {"next"}
            found += page[name]
            if page["next"] is None:
                return found
            cursor = f"&cursor={page['next']}"

    def request_operation(self, cause: str, *vms: str, **options: Any) -> dict[str, Any]:
        """Request an operation; returns it, or the first if there are several."""
        body = {"cause": cause, **({"vms": vms} if vms else {}), **options}
        operation: dict[str, Any] = _good(self.control("POST", "/v1/operations", body), 201).json()["operations"][0]
        return operation

    # --- From the command line --------------------------------------------------------------------

    def cli(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """The command line, as typed in another terminal."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
        return subprocess.run(  # noqa: S603 - it is this very program
            [*COMMAND, *arguments],
            env={**ours, **self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )


def _good(answer: Answer, status: int) -> Answer:
    if answer.status != status:
        raise Unexpected(f"{answer.status}: {answer.body.decode(errors='replace')}")
    return answer

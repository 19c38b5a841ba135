"""The command line's client of the control API."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, contextmanager
from functools import cached_property
from hmac import compare_digest
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import click

from forewarn import __version__
from forewarn.cli.selection import find_service, known_services, select
from forewarn.errors import (
    EXIT_CODES,
    BadFile,
    BadOption,
    Forbidden,
    Invalid,
    NoService,
    NoToken,
    ServiceNotProven,
    ServiceUnreachable,
    Unavailable,
    UnknownService,
    UnreadableFile,
)
from forewarn.system.http_client import Origin, opened, origin_of
from forewarn.system.printable import printable_values
from forewarn.system.service_files import proof_of, registered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPConnection, HTTPResponse

TIMEOUT_SECONDS = 300
"""Long enough to apply a large fleet."""
PROOF_SECONDS = 30
MAX_PROOF_BYTES = 1000
MAX_PAGE_SIZE = 1000
MAX_RESPONSE_BYTES = 256 * 1_048_576
"""More than any response of Forewarn."""

LOST = (Unavailable, NoService, UnknownService)
"""Errors after which a command that waits looks for the service again: it may be restarting."""

_FAMILIES = {kind.__name__: kind for kind in EXIT_CODES} | {"Unauthorized": Forbidden, "Method Not Allowed": Invalid}


class ServiceAddress(NamedTuple):
    """Where the service is, and the token for it."""

    url: str
    token: str
    name: str
    certificate: str = ""
    """The certificate of a service on this machine, as PEM. It is trusted without a chain."""
    proof_key: str = ""
    """The key with which a service on this machine proves its identity. Empty: the user gave the URL."""


class ControlClient:
    """Sends requests to a service, local or remote. Raises the error that the service reports."""

    def __init__(
        self,
        service: str | None,
        data: str | None,
        server: str | None,
        token_file: str | None,
        *,
        printable: bool = False,
    ) -> None:
        """Take the values of the options. With --service or --data, the variables for a remote service are ignored.

        `printable`: escape control characters in all strings of the responses.
        """
        self._printable = printable
        self._service, self._data, self._server = select(service, data, server)
        self._token_file = token_file or (None if service or data else os.environ.get("FOREWARN_TOKEN_FILE"))
        self._responded = False
        self._announced = False

    def refresh(self) -> None:
        """Look for the service again before the next request: a restart may have changed its address."""
        self.__dict__.pop("_address", None)
        self.__dict__.pop("_origin", None)

    @cached_property
    def _address(self) -> ServiceAddress:
        if self._server:
            url = _checked(self._server)
            if not self._token_file:
                raise NoToken(url=url, problem="--server needs a token.")
            return ServiceAddress(url, _read_token(self._token_file), url)
        found = find_service(self._service, self._data)
        token_file = self._token_file or found.token_file
        if not Path(token_file).exists() and not self._token_file:
            raise NoToken(url=found.control, problem=f"the file {token_file} does not exist.")
        return ServiceAddress(found.control, _read_token(token_file), found.name, found.certificate, found.proof_key)

    def announce(self) -> None:
        """Before a change: if more than one service is known, print once which of them the command changes."""
        if self._announced:
            return
        self._announced = True
        address = self._address
        others = registered() if self._server else known_services()
        if any(each.control != address.url for each in others):
            click.echo(f"Service: {address.name}", err=True)

    @property
    def url(self) -> str:
        """The URL of the service."""
        return self._address.url

    @cached_property
    def _origin(self) -> Origin:
        return origin_of(self._address.url, self._address.certificate)

    def get(self, *path: str, **query: str) -> Any:
        return self._parsed("GET", path, query)

    def all(self, name: str, *path: str, **query: str) -> dict[str, list[Any]]:
        """Return a complete list, read page by page."""
        pages = self.pages((name, *path), list(query.items()))
        return {path[-1] if path else name: [each for page in pages for each in page]}

    def pages(self, path: tuple[str, ...], query: list[tuple[str, str]], size: int = 0) -> Iterator[list[Any]]:
        """Yield the items of each page of a list. `size`: the size of a page; 0: the maximum."""
        limit = str(min(size or MAX_PAGE_SIZE, MAX_PAGE_SIZE))
        cursors: list[str] = []
        while True:
            cursor = [("cursor", cursors[-1])] if cursors else []
            items, following = self.page(path, [*query, ("limit", limit), *cursor])
            yield items
            if following is None:
                return
            if not isinstance(following, str) or following in cursors:
                problem = f"the list does not end: the cursor {following!r:.100} is not valid, or repeats"
                raise ServiceUnreachable(url=self._address.url, problem=problem)
            cursors.append(following)

    def page(self, path: tuple[str, ...], query: list[tuple[str, str]]) -> tuple[list[Any], Any]:
        """Return the items of one page of a list, and the cursor of the next page."""
        page = self._parsed("GET", path, query)
        if not isinstance(page, dict) or not isinstance(page.get(path[-1]), list):
            raise ServiceUnreachable(url=self._address.url, problem="the response is not from Forewarn")
        return page[path[-1]], page.get("next")

    def count(self, path: tuple[str, ...], query: list[tuple[str, str]]) -> int:
        """Return the number of items of a list."""
        return int(self._parsed("GET", path, [*query, ("limit", "1"), ("count", "true")])["total"])

    def post(self, *path: str, body: dict[str, Any] | None = None, seconds: float = TIMEOUT_SECONDS) -> Any:
        if not (body or {}).get("dry_run"):
            self.announce()
        return self._parsed("POST", path, {}, json.dumps(body or {}).encode(), seconds)

    def put(self, *path: str, body: bytes, **query: str) -> Any:
        if query.get("dry_run") != "true":
            self.announce()
        return self._parsed("PUT", path, query, body)

    def patch(self, *path: str, body: bytes, **query: str) -> Any:
        if query.get("dry_run") != "true":
            self.announce()
        return self._parsed("PATCH", path, query, body)

    def delete(self, *path: str) -> Any:
        self.announce()
        return self._parsed("DELETE", path, {})

    def _parsed(
        self,
        method: str,
        path: tuple[str, ...],
        query: dict[str, str] | list[tuple[str, str]],
        body: bytes | None = None,
        seconds: float = TIMEOUT_SECONDS,
    ) -> Any:
        return self.decoded(self.raw(method, path, query, body, seconds))

    def decoded(self, content: bytes | str) -> Any:
        """Return the value of a JSON text."""
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ServiceUnreachable(url=self._address.url, problem="the response is not JSON") from error
        return printable_values(value) if self._printable else value

    def raw(
        self,
        method: str,
        path: tuple[str, ...],
        query: dict[str, str] | list[tuple[str, str]],
        body: bytes | None = None,
        seconds: float = TIMEOUT_SECONDS,
    ) -> bytes:
        """Return the body of the response."""
        with self.open(method, path, query, body, seconds=seconds) as response:
            return self._read(response)

    def _read(self, response: HTTPResponse) -> bytes:
        problem = "the response was incomplete"
        try:
            content = response.read(MAX_RESPONSE_BYTES + 1)
        except (OSError, HTTPException) as error:
            raise ServiceUnreachable(url=self._address.url, problem=problem) from error
        if len(content) > MAX_RESPONSE_BYTES:
            problem = f"the response has more than {MAX_RESPONSE_BYTES} bytes"
        elif not response.length:
            return content
        raise ServiceUnreachable(url=self._address.url, problem=problem)

    def unreadable(self, error: Exception) -> Exception:
        """Return the error for a response of another shape than a command expects."""
        if not self._responded:  # then it is a mistake in the command
            return error
        problem = f"the response is not from Forewarn {__version__} ({error!r:.100})"
        return ServiceUnreachable(url=self._address.url, problem=problem)

    @contextmanager
    def open(
        self,
        method: str,
        path: tuple[str, ...],
        query: dict[str, str] | list[tuple[str, str]],
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = TIMEOUT_SECONDS,
    ) -> Iterator[HTTPResponse]:
        """Send a request. The response can be read within the block; a status other than 2xx is an error."""
        if not all(path):
            raise BadOption(name="name or id", value="", problem="it must not be empty.")
        target = f"{urlsplit(self._address.url).path}/v1/" + "/".join(quote(part, safe="") for part in path)
        if query:
            target += "?" + urlencode(query)
        headers = {"Authorization": f"Bearer {self._address.token}", **(headers or {})}
        with ExitStack() as stack:
            try:
                check = self._require_proof if self._address.proof_key else None
                sent = opened(self._origin, method, target, headers, body, seconds=seconds, check=check)
                response = stack.enter_context(sent)
                self._responded = True
                rejection = b"" if 200 <= response.status < 300 else self._read(response)
            except (OSError, HTTPException) as error:
                problem = str(error) if isinstance(error, OSError) else "the response is not valid HTTP"
                raise ServiceUnreachable(url=self._address.url, problem=problem or type(error).__name__) from error
            if 300 <= response.status < 400:
                problem = f"it redirects to {response.getheader('Location')}; to use that address, set --server"
                raise ServiceUnreachable(url=self._address.url, problem=problem)
            if not 200 <= response.status < 300:
                raise _reported_error(self._address.url, response.status, rejection)
            yield response

    def _require_proof(self, connection: HTTPConnection) -> None:
        """Before the token is sent: check that the service that wrote the service file is at the other end."""
        address = self._address
        if not proves_itself(connection, address.proof_key):
            raise ServiceNotProven(url=address.url, name=address.name)


def proves_itself(connection: HTTPConnection, key: str) -> bool:
    """Return whether the program at the other end knows the key of the service file. Raises OSError."""
    challenge = os.urandom(32).hex()
    timeout = connection.timeout
    connection.timeout = PROOF_SECONDS
    try:
        connection.connect()
        connection.timeout = timeout
        connection.request("GET", f"/v1/proof?challenge={challenge}")
        response = connection.getresponse()
        content = json.loads(response.read(MAX_PROOF_BYTES))
        proof = str(content["proof"]).encode()
    except (HTTPException, ConnectionResetError, ValueError, KeyError, TypeError):
        return False
    if connection.sock is not None:  # None: the service is stopping, and has closed the connection
        connection.sock.settimeout(timeout)
    return compare_digest(proof, proof_of(key, challenge).encode())


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise BadOption(name="--server", value=url, problem="write it like https://forewarn.example.org:8170.")
    return url.rstrip("/")


def _read_token(path: str) -> str:
    try:
        token = Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise UnreadableFile(path=path, problem=getattr(error, "strerror", None) or "it is not UTF-8") from error
    if not token or not token.isascii() or not token.isprintable():
        raise UnreadableFile(path=path, problem="it does not contain a token")
    return token


def _reported_error(url: str, status: int, body: bytes) -> Exception:
    """Return the error of a response with problem details."""
    try:
        details = json.loads(body)
        kind = BadFile if details.get("errors") else _FAMILIES[details["title"]]
        return kind.relayed(_name_option(details))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problem = f"HTTP {status}, not from a control API (its default port is 8170)"
        return ServiceUnreachable(url=url, problem=problem)


def _name_option(details: dict[str, str]) -> str:
    """Return the text of an error, with the name of the option in place of the API's name for it."""
    text = details["detail"]
    field = details.get("parameter") or details.get("pointer") or ""
    member = field.removeprefix("/").partition("/")[0]
    option = _option_for(member)
    for start, renamed in ((f"{field}: ", f"{option}: "), (f"Invalid {member} ", f"Invalid {option} ")):
        if option and text.startswith(start):
            return renamed + text.removeprefix(start)
    return text


def _option_for(member: str) -> str | None:
    """Return the option or argument of the running command that sets a member of the request."""
    context = click.get_current_context(silent=True)
    for parameter in context.command.params if context else ():
        if parameter.name == member.replace("-", "_") or f"--{member.replace('_', '-')}" in parameter.opts:
            return parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
    return None

"""The command line's client of the control API."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import click

from forewarn.cli import service_files
from forewarn.errors import EXIT_CODES, BadOption, NoToken, ServiceUnreachable, UnreadableFile
from forewarn.system.http_client import Origin, opened, origin_of
from forewarn.system.printable import printable_values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPResponse

TIMEOUT_SECONDS = 300
"""Long enough to apply a large fleet."""
MAX_PAGE_SIZE = "1000"

_FAMILIES = {kind.__name__: kind for kind in EXIT_CODES}


class ServiceAddress(NamedTuple):
    """Where the service is, and the token for it."""

    url: str
    token: str
    certificate: str = ""
    """The file with the certificate of a service on this machine. It is trusted without a chain."""


class ControlClient:
    """Sends requests to a service, local or remote. Raises the error that the service reports."""

    def __init__(
        self, data: str | None, server: str | None, token_file: str | None, *, printable: bool = False
    ) -> None:
        """Take the values of the options. With --data, the variables for a remote service are ignored.

        `printable`: escape control characters in all strings of the responses.
        """
        self._printable = printable
        if data and server:
            problem = f"it cannot be combined with --data {data}. Use one of them."
            raise BadOption(name="--server", value=server, problem=problem)
        variables = {} if data else os.environ
        self._data = data
        self._server = server or variables.get("FOREWARN_SERVER")
        self._token_file = token_file or variables.get("FOREWARN_TOKEN_FILE")

    def refreshed(self) -> ControlClient:
        """Return a client that looks for the service again: a restart may have changed its address."""
        other = copy(self)
        other.__dict__.pop("_address", None)
        other.__dict__.pop("_origin", None)
        return other

    @cached_property
    def _address(self) -> ServiceAddress:
        if self._server:
            url = _checked(self._server)
            if not self._token_file:
                raise NoToken(url=url, problem="--server needs a token.")
            return ServiceAddress(url, _read_token(self._token_file))
        found = service_files.find(self._data or os.environ.get("FOREWARN_DATA"))
        token_file = self._token_file or found.token_file
        if not Path(token_file).exists() and not self._token_file:
            raise NoToken(url=found.control, problem=f"the file {token_file} does not exist.")
        return ServiceAddress(found.control, _read_token(token_file), found.certificate)

    @cached_property
    def _origin(self) -> Origin:
        return origin_of(self._address.url, self._address.certificate)

    def get(self, *path: str, **query: str) -> Any:
        return self._parsed("GET", path, query)

    def all(self, name: str, *path: str, **query: str) -> dict[str, list[Any]]:
        """Return a complete list, read page by page."""
        found: list[Any] = []
        cursor: dict[str, str] = {}
        while True:
            page = self.get(name, *path, limit=MAX_PAGE_SIZE, **query, **cursor)
            key = path[-1] if path else name
            if not isinstance(page, dict) or not isinstance(page.get(key), list):
                raise ServiceUnreachable(url=self._address.url, problem="the response is not from Forewarn")
            found += page[key]
            if page.get("next") is None:
                return {key: found}
            cursor = {"cursor": page["next"]}

    def post(self, *path: str, body: dict[str, Any] | None = None, seconds: float = TIMEOUT_SECONDS) -> Any:
        return self._parsed("POST", path, {}, json.dumps(body or {}).encode(), seconds)

    def put(self, *path: str, body: bytes, **query: str) -> Any:
        return self._parsed("PUT", path, query, body)

    def delete(self, *path: str) -> Any:
        return self._parsed("DELETE", path, {})

    def _parsed(
        self,
        method: str,
        path: tuple[str, ...],
        query: dict[str, str],
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
        query: dict[str, str],
        body: bytes | None = None,
        seconds: float = TIMEOUT_SECONDS,
    ) -> bytes:
        """Return the body of the response."""
        with self.open(method, path, query, body, seconds=seconds) as response:
            try:
                return response.read()
            except (OSError, HTTPException) as error:
                raise ServiceUnreachable(url=self._address.url, problem="the response was incomplete") from error

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
                sent = opened(self._origin, method, target, headers, body, seconds=seconds)
                response = stack.enter_context(sent)
                rejection = b"" if 200 <= response.status < 300 else response.read()
            except (OSError, HTTPException) as error:
                raise ServiceUnreachable(url=self._address.url, problem=str(error) or type(error).__name__) from error
            if 300 <= response.status < 400:
                problem = f"it redirects to {response.getheader('Location')}; to use that address, set --server"
                raise ServiceUnreachable(url=self._address.url, problem=problem)
            if not 200 <= response.status < 300:
                raise _reported_error(self._address.url, response.status, rejection)
            yield response


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
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
        return _FAMILIES[details["title"]].relayed(_name_option(details))
    except (ValueError, KeyError, TypeError):
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
        if parameter.name == member.replace("-", "_"):
            return parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
    return None

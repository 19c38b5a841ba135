"""The control API from the command line's side."""

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

from forewarn.cli import service_files
from forewarn.errors import EXIT_CODES, BadOption, NoToken, ServiceUnreachable, Unavailable, UnreadableFile
from forewarn.system.http_client import Origin, opened, origin_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPResponse

TIMEOUT_SECONDS = 300
"""Long enough for a large fleet to be applied."""
LARGEST_PAGE = "1000"

_FAMILIES = {kind.__name__: kind for kind in EXIT_CODES}


class Place(NamedTuple):
    """Where the service is, and how to get in."""

    url: str
    token: str
    certificate: str = ""
    """Of a service on this machine: the file with its own certificate, which is trusted as it is."""


class Client:
    """Asks a service, elsewhere or on this machine. Errors come back as the errors they were."""

    def __init__(self, data: str | None, server: str | None, token_file: str | None) -> None:
        """What was given by flags. A flag beats a variable: with a data folder no variable leads elsewhere."""
        if data and server:
            problem = f"it cannot be combined with --data {data}. Use one of them."
            raise BadOption(name="--server", value=server, problem=problem)
        variables = {} if data else os.environ
        self._data = data
        self._server = server or variables.get("FOREWARN_SERVER")
        self._token_file = token_file or variables.get("FOREWARN_TOKEN_FILE")

    def anew(self) -> Client:
        """The same service, looked for again: it may be at another address since it was started again."""
        other = copy(self)
        other.__dict__.pop("_place", None)
        other.__dict__.pop("_origin", None)
        return other

    @cached_property
    def _place(self) -> Place:
        if self._server:
            url = _checked(self._server)
            if not self._token_file:
                raise NoToken(url=url, problem="the service is not on this machine.")
            return Place(url, _read_token(self._token_file))
        found = service_files.find(self._data or os.environ.get("FOREWARN_DATA"))
        token_file = self._token_file or found.token_file
        if not Path(token_file).exists() and not self._token_file:
            raise NoToken(url=found.control, problem=f"the file {token_file} does not exist.")
        return Place(found.control, _read_token(token_file), found.certificate)

    @cached_property
    def _origin(self) -> Origin:
        return origin_of(self._place.url, self._place.certificate)

    def get(self, *path: str, **query: str) -> Any:
        return self._parsed("GET", path, query)

    def all(self, name: str, *path: str, **query: str) -> dict[str, list[Any]]:
        """A whole list, page by page."""
        found: list[Any] = []
        cursor: dict[str, str] = {}
        while True:
            page = self.get(name, *path, limit=LARGEST_PAGE, **query, **cursor)
            key = path[-1] if path else name
            if not isinstance(page, dict) or not isinstance(page.get(key), list):
                raise ServiceUnreachable(url=self._place.url, problem="the response is not from Forewarn")
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
        content = self.raw(method, path, query, body, seconds)
        try:
            return json.loads(content)
        except ValueError as error:
            raise ServiceUnreachable(url=self._place.url, problem="the response is not JSON") from error

    def raw(
        self,
        method: str,
        path: tuple[str, ...],
        query: dict[str, str],
        body: bytes | None = None,
        seconds: float = TIMEOUT_SECONDS,
    ) -> bytes:
        """The bytes of an answer."""
        with self.open(method, path, query, body, seconds=seconds) as answer:
            try:
                return answer.read()
            except (OSError, HTTPException) as error:
                raise ServiceUnreachable(url=self._place.url, problem="the response was incomplete") from error

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
        """A good answer, to be read within the block."""
        if not all(path):
            raise BadOption(name="name or id", value="", problem="it must not be empty.")
        target = f"{urlsplit(self._place.url).path}/v1/" + "/".join(quote(part, safe="") for part in path)
        if query:
            target += "?" + urlencode(query)
        headers = {"Authorization": f"Bearer {self._place.token}", **(headers or {})}
        with ExitStack() as stack:
            try:
                sent = opened(self._origin, method, target, headers, body, seconds=seconds)
                answer = stack.enter_context(sent)
                refusal = b"" if 200 <= answer.status < 300 else answer.read()
            except (OSError, HTTPException) as error:
                raise ServiceUnreachable(url=self._place.url, problem=str(error) or type(error).__name__) from error
            if 300 <= answer.status < 400:
                problem = f"it redirects to {answer.getheader('Location')}; to use that address, set --server"
                raise ServiceUnreachable(url=self._place.url, problem=problem)
            if not 200 <= answer.status < 300:
                raise _relayed(refusal)
            yield answer


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


def _relayed(body: bytes) -> Exception:
    try:
        details = json.loads(body)
        return _FAMILIES[details["title"]].relayed(details["detail"])
    except (ValueError, KeyError, TypeError):
        return Unavailable(problem=body.decode(errors="replace")[:200])

"""The control API from the command line's side."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from forewarn.cli import EXIT_CODES, service_file
from forewarn.errors import BadOption, NoToken, ServiceUnreachable, Unavailable, UnreadableFile

if TYPE_CHECKING:
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
        self._data = data
        self._server = server
        self._token_file = token_file

    def anew(self) -> Client:
        """The same service, looked for again: it may be at another address since it was started again."""
        return Client(self._data, self._server, self._token_file)

    @cached_property
    def _place(self) -> Place:
        if self._server:
            url = _checked(self._server)
            if not self._token_file:
                raise NoToken(url=url, problem="it is elsewhere.")
            return Place(url, _read_token(self._token_file))
        found = service_file.find(self._data or os.environ.get("FOREWARN_DATA"))
        token_file = self._token_file or found.token_file
        if not Path(token_file).exists() and not self._token_file:
            raise NoToken(url=found.control, problem=f"{token_file} is not there.")
        return Place(found.control, _read_token(token_file), found.certificate)

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self._place.certificate or None)
        if self._place.certificate:
            # It is the very file that the service was given, whatever name and issuer stand in it.
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        # A proxy from the environment must not get in between.
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def get(self, *path: str, **query: str) -> Any:
        return json.loads(self.raw("GET", path, query))

    def all(self, name: str, *path: str, **query: str) -> dict[str, list[Any]]:
        """A whole list, page by page."""
        found: list[Any] = []
        cursor: dict[str, str] = {}
        while True:
            page = self.get(name, *path, limit=LARGEST_PAGE, **query, **cursor)
            key = path[-1] if path else name
            found += page[key]
            if page["next"] is None:
                return {key: found}
            cursor = {"cursor": page["next"]}

    def post(self, *path: str, body: dict[str, Any] | None = None) -> Any:
        return json.loads(self.raw("POST", path, {}, json.dumps(body or {}).encode()))

    def put(self, *path: str, body: bytes, **query: str) -> Any:
        return json.loads(self.raw("PUT", path, query, body))

    def delete(self, *path: str) -> Any:
        return json.loads(self.raw("DELETE", path, {}))

    def raw(self, method: str, path: tuple[str, ...], query: dict[str, str], body: bytes | None = None) -> bytes:
        """The bytes of an answer."""
        with self.open(method, path, query, body) as answer:
            return answer.read()

    def open(
        self,
        method: str,
        path: tuple[str, ...],
        query: dict[str, str] | list[tuple[str, str]],
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = TIMEOUT_SECONDS,
    ) -> HTTPResponse:
        """An answer that is still to be read."""
        url = f"{self._place.url}/v1/" + "/".join(quote(part, safe="") for part in path)
        if query:
            url += "?" + urlencode(query)
        headers = {"Authorization": f"Bearer {self._place.token}", **(headers or {})}
        request = urllib.request.Request(url, body, headers, method=method)  # noqa: S310 - http or https
        try:
            answer: HTTPResponse = self._opener.open(request, timeout=seconds)
        except urllib.error.HTTPError as error:
            raise _relayed(error.read()) from error
        except OSError as error:
            problem = str(getattr(error, "reason", error))
            raise ServiceUnreachable(url=self._place.url, problem=problem) from error
        return answer


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise BadOption(name="--server", value=url, problem="write it like https://forewarn.example.org:8170")
    return url.rstrip("/")


def _read_token(path: str) -> str:
    try:
        token = Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise UnreadableFile(path=path, problem=getattr(error, "strerror", None) or "it is not text") from error
    if not token or not token.isascii() or not token.isprintable():
        raise UnreadableFile(path=path, problem="it has no token in it")
    return token


def _relayed(body: bytes) -> Exception:
    try:
        details = json.loads(body)
        return _FAMILIES[details["title"]].relayed(details["detail"])
    except (ValueError, KeyError, TypeError):
        return Unavailable(problem=body.decode(errors="replace")[:200])

"""The control API from the command line's side."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

from forewarn.cli import EXIT_CODES, service_file
from forewarn.errors import ServiceUnreachable, Unavailable

TIMEOUT_SECONDS = 300
"""Long enough for a large fleet to be applied."""

_FAMILIES = {kind.__name__: kind for kind in EXIT_CODES}


class Client:
    """Asks the local service. Errors come back as the errors they were."""

    def __init__(self, data: str | None) -> None:
        found = service_file.find(data or os.environ.get("FOREWARN_DATA"))
        self._url = found.control
        self._token = found.token
        # The service is local: a proxy from the environment must not get in between.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, *path: str, **query: str) -> Any:
        return json.loads(self.raw("GET", path, query))

    def post(self, *path: str, body: dict[str, Any] | None = None) -> Any:
        return json.loads(self.raw("POST", path, {}, json.dumps(body or {}).encode()))

    def put(self, *path: str, body: bytes, **query: str) -> Any:
        return json.loads(self.raw("PUT", path, query, body))

    def raw(self, method: str, path: tuple[str, ...], query: dict[str, str], body: bytes | None = None) -> bytes:
        """The bytes of an answer."""
        url = f"{self._url}/v1/" + "/".join(quote(part, safe="") for part in path)
        if query:
            url += "?" + urlencode(query)
        headers = {"Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(url, body, headers, method=method)  # noqa: S310 - always http
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                content = answer.read()
                assert isinstance(content, bytes)  # noqa: S101
                return content
        except urllib.error.HTTPError as error:
            raise _relayed(error.read()) from error
        except OSError as error:
            raise ServiceUnreachable(url=self._url, problem=str(getattr(error, "reason", error))) from error


def _relayed(body: bytes) -> Exception:
    try:
        details = json.loads(body)
        return _FAMILIES[details["title"]].relayed(details["detail"])
    except (ValueError, KeyError, TypeError):
        return Unavailable(problem=body.decode(errors="replace")[:200])

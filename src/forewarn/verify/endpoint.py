"""A server under test at one address: asked without a proxy, no redirect followed, no faster than it likes."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forewarn.errors import BadVerifyURL, EndpointUnreachable
from forewarn.verify.check import Departure, Skip
from forewarn.verify.exchange import TRUE, Line, Reply, Request

if TYPE_CHECKING:
    from collections.abc import Iterable

PATH = "/metadata/scheduledevents"
NEWEST = "2020-07-01"
INSTANCE = "/metadata/instance"
FIRST_SECONDS = 150
"""The first GET of a scope may be held for two minutes."""
_PAUSE_SECONDS = 0.21
"""A server that takes five requests a second takes another after this."""
_TRIES = 60
_FEWER_TRIES = 2
_MOST_UNANSWERED = 3
_SHORTER_SECONDS = 1.0
"""How long is waited for the answers of a server that has left several requests unanswered, one after the other."""
MOST_KEPT = 16_000_000
"""How many bytes of answers are kept in all. Of answers that are the same one is."""


def pause(seconds: float) -> None:
    """Let real time pass."""
    Event().wait(seconds)


def at(version: str, path: str = PATH) -> str:
    """The target of a version."""
    return f"{path}?api-version={version}"


class Endpoint:
    """Where a VM asks. Every answer is kept, since some rules are about all of them."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self.url = url
        self.timeout_seconds = timeout_seconds
        self.answers: list[Reply] = []
        self._tries = _TRIES
        self._unanswered = 0
        self._bodies: dict[bytes, bytes] = {}
        self._kept = 0
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

    def reach(self) -> Reply:
        """The first document: without an answer in HTTP there is nothing to verify."""
        try:
            with self.line(FIRST_SECONDS) as line:
                request = Request("GET", at(NEWEST))
                line.send(request.raw)
                return line.answer(request)
        except UnicodeError as error:
            raise BadVerifyURL(url=self.url) from error  # no machine can be called so
        except OSError as error:
            raise EndpointUnreachable(url=self.url, problem=error.strerror or str(error)) from error
        except Departure as departure:
            raise EndpointUnreachable(url=self.url, problem=departure.came) from departure

    def line(self, timeout_seconds: float | None = None) -> Line:
        """A connection of its own."""
        usual = self.timeout_seconds
        if self._unanswered >= _MOST_UNANSWERED:
            usual = min(usual, _SHORTER_SECONDS)
        return Line(self.address, timeout_seconds or usual)

    def ask(
        self,
        method: str = "GET",
        target: str = at(NEWEST),
        headers: Iterable[tuple[str, str]] = TRUE,
        body: bytes | None = None,
        *,
        protocol: str = "1.1",
        host: str | None = "169.254.169.254",
    ) -> Reply:
        """The answer to a request. One that came too fast is sent again a little later."""
        request = Request(method, target, tuple(headers), body, protocol, host)
        for _ in range(self._tries):
            reply = self.once(request)
            if reply.status != 429:
                return reply
            pause(_PAUSE_SECONDS)
        self._tries = _FEWER_TRIES
        return reply

    def once(self, request: Request) -> Reply:
        """The answer to a request over a connection of its own, whatever it is."""
        try:
            with self.line() as line:
                line.send(request.raw)
                reply = line.answer(request)
        except OSError as error:
            self._unanswered += 1
            raise Departure("an answer", sent=request.shown, came=error.strerror or str(error)) from error
        except Departure:
            self._unanswered += 1
            raise
        self._unanswered = 0
        return self._keep(reply)

    def _keep(self, reply: Reply) -> Reply:
        size = sum(len(name) + len(value) for name, value in reply.headers)
        size += 0 if reply.body in self._bodies else len(reply.body)
        if self._kept + size > MOST_KEPT:
            said = f"the answers so far take more than {MOST_KEPT} bytes; start the server with fewer events"
            raise Skip(said)
        self._kept += size
        same = replace(reply, body=self._bodies.setdefault(reply.body, reply.body))
        self.answers.append(same)
        return same

    def in_one_write(self, *requests: Request) -> list[Reply]:
        """Several requests in one write over one connection: the answers up to one that closes it."""
        for _ in range(self._tries):
            replies: list[Reply] = []
            with self.line() as line:
                line.send(b"".join(request.raw for request in requests))
                for request in requests:
                    replies.append(line.answer(request))
                    if replies[-1].closes:
                        break
            if all(reply.status != 429 for reply in replies):
                break
            pause(len(requests) * _PAUSE_SECONDS)
        return [self._keep(reply) for reply in replies]

"""One POST, within a time limit, whatever the other side does."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forewarn.agent.clock import real_seconds

if TYPE_CHECKING:
    from forewarn.agent.handlers.handler import Job

_MOST_SECONDS = 10.0
"""For one attempt, so that there is time for another."""
_LOOK_SECONDS = 0.1


class Posting:
    """Never through a proxy, never to where a redirect points: what is configured is where it goes.

    The exchange has a thread of its own. A name that is not resolved, or an answer that comes a byte at a time, blocks
    that thread for as long as it likes; the handler goes on when its time is over.
    """

    def __init__(self, url: str, headers: dict[str, str], body: bytes, ca_file: str) -> None:
        self._url = urlsplit(url)
        self._headers = headers
        self._body = body
        self._ca_file = ca_file
        self._over = threading.Event()
        self._given_up = False
        self._connection: http.client.HTTPConnection | None = None
        self._problem = ""

    def send(self, job: Job) -> str:
        """What is wrong with the answer; nothing, if it is a 2xx."""
        seconds = min(_MOST_SECONDS, job.seconds_left())
        if seconds <= 0:
            return "the time limit has passed"
        until = real_seconds() + seconds
        threading.Thread(target=self._exchange, args=(seconds,), name="webhook", daemon=True).start()
        while not self._over.wait(_LOOK_SECONDS):
            if job.wait(0):
                return self._give_up("it is not wanted any more")
            if real_seconds() >= until:
                return self._give_up(f"{self._url.netloc} has not answered within {seconds:.0f} s")
        return self._problem

    def _give_up(self, problem: str) -> str:
        self._given_up = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        return problem

    def _exchange(self, seconds: float) -> None:
        try:
            self._problem = self._ask(seconds)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._problem = f"{self._url.netloc}: {str(error) or type(error).__name__}"
        finally:
            if self._connection is not None:
                self._connection.close()
            self._over.set()

    def _ask(self, seconds: float) -> str:
        self._connection = self._connect(seconds)
        self._connection.connect()
        if self._given_up:
            # What nobody waits for any more must not be told late.
            return ""
        target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        self._connection.request("POST", target, self._body, self._headers)
        status = self._connection.getresponse().status
        return "" if 200 <= status < 300 else f"{self._url.netloc} answered {status}"

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=seconds)
        import ssl  # large, and only needed here

        context = ssl.create_default_context(cafile=self._ca_file or None)
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=context)

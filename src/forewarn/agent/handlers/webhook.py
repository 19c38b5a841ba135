"""webhook: sends the event to a receiver over HTTP, and counts only a 2xx as success."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forewarn.agent.address import PORTS, Endpoint
from forewarn.agent.clock import real_moment, real_seconds
from forewarn.agent.handlers.handler import COMMON, PREPARE, Handler, as_json
from forewarn.agent.handlers.options import read_path
from forewarn.agent.transport import EndpointConnection
from forewarn.core.durations import backoff_seconds
from forewarn.errors import EndpointSilent, EndpointStalled, EndpointTrouble, HandlerFailed
from forewarn.wire.signing import ATTEMPT, signatures

if TYPE_CHECKING:
    from forewarn.agent.handlers.handler import Job
    from forewarn.files.toml_reader import TomlTable


# --- One POST -------------------------------------------------------------------------------------


_MOST_SECONDS = 10.0
"""For one attempt, so that there is time for another."""
_LOOK_SECONDS = 0.1


class Posting:
    """Never through a proxy, never to where a redirect points: what is configured is where it goes.

    The exchange has a thread of its own. A name that is not resolved, or an answer that comes a byte at a time, blocks
    that thread for as long as it likes; the handler goes on when its time is over.
    """

    def __init__(self, url: str, headers: dict[str, str], body: bytes, ca_file: str) -> None:
        parts = urlsplit(url)
        self._receiver = parts.netloc
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = headers
        self._body = body
        endpoint = Endpoint(parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme], "url")
        self._connection = EndpointConnection(endpoint, ca_file)
        self._over = threading.Event()
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
                return self._give_up(f"{self._receiver} has not answered within {seconds:.0f} s")
        return self._problem

    def _give_up(self, problem: str) -> str:
        self._connection.close()  # what nobody waits for any more is not sent late
        return problem

    def _exchange(self, seconds: float) -> None:
        try:
            status = self._connection.exchange("POST", self._target, self._headers, self._body, seconds).status
            self._problem = "" if 200 <= status < 300 else f"{self._receiver} answered {status}"
        except (EndpointSilent, EndpointStalled):
            self._problem = f"{self._receiver} has not answered within {seconds:.0f} s"
        except EndpointTrouble as error:
            self._problem = f"{self._receiver}: {error.fields.get('problem') or error}"
        finally:
            self._connection.close()
            self._over.set()


# --- The handler ----------------------------------------------------------------------------------


_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x20-\x7e\t]*")
_OURS = {"host", "content-length", "transfer-encoding", "connection"}
_ATTEMPTS = 3
_MOST_ATTEMPTS = 20


class Webhook(Handler):
    """POSTs the event as JSON, several times if need be."""

    def __init__(self, options: TomlTable) -> None:
        known = {"url", "undo_url", "undo", "headers", "secret_file", "ca_file", "attempts"}
        options.refuse_unknown({*known, *COMMON})
        options.required_text("url", 'Write it like "https://example.org/hook".')
        self._url = _read_url(options, "url")
        self._undo_url = _read_url(options, "undo_url") if "undo_url" in options else self._url
        if options.flag("undo") is False:
            if "undo_url" in options:
                raise options.wrong("Is never used, because undo is false.", "undo_url")
            self._undo_url = ""
        self._headers = dict(options.text_table("headers"))
        for name, value in self._headers.items():
            if not _HEADER.fullmatch(name) or not _VALUE.fullmatch(value):
                raise options.wrong("Is no header: a name, and a value of printable ASCII.", "headers", name)
            if name.lower() in _OURS:
                raise options.wrong("Is set by the agent.", "headers", name)
        self._secret_file = read_path(options, "secret_file")
        self._ca_file = read_path(options, "ca_file")
        self._attempts = options.whole_number("attempts", _ATTEMPTS, 1, _MOST_ATTEMPTS)

    def describe(self, action: str) -> str:
        url = self._url if action == PREPARE else self._undo_url
        # Without the query: it may hold what only the receiver should know.
        return f"POST to {url.partition('?')[0]}" if url else ""

    def prepare(self, job: Job) -> None:
        self._tell(job, self._url)

    def undo(self, job: Job) -> None:
        if self._undo_url:
            self._tell(job, self._undo_url)

    def _tell(self, job: Job, url: str) -> None:
        body, secret = as_json(job).encode(), self._secret()
        for attempt in range(1, self._attempts + 1):
            problem = Posting(url, self._all_headers(body, secret, attempt), body, self._ca_file).send(job)
            if not problem:
                return
            if attempt < self._attempts:
                job.warn(f"attempt {attempt} of {self._attempts}: {problem}", attempt=attempt)
                if job.wait(backoff_seconds(attempt)):
                    raise HandlerFailed(problem=f"was told to stop; {problem}.")
        times = "once" if self._attempts == 1 else f"{self._attempts} times"
        raise HandlerFailed(problem=f"tried {times}: {problem}.")

    def _all_headers(self, body: bytes, secret: str, attempt: int) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": "forewarn-agent", **self._headers}
        if not secret:
            return {**headers, ATTEMPT: str(attempt)}
        return {**headers, **signatures(secret, str(int(real_moment().timestamp())), body, attempt)}

    def _secret(self) -> str:
        """Read each time: it may have been changed."""
        if not self._secret_file:
            return ""
        try:
            secret = Path(self._secret_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise HandlerFailed(problem=f"cannot read the secret in {self._secret_file}: {error}.") from error
        if not secret:
            raise HandlerFailed(problem=f"there is no secret in {self._secret_file}.")
        return secret


def _read_url(options: TomlTable, key: str) -> str:
    url = options.text(key)
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.fragment
    except ValueError:
        fine = False
    if not fine or not url.isascii() or not url.isprintable() or " " in url:
        raise options.wrong(f"{url!r} is no http or https URL. Write it like https://example.org/hook", key)
    if parts.username is not None or parts.password is not None:
        raise options.wrong("A name and a password go into a header, not into the URL: headers.Authorization.", key)
    return url


KIND = Webhook

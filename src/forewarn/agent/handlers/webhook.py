"""webhook: sends the event in a POST request. Only a 2xx response is success."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forewarn.agent.address import PORTS, EndpointAddress
from forewarn.agent.clock import real_seconds, system_time
from forewarn.agent.handlers.handler import COMMON, PREPARE, Handler, as_json
from forewarn.agent.handlers.options import read_path
from forewarn.agent.transport import EndpointConnection
from forewarn.core.durations import backoff_seconds
from forewarn.errors import EndpointError, EndpointStalled, EndpointTimedOut, HandlerFailed
from forewarn.wire.signing import ATTEMPT, signatures

if TYPE_CHECKING:
    from forewarn.agent.handlers.handler import Job
    from forewarn.files.toml_reader import TomlTable


# --- One POST -------------------------------------------------------------------------------------


_MAX_ATTEMPT_SECONDS = 10.0
"""Timeout of one attempt, to leave time for another."""
_POLL_SECONDS = 0.1


class WebhookRequest:
    """One POST request, without proxy and redirects.

    It runs in its own thread. A slow name lookup or a slow response can block that thread; the handler continues at
    its timeout.
    """

    def __init__(self, url: str, headers: dict[str, str], body: bytes, ca_file: str) -> None:
        parts = urlsplit(url)
        self._receiver = parts.netloc
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = headers
        self._body = body
        endpoint = EndpointAddress(parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme], "url")
        self._connection = EndpointConnection(endpoint, ca_file)
        self._finished = threading.Event()
        self._problem = ""

    def send(self, job: Job) -> str:
        """Send the request. Return an error text; empty after a 2xx response."""
        seconds = min(_MAX_ATTEMPT_SECONDS, job.seconds_left())
        if seconds <= 0:
            return "the timeout has passed"
        deadline = real_seconds() + seconds
        threading.Thread(target=self._exchange, args=(seconds,), name="webhook", daemon=True).start()
        while not self._finished.wait(_POLL_SECONDS):
            if job.wait(0):
                return self._abort("it is no longer needed")
            if real_seconds() >= deadline:
                return self._abort(f"{self._receiver} did not respond within {seconds:.0f} s")
        return self._problem

    def _abort(self, problem: str) -> str:
        self._connection.close()  # do not send it late
        return problem

    def _exchange(self, seconds: float) -> None:
        try:
            status = self._connection.exchange("POST", self._target, self._headers, self._body, seconds).status
            self._problem = "" if 200 <= status < 300 else f"{self._receiver} responded with {status}"
        except (EndpointTimedOut, EndpointStalled):
            self._problem = f"{self._receiver} did not respond within {seconds:.0f} s"
        except EndpointError as error:
            self._problem = f"{self._receiver}: {error.fields.get('problem') or error}"
        finally:
            self._connection.close()
            self._finished.set()


# --- The handler ----------------------------------------------------------------------------------


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_RESERVED_HEADERS = {"host", "content-length", "transfer-encoding", "connection"}
_DEFAULT_ATTEMPTS = 3
_MAX_ATTEMPTS = 20


class WebhookHandler(Handler):
    """Sends the event as JSON, with retries."""

    def __init__(self, options: TomlTable) -> None:
        known = {"url", "undo_url", "undo", "headers", "secret_file", "ca_file", "attempts"}
        options.reject_unknown({*known, *COMMON})
        options.required_text("url", 'Write it like "https://example.org/hook".')
        self._url = _read_url(options, "url")
        self._undo_url = _read_url(options, "undo_url") if "undo_url" in options else self._url
        if options.flag("undo") is False:
            if "undo_url" in options:
                options.report("Has no effect with undo = false. Remove one of the two.", "undo_url")
            self._undo_url = ""
        self._headers = dict(options.text_table("headers"))
        for name, value in self._headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                options.report("Is not a valid header. The value must be printable ASCII.", "headers", name)
            if name.lower() in _RESERVED_HEADERS:
                options.report("The agent sets this header itself. Remove it.", "headers", name)
        self._secret_file = read_path(options, "secret_file")
        self._ca_file = read_path(options, "ca_file")
        self._attempts = options.integer("attempts", _DEFAULT_ATTEMPTS, 1, _MAX_ATTEMPTS)

    def describe(self, action: str) -> str:
        url = self._url if action == PREPARE else self._undo_url
        # Without the query, which may contain secrets.
        return f"POST to {url.partition('?')[0]}" if url else ""

    def prepare(self, job: Job) -> None:
        self._deliver(job, self._url)

    def undo(self, job: Job) -> None:
        if self._undo_url:
            self._deliver(job, self._undo_url)

    def _deliver(self, job: Job, url: str) -> None:
        body, secret = as_json(job).encode(), self._secret()
        for attempt in range(1, self._attempts + 1):
            problem = WebhookRequest(url, self._all_headers(body, secret, attempt), body, self._ca_file).send(job)
            if not problem:
                return
            if attempt < self._attempts:
                job.warning(f"attempt {attempt} of {self._attempts}: {problem}", attempt=attempt)
                if job.wait(backoff_seconds(attempt)):
                    raise HandlerFailed(problem=f"was stopped; {problem}.")
        times = "1 attempt" if self._attempts == 1 else f"{self._attempts} attempts"
        raise HandlerFailed(problem=f"failed after {times}: {problem}.")

    def _all_headers(self, body: bytes, secret: str, attempt: int) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": "forewarn-agent", **self._headers}
        if not secret:
            return {**headers, ATTEMPT: str(attempt)}
        return {**headers, **signatures(secret, str(int(system_time().timestamp())), body, attempt)}

    def _secret(self) -> str:
        """Read the secret for each run, because it may change."""
        if not self._secret_file:
            return ""
        try:
            secret = Path(self._secret_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise HandlerFailed(problem=f"cannot read the secret in {self._secret_file}: {error}.") from error
        if not secret:
            raise HandlerFailed(problem=f"{self._secret_file} is empty. Write the secret into it.")
        return secret


def _read_url(options: TomlTable, key: str) -> str:
    url = options.text(key)
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.fragment
    except ValueError:
        fine = False
    if not fine or not url.isascii() or not url.isprintable() or " " in url:
        options.report(f"{url!r} is not an http or https URL. Write it like https://example.org/hook", key)
    elif parts.username is not None or parts.password is not None:
        options.report("Put user name and password into headers.Authorization, not into the URL.", key)
    return url


KIND = WebhookHandler

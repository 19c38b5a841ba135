"""Serves the agent's pages over TCP and over a socket in the state folder, and notifies systemd's watchdog."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.errors import CannotListen, PagesNotListening, StateInUse
from forewarn.system.logs import get_logger
from forewarn.system.systemd_notify import SystemdNotifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from forewarn.agent.http_server import BoundedServer, LocalRequest, LocalResponse

_log = get_logger(__name__)


# --- Health ---------------------------------------------------------------------------------------


MAX_LOOP_SECONDS = 60
"""If the loop has not run for this long, the agent hangs."""


def hang_problem(snapshot: Mapping[str, Any]) -> str:
    """Return what is wrong with the agent; empty if it is healthy."""
    seconds = snapshot.get("seconds_since_last_loop") or 0
    return f"the agent's loop has not run for {seconds:.0f} s" if seconds > MAX_LOOP_SECONDS else ""


def readiness(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether the machine can take work; if not, why: an event affects it, or the agent hangs."""
    problem = hang_problem(snapshot)
    ready = bool(snapshot.get("ready")) and not problem
    return {"ready": ready, "reason": "" if ready else problem or snapshot.get("ready_reason") or "not ready"}


# --- systemd's watchdog ---------------------------------------------------------------------------


class Watchdog:
    """Notifies systemd, if it started the agent and requests notifications."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._notifier = SystemdNotifier(environment)
        self._pause_seconds = self._notifier.watchdog_seconds
        self.due_at: float | None = None
        """When the next notification is due, in real seconds; None: never."""
        if self._pause_seconds is not None:
            self.due_at = real_seconds() + self._pause_seconds

    def ready(self) -> None:
        """The start, or a reload, is complete."""
        self._notifier.ready()

    def reloading(self) -> None:
        self._notifier.reloading(real_seconds())

    def stopping(self) -> None:
        self.due_at = None
        self._notifier.stopping()

    def notify_if_due(self, get_snapshot: Callable[[], Mapping[str, Any] | None]) -> None:
        """If it is due, notify systemd that the agent is healthy. Without that notification, systemd restarts the
        agent."""
        if self.due_at is None or self._pause_seconds is None or real_seconds() < self.due_at:
            return
        self.due_at = real_seconds() + self._pause_seconds
        snapshot = get_snapshot()
        if snapshot is not None and not hang_problem(snapshot):
            self._notifier.alive(_summary(snapshot))


def _summary(snapshot: Mapping[str, Any]) -> str:
    mine = [event for event in snapshot.get("events") or [] if event.get("mine")]
    summary = ", ".join(f"{event.get('type')} {event.get('phase')}" for event in mine) or "no events"
    error = (snapshot.get("polling") or {}).get("error")
    return f"{summary}; endpoint: {error}" if error else summary


# --- Pages ----------------------------------------------------------------------------------------


PAGES = {
    "/healthz": "whether the agent is healthy",
    "/readyz": "whether the machine can take work",
    "/metrics": "metrics for Prometheus",
    "/status": "the agent's complete status",
}
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"


class StatusPage(NamedTuple):
    """The response to a request."""

    status: int
    body: str
    content_type: str = _TEXT


def render_page(method: str, target: str, snapshot: Mapping[str, Any]) -> StatusPage:
    """Return the requested page."""
    if method not in ("GET", "HEAD"):
        return StatusPage(405, "Use GET or HEAD.\n")
    path = target.partition("?")[0]
    if path == "/healthz":
        problem = hang_problem(snapshot)
        return StatusPage(503, f"{problem}\n") if problem else StatusPage(200, "ok\n")
    if path == "/readyz":
        found = readiness(snapshot)
        return StatusPage(200 if found["ready"] else 503, json.dumps(found) + "\n", _JSON)
    if path == "/metrics":
        # Imported with the first scrape: an agent without one does not need it.
        from forewarn import __version__
        from forewarn.agent.metrics import render_metrics
        from forewarn.wire.metrics_text import CONTENT_TYPE

        return StatusPage(200, render_metrics(snapshot, __version__), CONTENT_TYPE)
    if path == "/status" and snapshot.get("loop_problem"):
        return StatusPage(503, f"{snapshot['loop_problem']}\n")
    if path == "/status":
        return StatusPage(200, json.dumps(snapshot) + "\n", _JSON)
    listed = "".join(f"{name:<10} {shows}\n" for name, shows in PAGES.items())
    return StatusPage(200 if path == "/" else 404, f"The agent's pages:\n{listed}")


# --- The socket in the state folder ---------------------------------------------------------------


SOCKET_NAME = "agent.sock"
_CONNECT_SECONDS = 2


@contextmanager
def socket_path(folder: Path, name: str = SOCKET_NAME) -> Iterator[str]:
    """Return a short path to the socket: the kernel accepts at most 107 bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def connect(folder: Path) -> socket.socket:
    """Connect to the agent that uses this folder; raise OSError if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_SECONDS)
        with socket_path(folder) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def listen_in(folder: Path) -> tuple[socket.socket, int]:
    """Listen on a socket in the folder for its owner only; return it with its inode. Replace that of a killed agent."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_in_use(folder):
            raise StateInUse(folder=folder)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Bind under a temporary name: the final name must always accept connections.
            passing = f"{SOCKET_NAME}.{os.getpid()}"
            (folder / passing).unlink(missing_ok=True)
            with socket_path(folder, passing) as path:
                connection.bind(path)
            (folder / passing).chmod(0o600)
            connection.listen(16)
            inode = (folder / passing).lstat().st_ino
            (folder / passing).rename(folder / SOCKET_NAME)
        except OSError:
            connection.close()
            raise
    except OSError as error:
        raise CannotListen(address=folder / SOCKET_NAME, problem=error.strerror) from error
    return connection, inode


def _is_in_use(folder: Path) -> bool:
    """Whether an agent listens there, even if it is too busy to respond."""
    try:
        connect(folder).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except (BlockingIOError, TimeoutError):
        return True
    return True


def remove_socket(folder: Path, inode: int) -> None:
    """Remove the socket from the folder, unless it is already another agent's."""
    with suppress(OSError):
        if (folder / SOCKET_NAME).lstat().st_ino == inode:
            (folder / SOCKET_NAME).unlink()


# --- The server -----------------------------------------------------------------------------------


MAX_REQUEST_SIZE = 8192


class StatusPages:
    """Serves the agent's pages and runs the thread that notifies systemd's watchdog."""

    def __init__(
        self,
        snapshot: Callable[[], Mapping[str, Any]],
        folder: Path | None,
        listen: tuple[str, int] | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Without a folder, serve over TCP only."""
        self._snapshot = snapshot
        self._folder = folder
        self._inode: int | None = None
        self._listen = listen
        self._watchdog = watchdog
        self._servers: list[BoundedServer] = []
        self._stopping = threading.Event()
        self._failed = False
        self.address: tuple[str, int] | None = None
        """The TCP address, with the actual port."""

    def start(self) -> None:
        """Listen and start serving, or raise an error if an address is not available."""
        from forewarn.agent.http_server import BoundedServer, listen_on  # here: other commands need only `connect`

        listeners: list[socket.socket] = []
        try:
            if self._folder is not None:
                local, self._inode = listen_in(self._folder)
                listeners.append(local)
            if self._listen is not None:
                listeners.append(listen_on(*self._listen, PagesNotListening))
                self.address = listeners[-1].getsockname()[:2]
        except BaseException:
            self.stop()
            for listener in listeners:
                listener.close()
            raise
        for listener in listeners:
            server = BoundedServer(listener, self._respond, name="pages", max_head_size=MAX_REQUEST_SIZE)
            self._servers.append(server)
            server.start()
        if self._watchdog is not None and self._watchdog.due_at is not None:
            threading.Thread(target=self._watch, args=(self._watchdog,), name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop serving. Responses in progress are cut off."""
        self._stopping.set()
        if self._folder is not None and self._inode is not None:
            remove_socket(self._folder, self._inode)
        for server in self._servers:
            server.stop()

    def __enter__(self) -> StatusPages:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _respond(self, request: LocalRequest) -> LocalResponse:
        from forewarn.agent.http_server import LocalResponse

        page = self._page(request)
        headers = [("Content-Type", page.content_type), ("Cache-Control", "no-store")]
        if page.status == 405:
            headers.append(("Allow", "GET, HEAD"))
        return LocalResponse(page.status, page.body.encode("utf-8", "backslashreplace"), tuple(headers))

    def _page(self, request: LocalRequest) -> StatusPage:
        if request.error == 431:
            return StatusPage(431, f"The request is larger than {MAX_REQUEST_SIZE} bytes.\n")
        if request.error:
            return StatusPage(400, "This is not an HTTP request.\n")
        try:
            return render_page(request.method, request.target, self._snapshot())
        except Exception:  # noqa: BLE001 - the server must continue
            self._log_failure()
            return StatusPage(500, "Cannot build the agent's status; see the agent's log.\n")

    def _watch(self, watchdog: Watchdog) -> None:
        while (due := watchdog.due_at) is not None and not self._stopping.wait(max(0.0, due - real_seconds())):
            watchdog.notify_if_due(self._get_snapshot)

    def _get_snapshot(self) -> Mapping[str, Any] | None:
        try:
            return self._snapshot()
        except Exception:  # noqa: BLE001 - the watchdog must continue
            self._log_failure()
            return None

    def _log_failure(self) -> None:
        if not self._failed:  # a scraper polls every few seconds: log it once
            _log.exception("status_failed", "Cannot build the agent's status.")
        self._failed = True

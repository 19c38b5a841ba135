"""Serves the agent's pages over TCP and over a socket in its state folder, and notifies systemd's watchdog."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.errors import CannotListen, PagesNotListening, StateInUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from forewarn.agent.http_server import BoundedServer, Reply, Request

_log = logging.getLogger(__name__)


# --- Health ---------------------------------------------------------------------------------------


LONGEST_TURN_SECONDS = 60
"""An agent whose loop has not come round for so long hangs."""


def hanging(snapshot: Mapping[str, Any]) -> str:
    """What is wrong with the agent itself, in words; nothing if it is well."""
    seconds = snapshot.get("turned_seconds_ago") or 0
    return f"the loop has not turned for {seconds:.0f} s" if seconds > LONGEST_TURN_SECONDS else ""


def readiness(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the machine should be given work, and why not: an event is coming, or the agent hangs."""
    hangs = hanging(snapshot)
    ready = bool(snapshot.get("ready")) and not hangs
    return {"ready": ready, "reason": "" if ready else hangs or snapshot.get("ready_reason") or "not ready"}


# --- The watchdog of systemd ----------------------------------------------------------------------


WATCHDOG_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""How systemd says that it wants to hear, and where."""


class Watchdog:
    """Speaks to whoever started the agent, if that is systemd and it wants to hear."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        place = environment.get("NOTIFY_SOCKET", "")
        # A name that begins with @ is one in the kernel's own list, not in the file system.
        self._place = f"\0{place[1:]}" if place.startswith("@") else place
        wanted = environment.get("WATCHDOG_USEC", "") if environment.get("WATCHDOG_PID", "") in ("", _own_pid()) else ""
        self._pause_seconds = int(wanted) / 1e6 / 3 if wanted.isdigit() and int(wanted) else None
        self.due_at: float | None = None
        """When it should be told next, in real seconds; None: never."""
        if self._place and self._pause_seconds is not None:
            self.due_at = real_seconds() + self._pause_seconds

    def started(self) -> None:
        self.tell("READY=1")

    def stopping(self) -> None:
        self.due_at = None
        self.tell("STOPPING=1")

    def beat(self, look: Callable[[], Mapping[str, Any] | None]) -> None:
        """If it is time: that the agent is well. If it is not, nothing is said, and systemd starts it again."""
        if self.due_at is None or self._pause_seconds is None or real_seconds() < self.due_at:
            return
        self.due_at = real_seconds() + self._pause_seconds
        snapshot = look()
        if snapshot is not None and not hanging(snapshot):
            self.tell(f"WATCHDOG=1\nSTATUS={_summary(snapshot)}")

    def tell(self, text: str) -> None:
        if not self._place:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto(text.encode("utf-8", "backslashreplace"), self._place)


def _summary(snapshot: Mapping[str, Any]) -> str:
    mine = [event for event in snapshot.get("events") or [] if event.get("mine")]
    told = ", ".join(f"{event.get('type')} {event.get('phase')}" for event in mine) or "nothing is coming"
    trouble = (snapshot.get("polling") or {}).get("trouble")
    # In one line: what follows a line's end would be an order to systemd.
    return " ".join((f"{told}; the endpoint {trouble}" if trouble else told).split())


def _own_pid() -> str:
    return str(os.getpid())


# --- Pages ----------------------------------------------------------------------------------------


PAGES = {
    "/healthz": "whether the agent is well",
    "/readyz": "whether the machine may be given work",
    "/metrics": "metrics for Prometheus",
    "/status": "all that the agent knows and has done",
}
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"


class Page(NamedTuple):
    """What is answered."""

    status: int
    body: str
    content_type: str = _TEXT


def answer(method: str, target: str, snapshot: Mapping[str, Any]) -> Page:
    """The page that was asked for."""
    if method not in ("GET", "HEAD"):
        return Page(405, "Only GET and HEAD are answered here.\n")
    path = target.partition("?")[0]
    if path == "/healthz":
        hangs = hanging(snapshot)
        return Page(503, f"{hangs}\n") if hangs else Page(200, "ok\n")
    if path == "/readyz":
        found = readiness(snapshot)
        return Page(200 if found["ready"] else 503, json.dumps(found) + "\n", _JSON)
    if path == "/metrics":
        # What only a scraper needs is loaded when the first one comes.
        from forewarn import __version__
        from forewarn.agent.metrics import render_metrics
        from forewarn.wire.metrics_text import CONTENT_TYPE

        return Page(200, render_metrics(snapshot, __version__), CONTENT_TYPE)
    if path == "/status":
        return Page(200, json.dumps(snapshot) + "\n", _JSON)
    listed = "".join(f"{name:<10} {shows}\n" for name, shows in PAGES.items())
    return Page(200 if path == "/" else 404, f"The agent's pages:\n{listed}")


# --- The socket in the state folder ---------------------------------------------------------------


SOCKET_NAME = "agent.sock"
_CONNECT_SECONDS = 2


@contextmanager
def reachable(folder: Path, name: str = SOCKET_NAME) -> Iterator[str]:
    """A path to the socket that is short whatever the folder's is: the kernel takes 107 bytes of one."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{number}/{name}"
    finally:
        os.close(number)


def connect(folder: Path) -> socket.socket:
    """To the agent that works in this folder; OSError if none does."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(_CONNECT_SECONDS)
        with reachable(folder) as path:
            line.connect(path)
    except OSError:
        line.close()
        raise
    return line


def listen_in(folder: Path) -> tuple[socket.socket, int]:
    """A socket in the folder, for its owner alone, and its inode. One that a killed agent has left is replaced."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _answered(folder):
            raise StateInUse(folder=folder)
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Under another name first: what is there under its own can be asked from the first moment on.
            passing = f"{SOCKET_NAME}.{os.getpid()}"
            (folder / passing).unlink(missing_ok=True)
            with reachable(folder, passing) as path:
                line.bind(path)
            (folder / passing).chmod(0o600)
            line.listen(16)
            number = (folder / passing).lstat().st_ino
            (folder / passing).rename(folder / SOCKET_NAME)
        except OSError:
            line.close()
            raise
    except OSError as error:
        raise CannotListen(address=folder / SOCKET_NAME, problem=error.strerror) from error
    return line, number


def _answered(folder: Path) -> bool:
    """Whether somebody listens there already; one who is too busy to answer does."""
    try:
        connect(folder).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except (BlockingIOError, TimeoutError):
        return True
    return True


def remove_from(folder: Path, number: int) -> None:
    """Take the socket out of the folder, unless another agent's stands there by now."""
    with suppress(OSError):
        if (folder / SOCKET_NAME).lstat().st_ino == number:
            (folder / SOCKET_NAME).unlink()


# --- The server -----------------------------------------------------------------------------------


LARGEST_REQUEST = 8192


class Pages:
    """The pages of an agent, and the thread that notifies systemd's watchdog."""

    def __init__(
        self,
        snapshot: Callable[[], Mapping[str, Any]],
        folder: Path | None,
        listen: tuple[str, int] | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Without a folder, by TCP alone."""
        self._snapshot = snapshot
        self._folder = folder
        self._number: int | None = None
        self._listen = listen
        self._watchdog = watchdog
        self._servers: list[BoundedServer] = []
        self._stopping = threading.Event()
        self._failed = False
        self.address: tuple[str, int] | None = None
        """Where it listens by TCP, with the port that it was given."""

    def start(self) -> None:
        """Listen, and answer from now on; an error if an address cannot be had."""
        from forewarn.agent.http_server import BoundedServer, listen_on  # here: other commands need `connect` alone

        listeners: list[socket.socket] = []
        try:
            if self._folder is not None:
                local, self._number = listen_in(self._folder)
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
            server = BoundedServer(listener, self._reply, name="pages", largest_head=LARGEST_REQUEST)
            self._servers.append(server)
            server.start()
        if self._watchdog is not None and self._watchdog.due_at is not None:
            threading.Thread(target=self._watch, args=(self._watchdog,), name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """End. A client that is being answered is cut off."""
        self._stopping.set()
        if self._folder is not None and self._number is not None:
            remove_from(self._folder, self._number)
        for server in self._servers:
            server.stop()

    def __enter__(self) -> Pages:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _reply(self, request: Request) -> Reply:
        from forewarn.agent.http_server import Reply

        page = self._page(request)
        headers = [("Content-Type", page.content_type), ("Cache-Control", "no-store")]
        if page.status == 405:
            headers.append(("Allow", "GET, HEAD"))
        return Reply(page.status, page.body.encode("utf-8", "backslashreplace"), tuple(headers))

    def _page(self, request: Request) -> Page:
        if request.error == 431:
            return Page(431, f"A request may have {LARGEST_REQUEST} bytes.\n")
        if request.error:
            return Page(400, "This is no request of HTTP.\n")
        try:
            return answer(request.method, request.target, self._snapshot())
        except Exception:  # noqa: BLE001 - whatever it is, the next page is served
            self._note_failure()
            return Page(500, "The agent cannot say how it is; its log says why.\n")

    def _watch(self, watchdog: Watchdog) -> None:
        while (due := watchdog.due_at) is not None and not self._stopping.wait(max(0.0, due - real_seconds())):
            watchdog.beat(self._look)

    def _look(self) -> Mapping[str, Any] | None:
        try:
            return self._snapshot()
        except Exception:  # noqa: BLE001 - whatever it is, the watch goes on
            self._note_failure()
            return None

    def _note_failure(self) -> None:
        if not self._failed:  # a scraper comes every few seconds: once is enough
            _log.exception("The agent cannot say how it is.")
        self._failed = True

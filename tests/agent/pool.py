"""A pool of two web servers behind a real HAProxy, and clients that count what goes wrong."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from agent.jobs import TIMEOUT_SECONDS
from forewarn.agent.handlers.haproxy import HAProxyServer, HAProxyUnreachable, RuntimeSocket
from programs import SEARCHED, need

if TYPE_CHECKING:
    from types import TracebackType

SERVERS = ("web-0", "web-1")

# A web server: /short responds at once, /slow after a short delay, /hold after a request for /release.
BACKEND = """
import sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

name, port = sys.argv[1], int(sys.argv[2])
release, never = threading.Event(), threading.Event()

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/slow":
            never.wait(0.3)
        elif self.path == "/hold":
            release.wait(60)
        elif self.path == "/release":
            release.set()
        self.send_response(200)
        self.send_header("X-Server", name)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass

class Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    def handle_error(self, *_):
        pass

server = Quiet(("127.0.0.1", port), Answers)
print(server.server_address[1], flush=True)
server.serve_forever()
"""

CONFIG = """
global
  stats socket {folder}/admin.sock mode 600 level {level}
  stats socket fd@{admin} level {level}
  stats timeout 10s
  hard-stop-after 1s

defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s

frontend all
  bind fd@{front}
  default_backend pool

backend pool
  balance roundrobin
  server web-0 127.0.0.1:{first} check inter 100ms
  server web-1 127.0.0.1:{second} check inter 100ms
"""


class Pool:
    """HAProxy and its servers, each a process of its own."""

    def __init__(self, level: str = "admin") -> None:
        need("haproxy")
        self._program = shutil.which("haproxy", path=SEARCHED) or ""
        # Not in pytest's folder: the path of a socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="pool-"))
        (self.folder / "backend.py").write_text(BACKEND)
        self._level = level
        # Passed on open, so that nobody else takes the ports, also while HAProxy is restarted.
        self._front, self._admin = (socket.create_server(("127.0.0.1", 0), backlog=128) for _ in range(2))
        self.port, self.admin_port = (bound.getsockname()[1] for bound in (self._front, self._admin))
        self._backends: dict[str, subprocess.Popen[str]] = {}
        self._ports = dict.fromkeys(SERVERS, 0)
        for name in SERVERS:
            self.start_server(name)
        self._haproxy: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def socket(self) -> str:
        return str(self.folder / "admin.sock")

    def start_server(self, name: str) -> None:
        """At the port where it was before."""
        argv = [sys.executable, "-S", str(self.folder / "backend.py"), name, str(self._ports[name])]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self._ports[name] = int(process.stdout.readline())
        self._backends[name] = process

    def stop_server(self, name: str) -> None:
        """Stop the server like a machine that fails."""
        process = self._backends.pop(name)
        process.kill()
        process.communicate()

    def start(self) -> None:
        config = CONFIG.format(
            folder=self.folder,
            level=self._level,
            front=self._front.fileno(),
            admin=self._admin.fileno(),
            first=self._ports["web-0"],
            second=self._ports["web-1"],
        )
        (self.folder / "haproxy.cfg").write_text(config)
        descriptors = (self._front.fileno(), self._admin.fileno())
        with (self.folder / "log").open("ab") as log:
            self._haproxy = subprocess.Popen(
                [self._program, "-db", "-f", self.folder / "haproxy.cfg"], stdout=log, stderr=log, pass_fds=descriptors
            )
        self.until_answered()

    def stop(self) -> None:
        assert self._haproxy is not None
        self._haproxy.kill()
        self._haproxy.wait()
        self._haproxy = None

    def until_answered(self) -> None:
        waiting = threading.Event()
        for _ in range(int(TIMEOUT_SECONDS * 20)):
            try:
                self.servers()
            except HAProxyUnreachable:
                waiting.wait(0.05)
            else:
                return
        raise AssertionError((self.folder / "log").read_text())

    def runtime(self) -> RuntimeSocket:
        return RuntimeSocket(self.socket, lambda: TIMEOUT_SECONDS)

    def servers(self) -> dict[str, HAProxyServer]:
        return self.runtime().servers()

    def state(self, name: str) -> str:
        return self.servers()[f"pool/{name}"].state

    def close(self) -> None:
        if self._haproxy is not None:
            self.stop()
        for name in list(self._backends):
            self.stop_server(name)
        for bound in (self._front, self._admin):
            bound.close()
        shutil.rmtree(self.folder)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask(port: int, path: str) -> str:
    """Send one request, and return the server that responded."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != 200 or answer.read() != b"ok":
            raise ConnectionError(f"answered {answer.status}")
        return answer.headers["X-Server"] or ""
    finally:
        connection.close()


class Traffic:
    """Clients that ask without a pause, some for what is slow and some for what is not, and count."""

    def __init__(self, port: int, clients: int = 6) -> None:
        self._port = port
        self._over = threading.Event()
        self._news = threading.Condition()
        self.errors: list[str] = []
        self.answered = 0
        self.by_server = dict.fromkeys(SERVERS, 0)
        paths = ["/slow" if number % 3 else "/short" for number in range(clients)]
        self._threads = [threading.Thread(target=self._ask_on, args=(path,)) for path in paths]

    def _ask_on(self, path: str) -> None:
        while not self._over.is_set():
            try:
                server, problem = ask(self._port, path), ""
            except (OSError, http.client.HTTPException) as error:
                server, problem = "", str(error) or type(error).__name__
            with self._news:
                if problem:
                    self.errors.append(problem)
                else:
                    self.answered += 1
                    self.by_server[server] += 1
                self._news.notify_all()

    def until_more(self, count: int = 60, server: str = "") -> None:
        """Wait for this many further responses, of one server or of any."""
        with self._news:
            least = count + (self.by_server[server] if server else self.answered)
            enough = self._news.wait_for(
                lambda: (self.by_server[server] if server else self.answered) >= least, TIMEOUT_SECONDS
            )
            assert enough, f"only {self.by_server}, and {self.errors[-3:]}"

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

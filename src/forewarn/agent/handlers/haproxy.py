"""haproxy: drains servers of HAProxy, waits until their sessions have ended, and returns them to the pool."""

from __future__ import annotations

import csv
import socket
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from forewarn.agent.clock import real_seconds
from forewarn.agent.handlers.handler import COMMON, PREPARE, Handler
from forewarn.agent.handlers.options import read_several
from forewarn.core.durations import format_duration
from forewarn.errors import HandlerFailed, nearest
from forewarn.system.addresses import read_host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forewarn.agent.handlers.handler import Job
    from forewarn.files.toml_reader import TomlTable


# --- The runtime socket of HAProxy ----------------------------------------------------------------


_MAX_REQUEST_SECONDS = 5.0
_MIN_REQUEST_SECONDS = 0.5
"""Also shortly before the timeout: otherwise it would look as if HAProxy did not respond."""
_MAX_RESPONSE_SIZE = 16 * 1024 * 1024
READY, DRAIN, MAINT = "ready", "drain", "maint"
_FORCED_MAINT, _FORCED_DRAIN = 0x01, 0x08
"""Bits of srv_admin_state that an administrator sets. Other bits are inherited, or mean an unresolved name."""


class HAProxyServer(NamedTuple):
    """The current state of a server in HAProxy."""

    state: str
    """READY, DRAIN or MAINT: the administrative state. It does not say whether the server is up."""
    sessions: int
    """Current and queued sessions."""


class HAProxyUnreachable(Exception):  # not a failure yet: HAProxy may be starting
    """HAProxy did not respond."""


class RuntimeSocket:
    """HAProxy's runtime socket: one command per connection."""

    def __init__(self, address: str | tuple[str, int], seconds_left: Callable[[], float]) -> None:
        self._address = address
        self._seconds_left = seconds_left

    def servers(self) -> dict[str, HAProxyServer]:
        """Return all servers, by `backend/server`."""
        sessions = {}
        for row in csv.DictReader(self._request("show stat -1 4 -1").lstrip("# ").splitlines()):
            if row.get("svname"):
                sessions[f"{row['pxname']}/{row['svname']}"] = int(row["scur"] or 0) + int(row["qcur"] or 0)
        return {
            name: HAProxyServer(state, sessions.get(name, 0))
            for name, state in _states(self._request("show servers state"))
        }

    def set_state(self, server: str, state: str) -> None:
        """Set the administrative state of a server."""
        self._command(f"set server {server} state {state}")

    def cut(self, server: str) -> None:
        """End the sessions of a server."""
        self._command(f"shutdown sessions server {server}")

    def _command(self, text: str) -> None:
        response = self._request(text).strip()
        if response:
            raise HandlerFailed(problem=f"HAProxy rejected '{text}': {response.splitlines()[0][:200]}")

    def _request(self, text: str) -> str:
        deadline = real_seconds() + max(_MIN_REQUEST_SECONDS, min(_MAX_REQUEST_SECONDS, self._seconds_left()))
        try:
            with self._connected(deadline) as peer:
                peer.sendall(f"{text}\n".encode())
                response = bytearray()
                while data := _receive(peer, deadline):
                    response += data
                    if len(response) > _MAX_RESPONSE_SIZE:
                        raise HAProxyUnreachable(f"its response is larger than {_MAX_RESPONSE_SIZE} bytes")
        except OSError as error:
            raise HAProxyUnreachable(error.strerror or str(error)) from error
        decoded = response.decode(errors="replace")
        if decoded.startswith("Permission denied"):
            raise HandlerFailed(problem="HAProxy denied the command: the socket must have `level admin`.")
        return decoded

    def _connected(self, deadline: float) -> socket.socket:
        if not isinstance(self._address, str):
            return socket.create_connection(self._address, timeout=max(0.01, deadline - real_seconds()))
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _set_timeout(peer, deadline)
            peer.connect(self._address)
        except BaseException:
            peer.close()
            raise
        return peer


def _set_timeout(peer: socket.socket, deadline: float) -> None:
    # Not 0: that would make the socket non-blocking.
    peer.settimeout(max(0.01, deadline - real_seconds()))


def _receive(peer: socket.socket, deadline: float) -> bytes:
    if real_seconds() >= deadline:
        raise TimeoutError("timed out")
    _set_timeout(peer, deadline)
    return peer.recv(65_536)


def _states(text: str) -> list[tuple[str, str]]:
    """Parse `show servers state`, of any version: the second line names the columns."""
    columns: list[str] = []
    found = []
    for line in text.splitlines():
        words = line.split()
        if line.startswith("#"):
            columns = words[1:]
        elif len(words) >= len(columns) > 0:
            row = dict(zip(columns, words, strict=False))
            bits = int(row["srv_admin_state"])
            state = MAINT if bits & _FORCED_MAINT else DRAIN if bits & _FORCED_DRAIN else READY
            found.append((f"{row['be_name']}/{row['srv_name']}", state))
    return found


# --- The handler ----------------------------------------------------------------------------------


_FAIL, _CUT = _ON_REMAINING = ("fail", "cut")
_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 5.0
"""How long prepare retries: HAProxy does not respond while it reloads. Undo retries until its timeout: after a restart
of the VM, HAProxy may start later than the agent."""
_CUT_SECONDS = 5.0
_MEMO_STATES = "before"
_T = TypeVar("_T")


class HAProxyHandler(Handler):
    """Drains servers: existing sessions continue, and no new ones start."""

    def __init__(self, options: TomlTable) -> None:
        options.reject_unknown({"socket", "server", "servers", "drain_timeout", "on_remaining", *COMMON})
        self._socket = options.required_text("socket", 'Write it like "/run/haproxy/admin.sock" or "127.0.0.1:9999".')
        self._address = _read_address(options, self._socket)
        self._servers = read_several(options, "server", "servers", '"backend/web-0"')
        for index, server in enumerate(self._servers):
            backend, slash, name = server.partition("/")
            if not (backend and slash and name) or "/" in name or ";" in server:
                place = ("servers", index) if "servers" in options else ("server",)
                options.report(f'{server!r} is not a server. Write it like "backend/web-0".', *place)
        self._drain_timeout = options.duration("drain_timeout")
        self._on_remaining = options.choice("on_remaining", _ON_REMAINING, _FAIL)

    def describe(self, action: str) -> str:
        names = ", ".join(self._servers)
        if action != PREPARE:
            return f"return {names} of HAProxy to the pool"
        limit = "" if self._drain_timeout is None else f" at most {format_duration(self._drain_timeout)}"
        then = ", then cut the remaining ones" if self._on_remaining == _CUT else ""
        return f"drain {names} of HAProxy and wait{limit} until no sessions remain{then}"

    def problems_here(self) -> Iterable[str]:
        try:
            servers = RuntimeSocket(self._address, lambda: _MAX_REQUEST_SECONDS).servers()
        except HAProxyUnreachable as error:
            raise HandlerFailed(problem=f"HAProxy does not respond at {self._socket}: {error}.") from error
        self._own_servers(servers)
        return ()

    def prepare(self, job: Job) -> None:
        haproxy = RuntimeSocket(self._address, job.seconds_left)
        servers = self._own_servers(self._retry(job, haproxy.servers, _CONNECT_SECONDS))
        if _MEMO_STATES not in job.memo:
            # Only once: in a second run after a kill, the agent itself has drained them.
            job.remember(**{_MEMO_STATES: {name: server.state for name, server in servers.items()}})
        self._drain(job, haproxy, servers)
        self._wait(job, haproxy)

    def undo(self, job: Job) -> None:
        before: dict[str, str] = job.memo.get(_MEMO_STATES, {})
        haproxy = RuntimeSocket(self._address, job.seconds_left)
        problems = []
        for name, state in before.items():
            if state != READY:
                job.info(f"{name} was in state {state} before; leaving it")
                continue
            try:
                self._retry(job, partial(self._put_back, job, haproxy, name), job.seconds_left())
            except HandlerFailed as error:
                # Still return the other servers.
                problems.append(str(error))
        if problems:
            raise HandlerFailed(problem=" ".join(problems))

    def _put_back(self, job: Job, haproxy: RuntimeSocket, name: str) -> None:
        now = self._find(haproxy.servers(), name).state
        if now == MAINT:
            # Not by the agent: prepare only drains.
            job.warning(f"{name} was put into maintenance since; leaving it")
        elif now == DRAIN:
            haproxy.set_state(name, READY)
            job.info(f"{name} is back in the pool")
        else:
            job.info(f"{name} is already in the pool")

    def _drain(self, job: Job, haproxy: RuntimeSocket, servers: dict[str, HAProxyServer]) -> None:
        for name, server in servers.items():
            if server.state == READY:
                haproxy.set_state(name, DRAIN)
                job.info(f"{name} is draining, with {_count(server.sessions)}")

    def _wait(self, job: Job, haproxy: RuntimeSocket) -> None:
        limit = job.seconds_left()
        if self._on_remaining == _CUT:
            # Reserve time for cutting sessions.
            limit -= min(_CUT_SECONDS, limit / 4)
        if self._drain_timeout is not None:
            limit = min(limit, self._drain_timeout.total_seconds())
        begun, cut = real_seconds(), False
        while True:
            servers = self._own_servers(self._retry(job, haproxy.servers, job.seconds_left()))
            left = {name: server.sessions for name, server in servers.items() if server.sessions}
            # A restarted HAProxy has lost its server states.
            drained = all(server.state != READY for server in servers.values())
            if drained and not left:
                return
            if not drained:
                job.warning("HAProxy has lost the drain state, probably by a restart; draining again")
                self._drain(job, haproxy, servers)
            if real_seconds() - begun >= limit and not cut:
                self._give_up_or_cut(job, haproxy, left)
                cut = True
            if job.wait(_POLL_SECONDS):
                raise HandlerFailed(problem=f"was stopped with {_describe_sessions(left)} left.")
            if job.seconds_left() <= 0:
                raise HandlerFailed(problem=f"timed out with {_describe_sessions(left)} left.")

    def _give_up_or_cut(self, job: Job, haproxy: RuntimeSocket, left: dict[str, int]) -> None:
        if self._on_remaining != _CUT:
            raise HandlerFailed(problem=f"drain_timeout passed with {_describe_sessions(left)} left.")
        job.warning(f"cutting the remaining sessions: {_describe_sessions(left)}")
        for name in left:
            haproxy.cut(name)

    def _retry(self, job: Job, request: Callable[[], _T], seconds: float) -> _T:
        """Send a request, and retry it for some time while HAProxy does not respond."""
        deadline = real_seconds() + seconds
        while True:
            try:
                return request()
            except HAProxyUnreachable as error:  # noqa: PERF203 - the loop waits anyway
                if real_seconds() >= deadline or job.seconds_left() <= 0:
                    raise HandlerFailed(problem=f"HAProxy does not respond at {self._socket}: {error}.") from error
                if job.wait(_POLL_SECONDS):
                    raise HandlerFailed(problem=f"was stopped; HAProxy at {self._socket}: {error}.") from error

    def _own_servers(self, servers: dict[str, HAProxyServer]) -> dict[str, HAProxyServer]:
        return {name: self._find(servers, name) for name in self._servers}

    def _find(self, servers: dict[str, HAProxyServer], name: str) -> HAProxyServer:
        if name in servers:
            return servers[name]
        there = ", ".join(list(servers)[:20]) or "none"
        raise HandlerFailed(problem=f"HAProxy has no server {name}; it has {there}.{nearest(name, servers)}")


def _read_address(options: TomlTable, text: str) -> str | tuple[str, int]:
    if text.startswith("/"):
        return text
    try:
        host, port = read_host_port(text)
    except ValueError:
        host, port = "", 0
    if not port:
        options.report(f'{text!r} is neither an absolute path nor an address like "127.0.0.1:9999".', "socket")
    return host, port


def _count(sessions: int) -> str:
    return "1 session" if sessions == 1 else f"{sessions} sessions"


def _describe_sessions(left: dict[str, int]) -> str:
    return ", ".join(f"{_count(sessions)} on {name}" for name, sessions in left.items()) or "no sessions"


KIND = HAProxyHandler

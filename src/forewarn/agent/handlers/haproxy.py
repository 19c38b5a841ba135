"""haproxy: takes servers out of HAProxy's pool, waits until their sessions are over, and puts them back."""

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
    from collections.abc import Callable

    from forewarn.agent.handlers.handler import Job
    from forewarn.files.toml_reader import TomlTable


# --- The runtime socket of HAProxy ----------------------------------------------------------------


_MOST_SECONDS = 5.0
_LEAST_SECONDS = 0.5
"""Also shortly before the limit: else it would seem that HAProxy does not answer."""
_MOST_BYTES = 16 * 1024 * 1024
READY, DRAIN, MAINT = "ready", "drain", "maint"
_FORCED_MAINT, _FORCED_DRAIN = 0x01, 0x08
"""Of srv_admin_state: what somebody has said. Other bits are inherited, or from a name that is not resolved."""


class Server(NamedTuple):
    """A server as HAProxy has it now."""

    state: str
    """READY, DRAIN or MAINT: what somebody has said it should be. Whether it is up is another thing."""
    sessions: int
    """Those it has, and those that wait for it."""


class Silent(Exception):  # it is no error yet: it may be starting
    """HAProxy could not be asked."""


class RuntimeSocket:
    """Asks one thing per connection, as HAProxy wants it."""

    def __init__(self, address: str | tuple[str, int], seconds_left: Callable[[], float]) -> None:
        self._address = address
        self._seconds_left = seconds_left

    def servers(self) -> dict[str, Server]:
        """All servers, by `backend/server`."""
        sessions = {}
        for row in csv.DictReader(self._ask("show stat -1 4 -1").lstrip("# ").splitlines()):
            if row.get("svname"):
                sessions[f"{row['pxname']}/{row['svname']}"] = int(row["scur"] or 0) + int(row["qcur"] or 0)
        return {name: Server(state, sessions.get(name, 0)) for name, state in _states(self._ask("show servers state"))}

    def set_state(self, server: str, state: str) -> None:
        """Say what a server should be."""
        self._order(f"set server {server} state {state}")

    def cut(self, server: str) -> None:
        """End the sessions that a server has."""
        self._order(f"shutdown sessions server {server}")

    def _order(self, text: str) -> None:
        answer = self._ask(text).strip()
        if answer:
            raise HandlerFailed(problem=f"HAProxy answered to '{text}': {answer.splitlines()[0][:200]}")

    def _ask(self, text: str) -> str:
        until = real_seconds() + max(_LEAST_SECONDS, min(_MOST_SECONDS, self._seconds_left()))
        try:
            with self._connected(until) as peer:
                peer.sendall(f"{text}\n".encode())
                answer = bytearray()
                while data := _receive(peer, until):
                    answer += data
                    if len(answer) > _MOST_BYTES:
                        raise Silent("its answer has no end")
        except OSError as error:
            raise Silent(error.strerror or str(error)) from error
        said = answer.decode(errors="replace")
        if said.startswith("Permission denied"):
            raise HandlerFailed(problem="HAProxy denies it: the socket must have `level admin`.")
        return said

    def _connected(self, until: float) -> socket.socket:
        if not isinstance(self._address, str):
            return socket.create_connection(self._address, timeout=max(0.01, until - real_seconds()))
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _limit(peer, until)
            peer.connect(self._address)
        except BaseException:
            peer.close()
            raise
        return peer


def _limit(peer: socket.socket, until: float) -> None:
    # Not 0, which would mean not to wait at all, and so another error.
    peer.settimeout(max(0.01, until - real_seconds()))


def _receive(peer: socket.socket, until: float) -> bytes:
    if real_seconds() >= until:
        raise TimeoutError("timed out")
    _limit(peer, until)
    return peer.recv(65_536)


def _states(text: str) -> list[tuple[str, str]]:
    """What `show servers state` says, of whatever version: the columns are named in its second line."""
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
_LOOK_SECONDS = 0.2
_REACHED_SECONDS = 5.0
"""For how long prepare tries to reach HAProxy: while it is reloaded it does not answer. Undo tries to its limit, since
after a restart of the machine HAProxy may come up later than the agent."""
_TO_CUT_SECONDS = 5.0
_REMEMBERED = "before"
_T = TypeVar("_T")


class HAProxy(Handler):
    """Drains: who has a session keeps it, nobody new comes."""

    def __init__(self, options: TomlTable) -> None:
        options.refuse_unknown({"socket", "server", "servers", "drain_timeout", "on_remaining", *COMMON})
        self._called = options.required_text("socket", 'Write it like "/run/haproxy/admin.sock" or "127.0.0.1:9999".')
        self._address = _read_address(options, self._called)
        self._servers = read_several(options, "server", "servers", '"backend/web-0"')
        for server in self._servers:
            backend, slash, name = server.partition("/")
            if not (backend and slash and name) or "/" in name or ";" in server:
                key = "servers" if "servers" in options else "server"
                raise options.wrong(f'{server!r} is no server. Write it like "backend/web-0".', key)
        self._drain_timeout = options.length("drain_timeout")
        self._on_remaining = options.word("on_remaining", _ON_REMAINING, _FAIL)

    def describe(self, action: str) -> str:
        names = ", ".join(self._servers)
        if action != PREPARE:
            return f"put {names} of HAProxy back into the pool"
        limit = "" if self._drain_timeout is None else f" for at most {format_duration(self._drain_timeout)}"
        then = ", then cut those that remain" if self._on_remaining == _CUT else ""
        return f"drain {names} of HAProxy and wait{limit} until there are no sessions{then}"

    def prepare(self, job: Job) -> None:
        haproxy = RuntimeSocket(self._address, job.seconds_left)
        servers = self._mine(self._reached(job, haproxy.servers, _REACHED_SECONDS))
        if _REMEMBERED not in job.memo:
            # Only once: after a kill they are in drain already, by our own hand.
            job.remember(**{_REMEMBERED: {name: server.state for name, server in servers.items()}})
        self._drain(job, haproxy, servers)
        self._wait(job, haproxy)

    def undo(self, job: Job) -> None:
        before: dict[str, str] = job.memo.get(_REMEMBERED, {})
        haproxy = RuntimeSocket(self._address, job.seconds_left)
        problems = []
        for name, state in before.items():
            if state != READY:
                job.say(f"{name} was in {state} before, and stays so")
                continue
            try:
                self._reached(job, partial(self._put_back, job, haproxy, name), job.seconds_left())
            except HandlerFailed as error:
                # The others are wanted all the same.
                problems.append(str(error))
        if problems:
            raise HandlerFailed(problem=" ".join(problems))

    def _put_back(self, job: Job, haproxy: RuntimeSocket, name: str) -> None:
        now = self._known(haproxy.servers(), name).state
        if now == MAINT:
            # Not by us: prepare only drains.
            job.warn(f"somebody has put {name} into maintenance meanwhile: it is left so")
        elif now == DRAIN:
            haproxy.set_state(name, READY)
            job.say(f"{name} is back in the pool")
        else:
            job.say(f"{name} is in the pool already")

    def _drain(self, job: Job, haproxy: RuntimeSocket, servers: dict[str, Server]) -> None:
        for name, server in servers.items():
            if server.state == READY:
                haproxy.set_state(name, DRAIN)
                job.say(f"{name} is draining, with {_count(server.sessions)}")

    def _wait(self, job: Job, haproxy: RuntimeSocket) -> None:
        limit = job.seconds_left()
        if self._on_remaining == _CUT:
            # To cut takes a moment too.
            limit -= min(_TO_CUT_SECONDS, limit / 4)
        if self._drain_timeout is not None:
            limit = min(limit, self._drain_timeout.total_seconds())
        begun, cut = real_seconds(), False
        while True:
            servers = self._mine(self._reached(job, haproxy.servers, job.seconds_left()))
            left = {name: server.sessions for name, server in servers.items() if server.sessions}
            # Not before they are out of the pool: HAProxy may have been restarted, and has forgotten.
            out = all(server.state != READY for server in servers.values())
            if out and not left:
                return
            if not out:
                job.warn("HAProxy has forgotten that it drains, and is told again")
                self._drain(job, haproxy, servers)
            if real_seconds() - begun >= limit and not cut:
                self._give_up_or_cut(job, haproxy, left)
                cut = True
            if job.wait(_LOOK_SECONDS):
                raise HandlerFailed(problem=f"was told to stop while there were {_list(left)}.")
            if job.seconds_left() <= 0:
                raise HandlerFailed(problem=f"there were still {_list(left)} when the time limit had passed.")

    def _give_up_or_cut(self, job: Job, haproxy: RuntimeSocket, left: dict[str, int]) -> None:
        if self._on_remaining != _CUT:
            raise HandlerFailed(problem=f"there are still {_list(left)} after draining for so long.")
        job.warn(f"there are still {_list(left)}: they are cut")
        for name in left:
            haproxy.cut(name)

    def _reached(self, job: Job, ask: Callable[[], _T], seconds: float) -> _T:
        """Ask; again and again for some time while it does not answer."""
        until = real_seconds() + seconds
        while True:
            try:
                return ask()
            except Silent as error:  # noqa: PERF203 - it waits anyway
                if real_seconds() >= until or job.seconds_left() <= 0:
                    raise HandlerFailed(problem=f"HAProxy cannot be asked at {self._called}: {error}.") from error
                if job.wait(_LOOK_SECONDS):
                    raise HandlerFailed(problem=f"was told to stop; HAProxy at {self._called}: {error}.") from error

    def _mine(self, servers: dict[str, Server]) -> dict[str, Server]:
        return {name: self._known(servers, name) for name in self._servers}

    def _known(self, servers: dict[str, Server], name: str) -> Server:
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
        raise options.wrong(f'{text!r} is neither a whole path nor an address like "127.0.0.1:9999".', "socket")
    return host, port


def _count(sessions: int) -> str:
    return "1 session" if sessions == 1 else f"{sessions} sessions"


def _list(left: dict[str, int]) -> str:
    return ", ".join(f"{_count(sessions)} on {name}" for name, sessions in left.items()) or "no sessions"


KIND = HAProxy

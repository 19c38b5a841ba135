"""haproxy: takes servers out of HAProxy's pool, waits until their sessions are over, and puts them back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from forewarn.agent.clock import real_seconds
from forewarn.agent.handlers.handler import COMMON, PREPARE, Handler
from forewarn.agent.handlers.haproxy_socket import DRAIN, MAINT, READY, RuntimeSocket, Silent
from forewarn.agent.handlers.options import read_several
from forewarn.core.durations import format_duration
from forewarn.errors import HandlerFailed, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.agent.handlers.handler import Job
    from forewarn.agent.handlers.haproxy_socket import Server
    from forewarn.files.toml_reader import Entry

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

    def __init__(self, options: Entry) -> None:
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


def _read_address(options: Entry, text: str) -> str | tuple[str, int]:
    if text.startswith("/"):
        return text
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise options.wrong(f'{text!r} is neither a whole path nor an address like "127.0.0.1:9999".', "socket")
    return host.strip("[]"), int(port)


def _count(sessions: int) -> str:
    return "1 session" if sessions == 1 else f"{sessions} sessions"


def _list(left: dict[str, int]) -> str:
    return ", ".join(f"{_count(sessions)} on {name}" for name, sessions in left.items()) or "no sessions"


KIND = HAProxy

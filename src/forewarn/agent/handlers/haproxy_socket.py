"""HAProxy's runtime socket: one question, one answer; and what it says of its servers."""

from __future__ import annotations

import csv
import socket
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.errors import HandlerFailed

if TYPE_CHECKING:
    from collections.abc import Callable

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

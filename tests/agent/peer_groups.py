"""Real peer groups on loopback ports, and the links between them, which a test can cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.agent.peers.group import PeerGroup
from forewarn.agent.policy import Member, PeersSettings
from forewarn.system.logs import TextFormatter

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from forewarn.agent.peers.readiness import ApprovalDecision

EVENT = "28512AF7-C957-4500-9BC4-842D6FB531E4"
SECRET = b"sixteen bytes or more"
TIMEOUT_SECONDS = 60


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines with their fields."""
    return [TextFormatter().format(record) for record in caplog.records]


class Link:
    """Forwards connections from a port of its own to a target, as long as it is not cut. Remembers what came back."""

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self.is_cut = False
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []
        self.instead: Callable[[bytes], bytes] | None = None
        """Makes an answer of the request, in the place of the target."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self.is_cut = True
        for end in self._open.copy():
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        self.is_cut = False

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(TIMEOUT_SECONDS)

    def _run(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            self._open.add(near)
            target, instead = self.target, self.instead  # as it is now: the test goes on meanwhile
            request = b"" if self.is_cut else near.recv(65536)
            if not request:
                return
            self.requests.append(request)
            if instead is not None:
                near.sendall(instead(request))
                return
            if target is None:
                return
            with socket.create_connection(target, TIMEOUT_SECONDS) as far:
                self._open.add(far)
                far.sendall(request)
                answer = b"".join(iter(lambda: far.recv(65536), b""))
                self._open.discard(far)
            self.answers.append(answer)
            if not self.is_cut:
                near.sendall(answer)
        self._open.discard(near)


class Machines:
    """Some machines, each with its peer group, and a link from each to each."""

    def __init__(self, count: int, silence: float = 1.0, secrets: dict[str, bytes] | None = None) -> None:
        self.names = tuple(f"web-{number}" for number in range(count))
        self.links = {(a, b): Link() for a in self.names for b in self.names if a != b}
        self.groups: dict[str, PeerGroup] = {}
        self.may_have: set[str] = set()
        """All that were ever allowed to approve."""
        self._secrets = secrets or {}
        self._silence = timedelta(seconds=silence)
        self._news = threading.Condition()
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> PeerGroup:
        members = tuple(
            Member(other, "127.0.0.1", self.links[name, other].port) for other in self.names if other != name
        )
        secret = self._secrets.get(name, SECRET)
        group = PeerGroup(PeersSettings(("127.0.0.1", 0), secret, members, self._silence), self._wake)
        group.start(name)
        self.groups[name] = group
        for other in self.names:
            if other != name:
                self.links[other, name].target = group.address
        return group

    def stop(self, name: str) -> None:
        self.groups.pop(name).stop()
        for other in self.names:
            if other != name:
                self.links[other, name].target = None

    def close(self) -> None:
        for group in self.groups.values():
            group.stop()
        for link in self.links.values():
            link.close()

    def cut(self, one: str, other: str) -> None:
        self.links[one, other].cut()
        self.links[other, one].cut()

    def join(self, one: str, other: str) -> None:
        self.links[one, other].join()
        self.links[other, one].join()

    def report(self, state: str, *names: str) -> None:
        for name in names or self.groups:
            self.groups[name].report(EVENT, self.names, state)

    def decisions(self) -> dict[str, ApprovalDecision]:
        """Return the current decision of each machine."""
        decisions = {name: group.decide(EVENT) for name, group in self.groups.items()}
        self.may_have |= {name for name, decision in decisions.items() if decision.allowed}
        return decisions

    def until(self, enough: Callable[[dict[str, ApprovalDecision]], bool]) -> dict[str, ApprovalDecision]:
        """Wait until the decisions are enough. A group wakes its caller when one changes."""
        last: dict[str, ApprovalDecision] = {}

        def is_enough() -> bool:
            last.clear()
            last.update(self.decisions())
            return enough(last)

        with self._news:
            assert self._news.wait_for(is_enough, TIMEOUT_SECONDS), last
        return last

    def until_may(self, name: str) -> None:
        self.until(lambda decisions: decisions[name].allowed)

    def until_reason(self, name: str, *words: str) -> None:
        self.until(lambda decisions: all(word in decisions[name].reason for word in words))

    def until_logged(self, caplog: pytest.LogCaptureFixture, text: str) -> None:
        """Wait for a log line: a thread may write it later than it changes the state."""
        with self._news:
            for _ in range(int(TIMEOUT_SECONDS * 20)):
                if any(text in line for line in logged(caplog)):
                    return
                self._news.wait(0.05)
        raise AssertionError(f"{text!r} is not in the log: {logged(caplog)}")

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()

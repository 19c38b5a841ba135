"""The group of peers: threads that ask the others, the server that answers them, and the decision who approves."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from forewarn.agent.clock import real_seconds
from forewarn.agent.http_server import listen_on
from forewarn.agent.peers.messages import key, write_status
from forewarn.agent.peers.network import PeerClient, PeerServer
from forewarn.agent.peers.readiness import Readiness
from forewarn.errors import PeersNotListening, PeerTrouble

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forewarn.agent.peers.readiness import Decision
    from forewarn.agent.policy import PeersSettings

_log = logging.getLogger(__name__)


class PeerGroup:
    """Tells the peers how far this machine is, and hears it from them. Safe to use from any thread.

    It listens from the beginning, or raises PeersNotListening. `wake` is called, from a thread of the group, when a
    decision has changed.
    """

    def __init__(self, settings: PeersSettings, wake: Callable[[], None]) -> None:
        self._secret = settings.secret
        self._wake = wake
        self._lock = threading.Lock()
        self._readiness = Readiness(settings, real_seconds())
        self._server = PeerServer(listen_on(*settings.listen, PeersNotListening), settings.secret, self._answer)
        self.address = self._server.address
        self._stopping = threading.Event()
        self._clients: dict[str, tuple[PeerClient, threading.Thread]] = {}
        self._troubles: dict[str, str] = {}
        self._last: dict[str, Decision] = {}

    def start(self, me: str) -> None:
        """Answer, and ask as soon as there is an event. `me` is the name of this machine."""
        self._readiness.me = me
        self._server.start()

    def stop(self) -> None:
        """Ask nobody and answer nobody any more."""
        self._stopping.set()
        with self._lock:
            clients = list(self._clients.values())
        for client, _ in clients:
            client.close()
        self._server.stop()
        for _, thread in clients:
            # A name look-up cannot be interrupted; it ends by itself.
            thread.join(self._readiness.timing.timeout)

    def report(
        self, event_id: str, resources: Sequence[str], state: str, as_name: str = "", *, is_due: bool = True
    ) -> None:
        """How far this machine is with an event. `as_name`: its name in the event."""
        with self._lock:
            me = as_name or self._readiness.me
            self._readiness.report(event_id, resources, state, me, real_seconds(), is_due=is_due)
            if not self._stopping.is_set():
                self._ask_members()

    def forget(self, event_id: str) -> None:
        """The event is over."""
        with self._lock:
            self._readiness.forget(event_id)
            self._last.pop(key(event_id), None)

    def may_run_handler(self) -> bool:
        """Not as long as a machine may act on the word that this one is ready. First report that it is not."""
        with self._lock:
            return self._readiness.may_run_handler(real_seconds())

    def decide(self, event_id: str) -> Decision:
        """Whether this machine may approve, now. Ask right before approving: an answer is not fresh for long."""
        with self._lock:
            decision = self._readiness.decide(event_id, real_seconds())
            self._last[key(event_id)] = decision  # the caller need not be woken for what it knows
            return decision

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """How it is with each peer. No peer is silent while none is asked."""
        with self._lock:
            now = real_seconds()
            return {
                vm: {
                    "heard_seconds_ago": None if contact.heard_at is None else round(now - contact.heard_at, 3),
                    "silent": contact.silent,
                }
                for vm, contact in self._readiness.contacts(now).items()
            }

    def _answer(self, asked: str) -> bytes | None:
        with self._lock:
            message = self._readiness.answer(asked, real_seconds())
        return None if message is None else write_status(message)

    def _ask_members(self) -> None:
        """Have a thread for each member of a live event. The threads end with the events."""
        for member in self._readiness.members_to_ask():
            if key(member.vm) not in self._clients:
                client = PeerClient(member, self._secret, self._readiness.timing.timeout)
                thread = threading.Thread(target=self._ask, args=(client,), name=f"peers-{member.vm}", daemon=True)
                self._clients[key(member.vm)] = client, thread
                thread.start()

    def _ask(self, client: PeerClient) -> None:
        while not self._stopping.is_set():
            with self._lock:
                if client.member not in self._readiness.members_to_ask():
                    del self._clients[key(client.member.vm)]
                    self._troubles.pop(client.member.vm, None)
                    client.close()
                    return
            self._ask_once(client)
            self._stopping.wait(self._readiness.timing.interval)

    def _ask_once(self, client: PeerClient) -> None:
        vm, sent = client.member.vm, real_seconds()
        try:
            message = client.ask(self._readiness.me)
        except PeerTrouble as trouble:
            # Logged when it begins and when it changes, not each time.
            if self._troubles.get(vm) != str(trouble) and not self._stopping.is_set():
                self._troubles[vm] = str(trouble)
                _log.warning("%s", trouble)
        else:
            if self._troubles.pop(vm, None) is not None:
                _log.info("%s answers again.", vm)
            with self._lock:
                self._readiness.take(vm, message, sent, real_seconds())
        # After a failure too: an answer may have become too old, or this machine's turn may have come.
        with self._lock:
            decisions = self._readiness.decide_all(real_seconds())
            has_changed = any(decision != self._last.get(name) for name, decision in decisions.items())
            self._last = decisions
        if has_changed:
            self._wake()

"""A group of peers: threads that request the status of the others, the server for them, and the approval decision."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from forewarn.agent.clock import real_seconds
from forewarn.agent.http_server import listen_on
from forewarn.agent.peers.messages import key, write_status
from forewarn.agent.peers.network import PeerClient, PeerServer
from forewarn.agent.peers.readiness import Readiness
from forewarn.errors import PeerRequestFailed, PeersNotListening
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forewarn.agent.peers.readiness import ApprovalDecision
    from forewarn.agent.policy import PeersSettings

_log = get_logger(__name__)


class PeerGroup:
    """Exchanges the state of events with the peers. Safe to use from any thread.

    The constructor opens the listening socket or raises PeersNotListening. A thread of the group calls `wake` when a
    decision has changed.
    """

    def __init__(self, settings: PeersSettings, wake: Callable[[], None]) -> None:
        self._secret = settings.secret
        self._wake = wake
        self._lock = threading.Lock()
        self._readiness = Readiness(settings, real_seconds())
        self._server = PeerServer(listen_on(*settings.listen, PeersNotListening), settings.secret, self._status_body)
        self.address = self._server.address
        self._stopping = threading.Event()
        self._clients: dict[str, tuple[PeerClient, threading.Thread]] = {}
        self._errors: dict[str, str] = {}
        self._last: dict[str, ApprovalDecision] = {}

    def start(self, me: str) -> None:
        """Start the server. Requests to peers start with the first event. `me` is the name of this VM."""
        self._readiness.me = me
        self._server.start()

    def stop(self) -> None:
        """Stop the server and all requests."""
        self._stopping.set()
        with self._lock:
            clients = list(self._clients.values())
        for client, _ in clients:
            client.close()
        self._server.stop()
        for _, thread in clients:
            # A name lookup cannot be interrupted; it ends by itself.
            thread.join(self._readiness.timing.request_timeout)

    def report(
        self, event_id: str, resources: Sequence[str], state: str, as_name: str = "", *, is_due: bool = True
    ) -> None:
        """Report the state of an event on this VM. `as_name` is the VM's name in the event."""
        with self._lock:
            me = as_name or self._readiness.me
            self._readiness.report(event_id, resources, state, me, real_seconds(), is_due=is_due)
            if not self._stopping.is_set():
                self._start_polling()

    def forget(self, event_id: str) -> None:
        """Drop an event that is over."""
        with self._lock:
            self._readiness.forget(event_id)
            self._last.pop(key(event_id), None)

    def may_run_handler(self) -> bool:
        """Return False while a peer may still act on the report that this VM is ready. First report another state."""
        with self._lock:
            return self._readiness.may_run_handler(real_seconds())

    def decide(self, event_id: str) -> ApprovalDecision:
        """Decide whether this VM may approve now. Call it right before approving: responses expire soon."""
        with self._lock:
            decision = self._readiness.decide(event_id, real_seconds())
            self._last[key(event_id)] = decision  # no need to wake the caller for this one
            return decision

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return the last contact with each peer. Peers are unreachable only while there is an event to request."""
        with self._lock:
            now = real_seconds()
            return {
                vm: {
                    "seconds_since_last_response": None
                    if contact.last_response_at is None
                    else round(now - contact.last_response_at, 3),
                    "unreachable": contact.unreachable,
                }
                for vm, contact in self._readiness.contacts(now).items()
            }

    def _status_body(self, receiver: str) -> bytes | None:
        with self._lock:
            message = self._readiness.status_message(receiver, real_seconds())
        return None if message is None else write_status(message)

    def _start_polling(self) -> None:
        """Start a thread for each member of an active event. The threads end with the events."""
        for member in self._readiness.members_to_poll():
            if key(member.vm) not in self._clients:
                client = PeerClient(member, self._secret, self._readiness.timing.request_timeout)
                thread = threading.Thread(target=self._poll, args=(client,), name=f"peers-{member.vm}", daemon=True)
                self._clients[key(member.vm)] = client, thread
                thread.start()

    def _poll(self, client: PeerClient) -> None:
        while not self._stopping.is_set():
            with self._lock:
                if client.member not in self._readiness.members_to_poll():
                    del self._clients[key(client.member.vm)]
                    self._errors.pop(client.member.vm, None)
                    client.close()
                    return
            self._poll_once(client)
            self._stopping.wait(self._readiness.timing.poll_interval)

    def _poll_once(self, client: PeerClient) -> None:
        vm, requested_at = client.member.vm, real_seconds()
        try:
            message = client.request_status(self._readiness.me)
        except PeerRequestFailed as error:
            # Logged when it begins and when it changes, not each time.
            if self._errors.get(vm) != str(error) and not self._stopping.is_set():
                self._errors[vm] = str(error)
                _log.warning(
                    "peer_request_failed", "Cannot get the status of a peer; retrying.", peer=vm, error=str(error)
                )
        else:
            if self._errors.pop(vm, None) is not None:
                _log.info("peer_recovered", "The peer responds again.", peer=vm)
            with self._lock:
                self._readiness.record_response(vm, message, requested_at, real_seconds())
        # After a failure too: a response may have expired, or it may be this VM's turn to approve.
        with self._lock:
            decisions = self._readiness.decide_all(real_seconds())
            has_changed = any(decision != self._last.get(name) for name, decision in decisions.items())
            self._last = decisions
        if has_changed:
            self._wake()

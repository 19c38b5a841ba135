"""Serves the status to peers: who has the secret is told, and no stranger is told anything."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forewarn.agent.listening import listen_on
from forewarn.agent.peers.message import END, LARGEST_HEAD, read_ask, write_reply
from forewarn.agent.peers.seal import is_right, seal_answer, seal_ask
from forewarn.agent.serving import SmallServer
from forewarn.errors import PeersNotListening

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from forewarn.agent.peers.message import Ask

_log = logging.getLogger(__name__)

_MOST_NAMED = 64


class StatusServer:
    """Answers from `start` to `stop`. `listener` is from `listen`.

    `answer(asker, asked)` gives the body for a member that asks, or None if it asks for another machine.
    """

    def __init__(self, listener: socket.socket, secret: bytes, answer: Callable[[str, str], bytes | None]) -> None:
        self._secret = secret
        self._answer = answer
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._named: set[str] = set()
        self._server = SmallServer(
            [listener], self._respond, name="peers-server", callers="a peer", largest_head=LARGEST_HEAD
        )

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Close everything; nobody is answered once this has returned."""
        self._server.stop()

    def _respond(self, head: bytes, caller: str) -> bytes:
        lines, end, _ = head.partition(END)
        if not end:
            return b""  # agents write shorter heads, and end them
        ask = read_ask(lines)
        if ask is None or not self._is_sealed(ask):
            self._name_stranger(caller)
            return write_reply(401)
        body = self._answer(ask.asker, ask.asked)
        if body is None:
            _log.warning("%s takes this machine for %s: see its [peers] members.", ask.asker, ask.asked)
            return write_reply(421)
        return write_reply(200, seal_answer(self._secret, ask.nonce, body), body)

    def _is_sealed(self, ask: Ask) -> bool:
        return is_right(ask.seal, seal_ask(self._secret, ask.nonce, ask.asker, ask.asked))

    def _name_stranger(self, caller: str) -> None:
        """Once for each address, and not for every address there is."""
        if caller not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(caller)
            _log.warning("%s asked as a peer and does not have our secret: it was told nothing.", caller)


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address of this machine, or the error that names the key it came from."""
    return listen_on(host, port, PeersNotListening)

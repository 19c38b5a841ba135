"""Connections between peers: asks a peer for its status, and serves the own status to peers that have the secret."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from forewarn.agent import transport
from forewarn.agent.address import Endpoint, show_host_port
from forewarn.agent.http_server import BoundedServer, Reply, listen_on
from forewarn.agent.peers.messages import LARGEST, PATH, draw, is_right, read_word, seal_answer, seal_ask
from forewarn.agent.peers.quorum import key
from forewarn.errors import BadWord, EndpointTrouble, PeersNotListening, PeerTrouble

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from forewarn.agent.http_server import Request
    from forewarn.agent.peers.messages import Word
    from forewarn.agent.policy import Member

_log = logging.getLogger(__name__)

NONCE, ASKER, ASKED, SEAL = "forewarn-nonce", "forewarn-asker", "forewarn-asked", "forewarn-seal"
"""The headers of a question; an answer has the last one."""


# --- Asking a peer --------------------------------------------------------------------------------


class PeerClient:
    """Asks one member. One thread asks; another may close it."""

    def __init__(self, member: Member, secret: bytes, timeout: float) -> None:
        self.member = member
        self._secret = secret
        self._timeout = timeout
        self._address = show_host_port(member.host, member.port)
        self._line = transport.Line(Endpoint("http", member.host, member.port, "[peers] members"))

    def ask(self, asker: str) -> Word:
        """What the member says, or PeerTrouble."""
        vm, nonce = self.member.vm, draw()
        headers = {
            NONCE: nonce,
            ASKER: _quoted(asker),
            ASKED: _quoted(vm),
            SEAL: seal_ask(self._secret, nonce, asker, vm),
            "Connection": "close",
        }
        try:
            answer = self._line.exchange("GET", PATH, headers, None, self._timeout)
        except EndpointTrouble as trouble:
            raise PeerTrouble(vm=vm, problem=self._describe(trouble)) from trouble
        if answer.status == 401:
            raise PeerTrouble(vm=vm, problem="does not take our secret: [peers] secret_file must be the same for all.")
        if answer.status == 421:
            raise PeerTrouble(vm=vm, problem=f"is not what answers at {self._address}: see [peers] members.")
        if answer.status != 200:
            raise PeerTrouble(vm=vm, problem=f"answers with status {answer.status}, which no agent does.")
        if len(answer.body) > LARGEST:
            raise PeerTrouble(vm=vm, problem=f"cannot be asked at {self._address}: the answer is too large.")
        if not is_right(answer.headers.get(SEAL, ""), seal_answer(self._secret, nonce, answer.body)):
            raise PeerTrouble(vm=vm, problem="sent an answer that is not sealed with our secret for this request.")
        try:
            word = read_word(answer.body)
        except BadWord as error:
            raise PeerTrouble(vm=vm, problem=f"sent an answer that cannot be used: {error}.") from error
        if key(word.vm) != key(vm):
            raise PeerTrouble(vm=vm, problem=f"was asked, and {word.vm} answers: see [peers] members.")
        return word

    def close(self) -> None:
        """End what is being asked, and ask no more."""
        self._line.close()

    def _describe(self, trouble: EndpointTrouble) -> str:
        if trouble.kind == "unreachable":
            return f"cannot be asked at {self._address}: {trouble.fields['problem']}."
        if trouble.kind in ("timeout", "stalled"):
            return f"does not answer at {self._address} in time."
        return "does not answer as an agent does."


# --- Serving the status ---------------------------------------------------------------------------


LARGEST_HEAD = 4096
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
        self._server = BoundedServer(
            listener, self._reply, name="peers-server", callers="a peer", largest_head=LARGEST_HEAD
        )

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Close everything; nobody is answered once this has returned."""
        self._server.stop()

    def _reply(self, request: Request) -> Reply | None:
        if request.error == 431:
            return None  # agents write shorter heads
        nonce, asker, asked, seal = (request.headers.get(name, "") for name in (NONCE, ASKER, ASKED, SEAL))
        asker, asked = unquote(asker), unquote(asked)
        is_question = (request.method, request.target) == ("GET", PATH)
        if not is_question or not is_right(seal, seal_ask(self._secret, nonce, asker, asked)):
            if self._is_new(request.caller):
                _log.warning("%s asked as a peer and does not have our secret: it was told nothing.", request.caller)
            return Reply(401)
        body = self._answer(asker, asked)
        if body is None:
            if self._is_new(f"{asker} {asked}"):
                _log.warning("%s takes this machine for %s: see its [peers] members.", asker, asked)
            return Reply(421)
        seal = seal_answer(self._secret, nonce, body)
        return Reply(200, body, (("Content-Type", "application/json"), ("Cache-Control", "no-store"), (SEAL, seal)))

    def _is_new(self, complaint: str) -> bool:
        """Whether it is to be said: once for each address or name, and not for every one there is."""
        if complaint in self._named or len(self._named) >= _MOST_NAMED:
            return False
        self._named.add(complaint)
        return True


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address of this machine, or the error that names the key it came from."""
    return listen_on(host, port, PeersNotListening)


def _quoted(name: str) -> str:
    return quote(name.encode("utf-8", "surrogatepass"), safe="")

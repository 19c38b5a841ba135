"""Connections between peers: asks a peer for its status, and serves the own status to peers that have the secret."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

from forewarn.agent.clock import real_seconds
from forewarn.agent.http_server import SmallServer, listen_on
from forewarn.agent.peers.messages import (
    END,
    LARGEST,
    LARGEST_HEAD,
    Ask,
    draw,
    is_right,
    read_ask,
    read_reply,
    read_word,
    seal_answer,
    seal_ask,
    write_ask,
    write_reply,
)
from forewarn.agent.peers.quorum import key
from forewarn.errors import BadWord, PeersNotListening, PeerTrouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.agent.peers.messages import Word
    from forewarn.agent.policy import Member

_log = logging.getLogger(__name__)


# --- Asking a peer --------------------------------------------------------------------------------


_CHUNK = 65536


class Line:
    """The way to one member. One thread asks; another may hang up."""

    def __init__(self, member: Member, secret: bytes, timeout: float) -> None:
        self.member = member
        self._secret = secret
        self._timeout = timeout
        self._link: socket.socket | None = None
        self._closed = False

    def ask(self, asker: str) -> Word:
        """What the member says, or PeerTrouble."""
        vm = self.member.vm
        nonce = draw()
        request = Ask(nonce, asker, vm, seal_ask(self._secret, nonce, asker, vm))
        reply = read_reply(self._exchange(write_ask(request, self.member.host)))
        if reply is None:
            raise PeerTrouble(vm=vm, problem="does not answer as an agent does.")
        if reply.status == 401:
            raise PeerTrouble(vm=vm, problem="does not take our secret: [peers] secret_file must be the same for all.")
        if reply.status == 421:
            raise PeerTrouble(vm=vm, problem=f"is not what answers at {self._address}: see [peers] members.")
        if reply.status != 200:
            raise PeerTrouble(vm=vm, problem=f"answers with status {reply.status}, which no agent does.")
        if not is_right(reply.seal, seal_answer(self._secret, nonce, reply.body)):
            raise PeerTrouble(vm=vm, problem="sent an answer that is not sealed with our secret for this request.")
        try:
            word = read_word(reply.body)
        except BadWord as error:
            raise PeerTrouble(vm=vm, problem=f"sent an answer that cannot be used: {error}.") from error
        if key(word.vm) != key(vm):
            raise PeerTrouble(vm=vm, problem=f"was asked, and {word.vm} answers: see [peers] members.")
        return word

    def hang_up(self) -> None:
        """End what is being asked, and ask no more."""
        self._closed = True
        if (link := self._link) is not None:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it was over already

    @property
    def _address(self) -> str:
        return f"{self.member.host}:{self.member.port}"

    def _exchange(self, request: bytes) -> bytes:
        until = real_seconds() + self._timeout
        try:
            with socket.create_connection((self.member.host, self.member.port), self._timeout) as link:
                self._link = link
                if self._closed:
                    raise ConnectionAbortedError
                link.sendall(request)
                return _read_all(link, until)
        except TimeoutError as error:
            raise PeerTrouble(vm=self.member.vm, problem=f"does not answer at {self._address} in time.") from error
        except (OSError, OverflowError, ValueError) as error:
            told = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise PeerTrouble(vm=self.member.vm, problem=f"cannot be asked at {self._address}: {told}.") from error
        finally:
            self._link = None


def _read_all(link: socket.socket, until: float) -> bytes:
    """All until the other side has closed; not more than an answer can have."""
    got = b""
    while len(got) <= LARGEST + LARGEST_HEAD:
        left = until - real_seconds()
        if left <= 0:
            raise TimeoutError
        link.settimeout(left)
        part = link.recv(_CHUNK)
        if not part:
            return got
        got += part
    raise OSError(0, "the answer is too large")


# --- Serving the status ---------------------------------------------------------------------------


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
            if self._is_new(caller):
                _log.warning("%s asked as a peer and does not have our secret: it was told nothing.", caller)
            return write_reply(401)
        body = self._answer(ask.asker, ask.asked)
        if body is None:
            if self._is_new(f"{ask.asker} {ask.asked}"):
                _log.warning("%s takes this machine for %s: see its [peers] members.", ask.asker, ask.asked)
            return write_reply(421)
        return write_reply(200, seal_answer(self._secret, ask.nonce, body), body)

    def _is_sealed(self, ask: Ask) -> bool:
        return is_right(ask.seal, seal_ask(self._secret, ask.nonce, ask.asker, ask.asked))

    def _is_new(self, complaint: str) -> bool:
        """Whether it is to be said: once for each address or name, and not for every one there is."""
        if complaint in self._named or len(self._named) >= _MOST_NAMED:
            return False
        self._named.add(complaint)
        return True


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address of this machine, or the error that names the key it came from."""
    return listen_on(host, port, PeersNotListening)

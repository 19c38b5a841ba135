"""Asks a peer how far it is: one connection, one answer, never through a proxy, never for long."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from forewarn.agent.clock import real_seconds
from forewarn.agent.peers.message import LARGEST_HEAD, Ask, read_reply, write_ask
from forewarn.agent.peers.quorum import key
from forewarn.agent.peers.seal import draw, is_right, seal_answer, seal_ask
from forewarn.agent.peers.word import LARGEST, read_word
from forewarn.errors import BadWord, PeerTrouble

if TYPE_CHECKING:
    from forewarn.agent.peers.word import Word
    from forewarn.agent.policy.config import Member

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

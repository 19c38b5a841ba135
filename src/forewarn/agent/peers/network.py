"""Connections between peers: asks a peer for its status, and serves the own status to peers that have the secret."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from forewarn.agent import transport
from forewarn.agent.address import EndpointAddress
from forewarn.agent.http_server import BoundedServer, LocalResponse
from forewarn.agent.peers.messages import LARGEST, PATH, Question, draw, is_same, key, read_status
from forewarn.errors import BadPeerMessage, EndpointError, PeerTrouble
from forewarn.system.addresses import show_host_port

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from forewarn.agent.http_server import LocalRequest
    from forewarn.agent.peers.messages import StatusMessage
    from forewarn.agent.policy import Member
    from forewarn.agent.transport import EndpointResponse

_log = logging.getLogger(__name__)

CHALLENGE, NONCE, ASKER, ASKED, SIGNATURE = HEADERS = (
    "forewarn-challenge",
    "forewarn-nonce",
    "forewarn-asker",
    "forewarn-asked",
    "forewarn-signature",
)
"""Of a question. An answer has the last one, a refusal the first one."""


# --- Asking a peer --------------------------------------------------------------------------------


class PeerClient:
    """Asks one member. One thread asks; another may close it."""

    def __init__(self, member: Member, secret: bytes, timeout: float) -> None:
        self.member = member
        self._secret = secret
        self._timeout = timeout
        self._challenge = ""
        self._address = show_host_port(member.host, member.port)
        self._connection = transport.EndpointConnection(
            EndpointAddress("http", member.host, member.port, "[peers] members")
        )

    def ask(self, asker: str) -> StatusMessage:
        """The member's status, or PeerTrouble."""
        question, answer = self._ask(asker)
        if answer.status == 401 and answer.headers.get(CHALLENGE, "") != self._challenge:
            self._challenge = answer.headers.get(CHALLENGE, "")
            question, answer = self._ask(asker)
        if answer.status == 401:
            raise self._trouble(
                "does not accept our secret: [peers] secret_file must be the same for all. Or its agent is of an older "
                "release."
            )
        if answer.status == 421:
            raise self._trouble(f"is not what answers at {self._address}: see [peers] members.")
        if answer.status != 200:
            raise self._trouble(f"answers with status {answer.status}, which no agent does.")
        if len(answer.body) > LARGEST:
            raise self._trouble(f"cannot be asked at {self._address}: the answer is too large.")
        if not is_same(answer.headers.get(SIGNATURE, ""), question.sign_answer(self._secret, answer.body)):
            raise self._trouble("sent an answer that is not signed with our secret for this question.")
        try:
            message = read_status(answer.body)
        except BadPeerMessage as error:
            raise self._trouble(f"sent an answer that cannot be used: {error}.") from error
        if key(message.vm) != key(self.member.vm):
            raise self._trouble(f"was asked, and {message.vm} answers: see [peers] members.")
        return message

    def close(self) -> None:
        """End what is being asked, and ask no more."""
        self._connection.close()

    def _ask(self, asker: str) -> tuple[Question, EndpointResponse]:
        question = Question(self._challenge, draw(), asker, self.member.vm)
        values = (*(quote(text.encode("utf-8", "surrogatepass"), safe="") for text in question),)
        headers = dict(zip(HEADERS, (*values, question.sign(self._secret)), strict=True))
        try:
            return question, self._connection.exchange(
                "GET", PATH, {**headers, "Connection": "close"}, None, self._timeout
            )
        except EndpointError as trouble:
            if trouble.kind == "unreachable":
                problem = f"cannot be asked at {self._address}: {trouble.fields['problem']}."
            elif trouble.kind in ("timeout", "stalled"):
                problem = f"does not answer at {self._address} in time."
            else:
                problem = "does not answer as an agent does."
            raise self._trouble(problem) from trouble

    def _trouble(self, problem: str) -> PeerTrouble:
        return PeerTrouble(vm=self.member.vm, problem=problem)


# --- Serving the status ---------------------------------------------------------------------------


LARGEST_HEAD = 4096
_MOST_LOGGED = 64
_MOST_NONCES = 4096
"""Then there is a new challenge, and the nonces of the old one are forgotten."""


class PeerServer:
    """Answers from `start` to `stop`.

    `answer(asked)` gives the body for a member that asks, or None if it asks for another machine.
    """

    def __init__(self, listener: socket.socket, secret: bytes, answer: Callable[[str], bytes | None]) -> None:
        self._secret = secret
        self._answer = answer
        self._lock = threading.Lock()
        self._challenge = draw()
        self._nonces: set[str] = set()
        self._logged: set[str] = set()
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._server = BoundedServer(listener, self._reply, name="peers-server", max_head_size=LARGEST_HEAD)

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Close everything; nobody is answered once this has returned."""
        self._server.stop()

    def _reply(self, request: LocalRequest) -> LocalResponse | None:
        if request.error == 431:
            return None  # agents write shorter heads
        *texts, signature = (unquote(request.headers.get(name, "")) for name in HEADERS)
        question = Question(*texts)
        is_question = (request.method, request.target) == ("GET", PATH)
        is_signed = is_question and is_same(signature, question.sign(self._secret))
        if not is_signed or not self._use(question):
            # A member that does not know the challenge yet is no stranger.
            if not is_signed and self._is_new(request.caller):
                _log.warning(
                    "%s asked as a peer and does not have our secret, or its agent is of an older release: it got no "
                    "answer.",
                    request.caller,
                )
            return LocalResponse(401, headers=((CHALLENGE, self._challenge),))
        body = self._answer(question.asked)
        if body is None:
            if self._is_new(f"{question.asker} {question.asked}"):
                _log.warning("%s takes this machine for %s: see its [peers] members.", question.asker, question.asked)
            return LocalResponse(421)
        headers = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
        return LocalResponse(200, body, (*headers, (SIGNATURE, question.sign_answer(self._secret, body))))

    def _use(self, question: Question) -> bool:
        """Whether the question is a new one: a captured one is answered to nobody."""
        with self._lock:
            if question.challenge != self._challenge or question.nonce in self._nonces:
                return False
            self._nonces.add(question.nonce)
            if len(self._nonces) >= _MOST_NONCES:
                self._challenge, self._nonces = draw(), set()
            return True

    def _is_new(self, complaint: str) -> bool:
        """Whether to log it: once for each address or name, and not for every one there is."""
        if complaint in self._logged or len(self._logged) >= _MOST_LOGGED:
            return False
        self._logged.add(complaint)
        return True

"""HTTP between peers: the client that requests a peer's status, and the server for peers that have the secret."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from forewarn.agent import transport
from forewarn.agent.address import EndpointAddress
from forewarn.agent.http_server import BoundedServer, LocalResponse
from forewarn.agent.peers.messages import MAX_MESSAGE_SIZE, PATH, StatusRequest, is_same, key, random_token, read_status
from forewarn.errors import BadPeerMessage, EndpointError, PeerRequestFailed
from forewarn.system.addresses import show_host_port
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from forewarn.agent.http_server import LocalRequest
    from forewarn.agent.peers.messages import StatusMessage
    from forewarn.agent.policy import Member
    from forewarn.agent.transport import EndpointResponse

_log = get_logger(__name__)

CHALLENGE, NONCE, SENDER, RECEIVER, SIGNATURE = HEADERS = (
    "forewarn-challenge",
    "forewarn-nonce",
    "forewarn-asker",
    "forewarn-asked",
    "forewarn-signature",
)
"""Headers of a request. A response has only the signature; a 401 has only the challenge."""


# --- The client -----------------------------------------------------------------------------------


class PeerClient:
    """Requests the status of one member. One thread sends requests; another thread may close the client."""

    def __init__(self, member: Member, secret: bytes, timeout: float) -> None:
        self.member = member
        self._secret = secret
        self._timeout = timeout
        self._challenge = ""
        self._address = show_host_port(member.host, member.port)
        self._connection = transport.EndpointConnection(
            EndpointAddress("http", member.host, member.port, "[peers] members")
        )

    def request_status(self, sender: str) -> StatusMessage:
        """Return the member's status or raise PeerRequestFailed. `sender` is the name of this VM."""
        request, response = self._exchange(sender)
        if response.status == 401 and response.headers.get(CHALLENGE, "") != self._challenge:
            self._challenge = response.headers.get(CHALLENGE, "")
            request, response = self._exchange(sender)
        if response.status == 401:
            raise self._error(
                "rejects our secret. Use the same [peers] secret_file on all VMs, and the same release of the agent."
            )
        if response.status == 421:
            raise self._error(f"is not the VM at {self._address}. Check [peers] members.")
        if response.status != 200:
            raise self._error(f"responded with status {response.status}, which no agent sends.")
        if len(response.body) > MAX_MESSAGE_SIZE:
            raise self._error(f"sent a response that is larger than {MAX_MESSAGE_SIZE} bytes.")
        if not is_same(response.headers.get(SIGNATURE, ""), request.sign_response(self._secret, response.body)):
            raise self._error("sent a response without a valid signature.")
        try:
            message = read_status(response.body)
        except BadPeerMessage as error:
            raise self._error(f"sent an invalid response: {error}.") from error
        if key(message.vm) != key(self.member.vm):
            raise self._error(f"has the address of {message.vm}. Check [peers] members.")
        return message

    def close(self) -> None:
        """End the request in progress and send no further ones."""
        self._connection.close()

    def _exchange(self, sender: str) -> tuple[StatusRequest, EndpointResponse]:
        request = StatusRequest(self._challenge, random_token(), sender, self.member.vm)
        values = (*(quote(text.encode("utf-8", "surrogatepass"), safe="") for text in request),)
        headers = dict(zip(HEADERS, (*values, request.sign(self._secret)), strict=True))
        try:
            return request, self._connection.exchange(
                "GET", PATH, {**headers, "Connection": "close"}, None, self._timeout
            )
        except EndpointError as error:
            if error.kind == "unreachable":
                problem = f"cannot be reached at {self._address}: {error.fields['problem']}."
            elif error.kind in ("timeout", "stalled"):
                problem = f"did not respond at {self._address} within {self._timeout:g} s."
            else:
                problem = f"sent no valid HTTP response at {self._address}."
            raise self._error(problem) from error

    def _error(self, problem: str) -> PeerRequestFailed:
        return PeerRequestFailed(vm=self.member.vm, problem=problem)


# --- The server -----------------------------------------------------------------------------------


MAX_HEADER_SIZE = 4096
_MAX_WARNINGS = 64
_MAX_NONCES = 4096
"""After so many, the server changes its challenge and discards the nonces of the old one."""


class PeerServer:
    """Serves the status of this VM from `start` to `stop`.

    `body_for(receiver)` returns the body of a response, or None if the request is for another VM.
    """

    def __init__(self, listener: socket.socket, secret: bytes, body_for: Callable[[str], bytes | None]) -> None:
        self._secret = secret
        self._body_for = body_for
        self._lock = threading.Lock()
        self._challenge = random_token()
        self._nonces: set[str] = set()
        self._warned: set[str] = set()
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._server = BoundedServer(listener, self._reply, name="peers-server", max_head_size=MAX_HEADER_SIZE)

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Close all connections. After this call the server sends no response."""
        self._server.stop()

    def _reply(self, request: LocalRequest) -> LocalResponse | None:
        if request.error == 431:
            return None  # agents send shorter headers
        *texts, signature = (unquote(request.headers.get(name, "")) for name in HEADERS)
        signed = StatusRequest(*texts)
        is_for_status = (request.method, request.target) == ("GET", PATH)
        is_signed = is_for_status and is_same(signature, signed.sign(self._secret))
        if not is_signed or not self._use(signed):
            # A valid signature with an old challenge comes from a member: it sends the request again.
            if not is_signed and self._is_new_warning(request.caller):
                _log.warning(
                    "peer_request_rejected",
                    "Rejected a peer request: it is not signed with our secret, or comes from an older release.",
                    address=request.caller,
                )
            return LocalResponse(401, headers=((CHALLENGE, self._challenge),))
        body = self._body_for(signed.receiver)
        if body is None:
            if self._is_new_warning(f"{signed.sender} {signed.receiver}"):
                _log.warning(
                    "peer_address_wrong",
                    "The peer's [peers] members list this VM's address under another VM's name. "
                    "Correct the list on the peer.",
                    peer=signed.sender,
                    expected_vm=signed.receiver,
                )
            return LocalResponse(421)
        headers = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
        return LocalResponse(200, body, (*headers, (SIGNATURE, signed.sign_response(self._secret, body))))

    def _use(self, request: StatusRequest) -> bool:
        """Return whether the request is new, and mark it as used: a captured request gets no second response."""
        with self._lock:
            if request.challenge != self._challenge or request.nonce in self._nonces:
                return False
            self._nonces.add(request.nonce)
            if len(self._nonces) >= _MAX_NONCES:
                self._challenge, self._nonces = random_token(), set()
            return True

    def _is_new_warning(self, subject: str) -> bool:
        """Return whether to log a warning: once for each subject, and for a limited number of them."""
        if subject in self._warned or len(self._warned) >= _MAX_WARNINGS:
            return False
        self._warned.add(subject)
        return True

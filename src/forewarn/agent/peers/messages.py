"""Messages between peers: the state of each event on a VM, as JSON, signed with the shared secret.

The reader validates every value. The names in the JSON and in the signed texts are the wire format of `/v2/status`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.errors import BadPeerMessage

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn


# --- The status as JSON ---------------------------------------------------------------------------


WAITING, PREPARING, READY, APPROVED, FAILED, STARTED, GONE = STATES = (
    "waiting",
    "preparing",
    "ready",
    "approved",
    "failed",
    "started",
    "gone",
)
"""State of an event on a VM. `approved`: the VM is ready, and the endpoint has accepted its approval."""

MAX_MESSAGE_SIZE = 256 * 1024
"""In bytes."""
_MAX_NAME_LENGTH = 256
_MAX_EVENTS = 256


class PeerEventStatus(NamedTuple):
    """State of one event on a VM."""

    id: str
    resources: str
    """The `digest` of the event's VMs: agents that see different VMs must not approve."""
    state: str


class StatusMessage(NamedTuple):
    """The response of an agent."""

    vm: str
    fresh: float
    """For how many seconds after its request the receiver may act on this response."""
    events: tuple[PeerEventStatus, ...]

    def event(self, event_id: str) -> PeerEventStatus | None:
        """Return the state of one event, if the message has it."""
        return next((event for event in self.events if key(event.id) == key(event_id)), None)


def key(name: str) -> str:
    """Return the form for comparing VM names and event ids, which ignore letter case."""
    return name.casefold()


def digest(resources: Iterable[str]) -> str:
    """Return a hash of an event's VMs, in their order."""
    text = "\n".join(key(name) for name in resources)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def write_status(message: StatusMessage) -> bytes:
    """Return the message as JSON. An event with an invalid id is omitted: it would make the whole message invalid."""
    events = [event._asdict() for event in message.events if _is_name(event.id)][:_MAX_EVENTS]
    return json.dumps({**message._asdict(), "events": events}, separators=(",", ":")).encode()


def read_status(body: bytes) -> StatusMessage:
    """Parse a message or raise BadPeerMessage. Unknown members are ignored: a newer agent may send them."""
    if len(body) > MAX_MESSAGE_SIZE:
        raise BadPeerMessage(problem=f"it is larger than {MAX_MESSAGE_SIZE} bytes")
    try:
        status = _table(json.loads(body, parse_constant=_reject_constant), "the response")
    except (ValueError, RecursionError) as error:
        raise BadPeerMessage(problem="it is not JSON") from error
    events = status.get("events")
    if not isinstance(events, list) or len(events) > _MAX_EVENTS:
        raise BadPeerMessage(problem=f"events is not a list of at most {_MAX_EVENTS} items")
    read = tuple(_event(_table(event, "an event")) for event in events)
    if len({key(event.id) for event in read}) < len(read):
        raise BadPeerMessage(problem="it contains an event twice")
    fresh = status.get("fresh")
    if not isinstance(fresh, (int, float)) or isinstance(fresh, bool) or not 0 <= fresh <= 1e6:
        raise BadPeerMessage(problem="fresh is not a number of seconds")
    return StatusMessage(_text(status, "vm"), float(fresh), read)


def _event(table: dict[str, Any]) -> PeerEventStatus:
    state = _text(table, "state")
    if state not in STATES:
        raise BadPeerMessage(problem=f"state is not one of {', '.join(STATES)}")
    return PeerEventStatus(_text(table, "id"), _text(table, "resources"), state)


def _reject_constant(_: str) -> NoReturn:
    raise ValueError


def _table(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadPeerMessage(problem=f"{what} is not an object")
    return value


def _text(table: dict[str, Any], name: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not _is_name(value):
        raise BadPeerMessage(problem=f"{name} is not a string of at most {_MAX_NAME_LENGTH} characters")
    return value


def _is_name(text: str) -> bool:
    # Names are shown on a terminal: no control characters.
    return 1 <= len(text) <= _MAX_NAME_LENGTH and text.isprintable()


# --- Signatures -----------------------------------------------------------------------------------


PATH = "/v2/status"


def random_token() -> str:
    """Return an unpredictable, unique string."""
    return os.urandom(16).hex()


class StatusRequest(NamedTuple):
    """The signed values of a request. It is valid for one response of one VM."""

    challenge: str
    """Chosen by the VM that receives the request."""
    nonce: str
    """Chosen by the VM that sends the request."""
    sender: str
    receiver: str

    def sign(self, secret: bytes) -> str:
        return _sign(secret, "\n".join(("question", PATH, *self)).encode("utf-8", "surrogatepass"))

    def sign_response(self, secret: bytes, body: bytes) -> str:
        """Return the signature of a response to this request only."""
        return _sign(secret, f"answer\n{self.sign(secret)}\n".encode() + body)


def is_same(given: str, expected: str) -> bool:
    """Compare two signatures in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def _sign(secret: bytes, signed: bytes) -> str:
    return hmac.new(secret, signed, "sha256").hexdigest()

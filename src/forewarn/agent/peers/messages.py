"""What peers send each other: how far a machine is with its events, as JSON, signed with the shared secret.

Every value from outside is checked.
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
"""How far a machine is with an event. `approved`: it is ready, and its approval has been accepted."""

LARGEST = 256 * 1024
"""Bytes of one message."""
_LONGEST_NAME = 256
_MOST_EVENTS = 256


class EventStatus(NamedTuple):
    """How far a machine is with one event."""

    id: str
    resources: str
    """The `digest` of the event's machines: agents that see different machines must not approve."""
    state: str


class StatusMessage(NamedTuple):
    """The answer of an agent."""

    vm: str
    fresh: float
    """For how many seconds, from the question on, the asker may act on this answer."""
    events: tuple[EventStatus, ...]

    def event(self, event_id: str) -> EventStatus | None:
        """What it says of one event."""
        return next((event for event in self.events if key(event.id) == key(event_id)), None)


def key(name: str) -> str:
    """Names of machines and ids of events are the same in any letter case."""
    return name.casefold()


def digest(resources: Iterable[str]) -> str:
    """A short form of the machines of an event, in their order."""
    text = "\n".join(key(name) for name in resources)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def write_status(message: StatusMessage) -> bytes:
    """The message as JSON. An event with an invalid id is left out, so that it does not make the rest unreadable."""
    events = [event._asdict() for event in message.events if _is_name(event.id)][:_MOST_EVENTS]
    return json.dumps({**message._asdict(), "events": events}, separators=(",", ":")).encode()


def read_status(body: bytes) -> StatusMessage:
    """The message, or BadPeerMessage. Unknown members are ignored: a newer agent may send them."""
    if len(body) > LARGEST:
        raise BadPeerMessage(problem=f"it is larger than {LARGEST} bytes")
    try:
        whole = _table(json.loads(body, parse_constant=_refuse), "the answer")
    except (ValueError, RecursionError) as error:
        raise BadPeerMessage(problem="it is not JSON") from error
    events = whole.get("events")
    if not isinstance(events, list) or len(events) > _MOST_EVENTS:
        raise BadPeerMessage(problem=f"events is not a list of at most {_MOST_EVENTS}")
    read = tuple(_event(_table(event, "an event")) for event in events)
    if len({key(event.id) for event in read}) < len(read):
        raise BadPeerMessage(problem="it names an event twice")
    fresh = whole.get("fresh")
    if not isinstance(fresh, (int, float)) or isinstance(fresh, bool) or not 0 <= fresh <= 1e6:
        raise BadPeerMessage(problem="fresh is not a number of seconds")
    return StatusMessage(_text(whole, "vm"), float(fresh), read)


def _event(table: dict[str, Any]) -> EventStatus:
    state = _text(table, "state")
    if state not in STATES:
        raise BadPeerMessage(problem=f"state is not one of {', '.join(STATES)}")
    return EventStatus(_text(table, "id"), _text(table, "resources"), state)


def _refuse(_: str) -> NoReturn:
    raise ValueError


def _table(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadPeerMessage(problem=f"{what} is not an object")
    return value


def _text(table: dict[str, Any], name: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not _is_name(value):
        raise BadPeerMessage(problem=f"{name} is not a text of at most {_LONGEST_NAME} characters")
    return value


def _is_name(text: str) -> bool:
    # Names are shown on a person's terminal: nothing that moves the cursor.
    return 1 <= len(text) <= _LONGEST_NAME and text.isprintable()


# --- Signatures -----------------------------------------------------------------------------------


PATH = "/v2/status"


def draw() -> str:
    """A random text that nobody can predict and that does not repeat."""
    return os.urandom(16).hex()


class Question(NamedTuple):
    """What is signed of a question. It is good for one answer of one machine."""

    challenge: str
    """Chosen by the machine that is asked."""
    nonce: str
    """Chosen by the machine that asks."""
    asker: str
    asked: str

    def sign(self, secret: bytes) -> str:
        return _sign(secret, "\n".join(("question", PATH, *self)).encode("utf-8", "surrogatepass"))

    def sign_answer(self, secret: bytes, body: bytes) -> str:
        """The signature of an answer to this question, and to no other."""
        return _sign(secret, f"answer\n{self.sign(secret)}\n".encode() + body)


def is_same(given: str, expected: str) -> bool:
    """Whether a signature is the expected one. How long it takes does not reveal how much of it was right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def _sign(secret: bytes, signed: bytes) -> str:
    return hmac.new(secret, signed, "sha256").hexdigest()

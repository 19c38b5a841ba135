"""What peers send each other: a status as JSON, sealed with the group's secret.

Every value from outside is checked.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.errors import BadWord

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn


# --- The status as JSON ---------------------------------------------------------------------------


WAITING, PREPARING, READY, FAILED, STARTED, GONE = STATES = (
    "waiting",
    "preparing",
    "ready",
    "failed",
    "started",
    "gone",
)
"""How far a machine is with an event."""
UNKNOWN = ""
"""In the place of a state: it answers, and says nothing of the event."""

LARGEST = 256 * 1024
"""Bytes of one word."""
_LONGEST_NAME = 256
_MOST_EVENTS = 256
_MOST_HEARD = 1024
_LARGEST_NUMBER = 2.0**53


class Relay(NamedTuple):
    """What the speaker was last told by another machine, by itself."""

    vm: str
    run: str
    version: int
    state: str
    ago: float
    """Seconds since the speaker got it."""


class EventWord(NamedTuple):
    """How far the speaker is with one event."""

    id: str
    resources: str
    """The `digest` of the event's machines: who sees other machines in it speaks of something else."""
    state: str
    leader: str
    pledge: float
    """For how many seconds the speaker supports the asker, and nobody else, as the one who approves. 0: it does not."""
    heard: tuple[Relay, ...]


class Word(NamedTuple):
    """All that an agent says when it is asked."""

    vm: str
    run: str
    """Drawn when the agent starts: an agent that has started anew is another, and remembers nothing."""
    version: int
    """Goes up with each change of what this run has to say."""
    events: tuple[EventWord, ...]

    def event(self, event_id: str) -> EventWord | None:
        """What it says of one event."""
        wanted = event_id.casefold()
        return next((event for event in self.events if event.id.casefold() == wanted), None)


def digest(resources: Iterable[str]) -> str:
    """A short form of the machines of an event, in their order."""
    text = "\n".join(name.casefold() for name in resources)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def write_word(word: Word) -> bytes:
    """The word as JSON. One that would be too large is said without what was heard of others."""
    body = _dump(word, whole=True)
    return body if len(body) <= LARGEST else _dump(word, whole=False)


def _dump(word: Word, *, whole: bool) -> bytes:
    """What nobody would take is left out: one name that cannot be one must not make all the rest unreadable."""
    events = [event for event in word.events if _is_name(event.id) and _is_name(event.leader, least=0)]
    said = {
        **word._asdict(),
        "events": [
            {**event._asdict(), "heard": [relay._asdict() for relay in _sayable(event)] if whole else []}
            for event in events[:_MOST_EVENTS]
        ],
    }
    return json.dumps(said, separators=(",", ":")).encode()


def _sayable(event: EventWord) -> list[Relay]:
    return [relay for relay in event.heard if _is_name(relay.vm)][:_MOST_HEARD]


def read_word(body: bytes) -> Word:
    """The word that somebody has sent, or BadWord. Members that are not known are left to newer agents."""
    if len(body) > LARGEST:
        raise BadWord(problem=f"it is larger than {LARGEST} bytes")
    try:
        parsed = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadWord(problem="it is not JSON") from error
    whole = _table(parsed, "the answer")
    events = tuple(_event(event) for event in _list(whole, "events", _MOST_EVENTS))
    if len({event.id.casefold() for event in events}) < len(events):
        raise BadWord(problem="it names an event twice")
    return Word(_text(whole, "vm"), _text(whole, "run"), _count(whole, "version"), events)


def _event(value: object) -> EventWord:
    event = _table(value, "an event")
    return EventWord(
        _text(event, "id"),
        _text(event, "resources"),
        _state(event, STATES),
        _text(event, "leader", least=0),
        _number(event, "pledge"),
        tuple(_relay(relay) for relay in _list(event, "heard", _MOST_HEARD)),
    )


def _relay(value: object) -> Relay:
    relay = _table(value, "an entry of heard")
    return Relay(
        _text(relay, "vm"),
        _text(relay, "run"),
        _count(relay, "version"),
        _state(relay, (*STATES, UNKNOWN)),
        _number(relay, "ago"),
    )


def _refuse(_: str) -> NoReturn:
    raise ValueError


def _table(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadWord(problem=f"{what} is not an object")
    return value


def _list(table: dict[str, Any], key: str, most: int) -> list[object]:
    value = table.get(key)
    if not isinstance(value, list) or len(value) > most:
        raise BadWord(problem=f"{key} is not a list of at most {most}")
    return value


def _text(table: dict[str, Any], key: str, least: int = 1) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not _is_name(value, least):
        raise BadWord(problem=f"{key} is not a text of at most {_LONGEST_NAME} characters")
    return value


def _is_name(text: str, least: int = 1) -> bool:
    # Names come to a person's terminal: nothing that moves the cursor.
    return least <= len(text) <= _LONGEST_NAME and text.isprintable()


def _state(table: dict[str, Any], states: tuple[str, ...]) -> str:
    value = table.get("state")
    if not isinstance(value, str) or value not in states:
        raise BadWord(problem=f"state is not one of {', '.join(STATES)}")
    return value


def _count(table: dict[str, Any], key: str) -> int:
    value = table.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_NUMBER:
        raise BadWord(problem=f"{key} is not a whole number")
    return value


def _number(table: dict[str, Any], key: str) -> float:
    value = table.get(key)
    # 1e999 is infinite to the reader of JSON, without being called so; a whole number may be too large for a float.
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= _LARGEST_NUMBER:
        raise BadWord(problem=f"{key} is not a number of seconds")
    seconds = float(value)
    if not math.isfinite(seconds):
        raise BadWord(problem=f"{key} is not a number of seconds")
    return seconds


# --- Seals ----------------------------------------------------------------------------------------


PATH = "/v1/status"


def draw() -> str:
    """A number that nobody can foretell, and that does not come twice."""
    return os.urandom(16).hex()


def seal_ask(secret: bytes, nonce: str, asker: str, asked: str) -> str:
    """The seal of a request: from one machine, to one machine, once."""
    return _seal(secret, "\n".join(("request", PATH, nonce, asker, asked)).encode("utf-8", "surrogatepass"))


def seal_answer(secret: bytes, nonce: str, body: bytes) -> str:
    """The seal of an answer: to this request, and to no other."""
    return _seal(secret, b"answer\n" + nonce.encode("utf-8", "surrogatepass") + b"\n" + body)


def is_right(given: str, expected: str) -> bool:
    """Whether a seal is the expected one; how long that takes does not tell how far it was right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def _seal(secret: bytes, said: bytes) -> str:
    return hmac.new(secret, said, "sha256").hexdigest()

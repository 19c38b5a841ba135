"""Every document of a run: what the rules about all of them, and about all events in them, are held against."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from forewarn.verify.check import Departure, Need, Skip
from forewarn.verify.courses import by_approval, shared
from forewarn.verify.endpoint import NEWEST, PATH
from forewarn.verify.sight import Sight, read
from forewarn.verify.stage import TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.verify.endpoint import Endpoint
    from forewarn.verify.exchange import Reply
    from forewarn.verify.stage import Stage

FIRST_MEMBERS = ("EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore")
MEMBERS = {
    "2017-03-01": FIRST_MEMBERS,
    "2017-08-01": FIRST_MEMBERS,
    "2017-11-01": FIRST_MEMBERS,
    "2019-01-01": FIRST_MEMBERS,
    "2019-04-01": (*FIRST_MEMBERS, "Description"),
    "2019-08-01": (*FIRST_MEMBERS, "Description", "EventSource"),
    "2020-07-01": (*FIRST_MEMBERS, "Description", "EventSource", "DurationInSeconds"),
}
"""What an event has in each version, in the order of the wire."""
SINCE = {"Preempt": "2017-11-01", "Terminate": "2019-01-01"}
"""The types that older versions do not show, by the first version that does."""


# --- One document in every version ------------------------------------------------------------------


def panorama(stage: Stage, event_type: str = "") -> dict[str, Sight]:
    """One and the same document with events, as every version shows it; with one of a type that not all show."""

    def walk(stage: Stage) -> dict[str, Sight]:
        if event_type:
            stage.sample(event_type)
        else:
            _make(stage, "Freeze", "Redeploy", "Reboot")
            stage.told()
        for _ in range(3):  # a change in between spoils it; a server under test is not that busy
            seen = {version: stage.look(version) for version in MEMBERS}
            if stage.look().reply.body == seen[NEWEST].reply.body:
                break
        return seen

    return stage.once(f"panorama {event_type}", walk)


def panoramas(stage: Stage) -> Iterator[dict[str, Sight]]:
    """That, and one with each of the later types where it can be made."""
    yield panorama(stage)
    for event_type in SINCE if stage.has(Need.SCHEDULE) else ():
        with suppress(Skip):
            yield panorama(stage, event_type)


# --- All documents ----------------------------------------------------------------------------------


def replies(stage: Stage) -> list[tuple[str, Reply]]:
    """Every answer with a document, by version: of each version, and of each VM that can be asked."""
    for version in MEMBERS.keys() - {version for version, _ in _replies(stage.here)}:
        stage.look(version)
    for place in stage.places:
        if not _replies(place):
            stage.look(place=place)
    return [found for place in stage.places for found in _replies(place)]


def _replies(place: Endpoint) -> list[tuple[str, Reply]]:
    found = []
    for reply in place.answers:
        parts = urlsplit(reply.request.target)
        version = parse_qs(parts.query).get("api-version", [""])[0]
        if reply.request.method == "GET" and parts.path.lower() == PATH and reply.status == 200 and version in MEMBERS:
            found.append((version, reply))
    return found


def documents(stage: Stage) -> list[tuple[str, Sight]]:
    """The documents in them, each once; what cannot be read as one is left to document/events-array."""
    found = []
    for version, reply in {(version, reply.body): (version, reply) for version, reply in replies(stage)}.values():
        with suppress(Departure):
            found.append((version, read(reply)))
    return found


def told(stage: Stage) -> list[tuple[str, Sight]]:
    """Those with events: of every type that can be made, and some of them Started."""
    if stage.has(Need.SCHEDULE):
        _make(stage, *reversed(TYPES))
        for course in (by_approval, *([shared] if stage.outside else [])):
            with suppress(Skip, Departure):  # other checks say what is wrong with it
                course(stage)
    found = [(version, sight) for version, sight in documents(stage) if sight.events]
    return found or [(NEWEST, stage.told())]


def _make(stage: Stage, *types: str) -> None:
    """Have an event of each type told, where it can be made; on a server that knows one event alone, the last stays."""
    for event_type in types if stage.has(Need.SCHEDULE) else ():
        with suppress(Skip):
            stage.sample(event_type)

"""Documents are read, whoever wrote them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from forewarn.errors import UnreadableDocument
from forewarn.wire.document import parse_start_requests
from forewarn.wire.reading import read_document, start_requests

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "documents").rglob("*.json"))


def document(**changes: object) -> str:
    event: dict[str, object] = {
        "EventId": "4caea225-a741-474d-a72e-428c86fcd853",
        "EventStatus": "Scheduled",
        "EventType": "Reboot",
        "ResourceType": "VirtualMachine",
        "Resources": ["web-0", "web-1"],
        "NotBefore": "Thu, 22 Jul 2021 04:50:17 GMT",
    }
    whole: dict[str, object] = {"DocumentIncarnation": 2, "Events": [event]}
    whole |= {name: value for name, value in changes.items() if name in whole}
    event |= {name: value for name, value in changes.items() if name not in whole}
    return json.dumps(whole)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_golden_document_is_read_whole(path: Path) -> None:
    parsed = json.loads(path.read_bytes())
    told = read_document(path.read_bytes())
    assert told.incarnation == parsed["DocumentIncarnation"]
    assert [event.raw for event in told.events] == parsed["Events"]
    for event, raw in zip(told.events, parsed["Events"], strict=True):
        assert (event.id, event.type, event.status) == (raw["EventId"], raw["EventType"], raw["EventStatus"])
        assert (event.not_before is None) == (raw["EventStatus"] == "Started")
        assert event.duration_seconds == raw.get("DurationInSeconds")
        assert (event.description, event.source) == (raw.get("Description"), raw.get("EventSource"))


@pytest.mark.parametrize(
    "text",
    [
        "Thu, 22 Jul 2021 04:50:17 GMT",
        "2021-07-22T04:50:17Z",
        "2021-07-22T04:50:17+00:00",
        "2021-07-22T06:50:17+02:00",
        "2021-07-22T04:50:17",
    ],
)
def test_a_moment_is_read_in_every_form_that_was_ever_sent(text: str) -> None:
    (event,) = read_document(document(NotBefore=text)).events
    assert event.not_before == datetime(2021, 7, 22, 4, 50, 17, tzinfo=UTC)
    assert event.not_before.tzinfo is UTC


def test_what_has_started_has_no_moment() -> None:
    (event,) = read_document(document(NotBefore="", EventStatus="Started")).events
    assert event.not_before is None


def test_what_is_not_known_is_kept_and_handed_on() -> None:
    (event,) = read_document(document(EventType="Teleport", Colour="blue")).events
    assert event.type == "Teleport"
    assert event.raw["Colour"] == "blue"


def test_an_incarnation_may_be_text() -> None:
    assert read_document(document(DocumentIncarnation="5")).incarnation == 5


def test_events_are_found_by_id_and_by_vm() -> None:
    told = read_document(document(Resources=["_web-0", "web-1"]))
    event = told.event("4CAEA225-A741-474d-A72E-428C86FCD853")
    assert event is not None
    assert event.concerns("web-0"), "the first preview put an underscore before names"
    assert event.concerns("web-1")
    assert not event.concerns("web-2")
    assert told.event("another") is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "it is empty"),
        ("<html>", "it is not JSON"),
        ("[]", "not an object"),
        ("[" * 100_000, "not JSON"),
        ('{"DocumentIncarnation": 1}', "Events is not a list"),
        (document(Events=[1]), "Events is not a list of objects"),
        (document(DocumentIncarnation=True), "DocumentIncarnation is True"),
        (document(DocumentIncarnation="x"), "DocumentIncarnation is 'x'"),
        (document(DocumentIncarnation=None), "DocumentIncarnation is None"),
        (document(Resources="web-0"), "Resources is not a list"),
        (document(EventId=7), "no EventId that is text"),
        (document(NotBefore="soon"), "NotBefore is 'soon'"),
        (document(NotBefore="0001-01-01T00:00:00+23:00"), "which is no date"),
        ('{"DocumentIncarnation": 1e999, "Events": []}', "DocumentIncarnation is inf"),
    ],
)
def test_what_is_no_document_is_said_to_be_none(body: str, words: str) -> None:
    with pytest.raises(UnreadableDocument, match=words):
        read_document(body)


def test_an_approval_is_what_the_service_reads() -> None:
    assert parse_start_requests(start_requests("A-1", "b-2")) == ["a-1", "b-2"]

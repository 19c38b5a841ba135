"""The reader of documents, for documents of any server."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from forewarn.errors import UnreadableDocument
from forewarn.wire.document import parse_start_requests
from forewarn.wire.document_reader import read_document, read_document_leniently, start_requests

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


def test_every_golden_document_is_read_whole() -> None:
    assert GOLDEN
    for path in GOLDEN:
        parsed = json.loads(path.read_bytes())
        read = read_document(path.read_bytes())
        assert read.incarnation == parsed["DocumentIncarnation"], path
        assert [event.raw for event in read.events] == parsed["Events"], path
        for event, raw in zip(read.events, parsed["Events"], strict=True):
            assert (event.id, event.type, event.status) == (raw["EventId"], raw["EventType"], raw["EventStatus"]), path
            assert (event.not_before is None) == (raw["EventStatus"] in ("Started", "Advisory")), path
            assert event.duration_seconds == raw.get("DurationInSeconds"), path
            assert (event.description, event.source) == (raw.get("Description"), raw.get("EventSource")), path


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
def test_a_time_is_read_in_every_known_format(text: str) -> None:
    (event,) = read_document(document(NotBefore=text)).events
    assert event.not_before == datetime(2021, 7, 22, 4, 50, 17, tzinfo=UTC)
    assert event.not_before.tzinfo is UTC


def test_a_started_event_has_no_time() -> None:
    (event,) = read_document(document(NotBefore="", EventStatus="Started")).events
    assert event.not_before is None


def test_unknown_members_are_kept() -> None:
    (event,) = read_document(document(EventType="Teleport", Colour="blue")).events
    assert event.type == "Teleport"
    assert event.raw["Colour"] == "blue"


def test_an_incarnation_may_be_text() -> None:
    assert read_document(document(DocumentIncarnation="5")).incarnation == 5


def test_events_are_found_by_id_and_by_vm() -> None:
    read = read_document(document(Resources=["_web-0", "web-1"]))
    event = read.event("4CAEA225-A741-474d-A72E-428C86FCD853")
    assert event is not None
    assert event.concerns("web-0"), "the first preview put an underscore before names"
    assert event.concerns("web-1")
    assert not event.concerns("web-2")
    assert read.event("another") is None


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
        (document(EventId=7), "no text in EventId"),
        (document(EventId=""), "no text in EventId"),
        (document(NotBefore="soon"), "NotBefore is 'soon'"),
        (document(NotBefore="0001-01-01T00:00:00Z"), "which is not a"),
        (document(NotBefore="Fri, 31 Dec 9999 23:59:59 GMT"), "which is not a"),
        (document(NotBefore="0001-01-01T00:00:00+23:00"), "which is not a"),
        ('{"DocumentIncarnation": 1e999, "Events": []}', "DocumentIncarnation is inf"),
    ],
)
def test_an_invalid_document_is_an_error(body: str, words: str) -> None:
    with pytest.raises(UnreadableDocument, match=words):
        read_document(body)


# --- By one who must not miss anything ------------------------------------------------------------------


def several(*events: object) -> str:
    return json.dumps({"DocumentIncarnation": 3, "Events": events})


GOOD = json.loads(document())["Events"][0]


def test_both_readers_read_a_valid_document_alike() -> None:
    assert GOLDEN
    for path in GOLDEN:
        assert read_document_leniently(path.read_bytes()) == (read_document(path.read_bytes()), ()), path


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (None, "an event is not an object"),
        ({"EventId": "x"}, "event 'x': an event has no text in EventType"),
        ({**GOOD, "EventId": 7}, "event 7: an event has no text in EventId"),
        ({**GOOD, "EventId": "x", "EventStatus": None}, "event 'x': an event has no text in EventStatus"),
        ({**GOOD, "EventId": "x", "Resources": "web-0"}, "event 'x': Resources is not a list"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_an_event_that_cannot_be_read_hides_no_other(bad: object, words: str, first: bool) -> None:
    body = several(bad, GOOD) if first else several(GOOD, bad)
    read, problems = read_document_leniently(body)
    assert read == read_document(several(GOOD))
    assert len(problems) == 1
    assert problems[0].startswith(words)
    with pytest.raises(UnreadableDocument):
        read_document(body)


@pytest.mark.parametrize("seconds", [10**30, -(10**30), 1.5, True, "5"])
def test_an_invalid_duration_counts_as_missing(seconds: object) -> None:
    (event,) = read_document(document(DurationInSeconds=seconds)).events
    assert event.duration_seconds is None


@pytest.mark.parametrize("moment", [None, 5, "soon", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:00", "missing"])
def test_an_event_with_an_invalid_time_is_still_returned(moment: object) -> None:
    bad = {**GOOD, "NotBefore": moment}
    if moment == "missing":
        del bad["NotBefore"]
    read, problems = read_document_leniently(several(bad))
    (event,) = read.events
    assert (event.id, event.status, event.not_before, event.raw) == (GOOD["EventId"], "Scheduled", None, bad)
    assert "NotBefore" in problems[0]
    assert read_document_leniently(several({**bad, "EventStatus": "Started"})).problems == (), (
        "it needs no moment any more"
    )


def test_missing_resources_are_an_empty_list() -> None:
    without = {name: value for name, value in GOOD.items() if name != "Resources"}
    for bad in ({**GOOD, "Resources": None}, without):
        read, problems = read_document_leniently(several(bad))
        assert (read.events[0].resources, read.events[0].raw, problems) == ((), bad, ())


def test_a_known_event_that_becomes_unreadable_does_not_disappear() -> None:
    known = read_document(several(GOOD)).events
    read, problems = read_document_leniently(several({**GOOD, "EventType": None}), known)
    assert read.events == known
    assert len(problems) == 1
    assert read_document_leniently(several(), known).document.events == ()


@pytest.mark.parametrize(
    "body", ["", "[]", '{"Events": []}', '{"DocumentIncarnation": 1, "Events": null}', "[" * 10**5]
)
def test_the_lenient_reader_rejects_what_is_no_document(body: str) -> None:
    with pytest.raises(UnreadableDocument):
        read_document_leniently(body)


def test_the_service_reads_the_approval_that_the_client_writes() -> None:
    assert parse_start_requests(start_requests("A-1", "b-2")) == ["a-1", "b-2"]

"""The state of one who watches, without any network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.raw_server import event
from forewarn.agent.protocol import VERSIONS, PollContent, PollState
from forewarn.agent.transport import EndpointResponse
from forewarn.errors import EndpointError
from forewarn.wire.document_reader import EventsDocument
from forewarn.wire.versions import KNOWN_VERSIONS

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "documents").rglob("*.json"))
NO_VERSION = EndpointResponse(404, {}, b'{ "error": "Not found. Invalid version requested" }', None)
NOT_MODIFIED = EndpointResponse(304, {}, b"", None)


def document(incarnation: int = 0, *events: dict[str, Any], **headers: str) -> EndpointResponse:
    body = json.dumps({"DocumentIncarnation": incarnation, "Events": events}).encode()
    return EndpointResponse(200, {"etag": f'"{incarnation}"', **headers}, body, None)


def take(watch: PollState, answer: EndpointResponse, wait_seconds: int = 0) -> PollContent:
    return watch.read_response(watch.make_request(wait_seconds), answer)


def kind_of(watch: PollState, answer: EndpointResponse) -> str:
    with pytest.raises(EndpointError) as trouble:
        take(watch, answer)
    return trouble.value.kind


def test_requests_have_the_form_that_the_endpoint_needs() -> None:
    ask = PollState().make_request()
    assert ask.path == "/metadata/scheduledevents?api-version=2020-07-01"
    assert ask.headers["Metadata"] == "true"
    assert "forewarn-agent" in ask.headers["User-Agent"]
    assert not {"If-None-Match", "Prefer"} & set(ask.headers)


def test_the_tag_of_the_last_document_is_sent_back() -> None:
    watch = PollState()
    content = take(watch, document(3))
    assert (content.changed, content.went_back) == (True, False)
    assert watch.make_request().headers["If-None-Match"] == '"3"'
    again = take(watch, NOT_MODIFIED)
    assert (again.document, again.changed) == (content.document, False)


@pytest.mark.parametrize("tag", ["", "x" * 2000, '"\r\nX: 1"', '"\x00"', '"é"'])
def test_an_invalid_entity_tag_is_ignored(tag: str) -> None:
    watch = PollState()
    take(watch, document(1, etag=tag))
    assert "If-None-Match" not in watch.make_request().headers


def test_the_same_document_without_a_tag_has_not_changed() -> None:
    watch = PollState()
    take(watch, document(1, event(1), etag=""))
    assert not take(watch, document(1, event(1), etag="")).changed


def test_a_304_without_a_document_is_an_error_and_drops_the_tag() -> None:
    watch = PollState()
    assert kind_of(watch, NOT_MODIFIED) == "not-modified"
    take(watch, document(1, etag=""))
    assert kind_of(watch, NOT_MODIFIED) == "not-modified"


def test_after_a_minute_of_304_the_whole_document_is_requested() -> None:
    watch = PollState()
    take(watch, document(1))
    for _ in range(60):
        assert watch.make_request().tag
        take(watch, NOT_MODIFIED)
    assert not watch.make_request().tag
    assert kind_of(watch, NOT_MODIFIED) == "not-modified"
    take(watch, document(2))
    assert watch.make_request().tag == '"2"'


def test_a_document_with_an_older_incarnation_is_passed_on_and_marked() -> None:
    watch = PollState()
    take(watch, document(5, event(1)))
    content = take(watch, document(4))
    assert content == PollContent(EventsDocument(4, ()), changed=True, went_back=True)
    assert not take(watch, document(4)).went_back
    assert take(watch, document(5, event(1))) == PollContent(watch.document, changed=True)


def test_a_wait_is_requested_until_the_endpoint_is_known_to_ignore_it() -> None:
    watch = PollState()
    assert "Prefer" not in watch.make_request(30).headers
    take(watch, document(1), 30)
    assert watch.make_request(0).wait_seconds == 0
    assert watch.make_request(30).headers["Prefer"] == "wait=30"
    assert watch.make_request(500).headers["Prefer"] == "wait=60"
    assert not take(watch, NOT_MODIFIED, 30).held
    assert watch.supports_long_poll is False
    assert "Prefer" not in watch.make_request(30).headers


def test_an_endpoint_with_long_polls_is_recognized() -> None:
    watch = PollState()
    take(watch, document(1))
    assert take(watch, EndpointResponse(304, {"preference-applied": "wait=30"}, b"", None), 30).held
    assert watch.supports_long_poll is True
    assert take(watch, document(2, **{"preference-applied": "wait=30"}), 30).held
    assert watch.make_request(30).wait_seconds == 30


def test_an_older_version_is_requested_and_remembered_if_the_newest_is_unknown() -> None:
    watch = PollState()
    for version in VERSIONS[:3]:
        assert watch.make_request().path.endswith(version)
        assert take(watch, NO_VERSION) == PollContent(None)
    assert watch.make_request().path.endswith("2019-01-01")
    take(watch, document(1))
    assert watch.make_request().path.endswith("2019-01-01")
    assert kind_of(watch, EndpointResponse(500, {}, b"", None)) == "failing"
    assert watch.make_request().path.endswith("2019-01-01")


def test_a_rejection_with_the_text_of_the_instance_endpoint_is_recognized() -> None:
    watch = PollState()
    body = b'{"error":"Bad request. api-version is invalid","newest-versions":["2019-08-01"]}'
    assert take(watch, EndpointResponse(400, {}, body, None)) == PollContent(None)
    assert watch.version == "2019-08-01"


def test_no_known_version_is_an_error_and_the_newest_is_tried_again() -> None:
    watch = PollState()
    for _ in VERSIONS[1:]:
        take(watch, NO_VERSION)
    assert kind_of(watch, NO_VERSION) == "not-found"
    assert watch.version == VERSIONS[0]


def test_another_404_does_not_cost_a_version_that_has_worked() -> None:
    watch = PollState()
    take(watch, document(1))
    assert kind_of(watch, EndpointResponse(404, {}, b'{ "error": "Not found." }', None)) == "not-found"
    assert watch.version == VERSIONS[0]


def test_a_late_response_does_not_lower_the_version_twice() -> None:
    watch = PollState()
    first, second = watch.make_request(), watch.make_request()
    watch.read_response(first, NO_VERSION)
    take(watch, NO_VERSION)
    watch.read_response(second, NO_VERSION)
    assert watch.version == VERSIONS[2]


def test_versions_are_all_that_are_not_in_preview() -> None:
    assert set(VERSIONS) == {name for name, version in KNOWN_VERSIONS.items() if not version.preview}
    assert list(VERSIONS) == sorted(VERSIONS, reverse=True)


def test_a_new_endpoint_starts_with_the_newest_version() -> None:
    watch = PollState()
    take(watch, NO_VERSION)
    take(watch, document(1))
    watch.reset()
    assert (watch.make_request(30).path.endswith("2020-07-01"), watch.make_request(30).tag) == (True, "")
    assert take(watch, document(0)).went_back


STATUSES = {
    (410, b'{ "error": "Gone." }'): ("gone", "410"),
    (429, b"Throttle Result: Too Many Requests"): ("throttled", "429"),
    (500, b'{ "error": "Broken." }'): ("failing", "500: Broken."),
    (503, b""): ("failing", "503: (no error text)"),
    (400, b'{ "error": "Bad\\n\\u001b[31m request." }'): ("rejected", "400: Bad ?[31m request."),
    (403, b"<html>" + b"x" * 9999): ("rejected", "403: <html>xxx"),
    (405, b'{"error": 5}'): ("rejected", '405: {"error": 5}'),
    (302, b""): ("unreadable", "status 302"),
    (204, b""): ("unreadable", "status 204"),
    (200, b""): ("empty", "empty body"),
    (200, b" \n"): ("empty", "empty body"),
    (200, b"<html>"): ("unreadable", "it is not JSON"),
    (200, b"[" * 100_000): ("unreadable", "it is not JSON"),
    (200, b"\xff\xfe\x00"): ("unreadable", "it is not JSON"),
    (200, b"[]"): ("unreadable", "it is not an object"),
    (200, b'{"DocumentIncarnation":1}'): ("unreadable", "Events is not a list"),
}


@pytest.mark.parametrize("case", STATUSES, ids=lambda case: f"{case[0]} {case[1][:12]!r}")
def test_every_response_without_a_document_is_an_error_with_a_text(case: tuple[int, bytes]) -> None:
    kind, words = STATUSES[case]
    watch = PollState()
    take(watch, document(7))
    with pytest.raises(EndpointError) as trouble:
        take(watch, EndpointResponse(case[0], {}, case[1], None))
    assert trouble.value.kind == kind
    assert words in str(trouble.value)
    assert len(str(trouble.value)) < 500
    assert str(trouble.value).isprintable()
    assert watch.make_request().tag == '"7"'


def test_a_redirect_is_reported_as_one() -> None:
    with pytest.raises(EndpointError, match="a redirect"):
        take(PollState(), EndpointResponse(301, {"location": "http://127.0.0.1"}, b"", None))


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("", None), ("soon", None), ("9" * 50, 999_999_999.0)])
def test_the_endpoints_own_wish_is_read(text: str, seconds: float | None) -> None:
    with pytest.raises(EndpointError) as trouble:
        take(PollState(), EndpointResponse(429, {"retry-after": text}, b"", None))
    assert trouble.value.retry_after == seconds


def test_documents_of_every_version_are_read() -> None:
    assert GOLDEN
    for path in GOLDEN:
        content = take(PollState(), EndpointResponse(200, {}, path.read_bytes(), None))
        assert content.document is not None, path
        assert [event.raw for event in content.document.events] == json.loads(path.read_bytes())["Events"], path


@pytest.mark.parametrize("value", [5, None, ["x"], {"a": 1}, True])
def test_optional_members_of_another_type_count_as_missing(value: object) -> None:
    odd = event(1, Description=value, EventSource=value, DurationInSeconds="x" if value == 5 else value)
    content = take(PollState(), document(1, odd))
    assert content.document is not None
    (shown_event,) = content.document.events
    assert (shown_event.description, shown_event.source, shown_event.duration_seconds) == (None, None, None)
    assert shown_event.raw == odd

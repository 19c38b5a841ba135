"""DEFECTS: what a server can do wrong, with the checks that must fail."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from verify.broken_server import Defect, ServerRequest, ServerResponse

if TYPE_CHECKING:
    from collections.abc import Callable

NEWEST = "2020-07-01"
_GUID = "11111111-2222-3333-4444-555555555555"


# --- Kinds of defects -------------------------------------------------------------------------------


def _is_document(request: ServerRequest, response: ServerResponse) -> bool:
    return request.method == "GET" and request.path.lower() == "/metadata/scheduledevents" and response.status == 200


def document(
    change: Callable[[dict[str, Any]], object], version: str = ""
) -> Callable[[ServerRequest, ServerResponse], object]:
    """Change documents, of one version or of all."""

    def change_response(request: ServerRequest, found: ServerResponse) -> None:
        if _is_document(request, found) and version in ("", request.value("api-version")):
            value = found.document
            change(value)
            found.dump(value)

    return change_response


def events(
    change: Callable[[dict[str, Any]], object], version: str = ""
) -> Callable[[ServerRequest, ServerResponse], object]:
    """Change every event."""
    return document(lambda value: [change(event) for event in value["Events"]], version)


def text(change: Callable[[bytes], bytes]) -> Callable[[ServerRequest, ServerResponse], object]:
    """Change the body of every document."""

    def change_response(request: ServerRequest, found: ServerResponse) -> None:
        if _is_document(request, found):
            found.body = change(found.body)

    return change_response


def member(
    name: str, value: object, event_type: str = "", status: str = ""
) -> Callable[[ServerRequest, ServerResponse], object]:
    """Set a member, in events of one type and status or of all."""
    return events(
        lambda event: (
            event.update({name: value})
            if event_type in ("", event["EventType"]) and status in ("", event["EventStatus"])
            else None
        )
    )


def respond_instead(
    when: Callable[[ServerRequest], object], status: int, body: bytes = b'{"error":"x"}'
) -> Callable[[ServerRequest, ServerResponse], object]:
    """Send another response to some requests."""

    def change_response(request: ServerRequest, found: ServerResponse) -> None:
        if when(request):
            found.status, found.body = status, body

    return change_response


def header(name: str, value: str) -> Callable[[ServerRequest, ServerResponse], object]:
    """Set a header. An empty value removes it."""

    def change_response(_: ServerRequest, found: ServerResponse) -> None:
        found.headers.pop(name, None)
        if value:
            found.headers[name] = value

    return change_response


def in_older_versions(change: Callable[[ServerResponse], object]) -> Callable[[ServerRequest, ServerResponse], object]:
    """Change documents of older versions."""

    def change_response(request: ServerRequest, found: ServerResponse) -> None:
        if _is_document(request, found) and request.value("api-version") != NEWEST:
            change(found)

    return change_response


def instance(
    change: Callable[[Any], Any], path: str = "/metadata/instance"
) -> Callable[[ServerRequest, ServerResponse], object]:
    """Change the tree."""

    def change_response(request: ServerRequest, found: ServerResponse) -> None:
        if request.path == path and found.status == 200:
            found.body = json.dumps(change(json.loads(found.body)), separators=(",", ":")).encode()

    return change_response


def treat_as_newest(when: Callable[[ServerRequest, str], object]) -> Callable[[ServerRequest], object]:
    """Treat some versions as the newest one."""

    def change_request(found: ServerRequest) -> None:
        if when(found, found.value("api-version")) and "scheduled" in found.path:
            found.query = [("api-version", NEWEST)]

    return change_request


def treat_as(when: Callable[[ServerRequest], object], **members: Any) -> Callable[[ServerRequest], object]:
    """Change the members of some requests."""

    def change_request(found: ServerRequest) -> None:
        if when(found):
            for name, value in members.items():
                setattr(found, name, value)

    return change_request


def _any(_: ServerRequest) -> bool:
    return True


def _is_post(request: ServerRequest) -> bool:
    return request.method == "POST"


def _posts(part: bytes) -> Callable[[ServerRequest], object]:
    return lambda request: request.method == "POST" and part in request.body


def _has_bare_tag(request: ServerRequest) -> bool:
    return not request.headers.get("if-none-match", "").startswith('"')


def _without_underscore(event: dict[str, Any]) -> None:
    event["Resources"] = [name.removeprefix("_") for name in event["Resources"]]


def _another_incarnation(value: dict[str, Any]) -> None:
    value["DocumentIncarnation"] += 7


def iso(event: dict[str, Any]) -> None:
    if event["NotBefore"]:
        time = datetime.strptime(event["NotBefore"], "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
        event["NotBefore"] = time.isoformat()


def _wrong_weekday(event: dict[str, Any]) -> None:
    day, comma, rest = event["NotBefore"].partition(",")
    event["NotBefore"] = f"{'Mon' if day != 'Mon' else 'Tue'}{comma}{rest}" if rest else ""


def _cut_weekday(event: dict[str, Any]) -> None:
    event["NotBefore"] = event["NotBefore"].partition(", ")[2]


def _no_weekday(event: dict[str, Any]) -> None:
    if event["EventType"] == "Freeze" and event["NotBefore"]:
        event["NotBefore"] = f"Xyz{event['NotBefore'][3:]}"


def _reordered(event: dict[str, Any]) -> None:
    members = sorted(event.items())
    event.clear()
    event.update(members)


def _events_first(value: dict[str, Any]) -> None:
    value["DocumentIncarnation"] = value.pop("DocumentIncarnation")


_STEPS = iter(range(10**9))


# --- The defects -------------------------------------------------------------------------------------

VERSIONS = (
    Defect(
        "an old version missing",
        ("versions/all-served",),
        response=respond_instead(lambda request: request.value("api-version") == "2017-11-01", 404),
    ),
    Defect(
        "newer members in an old version",
        ("versions/members-per-version",),
        response=events(lambda event: event.update(Description=""), "2019-01-01"),
    ),
    Defect(
        "other values in an old version",
        ("versions/same-values",),
        response=events(lambda event: event.update(EventStatus="Started"), "2017-08-01"),
    ),
    Defect("no underscore", ("versions/leading-underscore",), response=events(_without_underscore, "2017-03-01")),
    Defect(
        "event types not gated", ("versions/preempt-gated", "versions/terminate-gated"), event_defect="types not gated"
    ),
    Defect(
        "separate incarnation per version",
        ("versions/one-incarnation",),
        response=document(_another_incarnation, "2019-04-01"),
    ),
    Defect(
        "approvals only in the newest version",
        ("versions/approval-across-versions",),
        response=respond_instead(lambda request: _is_post(request) and request.value("api-version") != NEWEST, 400),
    ),
    Defect(
        "latest accepted",
        ("versions/latest-rejected", "requests/version-not-a-date"),
        request=treat_as_newest(lambda _, version: version == "latest"),
    ),
    Defect(
        "400 for the preview",
        ("versions/preview-or-not-found",),
        response=respond_instead(lambda request: request.value("api-version") == "2024-07-09", 400),
    ),
    Defect(
        "scheduled advice",
        ("versions/advisory",),
        response=member("EventStatus", "Scheduled", "SpotRebalanceRecommendation"),
    ),
    Defect("advisory eviction", ("versions/advisory",), response=member("EventStatus", "Advisory", "Preempt")),
    Defect("advice starts when approved", ("requests/approval-of-advisory",), event_defect="advice starts"),
    Defect(
        "approval of advice refused",
        ("requests/approval-of-advisory",),
        response=respond_instead(
            lambda request: _is_post(request) and request.value("api-version") == "2024-07-09", 400
        ),
    ),
    Defect(
        "unknown event type",
        ("versions/only-known-types", "life/event-appears"),
        response=member("EventType", "Maintenance"),
    ),
)

DOCUMENT = (
    Defect("newline at the end", ("document/compact-one-line",), response=text(lambda body: body + b"\n")),
    Defect("indented", ("document/compact-one-line",), response=text(lambda body: body.replace(b",", b", "))),
    Defect("no charset", ("document/content-type",), response=header("Content-Type", "application/json")),
    Defect("Events first", ("document/top-level",), response=document(_events_first)),
    Defect("extra top-level member", ("document/top-level",), response=document(lambda value: value.update(Version=1))),
    Defect(
        "incarnation as text",
        ("document/incarnation-integer",),
        response=document(lambda value: value.update(DocumentIncarnation=str(value["DocumentIncarnation"]))),
    ),
    Defect(
        "null instead of an empty array",
        ("document/events-array",),
        response=document(lambda value: value.update(Events=value["Events"] or None)),
    ),
    Defect("an extra member", ("document/exact-members", "versions/members-per-version"), response=member("Id", "x")),
    Defect(
        "a missing member",
        ("document/exact-members", "document/duration"),
        response=events(lambda event: event.pop("DurationInSeconds", None)),
    ),
    Defect("another order", ("document/member-order",), response=events(_reordered)),
    Defect(
        "ids in lower case",
        ("document/event-id-guid",),
        response=events(lambda event: event.update(EventId=event["EventId"].lower())),
    ),
    Defect("unknown status", ("document/event-status",), response=member("EventStatus", "Pending")),
    Defect("another resource type", ("document/resource-type",), response=member("ResourceType", "VM")),
    Defect("no resources", ("document/resources",), response=member("Resources", [])),
    Defect("string instead of an array", ("document/resources",), response=member("Resources", "pool_0")),
    Defect("host names", ("document/resources-contain-vm-name",), response=member("Resources", ["pool000000"])),
    Defect("ISO date", ("document/not-before-format", "document/not-before-weekday"), response=events(iso)),
    Defect("no weekday", ("document/not-before-weekday",), response=events(_cut_weekday)),
    Defect("wrong weekday", ("document/not-before-weekday",), response=events(_wrong_weekday)),
    Defect(
        "NotBefore after the start",
        ("document/not-before-empty-once-started",),
        response=member("NotBefore", "Sun, 01 Mar 2026 12:15:00 GMT"),
    ),
    Defect("two lines of description", ("document/description-printable",), response=member("Description", "a\nb")),
    Defect("null description", ("document/description",), response=member("Description", None)),
    Defect("unknown source", ("document/event-source",), response=member("EventSource", "Operator")),
    Defect("duration as text", ("document/duration",), response=member("DurationInSeconds", "9")),
    Defect("duration below -1", ("document/duration",), response=member("DurationInSeconds", -2)),
    Defect("one event only", ("document/several-events",), event_defect="one event only"),
    Defect("same id for all events", ("document/several-events",), event_defect="same id"),
    Defect(
        "unknown description",
        ("document/restart-values", "document/redeploy-values", "document/preempt-values"),
        response=member("Description", "Something happens."),
    ),
    Defect("duration of a Terminate", ("document/terminate-values",), response=member("DurationInSeconds", 0)),
    Defect("Freeze of minutes", ("document/freeze-duration",), response=member("DurationInSeconds", 600)),
    Defect(
        "another resource type of a Freeze",
        ("document/resource-type",),
        response=member("ResourceType", "Host", "Freeze"),
    ),
    Defect(
        "another source of a Freeze", ("document/event-source",), response=member("EventSource", "Fabric", "Freeze")
    ),
    Defect("invalid weekday of a Freeze", ("document/not-before-weekday",), response=events(_no_weekday)),
    Defect(
        "NotBefore after the start of a Freeze",
        ("document/not-before-empty-once-started",),
        response=member("NotBefore", "Sun, 01 Mar 2026 12:15:00 GMT", "Freeze", "Started"),
    ),
    Defect("an extra member once started", ("document/exact-members",), response=member("Done", 0, status="Started")),
    Defect(
        "an extra member of a Terminate",
        ("document/exact-members", "versions/members-per-version"),
        response=member("Reason", "", "Terminate"),
    ),
    Defect(
        "duration of a Preempt as text", ("document/duration",), response=member("DurationInSeconds", "9", "Preempt")
    ),
    Defect(
        "host name in a Freeze",
        ("document/resources-contain-vm-name",),
        response=member("Resources", ["pool000000"], "Freeze"),
    ),
    Defect(
        "older versions indented",
        ("document/compact-one-line",),
        response=in_older_versions(lambda found: setattr(found, "body", json.dumps(found.document, indent=2).encode())),
    ),
    Defect(
        "older versions as text",
        ("document/content-type",),
        response=in_older_versions(lambda found: found.headers.update({"Content-Type": "text/plain"})),
    ),
    Defect(
        "extra top-level member in an older version",
        ("document/top-level",),
        response=document(lambda value: value.update(Version=1), "2017-08-01"),
    ),
    Defect(
        "incarnation as text in an older version",
        ("document/incarnation-integer",),
        response=document(
            lambda value: value.update(DocumentIncarnation=str(value["DocumentIncarnation"])), "2017-11-01"
        ),
    ),
    Defect("another order in an older version", ("document/member-order",), response=events(_reordered, "2019-08-01")),
    Defect(
        "another VM's document as text",
        ("document/content-type",),
        response=lambda request, found: (
            found.headers.update({"Content-Type": "text/plain"})
            if request.vm == "pool_1" and _is_document(request, found)
            else None
        ),
    ),
)

ETAGS = (
    Defect("no ETag", ("requests/etag-present",), response=header("ETag", "")),
    Defect("unquoted ETag", ("requests/etag-present",), response=header("ETag", "abc.1")),
    Defect(
        "never 304",
        ("requests/etag-not-modified", "requests/etag-unquoted"),
        request=lambda request: request.headers.pop("if-none-match", None),
    ),
    Defect(
        "304 only for quoted ETags",
        ("requests/etag-unquoted",),
        request=lambda request: request.headers.pop("if-none-match", None) if _has_bare_tag(request) else None,
    ),
    Defect(
        "always 304",
        ("requests/etag-zero", "requests/etag-outdated"),
        response=respond_instead(lambda request: "if-none-match" in request.headers, 304),
    ),
    Defect("ETag never changes", ("requests/etag-follows-incarnation",), response=header("ETag", '"x"')),
    Defect(
        "no ETag at older versions",
        ("requests/etag-present",),
        response=in_older_versions(lambda found: found.headers.pop("ETag")),
    ),
    Defect(
        "another ETag for another VM",
        ("requests/etag-follows-incarnation",),
        response=lambda request, found: (
            found.headers.update({"ETag": '"other"'})
            if request.vm == "pool_1" and _is_document(request, found)
            else None
        ),
    ),
    Defect(
        "forbidden bodies",
        ("requests/etag-not-modified", "requests/etag-unquoted", "requests/head-rejected", "instance/only-get"),
        forbidden_bodies=True,
    ),
    Defect(
        "304 for an approval",
        ("requests/etag-on-post-ignored",),
        response=respond_instead(lambda request: _is_post(request) and "if-none-match" in request.headers, 304),
    ),
)

APPROVALS = (
    Defect("known ids approved", ("requests/approval-unknown-among-known",), event_defect="known ids approved"),
    Defect(
        "body in response to an approval",
        ("requests/approval-empty-response",),
        response=respond_instead(_is_post, 200, b"{}"),
    ),
    Defect("204 for an approval", ("requests/approval-accepted",), response=respond_instead(_is_post, 204, b"")),
    Defect(
        "second approval rejected",
        ("requests/approval-repeated", "requests/approval-of-started"),
        event_defect="approved once",
    ),
    Defect(
        "one id at a time",
        ("requests/approval-of-several",),
        response=respond_instead(lambda request: request.body.count(b"EventId") > 1, 400),
    ),
    Defect("first id only", ("requests/approval-of-several",), event_defect="first id only"),
    Defect("last id only", ("requests/approval-of-several",), event_defect="last id only"),
    Defect("ended events unknown", ("requests/approval-after-end",), event_defect="ended unknown"),
    Defect("case-sensitive ids", ("requests/approval-id-any-case",), event_defect="exact ids"),
    Defect(
        "stale incarnation rejected",
        ("requests/approval-stale-incarnation",),
        response=respond_instead(_posts(b'"DocumentIncarnation": 0'), 409),
    ),
    Defect(
        "incarnation as text rejected",
        ("requests/approval-incarnation-as-text",),
        response=respond_instead(_posts(b'"DocumentIncarnation": "'), 400),
    ),
    Defect(
        "unknown members rejected",
        ("requests/approval-unknown-members",),
        response=respond_instead(_posts(b"Reason"), 400),
    ),
    Defect(
        "form-urlencoded rejected",
        ("requests/approval-form-urlencoded",),
        response=respond_instead(lambda request: "urlencoded" in request.headers.get("content-type", ""), 415),
    ),
    Defect(
        "JSON rejected",
        ("requests/approval-as-json",),
        response=respond_instead(lambda request: "json" in request.headers.get("content-type", ""), 415),
    ),
    Defect(
        "Content-Type required",
        ("requests/approval-without-content-type", "requests/approval-accepted"),
        response=respond_instead(lambda request: _is_post(request) and "content-type" not in request.headers, 415),
    ),
    Defect(
        "404 for an unknown id", ("requests/approval-unknown-id",), response=respond_instead(_posts(b"12345678"), 404)
    ),
    Defect(
        "500 for bad bodies",
        ("requests/approval-malformed", "requests/approval-empty", "requests/approval-wrong-types"),
        response=lambda _, found: setattr(found, "status", 500) if found.status == 400 else None,
    ),
    Defect(
        "200 for bad bodies",
        ("requests/approval-malformed", "requests/approval-empty", "requests/approval-wrong-types"),
        response=respond_instead(_is_post, 200, b""),
    ),
)

LIMITS = (
    Defect(
        "close not announced",
        ("requests/connection-close-announced", "requests/keep-alive", "requests/pipelining"),
        response=lambda _, found: setattr(found, "closes", True),
    ),
    Defect(
        "requested close not announced",
        ("requests/connection-close-requested",),
        response=lambda request, found: (
            found.headers.update({"Connection": "keep-alive"}) if request.headers.get("connection") == "close" else None
        ),
    ),
    Defect(
        "only HTTP/1.1",
        ("requests/http-1.0", "discovery/no-host"),
        response=respond_instead(lambda request: request.protocol == "HTTP/1.0", 505),
    ),
    Defect("500 for a large body", ("requests/large-body",), statuses=((413, 500),)),
    Defect("500 for a large header", ("requests/large-header",), statuses=((431, 500),)),
    Defect("500 for data that is not HTTP", ("requests/not-http",), statuses=((400, 500),)),
    Defect("one client at a time", ("requests/slow-client-does-not-block",), threaded=False, slow_seconds=30),
    Defect("slow client never closed", ("requests/slow-client-is-closed",), slow_seconds=30),
    Defect("bytes to a slow client", ("requests/slow-client-is-closed",), slow_seconds=0.5, trickles=True),
    Defect("no rate limit", ("requests/rate-limit",)),
    Defect(
        "another text with 429",
        ("requests/rate-limit",),
        rate=5,
        response=lambda _, found: setattr(found, "body", b"{}") if found.status == 429 else None,
    ),
    Defect("rate limit of 30 seconds", ("requests/rate-limit-recovers",), rate=5, window_seconds=30),
)

REQUESTS = (
    Defect("500", ("requests/document-served", "versions/all-served"), response=respond_instead(_any, 500)),
    Defect(
        "missing header accepted",
        (
            "requests/metadata-header-missing",
            "requests/metadata-header-not-true",
            "requests/metadata-header-on-post",
            "instance/header-required",
        ),
        request=lambda request: request.headers.update(metadata="true"),
    ),
    Defect(
        "another text for the header",
        ("requests/metadata-header-missing",),
        response=lambda _, found: setattr(found, "body", found.body.replace(b": . ", b". ")),
    ),
    Defect(
        "any header value accepted",
        ("requests/metadata-header-not-true",),
        request=lambda request: request.headers.update(metadata="true") if "metadata" in request.headers else None,
    ),
    Defect(
        "case-sensitive header",
        ("requests/metadata-header-any-case",),
        request=lambda request: (
            request.headers.pop("metadata") if request.headers.get("metadata") in ("TRUE", "True") else None
        ),
    ),
    Defect(
        "header required at 2017-03-01",
        ("requests/metadata-header-first-preview",),
        response=respond_instead(lambda request: "metadata" not in request.headers, 400),
    ),
    Defect(
        "header required for approvals at 2017-03-01",
        ("requests/metadata-header-first-preview",),
        response=respond_instead(
            lambda request: _is_post(request) and "metadata" not in request.headers,
            400,
            b'{ "error": "Bad request: . Required metadata header not specified" }',
        ),
    ),
    Defect(
        "header required only at the newest version",
        ("requests/metadata-header-missing",),
        request=lambda request: (
            request.headers.update(metadata="true") if request.value("api-version") != NEWEST else None
        ),
    ),
    Defect(
        "missing version accepted",
        ("requests/version-missing", "requests/version-on-post"),
        request=treat_as_newest(lambda _, version: not version),
    ),
    Defect(
        "any date accepted",
        ("requests/version-not-available", "requests/version-newer", "requests/version-on-post"),
        request=treat_as_newest(lambda _, version: version[:2] == "20" and version > "2017"),
    ),
    Defect(
        "400 for a newer date",
        ("requests/version-newer",),
        response=respond_instead(lambda request: request.value("api-version") > "2024", 400),
    ),
    Defect(
        "forwarded accepted",
        ("requests/forwarded-rejected", "instance/forwarded-rejected"),
        request=lambda request: request.headers.pop("x-forwarded-for", None),
    ),
    Defect(
        "duplicate query parameter accepted",
        ("requests/duplicate-query-parameter", "instance/duplicate-query-parameter"),
        request=lambda request: setattr(request, "query", list(dict(request.query).items())),
    ),
    Defect(
        "HEAD accepted",
        ("requests/head-rejected", "instance/only-get"),
        request=treat_as(lambda request: request.method == "HEAD", method="GET"),
    ),
    Defect(
        "PUT accepted",
        ("requests/other-methods-rejected",),
        request=treat_as(lambda request: request.method == "PUT", method="GET"),
    ),
    Defect(
        "501 for other methods",
        ("requests/other-methods-rejected", "requests/head-rejected"),
        response=lambda _, found: setattr(found, "status", 501) if found.status == 405 else None,
    ),
    Defect(
        "the document at any path",
        ("requests/unknown-path",),
        request=treat_as(lambda request: request.path.count("/") < 3, path="/metadata/scheduledevents"),
    ),
    Defect(
        "unknown query parameters rejected",
        ("requests/unknown-query-parameter",),
        response=respond_instead(lambda request: request.value("verbose"), 400),
    ),
    Defect(
        "header validated first",
        ("requests/validation-order",),
        response=respond_instead(lambda request: "metadata" not in request.headers, 400),
    ),
    Defect(
        "errors as text",
        ("requests/error-format",),
        response=lambda _, found: setattr(found, "body", b"No.") if found.status >= 400 else None,
    ),
    Defect(
        "extra members in errors",
        ("requests/error-format",),
        response=lambda _, found: found.dump({**found.document, "stack": "line 5"}) if found.status == 405 else None,
    ),
    Defect(
        "newest-versions in any error",
        ("requests/error-format",),
        response=lambda _, found: (
            found.dump({**found.document, "newest-versions": []}) if found.status == 404 else None
        ),
    ),
    Defect("another Server header", ("requests/server-header",), response=header("Server", "BaseHTTP/0.6")),
    Defect("request id is not a GUID", ("requests/request-id-guid",), response=header("x-ms-request-id", "1")),
    Defect("no request id", ("requests/request-id-guid",), response=header("x-ms-request-id", "")),
    Defect("same request id for all", ("requests/request-id-unique",), response=header("x-ms-request-id", _GUID)),
    Defect("date in ISO", ("requests/date-header",), response=header("Date", "2026-03-01T12:00:00Z")),
    Defect(
        "date out of range",
        ("requests/date-header",),
        response=header("Date", f"Mon, 16 Nov 2026 06:28:43 +{'9' * 20}"),
    ),
)

LIFECYCLE = (
    Defect("no event appears", ("life/event-appears",), event_defect="no event appears"),
    Defect(
        "short notice",
        ("life/notice-of-freeze", "life/notice-of-reboot", "life/notice-of-redeploy", "life/notice-of-terminate"),
        event_defect="short notice",
    ),
    Defect("no notice of a Preempt", ("life/notice-of-preempt",), event_defect="no notice"),
    Defect("long notice of a Terminate", ("life/notice-of-terminate",), event_defect="long notice"),
    Defect(
        "addition not counted",
        ("life/addition-increments", "life/equal-incarnation-equal-document"),
        event_defect="addition not counted",
    ),
    Defect("addition counted twice", ("life/addition-increments",), event_defect="addition counted twice"),
    Defect(
        "start not counted",
        ("life/start-increments", "life/equal-incarnation-equal-document"),
        event_defect="start not counted",
    ),
    Defect(
        "start counted backwards",
        ("life/start-increments", "life/incarnation-never-decreases"),
        event_defect="start counted backwards",
    ),
    Defect("removal not counted", ("life/removal-increments",), event_defect="removal not counted"),
    Defect("cancellation not counted", ("life/cancellation-increments",), event_defect="cancellation not counted"),
    Defect(
        "document always changes",
        ("life/unchanged-document",),
        response=document(lambda value: value.update(DocumentIncarnation=next(_STEPS))),
    ),
    Defect("approval ignored", ("life/starts-when-approved",), event_defect="approval ignored"),
    Defect("cancel ignored", ("life/cancelled-is-removed",), event_defect="cancel ignored"),
    Defect(
        "starts alone", ("life/shared-hardware-waits", "life/terminates-start-together"), event_defect="starts alone"
    ),
    Defect("approval counts", ("life/partial-approval-changes-nothing",), event_defect="approval counts"),
    Defect("starts early", ("life/no-early-start",), event_defect="starts early"),
    Defect("never starts", ("life/starts-at-not-before",), event_defect="never starts"),
    Defect("id changes", ("life/id-unchanged",), event_defect="id changes"),
    Defect("NotBefore decreases", ("life/not-before-never-decreases",), event_defect="NotBefore decreases"),
    Defect("resources change", ("life/resources-unchanged",), event_defect="resources change"),
    Defect("never removed", ("life/removed-when-complete",), event_defect="never removed"),
    Defect("completed", ("life/removed-when-complete",), event_defect="completed"),
    Defect("never disabled", ("life/inactivity-resets-incarnation",), event_defect="never disabled"),
    Defect("notice while disabled", ("life/inactivity-no-notice",), event_defect="notice while disabled"),
    Defect("etag without enabling id", ("life/inactivity-changes-etag",), event_defect="etag without enabling id"),
)

SCOPE = (
    Defect(
        "another document for another VM",
        ("scope/same-document",),
        response=lambda request, found: (
            setattr(found, "body", b'{"DocumentIncarnation":0,"Events":[]}')
            if request.vm == "pool_1" and _is_document(request, found)
            else None
        ),
    ),
    Defect("only the first VM approves", ("scope/same-group-can-approve",), event_defect="only the first VM approves"),
    Defect("other groups shown", ("scope/other-group-sees-nothing",), event_defect="other groups shown"),
    Defect("other group may approve", ("scope/other-group-cannot-approve",), event_defect="other group may approve"),
    Defect("names of another group", ("scope/resources-of-own-group",), response=member("Resources", ["mail"])),
    Defect("all groups count", ("scope/incarnation-per-group",), event_defect="all groups count"),
)

INSTANCE = (
    Defect(
        "no network",
        ("instance/whole-tree", "instance/client-fields"),
        response=instance(lambda tree: {"compute": tree["compute"]}),
    ),
    Defect(
        "numbers",
        ("instance/all-strings",),
        response=instance(lambda tree: {**tree, "compute": {**tree["compute"], "platformFaultDomain": 0}}),
    ),
    Defect(
        "nulls",
        ("instance/all-strings",),
        response=instance(lambda tree: {**tree, "compute": {**tree["compute"], "zone": None}}),
    ),
    Defect(
        "keys not in order",
        ("instance/keys-alphabetical",),
        response=instance(lambda tree: dict(reversed(tree.items()))),
    ),
    Defect(
        "members missing",
        ("instance/client-fields",),
        response=instance(lambda tree: {**tree, "compute": {"name": tree["compute"]["name"]}}),
    ),
    Defect(
        "member before its version",
        ("instance/fields-by-version",),
        response=instance(lambda tree: {**tree, "compute": {**tree["compute"], "osProfile": {}}}),
    ),
    Defect(
        "member of a new version missing",
        ("instance/fields-by-version",),
        response=instance(
            lambda tree: {
                **tree,
                "compute": {name: value for name, value in tree["compute"].items() if name != "hostGroup"},
            }
        ),
    ),
    Defect(
        "name without the set",
        ("instance/scale-set-name",),
        response=instance(lambda tree: {**tree, "compute": {**tree["compute"], "name": "pool-0"}}),
    ),
    Defect("another branch", ("instance/subtree",), response=instance(lambda _: {}, "/metadata/instance/compute")),
    Defect(
        "newline after a value",
        ("instance/value-as-text",),
        response=lambda request, found: setattr(found, "body", found.body + b"\n") if request.value("format") else None,
    ),
    Defect(
        "value as JSON",
        ("instance/value-without-format",),
        response=respond_instead(
            lambda request: request.path.endswith("/name") and not request.value("format"), 200, b'"pool_0"'
        ),
    ),
    Defect(
        "no array index",
        ("instance/array-index",),
        response=respond_instead(lambda request: request.path.endswith("/0"), 404),
    ),
    Defect(
        "unknown element accepted",
        ("instance/unknown-element",),
        response=respond_instead(lambda request: request.path.endswith("/colour"), 200, b"{}"),
    ),
    Defect(
        "POST accepted",
        ("instance/only-get",),
        request=treat_as(lambda request: "instance" in request.path and request.method == "POST", method="GET"),
    ),
    Defect(
        "404 for unknown versions",
        ("instance/version-missing", "instance/version-unknown"),
        response=lambda request, found: (
            setattr(found, "status", 404) if "instance" in request.path and b"newest-versions" in found.body else None
        ),
    ),
    Defect(
        "versions descending",
        ("instance/versions-list",),
        response=instance(lambda value: {"apiVersions": value["apiVersions"][::-1]}, "/metadata/versions"),
    ),
)

DISCOVERY = (
    Defect(
        "case-sensitive path",
        ("discovery/path-camel-case", "discovery/path-any-case"),
        response=respond_instead(lambda request: request.path != request.path.lower(), 404),
    ),
    Defect(
        "slash at the end rejected",
        ("discovery/trailing-slash",),
        response=respond_instead(lambda request: request.slashed, 404),
    ),
    Defect(
        "slash at the end of an instance path rejected",
        ("discovery/trailing-slash",),
        response=respond_instead(lambda request: request.slashed and "instance" in request.path, 404),
    ),
    Defect(
        "only one host",
        ("discovery/any-host", "discovery/no-host"),
        response=respond_instead(lambda request: request.headers.get("host") != "169.254.169.254", 404),
    ),
    Defect("redirect", ("discovery/no-redirect", "requests/document-served"), response=respond_instead(_any, 302, b"")),
)

DEFECTS = (*VERSIONS, *DOCUMENT, *ETAGS, *APPROVALS, *LIMITS, *REQUESTS, *LIFECYCLE, *SCOPE, *INSTANCE, *DISCOVERY)
CORRECT = Defect("correct", ())
RATE_LIMITED = Defect("correct, with rate limit", (), rate=5)

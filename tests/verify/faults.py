"""FAULTS: what servers do wrong, one line each, with the checks that must say so."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from verify.broken import Answer, Ask, Fault

if TYPE_CHECKING:
    from collections.abc import Callable

NEWEST = "2020-07-01"
_GUID = "11111111-2222-3333-4444-555555555555"


# --- Ways to be wrong -------------------------------------------------------------------------------


def _is_document(ask: Ask, answer: Answer) -> bool:
    return ask.method == "GET" and ask.path.lower() == "/metadata/scheduledevents" and answer.status == 200


def document(change: Callable[[dict[str, Any]], object], version: str = "") -> Callable[[Ask, Answer], object]:
    """Documents are other than they should be, of one version or of all."""

    def answer(ask: Ask, found: Answer) -> None:
        if _is_document(ask, found) and version in ("", ask.value("api-version")):
            value = found.document
            change(value)
            found.dump(value)

    return answer


def events(change: Callable[[dict[str, Any]], object], version: str = "") -> Callable[[Ask, Answer], object]:
    """Events are other than they should be."""
    return document(lambda value: [change(event) for event in value["Events"]], version)


def text(change: Callable[[bytes], bytes]) -> Callable[[Ask, Answer], object]:
    """The document's text is other than it should be."""

    def answer(ask: Ask, found: Answer) -> None:
        if _is_document(ask, found):
            found.body = change(found.body)

    return answer


def member(name: str, value: object, kind: str = "", status: str = "") -> Callable[[Ask, Answer], object]:
    """A member has another value, in events of one type and status or of all."""
    return events(
        lambda event: (
            event.update({name: value})
            if kind in ("", event["EventType"]) and status in ("", event["EventStatus"])
            else None
        )
    )


def instead(
    when: Callable[[Ask], object], status: int, body: bytes = b'{"error":"x"}'
) -> Callable[[Ask, Answer], object]:
    """Some requests get another answer."""

    def answer(ask: Ask, found: Answer) -> None:
        if when(ask):
            found.status, found.body = status, body

    return answer


def header(name: str, value: str) -> Callable[[Ask, Answer], object]:
    """A header has another value; an empty one is missing."""

    def answer(_: Ask, found: Answer) -> None:
        found.headers.pop(name, None)
        if value:
            found.headers[name] = value

    return answer


def older(change: Callable[[Answer], object]) -> Callable[[Ask, Answer], object]:
    """Documents of older versions are other than they should be."""

    def answer(ask: Ask, found: Answer) -> None:
        if _is_document(ask, found) and ask.value("api-version") != NEWEST:
            change(found)

    return answer


def instance(change: Callable[[Any], Any], path: str = "/metadata/instance") -> Callable[[Ask, Answer], object]:
    """The tree is other than it should be."""

    def answer(ask: Ask, found: Answer) -> None:
        if ask.path == path and found.status == 200:
            found.body = json.dumps(change(json.loads(found.body)), separators=(",", ":")).encode()

    return answer


def takes_version(when: Callable[[Ask, str], object]) -> Callable[[Ask], object]:
    """Some versions are taken for the newest."""

    def ask(found: Ask) -> None:
        if when(found, found.value("api-version")) and "scheduled" in found.path:
            found.query = [("api-version", NEWEST)]

    return ask


def takes(when: Callable[[Ask], object], **members: Any) -> Callable[[Ask], object]:
    """Some requests are taken for others."""

    def ask(found: Ask) -> None:
        if when(found):
            for name, value in members.items():
                setattr(found, name, value)

    return ask


def _any(_: Ask) -> bool:
    return True


def _is_post(ask: Ask) -> bool:
    return ask.method == "POST"


def _posts(part: bytes) -> Callable[[Ask], object]:
    return lambda ask: ask.method == "POST" and part in ask.body


def _has_bare_tag(ask: Ask) -> bool:
    return not ask.headers.get("if-none-match", "").startswith('"')


def _bare_names(event: dict[str, Any]) -> None:
    event["Resources"] = [name.removeprefix("_") for name in event["Resources"]]


def _counts_apart(value: dict[str, Any]) -> None:
    value["DocumentIncarnation"] += 7


def _iso(event: dict[str, Any]) -> None:
    if event["NotBefore"]:
        moment = datetime.strptime(event["NotBefore"], "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
        event["NotBefore"] = moment.isoformat()


def _wrong_weekday(event: dict[str, Any]) -> None:
    day, comma, rest = event["NotBefore"].partition(",")
    event["NotBefore"] = f"{'Mon' if day != 'Mon' else 'Tue'}{comma}{rest}" if rest else ""


def _no_weekday(event: dict[str, Any]) -> None:
    if event["EventType"] == "Freeze" and event["NotBefore"]:
        event["NotBefore"] = f"Xyz{event['NotBefore'][3:]}"


def _reordered(event: dict[str, Any]) -> None:
    members = sorted(event.items())
    event.clear()
    event.update(members)


def _sideways(value: dict[str, Any]) -> None:
    value["DocumentIncarnation"] = value.pop("DocumentIncarnation")


_STEPS = iter(range(10**9))


# --- The faults -------------------------------------------------------------------------------------

VERSIONS = (
    Fault("an old version missing", ("versions/all-served",),
          answer=instead(lambda ask: ask.value("api-version") == "2017-11-01", 404)),
    Fault("members of the newest in an old version", ("versions/members-of-each",),
          answer=events(lambda event: event.update(Description=""), "2019-01-01")),
    Fault("other values in an old version", ("versions/same-values-in-each",),
          answer=events(lambda event: event.update(EventStatus="Started"), "2017-08-01")),
    Fault("no underscore", ("versions/underscore",),
          answer=events(_bare_names, "2017-03-01")),
    Fault("types not gated", ("versions/preempt-gated", "versions/terminate-gated"), world="types not gated"),
    Fault("an incarnation for each version", ("versions/one-incarnation",),
          answer=document(_counts_apart, "2019-04-01")),
    Fault("approvals in the newest version alone", ("versions/approval-in-another",),
          answer=instead(lambda ask: _is_post(ask) and ask.value("api-version") != NEWEST, 400)),
    Fault("latest taken", ("versions/latest-refused", "requests/version-not-a-date"),
          ask=takes_version(lambda _, version: version == "latest")),
    Fault("400 for the preview", ("versions/preview-or-not-found",),
          answer=instead(lambda ask: ask.value("api-version") == "2024-07-09", 400)),
    Fault("a type of its own", ("versions/only-known-types", "life/told"), answer=member("EventType", "Maintenance")),
)  # fmt: skip

DOCUMENT = (
    Fault("newline behind", ("document/compact-one-line",), answer=text(lambda body: body + b"\n")),
    Fault("indented", ("document/compact-one-line",), answer=text(lambda body: body.replace(b",", b", "))),
    Fault("no charset", ("document/content-type",), answer=header("Content-Type", "application/json")),
    Fault("Events first", ("document/top-level",), answer=document(_sideways)),
    Fault("more at the top", ("document/top-level",), answer=document(lambda value: value.update(Version=1))),
    Fault("incarnation as text", ("document/incarnation-integer",),
          answer=document(lambda value: value.update(DocumentIncarnation=str(value["DocumentIncarnation"])))),
    Fault("null instead of no events", ("document/events-array",),
          answer=document(lambda value: value.update(Events=value["Events"] or None))),
    Fault("an extra member", ("document/exact-members", "versions/members-of-each"), answer=member("Id", "x")),
    Fault("a missing member", ("document/exact-members", "document/duration"),
          answer=events(lambda event: event.pop("DurationInSeconds", None))),
    Fault("another order", ("document/member-order",), answer=events(_reordered)),
    Fault("ids in lower case", ("document/event-id-guid",),
          answer=events(lambda event: event.update(EventId=event["EventId"].lower()))),
    Fault("status of its own", ("document/event-status",), answer=member("EventStatus", "Pending")),
    Fault("another resource type", ("document/resource-type",), answer=member("ResourceType", "VM")),
    Fault("no resources", ("document/resources",), answer=member("Resources", [])),
    Fault("a name instead of a list", ("document/resources",), answer=member("Resources", "pool_0")),
    Fault("names of hosts", ("document/resources-name-the-vm",), answer=member("Resources", ["pool000000"])),
    Fault("ISO date", ("document/not-before-form",), answer=events(_iso)),
    Fault("wrong weekday", ("document/not-before-weekday",), answer=events(_wrong_weekday)),
    Fault("NotBefore after the start", ("document/not-before-empty-once-started",),
          answer=member("NotBefore", "Sun, 01 Mar 2026 12:15:00 GMT")),
    Fault("null description", ("document/description",), answer=member("Description", None)),
    Fault("source of its own", ("document/event-source",), answer=member("EventSource", "Operator")),
    Fault("duration as text", ("document/duration",), answer=member("DurationInSeconds", "9")),
    Fault("one event only", ("document/several-at-once",), world="one event only"),
    Fault("one id for all", ("document/several-at-once",), world="same id"),
    Fault("words of its own",
          ("document/words-of-a-restart", "document/words-of-a-redeploy", "document/words-of-a-preempt"),
          answer=member("Description", "Something happens.")),
    Fault("duration of a deletion", ("document/words-of-a-terminate",), answer=member("DurationInSeconds", 0)),
    Fault("frozen for minutes", ("document/freeze-is-short",), answer=member("DurationInSeconds", 600)),
    Fault("another resource type of a Freeze", ("document/resource-type",),
          answer=member("ResourceType", "Host", "Freeze")),
    Fault("another source of a Freeze", ("document/event-source",), answer=member("EventSource", "Fabric", "Freeze")),
    Fault("no such weekday for a Freeze", ("document/not-before-weekday",), answer=events(_no_weekday)),
    Fault("NotBefore after the start of a Freeze", ("document/not-before-empty-once-started",),
          answer=member("NotBefore", "Sun, 01 Mar 2026 12:15:00 GMT", "Freeze", "Started")),
    Fault("an extra member once started", ("document/exact-members",), answer=member("Done", 0, status="Started")),
    Fault("an extra member of a Terminate", ("document/exact-members", "versions/members-of-each"),
          answer=member("Reason", "", "Terminate")),
    Fault("duration of a Preempt as text", ("document/duration",), answer=member("DurationInSeconds", "9", "Preempt")),
    Fault("a Freeze by another name", ("document/resources-name-the-vm",),
          answer=member("Resources", ["pool000000"], "Freeze")),
    Fault("older versions indented", ("document/compact-one-line",),
          answer=older(lambda found: setattr(found, "body", json.dumps(found.document, indent=2).encode()))),
    Fault("older versions as text", ("document/content-type",),
          answer=older(lambda found: found.headers.update({"Content-Type": "text/plain"}))),
    Fault("more at the top of an older version", ("document/top-level",),
          answer=document(lambda value: value.update(Version=1), "2017-08-01")),
    Fault("incarnation as text in an older version", ("document/incarnation-integer",),
          answer=document(lambda value: value.update(DocumentIncarnation=str(value["DocumentIncarnation"])),
                          "2017-11-01")),
    Fault("another order in an older version", ("document/member-order",), answer=events(_reordered, "2019-08-01")),
    Fault("another VM's document as text", ("document/content-type",),
          answer=lambda ask, found: found.headers.update({"Content-Type": "text/plain"})
          if ask.vm == "pool_1" and _is_document(ask, found) else None),
)  # fmt: skip

TAGS = (
    Fault("no tag", ("requests/etag-given",), answer=header("ETag", "")),
    Fault("bare tag", ("requests/etag-given",), answer=header("ETag", "abc.1")),
    Fault("304 never", ("requests/etag-not-modified", "requests/etag-bare"),
          ask=lambda ask: ask.headers.pop("if-none-match", None)),
    Fault("304 for quoted tags alone", ("requests/etag-bare",),
          ask=lambda ask: ask.headers.pop("if-none-match", None) if _has_bare_tag(ask) else None),
    Fault("304 always", ("requests/etag-first-zero", "requests/etag-outdated"),
          answer=instead(lambda ask: "if-none-match" in ask.headers, 304)),
    Fault("tag that never changes", ("requests/etag-names-the-document",), answer=header("ETag", '"x"')),
    Fault("no tag at older versions", ("requests/etag-given",), answer=older(lambda found: found.headers.pop("ETag"))),
    Fault("another tag for another VM", ("requests/etag-names-the-document",),
          answer=lambda ask, found: found.headers.update({"ETag": '"other"'})
          if ask.vm == "pool_1" and _is_document(ask, found) else None),
    Fault("bodies where none belong",
          ("requests/etag-not-modified", "requests/etag-bare", "requests/head-refused", "instance/only-get"),
          bodies=True),
    Fault("304 to an approval", ("requests/etag-on-post-ignored",),
          answer=instead(lambda ask: _is_post(ask) and "if-none-match" in ask.headers, 304)),
)  # fmt: skip

APPROVALS = (
    Fault("known ones approved", ("requests/approval-unknown-among-known",), world="known ones approved"),
    Fault("body to an approval", ("requests/approval-taken",), answer=instead(_is_post, 200, b"{}")),
    Fault("204 to an approval", ("requests/approval-taken",), answer=instead(_is_post, 204, b"")),
    Fault("approved once", ("requests/approval-repeated", "requests/approval-of-started"), world="approved once"),
    Fault("one id at a time", ("requests/approval-of-several",),
          answer=instead(lambda ask: ask.body.count(b"EventId") > 1, 400)),
    Fault("exact ids", ("requests/approval-id-any-case",), world="exact ids"),
    Fault("stale incarnation refused", ("requests/approval-stale-incarnation",),
          answer=instead(_posts(b'"DocumentIncarnation": 0'), 409)),
    Fault("incarnation as text refused", ("requests/approval-incarnation-as-text",),
          answer=instead(_posts(b'"DocumentIncarnation": "'), 400)),
    Fault("unknown members refused", ("requests/approval-unknown-members",), answer=instead(_posts(b"Reason"), 400)),
    Fault("forms refused", ("requests/approval-form-urlencoded",),
          answer=instead(lambda ask: "urlencoded" in ask.headers.get("content-type", ""), 415)),
    Fault("JSON refused", ("requests/approval-as-json",),
          answer=instead(lambda ask: "json" in ask.headers.get("content-type", ""), 415)),
    Fault("Content-Type required", ("requests/approval-without-content-type", "requests/approval-taken"),
          answer=instead(lambda ask: _is_post(ask) and "content-type" not in ask.headers, 415)),
    Fault("404 for an unknown id", ("requests/approval-unknown-id",), answer=instead(_posts(b"12345678"), 404)),
    Fault("500 for bad bodies",
          ("requests/approval-malformed", "requests/approval-of-nothing", "requests/approval-wrong-types"),
          answer=lambda _, found: setattr(found, "status", 500) if found.status == 400 else None),
    Fault("200 for bad bodies", ("requests/approval-malformed", "requests/approval-of-nothing",
                                 "requests/approval-wrong-types"), answer=instead(_is_post, 200, b"")),
)  # fmt: skip

LIMITS = (
    Fault("closes without a word", ("requests/closing-is-said", "requests/keep-alive", "requests/pipelining"),
          answer=lambda _, found: setattr(found, "closes", True)),
    Fault("does not say that it closes", ("requests/asked-to-close",),
          answer=lambda ask, found: found.headers.update({"Connection": "keep-alive"})
          if ask.headers.get("connection") == "close" else None),
    Fault("HTTP/1.1 alone", ("requests/http-1.0", "finding/no-host"),
          answer=instead(lambda ask: ask.protocol == "HTTP/1.0", 505)),
    Fault("500 for a large body", ("requests/large-body",), statuses=((413, 500),)),
    Fault("500 for a large head", ("requests/large-head",), statuses=((431, 500),)),
    Fault("500 for what is no request", ("requests/not-http",), statuses=((400, 500),)),
    Fault("one client at a time", ("requests/slow-client-holds-up-nobody",), threaded=False, slow_seconds=30),
    Fault("waits for ever", ("requests/slow-client-is-closed",), slow_seconds=30),
    Fault("dribbles", ("requests/slow-client-is-closed",), slow_seconds=0.5, dribbles=True),
    Fault("no limit", ("requests/too-many",)),
    Fault("other words for too many", ("requests/too-many",), rate=5,
          answer=lambda _, found: setattr(found, "body", b"{}") if found.status == 429 else None),
    Fault("locks out for long", ("requests/too-many-is-over-soon",), rate=5, window_seconds=30),
)  # fmt: skip

REQUESTS = (
    Fault("500", ("requests/document-served", "versions/all-served"), answer=instead(_any, 500)),
    Fault("missing header taken",
          ("requests/metadata-header-missing", "requests/metadata-header-not-true", "requests/metadata-header-on-post",
           "instance/header-required"), ask=lambda ask: ask.headers.update(metadata="true")),
    Fault("other words for the header", ("requests/metadata-header-missing",),
          answer=lambda _, found: setattr(found, "body", found.body.replace(b": . ", b". "))),
    Fault("any value of the header", ("requests/metadata-header-not-true",),
          ask=lambda ask: ask.headers.update(metadata="true") if "metadata" in ask.headers else None),
    Fault("one spelling of the header", ("requests/metadata-header-any-case",),
          ask=lambda ask: ask.headers.pop("metadata") if ask.headers.get("metadata") in ("TRUE", "True") else None),
    Fault("header at 2017-03-01", ("requests/metadata-header-first-preview",),
          answer=instead(lambda ask: "metadata" not in ask.headers, 400)),
    Fault("header for approvals at 2017-03-01", ("requests/metadata-header-first-preview",),
          answer=instead(lambda ask: _is_post(ask) and "metadata" not in ask.headers, 400,
                         b'{ "error": "Bad request: . Required metadata header not specified" }')),
    Fault("header at the newest version alone", ("requests/metadata-header-missing",),
          ask=lambda ask: ask.headers.update(metadata="true") if ask.value("api-version") != NEWEST else None),
    Fault("no version taken", ("requests/version-missing", "requests/version-on-post"),
          ask=takes_version(lambda _, version: not version)),
    Fault("any date taken", ("requests/version-not-available", "requests/version-newer", "requests/version-on-post"),
          ask=takes_version(lambda _, version: version[:2] == "20" and version > "2017")),
    Fault("400 for a newer date", ("requests/version-newer",),
          answer=instead(lambda ask: ask.value("api-version") > "2024", 400)),
    Fault("forwarded taken", ("requests/forwarded-refused", "instance/forwarded-refused"),
          ask=lambda ask: ask.headers.pop("x-forwarded-for", None)),
    Fault("query name twice taken", ("requests/query-name-twice", "instance/query-name-twice"),
          ask=lambda ask: setattr(ask, "query", list(dict(ask.query).items()))),
    Fault("HEAD answered", ("requests/head-refused", "instance/only-get"),
          ask=takes(lambda ask: ask.method == "HEAD", method="GET")),
    Fault("PUT taken", ("requests/other-verbs-refused",), ask=takes(lambda ask: ask.method == "PUT", method="GET")),
    Fault("501 for other verbs", ("requests/other-verbs-refused", "requests/head-refused"),
          answer=lambda _, found: setattr(found, "status", 501) if found.status == 405 else None),
    Fault("the document at any path", ("requests/other-path",),
          ask=takes(lambda ask: ask.path.count("/") < 3, path="/metadata/scheduledevents")),
    Fault("unknown query names refused", ("requests/unknown-query-name",),
          answer=instead(lambda ask: ask.value("verbose"), 400)),
    Fault("header first of all", ("requests/order-of-checks",),
          answer=instead(lambda ask: "metadata" not in ask.headers, 400)),
    Fault("errors as text", ("requests/error-form", "requests/other-path"),
          answer=lambda _, found: setattr(found, "body", b"No.") if found.status >= 400 else None),
    Fault("errors with more in them", ("requests/error-form",),
          answer=lambda _, found: found.dump({**found.document, "stack": "line 5"}) if found.status == 405 else None),
    Fault("newest-versions in any error", ("requests/error-form",),
          answer=lambda _, found: found.dump({**found.document, "newest-versions": []})
          if found.status == 404 else None),
    Fault("another server", ("requests/server-header",), answer=header("Server", "BaseHTTP/0.6")),
    Fault("request id that is no GUID", ("requests/request-id-guid",), answer=header("x-ms-request-id", "1")),
    Fault("no request id", ("requests/request-id-guid",), answer=header("x-ms-request-id", "")),
    Fault("one request id for all", ("requests/request-id-unique",), answer=header("x-ms-request-id", _GUID)),
    Fault("date in ISO", ("requests/date-header",), answer=header("Date", "2026-03-01T12:00:00Z")),
    Fault("date that no clock knows", ("requests/date-header",),
          answer=header("Date", f"Mon, 16 Nov 2026 06:28:43 +{'9' * 20}")),
)  # fmt: skip

LIFE = (
    Fault("nothing told", ("life/told",), world="nothing told"),
    Fault("short notice",
          ("life/notice-of-freeze", "life/notice-of-reboot", "life/notice-of-redeploy", "life/notice-of-terminate"),
          world="short notice"),
    Fault("no notice of an eviction", ("life/notice-of-preempt",), world="no notice"),
    Fault("long notice of a deletion", ("life/notice-of-terminate",), world="long notice"),
    Fault("addition not counted", ("life/addition-counts", "life/equal-numbers-equal-documents"),
          world="addition not counted"),
    Fault("addition counted twice", ("life/addition-counts",), world="addition counted twice"),
    Fault("start not counted", ("life/start-counts", "life/equal-numbers-equal-documents"), world="start not counted"),
    Fault("start counted back", ("life/start-counts", "life/incarnation-never-back"), world="start counted back"),
    Fault("removal not counted", ("life/removal-counts",), world="removal not counted"),
    Fault("cancellation not counted", ("life/cancellation-counts",), world="cancellation not counted"),
    Fault("a document that never rests", ("life/unchanged-is-equal",),
          answer=document(lambda value: value.update(DocumentIncarnation=next(_STEPS)))),
    Fault("approval ignored", ("life/starts-when-approved",), world="approval ignored"),
    Fault("cancel ignored", ("life/cancelled-is-removed",), world="cancel ignored"),
    Fault("starts alone", ("life/shared-hardware-waits", "life/deletions-go-together"), world="starts alone"),
    Fault("approval counts", ("life/approval-alone-changes-nothing",), world="approval counts"),
    Fault("starts early", ("life/never-early",), world="starts early"),
    Fault("never starts", ("life/starts-at-not-before",), world="never starts"),
    Fault("id changes", ("life/id-stays",), world="id changes"),
    Fault("NotBefore goes back", ("life/not-before-never-back",), world="not before goes back"),
    Fault("resources change", ("life/resources-stay",), world="resources change"),
    Fault("never removed", ("life/removed-in-the-end",), world="never removed"),
    Fault("completed", ("life/removed-in-the-end",), world="completed"),
    Fault("never disabled", ("life/silence-restarts",), world="never disabled"),
    Fault("told when disabled", ("life/silence-no-notice",), world="told when disabled"),
    Fault("tag without enabling", ("life/tag-names-the-enabling",), world="tag without enabling"),
)  # fmt: skip

SCOPE = (
    Fault("another document for another VM", ("scope/same-document",),
          answer=lambda ask, found: setattr(found, "body", b'{"DocumentIncarnation":0,"Events":[]}')
          if ask.vm == "pool_1" and _is_document(ask, found) else None),
    Fault("only the first VM approves", ("scope/other-may-approve",), world="only the first VM approves"),
    Fault("other scopes shown", ("scope/outside-sees-nothing",), world="other scopes shown"),
    Fault("outside may approve", ("scope/outside-cannot-approve",), world="outside may approve"),
    Fault("all scopes count", ("scope/only-the-scope-counts",), world="all scopes count"),
)  # fmt: skip

INSTANCE = (
    Fault("no network", ("instance/whole-tree", "instance/read-by-clients"),
          answer=instance(lambda tree: {"compute": tree["compute"]})),
    Fault("numbers", ("instance/all-strings",),
          answer=instance(lambda tree: {**tree, "compute": {**tree["compute"], "platformFaultDomain": 0}})),
    Fault("nulls", ("instance/all-strings",),
          answer=instance(lambda tree: {**tree, "compute": {**tree["compute"], "zone": None}})),
    Fault("keys in any order", ("instance/keys-alphabetical",),
          answer=instance(lambda tree: dict(reversed(tree.items())))),
    Fault("fields missing", ("instance/read-by-clients",),
          answer=instance(lambda tree: {**tree, "compute": {"name": tree["compute"]["name"]}})),
    Fault("fields too early", ("instance/gated",),
          answer=instance(lambda tree: {**tree, "compute": {**tree["compute"], "osProfile": {}}})),
    Fault("named without the set", ("instance/scale-set-name",),
          answer=instance(lambda tree: {**tree, "compute": {**tree["compute"], "name": "pool-0"}})),
    Fault("another branch", ("instance/subtree",), answer=instance(lambda _: {}, "/metadata/instance/compute")),
    Fault("newline behind a leaf", ("instance/leaf-as-text",),
          answer=lambda ask, found: setattr(found, "body", found.body + b"\n") if ask.value("format") else None),
    Fault("leaf as JSON", ("instance/leaf-without-format",),
          answer=instead(lambda ask: ask.path.endswith("/name") and not ask.value("format"), 200, b'"pool_0"')),
    Fault("no places in arrays", ("instance/array-index",),
          answer=instead(lambda ask: ask.path.endswith("/0"), 404)),
    Fault("nothing is not found", ("instance/unknown-element",),
          answer=instead(lambda ask: ask.path.endswith("/colour"), 200, b"{}")),
    Fault("POST to the tree", ("instance/only-get",),
          ask=takes(lambda ask: "instance" in ask.path and ask.method == "POST", method="GET")),
    Fault("404 for versions of the tree", ("instance/version-missing", "instance/version-unknown"),
          answer=lambda ask, found: setattr(found, "status", 404)
          if "instance" in ask.path and b"newest-versions" in found.body else None),
    Fault("versions descending", ("instance/versions-list",),
          answer=instance(lambda value: {"apiVersions": value["apiVersions"][::-1]}, "/metadata/versions")),
)  # fmt: skip

FINDING = (
    Fault("one spelling of the path", ("finding/path-of-a-library", "finding/path-in-any-case"),
          answer=instead(lambda ask: ask.path != ask.path.lower(), 404)),
    Fault("one host", ("finding/any-host", "finding/no-host"),
          answer=instead(lambda ask: ask.headers.get("host") != "169.254.169.254", 404)),
    Fault("sent elsewhere", ("finding/no-redirect", "requests/document-served"), answer=instead(_any, 302, b"")),
)  # fmt: skip

FAULTS = (*VERSIONS, *DOCUMENT, *TAGS, *APPROVALS, *LIMITS, *REQUESTS, *LIFE, *SCOPE, *INSTANCE, *FINDING)
RIGHT = Fault("right", ())
LIMITED = Fault("right, and limited", (), rate=5)

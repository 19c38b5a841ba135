"""Sections 3 and 7 of the contract: which requests the server serves and rejects, what every answer carries, and by
which names clients find the endpoint.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forewarn.verify.check import Mark, Rules
from forewarn.verify.endpoint import NEWEST, PATH, at
from forewarn.verify.exchange import CLOSE, TRUE
from forewarn.verify.refusals import BAD_VERSION, NO_HEADER, UNKNOWN_VERSION, is_plain, refused
from forewarn.verify.session import approval
from forewarn.verify.snapshot import moment, read, rfc1123

if TYPE_CHECKING:
    from forewarn.verify.exchange import Reply
    from forewarn.verify.session import Session


rules = Rules(3, "requests")

MADE_UP = "12345678-1234-4234-8234-123456789ABC"
"""An id that no event has."""
_GUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_FORWARDED = ("X-Forwarded-For", "10.0.0.1")
_BODY = approval(MADE_UP)
_ENOUGH = 2


@rules("document-served", Mark.DOCUMENTED, "A GET with all in order is answered with 200 and the document.")
def document_served(session: Session) -> None:
    session.look()


# --- The header -----------------------------------------------------------------------------------


@rules("metadata-header-missing", Mark.OBSERVED, "Without the header Metadata: 400, with its known text to the space.")
def header_missing(session: Session) -> None:
    for version in (NEWEST, "2017-08-01"):
        refused(session.here.ask(target=at(version), headers=()), 400, text=NO_HEADER)


@rules("metadata-header-not-true", Mark.OBSERVED, "A header Metadata that is not `true` is as good as none.")
def header_not_true(session: Session) -> None:
    for value in ("false", "1", ""):
        refused(session.here.ask(headers=(("Metadata", value),)), 400, text=NO_HEADER)


@rules("metadata-header-any-case", Mark.OBSERVED, "Letter case of the header's name and value means nothing.")
def header_any_case(session: Session) -> None:
    for pair in (("METADATA", "TRUE"), ("metadata", "True")):
        reply = session.here.ask(headers=(pair,))
        reply.must(reply.status == 200, "200")


@rules("metadata-header-first-preview", Mark.DOCUMENTED, "At 2017-03-01 the header is not asked for.")
def header_first_preview(session: Session) -> None:
    reply = session.here.ask(target=at("2017-03-01"), headers=())
    reply.must(reply.status == 200, "200")
    reply = session.here.ask("POST", at("2017-03-01"), (), _BODY)
    reply.must(reply.body != NO_HEADER, "a refusal of the unknown id, not of the missing header")


@rules("metadata-header-on-post", Mark.DOCUMENTED, "An approval needs the header too, though two samples forget it.")
def header_on_post(session: Session) -> None:
    refused(session.here.ask("POST", at("2019-08-01"), (), _BODY), 400, text=NO_HEADER)


# --- The version ----------------------------------------------------------------------------------


@rules("version-missing", Mark.OBSERVED, "Without api-version: 400, with its known text and the newest versions.")
def version_missing(session: Session) -> None:
    refused(session.here.ask(target=PATH), 400, text=BAD_VERSION)
    refused(session.here.ask(target=at("")), 400, text=BAD_VERSION)


@rules("version-not-a-date", Mark.OBSERVED, "An api-version that is no date gets the same as none.")
def version_not_a_date(session: Session) -> None:
    for version in ("latest", "v1"):
        refused(session.here.ask(target=at(version)), 400, text=BAD_VERSION)


@rules(
    "version-not-available",
    Mark.OBSERVED,
    "A date that is no version here: 404, with its known text. A version of /metadata/instance is none either.",
)
def version_not_available(session: Session) -> None:
    for version in ("2018-01-01", "2021-02-01"):
        refused(session.here.ask(target=at(version)), 404, text=UNKNOWN_VERSION)


@rules("version-newer", Mark.OBSERVED, "A date newer than all versions gets 404 as well.")
def version_newer(session: Session) -> None:
    refused(session.here.ask(target=at("2099-12-31")), 404, text=UNKNOWN_VERSION)


@rules("version-on-post", Mark.OBSERVED, "An approval needs a version that is available.")
def version_on_post(session: Session) -> None:
    refused(session.here.ask("POST", PATH, TRUE, _BODY), 400, text=BAD_VERSION)
    refused(session.here.ask("POST", at("2018-01-01"), TRUE, _BODY), 404, text=UNKNOWN_VERSION)


# --- What else is refused -------------------------------------------------------------------------


@rules("forwarded-refused", Mark.DOCUMENTED, "What came through a proxy (X-Forwarded-For) is refused with 400.")
def forwarded_refused(session: Session) -> None:
    refused(session.here.ask(headers=(*TRUE, _FORWARDED)), 400)
    refused(session.here.ask(headers=(*TRUE, ("x-forwarded-for", "127.0.0.1"))), 400)
    refused(session.here.ask("POST", at(NEWEST), (*TRUE, _FORWARDED), _BODY), 400)


@rules("query-name-twice", Mark.DOCUMENTED, "A query name that is given twice is refused with 400.")
def query_name_twice(session: Session) -> None:
    refused(session.here.ask(target=f"{at(NEWEST)}&api-version={NEWEST}"), 400)


@rules("head-refused", Mark.DOCUMENTED, "HEAD is another verb than GET: 405, and no body.")
def head_refused(session: Session) -> None:
    refused(session.here.ask("HEAD", headers=(*TRUE, CLOSE)), 405)


@rules("other-verbs-refused", Mark.DOCUMENTED, "Any other verb than GET and POST gets 405 with an error.")
def other_verbs_refused(session: Session) -> None:
    for verb in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        refused(session.here.ask(verb), 405)


@rules("other-path", Mark.DOCUMENTED, "At another path there is nothing: 404 with an error.")
def other_path(session: Session) -> None:
    for path in ("/metadata/nothing", "/"):
        refused(session.here.ask(target=at(NEWEST, path)), 404)


@rules("unknown-query-name", Mark.ASSUMED, "A query name that nobody knows is ignored.")
def unknown_query_name(session: Session) -> None:
    reply = session.here.ask(target=f"{at(NEWEST)}&verbose=1")
    reply.must(reply.status == 200, "200")


@rules(
    "order-of-checks",
    Mark.ASSUMED,
    "Of two things that are wrong the earlier is told: forwarded, path, verb, names "
    "given twice, header, version, body.",
)
def order_of_checks(session: Session) -> None:
    ask = session.here.ask
    refused(ask(target="/metadata/nothing", headers=(_FORWARDED,)), 400, why="forwarded comes before path")
    refused(ask("PUT", "/metadata/nothing?a=1&a=2", ()), 404, why="path comes before verb")
    refused(ask("PUT", f"{PATH}?a=1&a=2", ()), 405, why="verb comes before names given twice")
    twice = ask(target=f"{PATH}?a=1&a=2", headers=())
    refused(twice, 400, why="names given twice come before the header")
    twice.must(twice.body != NO_HEADER, "400 for the name given twice, which comes before the header")
    refused(ask(target=at("junk"), headers=()), 400, text=NO_HEADER, why="header comes before version")
    refused(ask("POST", PATH, TRUE, b"junk"), 400, text=BAD_VERSION, why="version comes before body")


# --- What every answer carries --------------------------------------------------------------------
# These look at all answers so far, wherever they came from, so they are made behind the others.


def _answers(session: Session) -> list[Reply]:
    """All answers so far, of which there are some."""
    if len(session.here.answers) < _ENOUGH:
        session.look()
        session.here.ask(headers=())
    return [reply for place in session.places for reply in place.answers]


@rules("error-form", Mark.OBSERVED, 'The body of an error is {"error": "…"}, as JSON.', late=True)
def error_form(session: Session) -> None:
    known = {reply.status for reply in session.here.answers}
    for status, method, target, headers in (
        (400, "GET", at(NEWEST), ()),
        (404, "GET", at(NEWEST, "/metadata/nothing"), TRUE),
        (405, "PUT", at(NEWEST), TRUE),
    ):
        if status not in known:
            session.here.ask(method, target, headers)
    for reply in _answers(session):
        if reply.status in (400, 404, 405) and reply.request.method != "HEAD":
            kind = (reply.header("content-type") or "").lower()
            fine = is_plain(reply) and kind.startswith("application/json")
            reply.must(fine, 'application/json with the body {"error": "…"}, and nothing else in it')


@rules("server-header", Mark.OBSERVED, "Every answer says Server: IMDS/…", late=True)
def server_header(session: Session) -> None:
    for reply in _answers(session):
        said = reply.header("server") or ""
        reply.must(said.startswith("IMDS/"), "Server: IMDS/ and a version", came=f"{reply.status} with Server: {said}")


@rules("request-id-guid", Mark.OBSERVED, "Every answer has an x-ms-request-id that is a GUID.", late=True)
def request_id(session: Session) -> None:
    for reply in _answers(session):
        said = reply.header("x-ms-request-id") or ""
        came = f"{reply.status} with x-ms-request-id: {said or 'missing'}"
        reply.must(bool(_GUID.fullmatch(said)), "x-ms-request-id: a GUID", came=came)


@rules("request-id-unique", Mark.OBSERVED, "No two answers have the same x-ms-request-id.", late=True)
def request_id_unique(session: Session) -> None:
    session.look()
    known: set[str] = set()
    for reply in _answers(session):
        said = (reply.header("x-ms-request-id") or "").lower()
        reply.must(said not in known, "an id that no other answer had", came=f"x-ms-request-id: {said} again")
        known.add(said)


@rules("date-header", Mark.OBSERVED, "Every answer has a Date, in the form of RFC 1123.", late=True)
def date_header(session: Session) -> None:
    for reply in _answers(session):
        said = reply.header("date") or ""
        meant = moment(said)
        fine = meant is not None and rfc1123(meant) == said
        reply.must(fine, "Date: like Mon, 19 Sep 2016 18:29:47 GMT", came=f"{reply.status} with Date: {said}")


# --- Section 7: names by which clients find the endpoint ------------------------------------------


discovery_rules = Rules(7, "finding")


@discovery_rules("path-of-a-library", Mark.OBSERVED, "One library writes the path /metadata/scheduledEvents.")
def path_of_a_library(session: Session) -> None:
    read(session.here.ask(target=at(NEWEST, "/metadata/scheduledEvents")))


@discovery_rules("path-in-any-case", Mark.ASSUMED, "Letter case of the path means nothing.")
def path_in_any_case(session: Session) -> None:
    read(session.here.ask(target=at(NEWEST, "/Metadata/SCHEDULEDEVENTS")))


@discovery_rules(
    "any-host", Mark.OBSERVED, "The endpoint is found by an address from DHCP too: the header Host means nothing."
)
def any_host(session: Session) -> None:
    for host in ("10.0.0.4", "metadata.example", "10.0.0.4:8080"):
        read(session.here.ask(host=host))


@discovery_rules("no-host", Mark.ASSUMED, "A request of HTTP/1.0 without Host is served.")
def no_host(session: Session) -> None:
    read(session.here.ask(protocol="1.0", host=None))


@discovery_rules(
    "no-redirect", Mark.ASSUMED, "Who asks at the address gets the answer there, without being sent elsewhere."
)
def no_redirect(session: Session) -> None:
    reply = session.here.ask()
    reply.must(not 300 <= reply.status < 400 or reply.status == 304, "an answer, no redirect")

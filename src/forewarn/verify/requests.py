"""Sections 3 and 7 of the contract: accepted and rejected requests, headers of every response, and discovery."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forewarn.verify.check import CheckRegistry, Mark
from forewarn.verify.endpoint import INSTANCE_PATH, NEWEST, PATH, target_for
from forewarn.verify.exchange import CONNECTION_CLOSE, METADATA_TRUE
from forewarn.verify.refusals import BAD_VERSION, MISSING_HEADER, UNKNOWN_VERSION, expect_error, is_error_object
from forewarn.verify.session import approval
from forewarn.verify.snapshot import format_date, parse_date, read

if TYPE_CHECKING:
    from forewarn.verify.exchange import HttpResponse
    from forewarn.verify.session import Session


check = CheckRegistry(3, "requests")
first_check = CheckRegistry(3, "requests")
"""The check that runs before all others: without a document, nothing else can be judged."""

UNKNOWN_ID = "12345678-1234-4234-8234-123456789ABC"
_GUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_FORWARDED = ("X-Forwarded-For", "10.0.0.1")
_BODY = approval(UNKNOWN_ID)
_MIN_RESPONSES = 2


@first_check("document-served", Mark.DOCUMENTED, "A valid GET gets 200 and the document.")
def document_served(session: Session) -> None:
    session.poll()


# --- The header Metadata --------------------------------------------------------------------------


@check(
    "metadata-header-missing", Mark.OBSERVED, "A request without the header Metadata gets 400 with the published text."
)
def header_missing(session: Session) -> None:
    for version in (NEWEST, "2017-08-01"):
        expect_error(session.endpoint.request(target=target_for(version), headers=()), 400, text=MISSING_HEADER)


@check("metadata-header-not-true", Mark.OBSERVED, "A header Metadata with a value other than `true` counts as missing.")
def header_not_true(session: Session) -> None:
    for value in ("false", "1", ""):
        expect_error(session.endpoint.request(headers=(("Metadata", value),)), 400, text=MISSING_HEADER)


@check(
    "metadata-header-any-case", Mark.OBSERVED, "The name and the value of the header Metadata may have any letter case."
)
def header_any_case(session: Session) -> None:
    for pair in (("METADATA", "TRUE"), ("metadata", "True")):
        response = session.endpoint.request(headers=(pair,))
        response.expect(response.status == 200, "200")


@check("metadata-header-first-preview", Mark.DOCUMENTED, "Version 2017-03-01 does not require the header.")
def header_first_preview(session: Session) -> None:
    response = session.endpoint.request(target=target_for("2017-03-01"), headers=())
    response.expect(response.status == 200, "200")
    response = session.endpoint.request("POST", target_for("2017-03-01"), (), _BODY)
    response.expect(response.body != MISSING_HEADER, "an error about the unknown id, not about the header")


@check("metadata-header-on-post", Mark.DOCUMENTED, "An approval needs the header too, although two samples omit it.")
def header_on_post(session: Session) -> None:
    expect_error(session.endpoint.request("POST", target_for("2019-08-01"), (), _BODY), 400, text=MISSING_HEADER)


# --- The api-version ------------------------------------------------------------------------------


@check(
    "version-missing",
    Mark.OBSERVED,
    "A request without api-version gets 400 with the published text and the newest versions.",
)
def version_missing(session: Session) -> None:
    expect_error(session.endpoint.request(target=PATH), 400, text=BAD_VERSION)
    expect_error(session.endpoint.request(target=target_for("")), 400, text=BAD_VERSION)


@check("version-not-a-date", Mark.OBSERVED, "An api-version that is not a date counts as missing.")
def version_not_a_date(session: Session) -> None:
    for version in ("latest", "v1"):
        expect_error(session.endpoint.request(target=target_for(version)), 400, text=BAD_VERSION)


@check(
    "version-not-available",
    Mark.OBSERVED,
    "An unknown version gets 404 with the published text, even if /metadata/instance has this version.",
)
def version_not_available(session: Session) -> None:
    for version in ("2018-01-01", "2021-02-01"):
        expect_error(session.endpoint.request(target=target_for(version)), 404, text=UNKNOWN_VERSION)


@check("version-newer", Mark.OBSERVED, "A version after the newest one gets 404.")
def version_newer(session: Session) -> None:
    expect_error(session.endpoint.request(target=target_for("2099-12-31")), 404, text=UNKNOWN_VERSION)


@check("version-on-post", Mark.OBSERVED, "An approval needs an available version.")
def version_on_post(session: Session) -> None:
    expect_error(session.endpoint.request("POST", PATH, METADATA_TRUE, _BODY), 400, text=BAD_VERSION)
    response = session.endpoint.request("POST", target_for("2018-01-01"), METADATA_TRUE, _BODY)
    expect_error(response, 404, text=UNKNOWN_VERSION)


# --- Other rejected requests ----------------------------------------------------------------------


@check("forwarded-rejected", Mark.DOCUMENTED, "A request through a proxy (X-Forwarded-For) gets 400.")
def forwarded_rejected(session: Session) -> None:
    expect_error(session.endpoint.request(headers=(*METADATA_TRUE, _FORWARDED)), 400)
    expect_error(session.endpoint.request(headers=(*METADATA_TRUE, ("x-forwarded-for", "127.0.0.1"))), 400)
    expect_error(session.endpoint.request("POST", target_for(NEWEST), (*METADATA_TRUE, _FORWARDED), _BODY), 400)


@check("duplicate-query-parameter", Mark.DOCUMENTED, "A request with the same query parameter twice gets 400.")
def duplicate_query_parameter(session: Session) -> None:
    expect_error(session.endpoint.request(target=f"{target_for(NEWEST)}&api-version={NEWEST}"), 400)


@check("head-rejected", Mark.DOCUMENTED, "HEAD gets 405 without a body.")
def head_rejected(session: Session) -> None:
    expect_error(session.endpoint.request("HEAD", headers=(*METADATA_TRUE, CONNECTION_CLOSE)), 405)


@check("other-methods-rejected", Mark.DOCUMENTED, "A method other than GET and POST gets 405 with an error.")
def other_methods_rejected(session: Session) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        expect_error(session.endpoint.request(method), 405)


@check("unknown-path", Mark.DOCUMENTED, "An unknown path gets 404 with an error.")
def unknown_path(session: Session) -> None:
    for path in ("/metadata/nothing", "/"):
        expect_error(session.endpoint.request(target=target_for(NEWEST, path)), 404)


@check("unknown-query-parameter", Mark.ASSUMED, "The server ignores an unknown query parameter.")
def unknown_query_parameter(session: Session) -> None:
    response = session.endpoint.request(target=f"{target_for(NEWEST)}&verbose=1")
    response.expect(response.status == 200, "200")


@check(
    "validation-order",
    Mark.ASSUMED,
    "The server reports the first error in this order: forwarded, path, method, duplicate parameter, header, version, "
    "body.",
)
def validation_order(session: Session) -> None:
    request = session.endpoint.request
    expect_error(request(target="/metadata/nothing", headers=(_FORWARDED,)), 400, reason="forwarded precedes path")
    expect_error(request("PUT", "/metadata/nothing?a=1&a=2", ()), 404, reason="path precedes method")
    expect_error(request("PUT", f"{PATH}?a=1&a=2", ()), 405, reason="method precedes duplicate parameter")
    duplicate = request(target=f"{PATH}?a=1&a=2", headers=())
    expect_error(duplicate, 400, reason="duplicate parameter precedes header")
    expected = "400 for the duplicate parameter, which precedes the header"
    duplicate.expect(duplicate.body != MISSING_HEADER, expected)
    invalid = request(target=target_for("junk"), headers=())
    expect_error(invalid, 400, text=MISSING_HEADER, reason="header precedes version")
    invalid = request("POST", PATH, METADATA_TRUE, b"junk")
    expect_error(invalid, 400, text=BAD_VERSION, reason="version precedes body")


# --- Every response -------------------------------------------------------------------------------
# These checks run late, because they judge all responses of the run.


def _all_responses(session: Session) -> list[HttpResponse]:
    """Return all responses so far. Send a few requests if there are none."""
    if len(session.endpoint.responses) < _MIN_RESPONSES:
        session.poll()
        session.endpoint.request(headers=())
    return [response for endpoint in session.endpoints for response in endpoint.responses]


@check("error-format", Mark.OBSERVED, 'The body of an error is the JSON object {"error": "…"}.', late=True)
def error_format(session: Session) -> None:
    known = {response.status for response in session.endpoint.responses}
    for status, method, target, headers in (
        (400, "GET", target_for(NEWEST), ()),
        (404, "GET", target_for(NEWEST, "/metadata/nothing"), METADATA_TRUE),
        (405, "PUT", target_for(NEWEST), METADATA_TRUE),
    ):
        if status not in known:
            session.endpoint.request(method, target, headers)
    for response in _all_responses(session):
        if response.status in (400, 404, 405) and response.request.method != "HEAD":
            content_type = (response.header("content-type") or "").lower()
            valid = is_error_object(response) and content_type.startswith("application/json")
            response.expect(valid, 'application/json with exactly the member "error"')


@check("server-header", Mark.OBSERVED, "Every response has the header Server: IMDS/…", late=True)
def server_header(session: Session) -> None:
    for response in _all_responses(session):
        value = response.header("server") or ""
        actual = f"{response.status} with Server: {value}"
        response.expect(value.startswith("IMDS/"), "Server: IMDS/ and a version", actual=actual)


@check("request-id-guid", Mark.OBSERVED, "Every response has an x-ms-request-id that is a GUID.", late=True)
def request_id(session: Session) -> None:
    for response in _all_responses(session):
        value = response.header("x-ms-request-id") or ""
        actual = f"{response.status} with x-ms-request-id: {value or 'missing'}"
        response.expect(bool(_GUID.fullmatch(value)), "x-ms-request-id: a GUID", actual=actual)


@check("request-id-unique", Mark.OBSERVED, "No two responses have the same x-ms-request-id.", late=True)
def request_id_unique(session: Session) -> None:
    session.poll()
    known: set[str] = set()
    for response in _all_responses(session):
        value = (response.header("x-ms-request-id") or "").lower()
        actual = f"x-ms-request-id: {value} again"
        response.expect(value not in known, "an id that no other response has", actual=actual)
        known.add(value)


@check("date-header", Mark.OBSERVED, "Every response has a Date in RFC 1123 format.", late=True)
def date_header(session: Session) -> None:
    for response in _all_responses(session):
        value = response.header("date") or ""
        date = parse_date(value)
        valid = date is not None and format_date(date) == value
        actual = f"{response.status} with Date: {value}"
        response.expect(valid, "Date: like Mon, 19 Sep 2016 18:29:47 GMT", actual=actual)


# --- Section 7: how clients find the endpoint -----------------------------------------------------


discovery_check = CheckRegistry(7, "discovery")


@discovery_check("path-camel-case", Mark.OBSERVED, "The path /metadata/scheduledEvents works: one library uses it.")
def path_camel_case(session: Session) -> None:
    read(session.endpoint.request(target=target_for(NEWEST, "/metadata/scheduledEvents")))


@discovery_check("path-any-case", Mark.ASSUMED, "The path matches in any letter case.")
def path_any_case(session: Session) -> None:
    read(session.endpoint.request(target=target_for(NEWEST, "/Metadata/SCHEDULEDEVENTS")))


@discovery_check("trailing-slash", Mark.ASSUMED, "A slash at the end of a path has no effect.")
def trailing_slash(session: Session) -> None:
    request = session.endpoint.request
    read(request(target=target_for(NEWEST, f"{PATH}/")))
    for target in (
        "/metadata/versions{}",
        target_for("2021-02-01", f"{INSTANCE_PATH}{{}}"),
        target_for("2021-02-01", f"{INSTANCE_PATH}/compute{{}}"),
    ):
        plain, slashed = request(target=target.format("")), request(target=target.format("/"))
        alike = (plain.status, plain.body) == (slashed.status, slashed.body)
        slashed.expect(alike, f"the same response as without the slash: {plain.summary}")
    plain, slashed = (request("POST", target_for(NEWEST, f"{PATH}{end}"), METADATA_TRUE, _BODY) for end in ("", "/"))
    slashed.expect(plain.status == slashed.status, f"{plain.status}, as without the slash")


@discovery_check("any-host", Mark.OBSERVED, "The header Host has no effect: clients may use an address from DHCP.")
def any_host(session: Session) -> None:
    for host in ("10.0.0.4", "metadata.example", "10.0.0.4:8080"):
        read(session.endpoint.request(host=host))


@discovery_check("no-host", Mark.ASSUMED, "An HTTP/1.0 request without Host gets the document.")
def no_host(session: Session) -> None:
    read(session.endpoint.request(protocol="1.0", host=None))


@discovery_check("no-redirect", Mark.ASSUMED, "The server does not redirect a poll.")
def no_redirect(session: Session) -> None:
    response = session.endpoint.request()
    response.expect(not 300 <= response.status < 400 or response.status == 304, "no redirect")

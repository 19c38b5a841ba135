"""Responses to polls: the document, versions, the header Metadata, ETags and long polls."""

from __future__ import annotations

from functools import partial

from golden.cases import ASSUMED, DOCUMENTED, OBSERVED
from golden.rows import (
    BAD_VERSION,
    EMPTY,
    EVENTS,
    FRESH,
    LENIENT,
    NEWEST,
    NO_HEADER,
    QUIET,
    TOLD,
    TRUE,
    UNKNOWN_VERSION,
    UPGRADE,
    WEB_1,
    Row,
)

_SOURCE = b',"EventSource":"User"'
_LENGTH = b',"DurationInSeconds":-1'
_WORDS = b',"Description":"Virtual machine is going to be restarted as requested by authorized user."'
_BARE = TOLD.replace(_SOURCE, b"").replace(_LENGTH, b"").replace(_WORDS, b"")
_IN_VERSION = {
    "2017-03-01": _BARE.replace(b'"web-0"', b'"_web-0"'),
    "2017-08-01": _BARE,
    "2017-11-01": _BARE,
    "2019-01-01": _BARE,
    "2019-04-01": TOLD.replace(_SOURCE, b"").replace(_LENGTH, b""),
    "2019-08-01": TOLD.replace(_LENGTH, b""),
    "2020-07-01": TOLD,
}

told = partial(Row, answer=TOLD, tag=1)
no_header = partial(Row, status=400, answer=NO_HEADER)
bad_version = partial(Row, status=400, answer=BAD_VERSION)
unknown_version = partial(Row, status=404, answer=UNKNOWN_VERSION)


def at(version: str) -> str:
    return f"{EVENTS}?api-version={version}"


DOCUMENTS = (
    *(
        Row(
            name=f"document at {version}",
            mark=DOCUMENTED,
            says=f"A valid GET gets the document in the form of {version}.",
            target=at(version),
            answer=body,
            tag=1,
        )
        for version, body in _IN_VERSION.items()
    ),
    told(
        name="another VM of the group", mark=DOCUMENTED, says="All VMs of a group get the same document.", source=WEB_1
    ),
    Row(
        name="another group",
        mark=DOCUMENTED,
        says="Other groups do not see the event.",
        source=QUIET,
        answer=EMPTY,
        tag=0,
    ),
    Row(
        name="first GET",
        mark=OBSERVED,
        says="The first GET of a scope enables the service. The incarnation starts at 0.",
        source=FRESH,
        answer=EMPTY,
        tag=0,
    ),
    told(
        name="path in any letter case",
        mark=ASSUMED,
        says="The path matches in any letter case.",
        target=NEWEST.replace("/metadata/scheduledevents", "/Metadata/ScheduledEvents"),
    ),
    told(
        name="path in camel case",
        mark=OBSERVED,
        says="One library uses scheduledEvents.",
        target=NEWEST.replace("scheduledevents", "scheduledEvents"),
    ),
    told(
        name="query parameter in any letter case",
        mark=ASSUMED,
        says="Query parameters match in any letter case.",
        target=NEWEST.replace("api-version", "API-Version"),
    ),
    told(
        name="path percent-encoded",
        mark=ASSUMED,
        says="Escapes in the path are decoded.",
        target=NEWEST.replace("scheduled", "%73cheduled"),
    ),
    told(
        name="query percent-encoded",
        mark=ASSUMED,
        says="Escapes in the query are decoded.",
        target=NEWEST.replace("2020-07", "2020%2D07"),
    ),
    told(
        name="absolute URL as target",
        mark=ASSUMED,
        says="Scheme and host in the target are ignored.",
        target=f"http://169.254.169.254{NEWEST}",
    ),
    told(
        name="unknown query parameter",
        mark=ASSUMED,
        says="An unknown query parameter is ignored.",
        target=f"{NEWEST}&verbose=1",
    ),
    told(name="GET with a body", mark=ASSUMED, says="The body of a GET is read and ignored.", body=b"ignored"),
    told(
        name="HTTP/1.0",
        mark=ASSUMED,
        says="HTTP/1.0 gets the document and `Connection: close`.",
        protocol="1.0",
        closes=True,
    ),
    told(
        name="connection close",
        mark=ASSUMED,
        says="A request with `Connection: close` gets it back.",
        headers=(*TRUE, ("Connection", "Close")),
        closes=True,
    ),
    told(
        name="keep-alive",
        mark=ASSUMED,
        says="`Connection: keep-alive` does not change the response.",
        headers=(*TRUE, ("Connection", "Keep-Alive")),
    ),
    told(
        name="upgrade to HTTP/2",
        mark=ASSUMED,
        says="An upgrade request is ignored: a common library sends it.",
        headers=(*TRUE, *UPGRADE),
    ),
)

VERSIONS = (
    bad_version(
        name="no version", mark=OBSERVED, says="A GET without api-version gets 400 with the newest ones.", target=EVENTS
    ),
    bad_version(name="empty version", mark=OBSERVED, says="An empty api-version counts as missing.", target=at("")),
    bad_version(name="latest", mark=DOCUMENTED, says="`latest` worked in previews only.", target=at("latest")),
    bad_version(name="junk version", mark=OBSERVED, says="An api-version must be a date.", target=at("v1")),
    bad_version(name="short date", mark=ASSUMED, says="A date has 4, 2 and 2 digits.", target=at("2020-7-1")),
    bad_version(name="impossible date", mark=ASSUMED, says="A date must exist.", target=at("2020-02-30")),
    bad_version(
        name="date and time", mark=ASSUMED, says="A date must have no time.", target=at("2020-07-01T00:00:00Z")
    ),
    bad_version(
        name="non-ASCII digits", mark=ASSUMED, says="Digits must be ASCII.", target=at("%D9%A2%D9%A0%D9%A2%D9%A0-07-01")
    ),
    unknown_version(
        name="unknown date", mark=OBSERVED, says="A date that is not a version gets 404.", target=at("2018-01-01")
    ),
    unknown_version(
        name="version of /metadata/instance",
        mark=OBSERVED,
        says="A version of /metadata/instance gets 404 here.",
        target=at("2021-02-01"),
    ),
    unknown_version(
        name="preview version",
        mark=OBSERVED,
        says="The preview version gets 404. A vendor's client tries it first and accepts 404.",
        target=at("2024-07-09"),
    ),
    unknown_version(
        name="newer version", mark=OBSERVED, says="A date after the newest version gets 404.", target=at("2031-12-31")
    ),
    told(
        name="preview version, allowed",
        mark=ASSUMED,
        says="A setting enables preview versions.",
        target=at("2024-07-09"),
        rules=LENIENT,
    ),
)

HEADER = (
    no_header(name="no header", mark=OBSERVED, says="A request without the header Metadata gets 400.", headers=()),
    no_header(name="header false", mark=OBSERVED, says="The header must be `true`.", headers=(("Metadata", "false"),)),
    no_header(name="header empty", mark=OBSERVED, says="An empty header is not `true`.", headers=(("Metadata", ""),)),
    no_header(name="header 1", mark=OBSERVED, says="The value 1 is not `true`.", headers=(("Metadata", "1"),)),
    no_header(
        name="header true and false",
        mark=ASSUMED,
        says="If the header occurs twice, both must be `true`.",
        headers=(*TRUE, ("Metadata", "false")),
    ),
    told(name="header twice", mark=ASSUMED, says="The header may be `true` twice.", headers=TRUE + TRUE),
    told(
        name="header in upper case",
        mark=OBSERVED,
        says="The header's name and value match in any letter case.",
        headers=(("METADATA", "TRUE"),),
    ),
    told(
        name="header in lower case",
        mark=OBSERVED,
        says="`metadata: True` works: a sample sends it.",
        headers=(("metadata", "True"),),
    ),
    told(
        name="header with whitespace",
        mark=ASSUMED,
        says="Whitespace around the header's value is ignored.",
        headers=(("Metadata", " \t true \t"),),
    ),
    Row(
        name="no header at 2017-03-01",
        mark=DOCUMENTED,
        says="The first preview does not require the header.",
        target=at("2017-03-01"),
        headers=(),
        answer=_IN_VERSION["2017-03-01"],
        tag=1,
    ),
    Row(
        name="header false at 2017-03-01",
        mark=ASSUMED,
        says="The first preview ignores the header's value.",
        target=at("2017-03-01"),
        headers=(("Metadata", "false"),),
        answer=_IN_VERSION["2017-03-01"],
        tag=1,
    ),
    no_header(
        name="no header, approvals without it allowed",
        mark=ASSUMED,
        says="The setting for approvals without the header does not apply to polls.",
        headers=(),
        rules=LENIENT,
    ),
)


def _tag(name: str, value: str, says: str, *more: str, same: bool = True, mark: str = ASSUMED) -> Row:
    headers = (*TRUE, *(("If-None-Match", one) for one in (value, *more)))
    row = partial(Row, name=f"ETag {name}", mark=mark, says=says, headers=headers, tag=1)
    return row(status=304) if same else row(answer=TOLD)


def _wait(name: str, prefer: str, says: str, tag: str = "<tag>", applied: str = "") -> Row:
    headers = (*TRUE, *((("If-None-Match", tag),) if tag else ()), ("Prefer", prefer))
    row = partial(Row, name=f"prefer {name}", mark=ASSUMED, says=says, headers=headers, tag=1, applied=applied)
    return row(status=304) if tag == "<tag>" else row(answer=TOLD)


TAGS = (
    _tag("as given", "<tag>", "The current ETag in If-None-Match gets 304.", mark=OBSERVED),
    _tag("unquoted", "<bare tag>", "The ETag matches without quotes, too.", mark=OBSERVED),
    _tag(
        "unquoted 0", "0", "An unquoted 0 never matches: a published sample starts with it.", same=False, mark=OBSERVED
    ),
    _tag("quoted 0", '"0"', "A quoted 0 never matches.", same=False),
    _tag(
        "of another enabling",
        '"00000000.1"',
        "The ETag of another enabling does not match, even with the same incarnation.",
        same=False,
    ),
    _tag("in a list", '"other", <tag>', "The ETag may be in a list."),
    _tag("not in a list", '"other", "0"', "A list without the ETag does not match.", same=False),
    _tag("in a second header", '"other"', "Repeated headers form one list.", "<tag>"),
    _tag("weak", "W/<tag>", "The weak form of the ETag matches."),
    _tag("any", "*", "`*` matches every document."),
    _tag("empty", "", "An empty value does not match.", same=False),
    _tag("half quoted", '"<bare tag>', "A value with only one quote does not match.", same=False),
    _tag(
        "with a no-break space", "<tag>\xa0", "A no-break space is part of the value, so it does not match.", same=False
    ),
    _tag("with spaces", " <tag> ", "Spaces around the ETag are ignored."),
    Row(
        name="ETag without header",
        mark=ASSUMED,
        says="An ETag does not replace the header Metadata.",
        headers=(("If-None-Match", "<tag>"),),
        status=400,
        answer=NO_HEADER,
    ),
    Row(
        name="ETag of another version",
        mark=ASSUMED,
        says="All versions have the same ETag.",
        target=at("2017-08-01"),
        headers=(*TRUE, ("If-None-Match", "<tag>")),
        status=304,
        tag=1,
    ),
)

# Long polls are an extension of Forewarn. Azure ignores Prefer, as far as is known.
WAITS = (
    _wait(
        "wait, ETag outdated",
        "wait=10",
        "A long poll with an outdated ETag gets the document at once. Preference-Applied confirms the wait.",
        tag='"0"',
        applied="wait=10",
    ),
    _wait("wait too long", "wait=300", "A long poll takes 60 seconds at most.", tag='"0"', applied="wait=60"),
    _wait(
        "wait among others",
        'respond-async, foo="a, b"; c, Wait="10"; d, wait=20',
        "The first wait of several preferences applies.",
        tag='"0"',
        applied="wait=10",
    ),
    _wait("wait=0", "wait=0", "A wait of 0 gets a response at once.", applied="wait=0"),
    _wait("wait without ETag", "wait=10", "Without If-None-Match there is no long poll.", tag=""),
    _wait("invalid wait", "wait=abc", "An invalid wait is ignored."),
    _wait("other preferences", "respond-async, return=minimal", "Other preferences are ignored."),
)

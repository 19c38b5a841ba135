"""Answers to polls: the document, versions, the header, the entity tag."""

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
            says=f"A GET with all in order is answered with the document as {version} shows it.",
            target=at(version),
            answer=body,
            tag=1,
        )
        for version, body in _IN_VERSION.items()
    ),
    told(name="another VM of the scope", mark=DOCUMENTED, says="All VMs of a scope see the same.", source=WEB_1),
    Row(name="another scope", mark=DOCUMENTED, says="Other scopes see nothing.", source=QUIET, answer=EMPTY, tag=0),
    Row(
        name="first GET",
        mark=OBSERVED,
        says="The first GET of a scope enables it; nothing has happened yet, so the incarnation is 0.",
        source=FRESH,
        answer=EMPTY,
        tag=0,
    ),
    told(name="path in any letter case", mark=ASSUMED, says="Letter case of the path means nothing.",
         target=NEWEST.replace("/metadata/scheduledevents", "/Metadata/ScheduledEvents")),
    told(name="path in the spelling of a library", mark=OBSERVED, says="One library writes scheduledEvents.",
         target=NEWEST.replace("scheduledevents", "scheduledEvents")),
    told(name="query name in any letter case", mark=ASSUMED, says="Letter case of a query name means nothing.",
         target=NEWEST.replace("api-version", "API-Version")),
    told(name="path percent-encoded", mark=ASSUMED, says="Escapes in the path are read.",
         target=NEWEST.replace("scheduled", "%73cheduled")),
    told(name="query percent-encoded", mark=ASSUMED, says="Escapes in the query are read.",
         target=NEWEST.replace("2020-07", "2020%2D07")),
    told(name="whole address as target", mark=ASSUMED, says="A target with scheme and host is served by its path.",
         target=f"http://169.254.169.254{NEWEST}"),
    told(name="unknown query name", mark=ASSUMED, says="A query name that nobody knows is ignored.",
         target=f"{NEWEST}&verbose=1"),
    told(name="GET with a body", mark=ASSUMED, says="The body of a GET is read and ignored.", body=b"ignored"),
    told(name="HTTP/1.0", mark=ASSUMED, says="HTTP/1.0 is served; the connection closes and says so.", protocol="1.0",
         closes=True),
    told(name="closing", mark=ASSUMED, says="Asked to close, the answer says that it does.",
         headers=(*TRUE, ("Connection", "Close")), closes=True),
    told(name="keep-alive", mark=ASSUMED, says="Asked to stay open, the answer is the usual one.",
         headers=(*TRUE, ("Connection", "Keep-Alive"))),
    told(name="upgrade to HTTP/2", mark=ASSUMED, says="A wish to upgrade is ignored: a common library sends it.",
         headers=(*TRUE, *UPGRADE)),
)  # fmt: skip

VERSIONS = (
    bad_version(name="no version", mark=OBSERVED, says="A GET without api-version is refused; the newest are named.",
                target=EVENTS),
    bad_version(name="empty version", mark=OBSERVED, says="An empty api-version is none.", target=at("")),
    bad_version(name="latest", mark=DOCUMENTED, says="`latest` was taken in previews and is no longer.",
                target=at("latest")),
    bad_version(name="junk version", mark=OBSERVED, says="An api-version that is no date is refused.", target=at("v1")),
    bad_version(name="short date", mark=ASSUMED, says="A date has four, two and two digits.", target=at("2020-7-1")),
    bad_version(name="impossible date", mark=ASSUMED, says="A date must exist.", target=at("2020-02-30")),
    bad_version(name="date and time", mark=ASSUMED, says="A time is no date.", target=at("2020-07-01T00:00:00Z")),
    bad_version(name="foreign digits", mark=ASSUMED, says="Digits are those of ASCII.",
                target=at("%D9%A2%D9%A0%D9%A2%D9%A0-07-01")),
    unknown_version(name="unknown date", mark=OBSERVED, says="A date that is no version is not found.",
                    target=at("2018-01-01")),
    unknown_version(name="version of the sister endpoint", mark=OBSERVED,
                    says="A version of /metadata/instance is not found here.", target=at("2021-02-01")),
    unknown_version(name="preview version", mark=OBSERVED,
                    says="A vendor's client asks for the preview version first, and takes 404 for no.",
                    target=at("2024-07-09")),
    unknown_version(name="newer version", mark=OBSERVED, says="A version newer than all is not found.",
                    target=at("2031-12-31")),
    told(name="preview version, allowed", mark=ASSUMED, says="With preview versions switched on it is served.",
         target=at("2024-07-09"), rules=LENIENT),
    told(name="newer version, allowed", mark=ASSUMED,
         says="A setting gives a version newer than all the newest document that is known.",
         target=at("2031-12-31"), rules=LENIENT),
    unknown_version(name="unknown date, newer allowed", mark=ASSUMED,
                    says="The setting for newer versions does not fill the gaps between known ones.",
                    target=at("2018-01-01"), rules=LENIENT),
    bad_version(name="latest, newer allowed", mark=ASSUMED,
                says="The setting for newer versions is not for what is no date.",
                target=at("latest"), rules=LENIENT),
)  # fmt: skip

HEADER = (
    no_header(name="no header", mark=OBSERVED, says="Without the header Metadata nothing is served.", headers=()),
    no_header(name="header false", mark=OBSERVED, says="The header must say true.", headers=(("Metadata", "false"),)),
    no_header(name="header empty", mark=OBSERVED, says="An empty header does not say true.",
              headers=(("Metadata", ""),)),
    no_header(name="header 1", mark=OBSERVED, says="The header 1 does not say true.", headers=(("Metadata", "1"),)),
    no_header(name="header true and false", mark=ASSUMED, says="A header Metadata given twice must say true twice.",
              headers=(*TRUE, ("Metadata", "false"))),
    told(name="header twice", mark=ASSUMED, says="A header Metadata that says true twice is true.",
         headers=TRUE + TRUE),
    told(name="header in upper case", mark=OBSERVED, says="Letter case of the header's name and value means nothing.",
         headers=(("METADATA", "TRUE"),)),
    told(name="header in lower case", mark=OBSERVED, says="A sample that writes `metadata: True` works.",
         headers=(("metadata", "True"),)),
    told(name="header with blanks", mark=ASSUMED, says="Blanks around the header's value mean nothing.",
         headers=(("Metadata", " \t true \t"),)),
    Row(name="no header at 2017-03-01", mark=DOCUMENTED, says="The first preview did not ask for the header.",
        target=at("2017-03-01"), headers=(), answer=_IN_VERSION["2017-03-01"], tag=1),
    Row(name="header false at 2017-03-01", mark=ASSUMED, says="The first preview did not look at the header's value.",
        target=at("2017-03-01"), headers=(("Metadata", "false"),), answer=_IN_VERSION["2017-03-01"], tag=1),
    no_header(name="no header, approvals without it allowed", mark=ASSUMED,
              says="The setting for approvals without the header does not open the document.",
              headers=(), rules=LENIENT),
)  # fmt: skip


def _tag(name: str, value: str, says: str, *more: str, same: bool = True, mark: str = ASSUMED) -> Row:
    headers = (*TRUE, *(("If-None-Match", one) for one in (value, *more)))
    row = partial(Row, name=f"tag {name}", mark=mark, says=says, headers=headers, tag=1)
    return row(status=304) if same else row(answer=TOLD)


def _wait(name: str, prefer: str, says: str, tag: str = "<tag>", applied: str = "") -> Row:
    headers = (*TRUE, *((("If-None-Match", tag),) if tag else ()), ("Prefer", prefer))
    row = partial(Row, name=f"prefer {name}", mark=ASSUMED, says=says, headers=headers, tag=1, applied=applied)
    return row(status=304) if tag == "<tag>" else row(answer=TOLD)


TAGS = (
    _tag("as given", "<tag>", "A client that sends the tag it was given is told that nothing changed.", mark=OBSERVED),
    _tag("bare", "<bare tag>", "The tag is known without its quotes too.", mark=OBSERVED),
    _tag("unquoted 0", "0", "A published sample begins with an unquoted 0: that is never the current tag.",
         same=False, mark=OBSERVED),
    _tag("quoted 0", '"0"', "A quoted 0 is never the current tag either.", same=False),
    _tag("of another enabling", '"00000000.1"', "The incarnation alone does not make the tag.", same=False),
    _tag("in a list", '"other", <tag>', "The tag may stand in a list."),
    _tag("not in a list", '"other", "0"', "A list without the tag is no match.", same=False),
    _tag("in a second header", '"other"', "Headers given twice are one list.", "<tag>"),
    _tag("weak", "W/<tag>", "The weak form of the tag matches."),
    _tag("any", "*", "A star matches every document."),
    _tag("empty", "", "An empty tag is none.", same=False),
    _tag("half quoted", '"<bare tag>', "A tag with one quote is neither quoted nor bare.", same=False),
    _tag("with a foreign blank", "<tag>\xa0", "A blank that HTTP does not know is part of the tag.", same=False),
    _tag("with blanks", " <tag> ", "Blanks around the tag mean nothing."),
    Row(name="tag without header", mark=ASSUMED, says="The tag does not stand in for the header Metadata.",
        headers=(("If-None-Match", "<tag>"),), status=400, answer=NO_HEADER),
    Row(name="tag of another version", mark=ASSUMED, says="One tag serves all versions, as one incarnation does.",
        target=at("2017-08-01"), headers=(*TRUE, ("If-None-Match", "<tag>")), status=304, tag=1),
)  # fmt: skip

# An addition of Forewarn's: the real service is not known to look at Prefer.
WAITS = (
    _wait("wait, tag outdated", "wait=10", "A poll that may be held is answered at once when its tag is not the "
          "document's; Preference-Applied says that the wait was understood.", tag='"0"', applied="wait=10"),
    _wait("wait too long", "wait=300", "No poll is held for more than 60 seconds.", tag='"0"', applied="wait=60"),
    _wait("wait among others", 'respond-async, foo="a, b"; c, Wait="10"; d, wait=20',
          "Of several preferences the first wait counts.", tag='"0"', applied="wait=10"),
    _wait("no wait at all", "wait=0", "Nothing is held for no time.", applied="wait=0"),
    _wait("wait without a tag", "wait=10", "Without If-None-Match there is nothing to wait for.", tag=""),
    _wait("wait that is no number", "wait=abc", "A wait that cannot be read is none."),
    _wait("something else", "respond-async, return=minimal", "Other preferences mean nothing."),
)  # fmt: skip

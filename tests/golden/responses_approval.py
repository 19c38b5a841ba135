"""Responses to approvals."""

from __future__ import annotations

from functools import partial

from golden.bodies import BODIES
from golden.cases import ASSUMED, DOCUMENTED, OBSERVED
from golden.responses_poll import at
from golden.rows import (
    APP_0,
    APP_1,
    BAD_VERSION,
    EVENTS,
    LENIENT,
    NO_HEADER,
    OTHER,
    TOO_LARGE,
    TRUE,
    UNKNOWN_VERSION,
    UPGRADE,
    WEB_0,
    Row,
    bad_body,
    unknown_id,
)

MADE_UP = "12345678-1234-4234-8234-123456789ABC"


def approval(*ids: str, more: str = "") -> bytes:
    requests = ",".join(f'{{"EventId":"{event_id}"}}' for event_id in ids)
    return f'{{"StartRequests":[{requests}]{more}}}'.encode()


post = partial(Row, method="POST", source=APP_0, body=approval("<waiting>"))
refused = partial(post, status=400)

_CHUNKED = b"".join(
    b"%x\r\n%s\r\n" % (len(part), part) for part in (b'{"StartRequests":', b'[{"EventId":"<waiting>"}]}')
)

TAKEN = (
    post(name="approval", mark=DOCUMENTED, says="An approval of a known id gets 200 without a body."),
    post(name="approval repeated", mark=OBSERVED, says="A repeated approval gets 200: clients approve on every poll."),
    post(name="approval by another VM", mark=DOCUMENTED, says="Any VM of the group may approve.", source=APP_1),
    *(
        post(
            name=f"approval with a trailing slash at {version}",
            mark=ASSUMED,
            says="A slash at the end of the path has no effect.",
            target=f"{EVENTS}/?api-version={version}",
        )
        for version in ("2017-03-01", "2020-07-01")
    ),
    post(
        name="approval of a started event",
        mark=OBSERVED,
        says="An approval of a Started event gets 200.",
        body=approval("<started>"),
    ),
    post(
        name="approval of an ended event",
        mark=ASSUMED,
        says="An approval of an event that ended within the last day gets 200: clients repeat themselves.",
        source=OTHER,
        body=approval("<ended>"),
    ),
    post(
        name="approval of an ended event at 2017-03-01",
        mark=ASSUMED,
        says="The same holds at the first preview.",
        source=OTHER,
        target=at("2017-03-01"),
        headers=(),
        body=approval("<ended>"),
    ),
    post(
        name="approval of several",
        mark=DOCUMENTED,
        says="One request may approve several events.",
        body=approval("<waiting>", "<started>"),
    ),
    post(
        name="approval of one twice",
        mark=ASSUMED,
        says="An id that occurs twice is approved once.",
        body=approval("<waiting>", "<waiting>"),
    ),
    post(
        name="approval in lower case",
        mark=ASSUMED,
        says="The id may be in any letter case.",
        body=approval("<waiting lower>"),
    ),
    post(
        name="approval with incarnation",
        mark=OBSERVED,
        says="DocumentIncarnation as a number is ignored.",
        body=approval("<waiting>", more=',"DocumentIncarnation":1'),
    ),
    post(
        name="approval with incarnation as text",
        mark=OBSERVED,
        says="DocumentIncarnation as a string is ignored.",
        body=approval("<waiting>", more=',"DocumentIncarnation":"5"'),
    ),
    post(
        name="approval with stale incarnation",
        mark=OBSERVED,
        says="An outdated DocumentIncarnation is ignored.",
        body=approval("<waiting>", more=',"DocumentIncarnation":0'),
    ),
    post(
        name="approval with unknown members",
        mark=ASSUMED,
        says="Unknown members are ignored.",
        body=approval("<waiting>", more=',"Reason":{"Because":[1,2]}'),
    ),
    *(
        post(
            name=f"approval as {kind}",
            mark=mark,
            says=f"Content-Type {kind} is accepted: the service ignores it.",
            headers=(*TRUE, ("Content-Type", kind)),
        )
        for kind, mark in (
            ("application/x-www-form-urlencoded", OBSERVED),
            ("application/json", OBSERVED),
            ("image/png", ASSUMED),
        )
    ),
    post(
        name="approval in chunks",
        mark=ASSUMED,
        says="The body may be chunked.",
        headers=(*TRUE, ("Transfer-Encoding", "chunked")),
        body=_CHUNKED + b"0\r\n\r\n",
    ),
    post(
        name="approval with an ETag",
        mark=OBSERVED,
        says="If-None-Match on POST is ignored: a published sample sends it.",
        headers=(*TRUE, ("If-None-Match", "<tag>")),
    ),
    post(
        name="approval of maximum size",
        mark=ASSUMED,
        says="A body of 65536 bytes is accepted.",
        body=approval("<waiting>").ljust(65536 - len("00000000-0000-0000-0000-000000000000") + len("<waiting>")),
    ),
    post(
        name="approval at 2019-08-01",
        mark=OBSERVED,
        says="A client may poll at one version and approve at another.",
        target=at("2019-08-01"),
    ),
    post(
        name="approval at 2017-03-01",
        mark=DOCUMENTED,
        says="The first preview accepts approvals without the header.",
        target=at("2017-03-01"),
        headers=(),
    ),
    post(
        name="approval with an upgrade",
        mark=ASSUMED,
        says="An upgrade request is ignored and the body is read: a common library always sends it.",
        headers=(*TRUE, *UPGRADE),
    ),
    post(
        name="approval without header, allowed",
        mark=ASSUMED,
        says="A setting accepts approvals without the header.",
        target=at("2017-08-01"),
        headers=(),
        rules=LENIENT,
    ),
)

REFUSED = (
    refused(
        name="approval without header",
        mark=DOCUMENTED,
        says="The header is required, although two samples omit it.",
        target=at("2019-08-01"),
        headers=(),
        answer=NO_HEADER,
    ),
    refused(
        name="approval with header false, allowed",
        mark=ASSUMED,
        says="With that setting the header may have any value.",
        headers=(("Metadata", "false"),),
        rules=LENIENT,
        status=200,
    ),
    refused(
        name="approval without version",
        mark=OBSERVED,
        says="An approval needs an api-version.",
        target=EVENTS,
        answer=BAD_VERSION,
    ),
    refused(
        name="approval at an unknown version",
        mark=OBSERVED,
        says="An approval needs a known api-version.",
        target=at("2018-01-01"),
        status=404,
        answer=UNKNOWN_VERSION,
    ),
    refused(
        name="approval of an unknown id",
        mark=ASSUMED,
        says="An unknown id gets 400. The error names it.",
        body=approval(MADE_UP),
        answer=unknown_id(MADE_UP.lower()),
    ),
    refused(
        name="approval of another group's id",
        mark=ASSUMED,
        says="An id of another group is unknown.",
        source=WEB_0,
        answer=unknown_id("<waiting lower>"),
    ),
    refused(
        name="approval of another group's ended event",
        mark=ASSUMED,
        says="An id of an ended event of another group is unknown.",
        body=approval("<ended>"),
        answer=unknown_id("<ended lower>"),
    ),
    refused(
        name="approval of another group's ended event at 2017-03-01",
        mark=ASSUMED,
        says="The same holds at the first preview.",
        target=at("2017-03-01"),
        headers=(),
        body=approval("<ended>"),
        answer=unknown_id("<ended lower>"),
    ),
    refused(
        name="approval of an ended event and an unknown id",
        mark=ASSUMED,
        says="An ended event does not make an unknown id acceptable.",
        source=OTHER,
        body=approval("<ended>", MADE_UP),
        answer=unknown_id(MADE_UP.lower()),
    ),
    refused(
        name="approval with one id unknown",
        mark=ASSUMED,
        says="If one id is unknown, the service approves none.",
        body=approval("<untouched>", MADE_UP),
        answer=unknown_id(MADE_UP.lower()),
    ),
    refused(
        name="approval with the header in a trailer",
        mark=ASSUMED,
        says="A trailer does not count as a header.",
        headers=(("Transfer-Encoding", "chunked"),),
        body=b"2\r\n{}\r\n0\r\nMetadata: true\r\n\r\n",
        answer=NO_HEADER,
    ),
    refused(
        name="approval of an empty id",
        mark=ASSUMED,
        says="An empty id is unknown.",
        body=approval(""),
        answer=unknown_id(""),
    ),
    refused(
        name="approval too large",
        mark=ASSUMED,
        says="A body of 65537 bytes gets 413. The connection stays open.",
        body=b" " * 65537,
        status=413,
        answer=TOO_LARGE,
    ),
    refused(
        name="approval in chunks, too large",
        mark=ASSUMED,
        says="More than 65536 bytes in chunks get 413. The connection stays open.",
        headers=(*TRUE, ("Transfer-Encoding", "chunked")),
        body=b"10001\r\n" + b" " * 65537 + b"\r\n0\r\n\r\n",
        status=413,
        answer=TOO_LARGE,
    ),
    *(
        refused(
            name=f"approval: {body.name}",
            mark=ASSUMED,
            says=f"{body.says} The text is Forewarn's own.",
            body=body.body,
            answer=bad_body(body.outcome),
        )
        for body in BODIES
        if isinstance(body.outcome, str)
    ),
)

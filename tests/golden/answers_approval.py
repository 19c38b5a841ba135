"""Answers to approvals."""

from __future__ import annotations

from functools import partial

from golden.answers_poll import at
from golden.bodies import BODIES
from golden.cases import ASSUMED, DOCUMENTED, OBSERVED
from golden.rows import (
    APP_0,
    APP_1,
    BAD_VERSION,
    EVENTS,
    LENIENT,
    NO_HEADER,
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
    post(name="approval", mark=DOCUMENTED, says="A known id is approved: exactly 200, and no body at all."),
    post(name="approval once more", mark=OBSERVED, says="Clients approve again on every poll: 200 each time."),
    post(name="approval by another VM", mark=DOCUMENTED, says="Any VM of the scope may approve.", source=APP_1),
    post(name="approval of a started event", mark=OBSERVED, says="What has started is approved: 200.",
         body=approval("<started>")),
    post(name="approval of several", mark=DOCUMENTED, says="Several ids at once.",
         body=approval("<waiting>", "<started>")),
    post(name="approval of one twice", mark=ASSUMED, says="An id named twice is approved once.",
         body=approval("<waiting>", "<waiting>")),
    post(name="approval in lower case", mark=ASSUMED, says="Letter case of an id means nothing.",
         body=approval("<waiting lower>")),
    post(name="approval with incarnation", mark=OBSERVED, says="A number as DocumentIncarnation is ignored.",
         body=approval("<waiting>", more=',"DocumentIncarnation":1')),
    post(name="approval with incarnation as text", mark=OBSERVED, says="Text as DocumentIncarnation is ignored.",
         body=approval("<waiting>", more=',"DocumentIncarnation":"5"')),
    post(name="approval with stale incarnation", mark=OBSERVED, says="A stale DocumentIncarnation is ignored.",
         body=approval("<waiting>", more=',"DocumentIncarnation":0')),
    post(name="approval with unknown members", mark=ASSUMED, says="Members that nobody knows are ignored.",
         body=approval("<waiting>", more=',"Reason":{"Because":[1,2]}')),
    *(
        post(name=f"approval as {kind}", mark=mark, says=f"Content-Type is never required and never judged: {kind}.",
             headers=(*TRUE, ("Content-Type", kind)))
        for kind, mark in (
            ("application/x-www-form-urlencoded", OBSERVED), ("application/json", OBSERVED), ("image/png", ASSUMED)
        )
    ),
    post(name="approval in chunks", mark=ASSUMED, says="A body may come in chunks.",
         headers=(*TRUE, ("Transfer-Encoding", "chunked")), body=_CHUNKED + b"0\r\n\r\n"),
    post(name="approval with a tag", mark=OBSERVED, says="A published sample sends If-None-Match on POST: ignored.",
         headers=(*TRUE, ("If-None-Match", "<tag>"))),
    post(name="approval of the largest size", mark=ASSUMED, says="65536 bytes are taken.",
         body=approval("<waiting>").ljust(65536 - len("00000000-0000-0000-0000-000000000000") + len("<waiting>"))),
    post(name="approval at 2019-08-01", mark=OBSERVED, says="A client reads in one version and approves in another.",
         target=at("2019-08-01")),
    post(name="approval at 2017-03-01", mark=DOCUMENTED, says="The first preview takes approvals without the header.",
         target=at("2017-03-01"), headers=()),
    post(name="approval with an upgrade", mark=ASSUMED,
         says="A wish to upgrade is ignored and the body read: a common HTTP library sends it always.",
         headers=(*TRUE, *UPGRADE)),
    post(name="approval without header, allowed", mark=ASSUMED, says="A setting takes approvals without the header.",
         target=at("2017-08-01"), headers=(), rules=LENIENT),
)  # fmt: skip

REFUSED = (
    refused(name="approval without header", mark=DOCUMENTED, says="Two samples forget the header; it is required.",
            target=at("2019-08-01"), headers=(), answer=NO_HEADER),
    refused(name="approval with header false, allowed", mark=ASSUMED,
            says="Where approvals may lack the header, its value means nothing.",
            headers=(("Metadata", "false"),), rules=LENIENT, status=200),
    refused(name="approval without version", mark=OBSERVED, says="An approval needs an api-version.", target=EVENTS,
            answer=BAD_VERSION),
    refused(name="approval at an unknown version", mark=OBSERVED,
            says="An approval needs an api-version that is known.",
            target=at("2018-01-01"), status=404, answer=UNKNOWN_VERSION),
    refused(name="approval of a made-up id", mark=ASSUMED, says="An unknown id is refused and named.",
            body=approval(MADE_UP), answer=unknown_id(MADE_UP.lower())),
    refused(name="approval of another scope's id", mark=ASSUMED, says="Another scope's event is as good as made up.",
            source=WEB_0, answer=unknown_id("<waiting lower>")),
    refused(name="approval with one id unknown", mark=ASSUMED, says="One id unknown: none is approved.",
            body=approval("<untouched>", MADE_UP), answer=unknown_id(MADE_UP.lower())),
    refused(name="approval with the header in a trailer", mark=ASSUMED, says="A trailer is no header.",
            headers=(("Transfer-Encoding", "chunked"),), body=b"2\r\n{}\r\n0\r\nMetadata: true\r\n\r\n",
            answer=NO_HEADER),
    refused(name="approval of no id at all", mark=ASSUMED, says="An empty id is unknown.", body=approval(""),
            answer=unknown_id("")),
    refused(name="approval too large", mark=ASSUMED, says="65537 bytes are too many; the connection goes on.",
            body=b" " * 65537, status=413, answer=TOO_LARGE),
    refused(name="approval in too many chunks", mark=ASSUMED,
            says="More than 65536 bytes in chunks are too many; the connection goes on.",
            headers=(*TRUE, ("Transfer-Encoding", "chunked")), body=b"10001\r\n" + b" " * 65537 + b"\r\n0\r\n\r\n",
            status=413, answer=TOO_LARGE),
    *(
        refused(name=f"approval: {body.name}", mark=ASSUMED, says=f"{body.says} The words are ours.", body=body.body,
                answer=bad_body(body.outcome))
        for body in BODIES if isinstance(body.outcome, str)
    ),
)  # fmt: skip

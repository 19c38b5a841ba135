"""Bodies of approvals with their result: the ids in lower case, or the reason of the rejection."""

from __future__ import annotations

from dataclasses import dataclass

from golden.cases import ASSUMED, DOCUMENTED, OBSERVED

ONE = "602d9444-d2cd-49c7-8624-8643e7171297"
TWO = "a626e37f-793e-44e1-89b5-99ae0b96044c"

NOT_JSON = "The body is not JSON."
NOT_AN_OBJECT = "The body is not a JSON object."
NO_REQUESTS = "StartRequests is missing, empty or not an array."
NO_ID = "A start request has no EventId that is a string."


@dataclass(frozen=True)
class Body:
    """A body and its result: ids, or the reason of the rejection."""

    name: str
    mark: str
    says: str
    body: bytes
    outcome: tuple[str, ...] | str


def _ids(*ids: str, before: str = "", after: str = "") -> bytes:
    requests = ",".join(f'{{"EventId":"{event_id}"}}' for event_id in ids)
    return f'{{{before}"StartRequests":[{requests}]{after}}}'.encode()


BODIES = (
    Body("one id", DOCUMENTED, "One event, by its id.", _ids(ONE), (ONE,)),
    Body("several ids", DOCUMENTED, "Several events at once.", _ids(ONE, TWO), (ONE, TWO)),
    Body(
        "indented",
        OBSERVED,
        "Whitespace has no effect: samples send indented JSON.",
        b'{\r\n  "StartRequests" : [ {\r\n\t"EventId": "' + ONE.encode() + b'" } ]\r\n}\r\n',
        (ONE,),
    ),
    Body("upper case", OBSERVED, "The id in upper case, as the document shows it.", _ids(ONE.upper()), (ONE,)),
    Body("mixed case", ASSUMED, "The id may be in any letter case.", _ids(ONE.title()), (ONE,)),
    Body("an id twice", ASSUMED, "An id that occurs twice is approved once.", _ids(ONE, ONE), (ONE, ONE)),
    Body(
        "incarnation as text",
        OBSERVED,
        'DocumentIncarnation as a string ("5"), as in old samples, is ignored.',
        _ids(ONE, before='"DocumentIncarnation":"5",'),
        (ONE,),
    ),
    Body(
        "incarnation as a number",
        OBSERVED,
        "DocumentIncarnation as a number is ignored.",
        _ids(ONE, before='"DocumentIncarnation":5,'),
        (ONE,),
    ),
    Body(
        "incarnation of any type",
        ASSUMED,
        "DocumentIncarnation of any other type is ignored.",
        _ids(ONE, after=',"DocumentIncarnation":[null,-1e400]'),
        (ONE,),
    ),
    Body(
        "unknown members",
        ASSUMED,
        "Unknown members are ignored, at the top level and in a start request.",
        b'{"Reason":{},"StartRequests":[{"Note":1,"EventId":"' + ONE.encode() + b'","EventType":"Reboot"}]}',
        (ONE,),
    ),
    Body(
        "UTF-8 with a byte order mark",
        ASSUMED,
        "A byte order mark before UTF-8 is ignored.",
        b"\xef\xbb\xbf" + _ids(ONE),
        (ONE,),
    ),
    Body("UTF-16", ASSUMED, "UTF-16 with a byte order mark is accepted.", _ids(ONE).decode().encode("utf-16"), (ONE,)),
    Body(
        "id of any form",
        ASSUMED,
        "The form of the id is not checked here. An unknown id is rejected later.",
        _ids("x"),
        ("x",),
    ),
    Body("no body", DOCUMENTED, "A missing body is rejected.", b"", NOT_JSON),
    Body("not JSON", DOCUMENTED, "Text that is not JSON is rejected.", b"StartRequests=" + ONE.encode(), NOT_JSON),
    Body("truncated", DOCUMENTED, "Truncated JSON is rejected.", _ids(ONE)[:-1], NOT_JSON),
    Body("data after the object", ASSUMED, "Data after the object is rejected.", _ids(ONE) + b"{}", NOT_JSON),
    Body("invalid UTF-8", ASSUMED, "Invalid UTF-8 is rejected.", b'{"StartRequests":"\xff\xfe"}', NOT_JSON),
    Body("nested too deeply", ASSUMED, "JSON that is nested too deeply is rejected.", b"[" * 60_000, NOT_JSON),
    Body(
        "number too long",
        ASSUMED,
        "A number with thousands of digits is rejected.",
        b'{"a":' + b"9" * 6000 + b"}",
        NOT_JSON,
    ),
    Body("an array", DOCUMENTED, "The body must be an object.", b"[]", NOT_AN_OBJECT),
    Body("null", ASSUMED, "null is not an object.", b"null", NOT_AN_OBJECT),
    Body("no StartRequests", DOCUMENTED, "StartRequests must be present.", b"{}", NO_REQUESTS),
    Body(
        "wrong letter case",
        ASSUMED,
        "Member names are case-sensitive.",
        b'{"startrequests":[{"EventId":"x"}]}',
        NO_REQUESTS,
    ),
    Body("empty StartRequests", DOCUMENTED, "StartRequests must not be empty.", b'{"StartRequests":[]}', NO_REQUESTS),
    Body(
        "StartRequests not an array",
        DOCUMENTED,
        "StartRequests must be an array.",
        b'{"StartRequests":{"EventId":"x"}}',
        NO_REQUESTS,
    ),
    Body(
        "start request not an object",
        DOCUMENTED,
        "A start request must be an object.",
        b'{"StartRequests":["x"]}',
        NO_ID,
    ),
    Body("no EventId", DOCUMENTED, "A start request must have an EventId.", b'{"StartRequests":[{}]}', NO_ID),
    Body("EventId a number", DOCUMENTED, "An EventId must be a string.", b'{"StartRequests":[{"EventId":1}]}', NO_ID),
    Body(
        "one of two without EventId",
        ASSUMED,
        "One invalid start request rejects the whole body.",
        b'{"StartRequests":[{"EventId":"x"},{}]}',
        NO_ID,
    ),
)

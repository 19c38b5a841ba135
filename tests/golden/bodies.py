"""Bodies of approvals, and what is read in each: the ids in the core's spelling, or why it is refused."""

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
    """A body and its outcome: ids, or the problem it is refused with."""

    name: str
    mark: str
    says: str
    body: bytes
    outcome: tuple[str, ...] | str


def _ids(*ids: str, before: str = "", after: str = "") -> bytes:
    requests = ",".join(f'{{"EventId":"{event_id}"}}' for event_id in ids)
    return f'{{{before}"StartRequests":[{requests}]{after}}}'.encode()


BODIES = (
    Body("one id", DOCUMENTED, "One event is approved by its id.", _ids(ONE), (ONE,)),
    Body("several ids", DOCUMENTED, "Several events are approved at once.", _ids(ONE, TWO), (ONE, TWO)),
    Body(
        "spaced out",
        OBSERVED,
        "White space means nothing: samples send indented JSON.",
        b'{\r\n  "StartRequests" : [ {\r\n\t"EventId": "' + ONE.encode() + b'" } ]\r\n}\r\n',
        (ONE,),
    ),
    Body(
        "upper case", OBSERVED, "The id comes back as the document spells it, in upper case.", _ids(ONE.upper()), (ONE,)
    ),
    Body("mixed case", ASSUMED, "Letter case of an id means nothing.", _ids(ONE.title()), (ONE,)),
    Body("an id twice", ASSUMED, "The same id twice is read twice, and approved once.", _ids(ONE, ONE), (ONE, ONE)),
    Body(
        "incarnation as text",
        OBSERVED,
        'Old samples send DocumentIncarnation as text ("5"): ignored.',
        _ids(ONE, before='"DocumentIncarnation":"5",'),
        (ONE,),
    ),
    Body(
        "incarnation as a number",
        OBSERVED,
        "Others send it as a number: ignored.",
        _ids(ONE, before='"DocumentIncarnation":5,'),
        (ONE,),
    ),
    Body(
        "incarnation of any form",
        ASSUMED,
        "Whatever it is, it is never a reason to refuse.",
        _ids(ONE, after=',"DocumentIncarnation":[null,-1e400]'),
        (ONE,),
    ),
    Body(
        "unknown members",
        ASSUMED,
        "Members that nobody knows are ignored, at the top and in a request.",
        b'{"Reason":{},"StartRequests":[{"Note":1,"EventId":"' + ONE.encode() + b'","EventType":"Reboot"}]}',
        (ONE,),
    ),
    Body(
        "UTF-8 with a mark",
        ASSUMED,
        "A byte order mark before UTF-8 is passed over.",
        b"\xef\xbb\xbf" + _ids(ONE),
        (ONE,),
    ),
    Body("UTF-16", ASSUMED, "UTF-16 with a byte order mark is read.", _ids(ONE).decode().encode("utf-16"), (ONE,)),
    Body(
        "any text",
        ASSUMED,
        "What the id looks like is not judged here; an unknown one is refused later.",
        _ids("x"),
        ("x",),
    ),
    Body("nothing", DOCUMENTED, "No body at all is no approval.", b"", NOT_JSON),
    Body("not JSON", DOCUMENTED, "Text that is not JSON is refused.", b"StartRequests=" + ONE.encode(), NOT_JSON),
    Body("cut off", DOCUMENTED, "JSON that ends early is refused.", _ids(ONE)[:-1], NOT_JSON),
    Body("more after it", ASSUMED, "Anything behind the object is refused.", _ids(ONE) + b"{}", NOT_JSON),
    Body("broken UTF-8", ASSUMED, "Bytes that are no text are refused.", b'{"StartRequests":"\xff\xfe"}', NOT_JSON),
    Body("too deep", ASSUMED, "Nesting without end is refused.", b"[" * 60_000, NOT_JSON),
    Body(
        "too long a number",
        ASSUMED,
        "A number of thousands of digits is refused.",
        b'{"a":' + b"9" * 6000 + b"}",
        NOT_JSON,
    ),
    Body("an array", DOCUMENTED, "The body must be an object.", b"[]", NOT_AN_OBJECT),
    Body("null", ASSUMED, "null is no object.", b"null", NOT_AN_OBJECT),
    Body("no requests", DOCUMENTED, "StartRequests must be there.", b"{}", NO_REQUESTS),
    Body("wrong letter case", ASSUMED, "Member names are exact.", b'{"startrequests":[{"EventId":"x"}]}', NO_REQUESTS),
    Body("empty requests", DOCUMENTED, "StartRequests must name something.", b'{"StartRequests":[]}', NO_REQUESTS),
    Body(
        "requests not a list",
        DOCUMENTED,
        "StartRequests must be an array.",
        b'{"StartRequests":{"EventId":"x"}}',
        NO_REQUESTS,
    ),
    Body("a bare id", DOCUMENTED, "A start request must be an object.", b'{"StartRequests":["x"]}', NO_ID),
    Body("no id", DOCUMENTED, "A start request must have an EventId.", b'{"StartRequests":[{}]}', NO_ID),
    Body("id a number", DOCUMENTED, "An EventId must be text.", b'{"StartRequests":[{"EventId":1}]}', NO_ID),
    Body(
        "one of two without id",
        ASSUMED,
        "One bad request spoils all.",
        b'{"StartRequests":[{"EventId":"x"},{}]}',
        NO_ID,
    ),
)

"""Answers around the document: other paths and verbs, strangers, the order of checks, /metadata/instance."""

from __future__ import annotations

from functools import partial

from forewarn.wire.versions import INSTANCE_VERSIONS
from golden.answers_poll import at
from golden.cases import ASSUMED, DOCUMENTED, OBSERVED
from golden.rows import (
    APP_0,
    BAD_INSTANCE_VERSION,
    BAD_VERSION,
    EVENTS,
    FORWARDED,
    JSON,
    NEWEST,
    NO_HEADER,
    NO_PATH,
    NO_VERB,
    NOT_A_VM,
    ONLY_GET,
    QUIET,
    STRANGER,
    TEXT,
    TRUE,
    TWICE,
    Row,
)

_THROUGH = ("X-Forwarded-For", "10.0.0.1")

forwarded = partial(Row, status=400, answer=FORWARDED)
no_path = partial(Row, status=404, answer=NO_PATH)
no_verb = partial(Row, status=405, answer=NO_VERB, allow="GET, POST")
twice = partial(Row, status=400, answer=TWICE)

PATHS = (
    forwarded(name="forwarded", mark=DOCUMENTED, says="What came through a proxy is refused.",
              headers=(*TRUE, _THROUGH)),
    forwarded(name="forwarded in lower case", mark=DOCUMENTED, says="X-Forwarded-For is refused however it is spelt.",
              headers=(*TRUE, ("x-forwarded-for", "127.0.0.1"))),
    forwarded(name="forwarded by nobody", mark=ASSUMED, says="X-Forwarded-For is refused whatever it says.",
              headers=(*TRUE, ("X-Forwarded-For", ""))),
    forwarded(name="forwarded approval", mark=DOCUMENTED, says="An approval through a proxy is refused.",
              method="POST", body=b"{}",
              headers=(*TRUE, _THROUGH)),
    forwarded(name="forwarded instance", mark=DOCUMENTED, says="The sister endpoint refuses what came through a proxy.",
              target="/metadata/instance?api-version=2021-02-01", headers=(*TRUE, _THROUGH)),
    *(
        no_path(name=f"path {path}", mark=DOCUMENTED, says="There is nothing at another path.", target=path)
        for path in ("/", "/metadata", "/metadata/identity/oauth2/token?api-version=2018-02-01", "/latest/meta-data/")
    ),
    no_path(name="path below the document", mark=ASSUMED, says="There is nothing below the document.",
            target=NEWEST.replace("events?", "events/x?")),
    no_path(name="path with a slash behind", mark=ASSUMED,
            says="There is nothing at the document's path with a slash behind.",
            target=NEWEST.replace("events?", "events/?")),
    *(
        no_verb(name=f"verb {verb}", mark=DOCUMENTED, says="The document takes GET and POST alone.", method=verb)
        for verb in ("HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
    ),
    twice(name="query name twice", mark=DOCUMENTED, says="A query name may be given once.",
          target=f"{NEWEST}&api-version=2020-07-01"),
    twice(name="query name twice, spelt differently", mark=ASSUMED,
          says="Letter case does not make another query name.",
          target=f"{NEWEST}&API-VERSION=2019-08-01"),
    twice(name="unknown query name twice", mark=DOCUMENTED, says="A query name may be given once, known or not.",
          target=f"{NEWEST}&a=1&a"),
)  # fmt: skip

STRANGERS = tuple(
    Row(name=f"stranger: {name}", mark=ASSUMED,
        says="Who calls from no VM's address gets the same answer at every path, and learns nothing.",
        source=STRANGER, method=method, target=target, headers=headers, status=404, answer=NOT_A_VM)
    for name, method, target, headers in (
        ("document", "GET", NEWEST, TRUE),
        ("no header", "GET", NEWEST, ()),
        ("junk version", "GET", at("junk"), TRUE),
        ("approval", "POST", NEWEST, TRUE),
        ("verb", "DELETE", NEWEST, TRUE),
        ("forwarded", "GET", NEWEST, (*TRUE, ("X-Forwarded-For", "127.0.0.1"))),
        ("instance", "GET", "/metadata/instance?api-version=2021-02-01", TRUE),
        ("versions", "GET", "/metadata/versions", TRUE),
        ("root", "GET", "/", ()),
    )
)  # fmt: skip

_ORDER = "Of two things that are wrong the earlier in the order of checks is told:"
ORDER = (
    forwarded(name="order: forwarded, path", mark=ASSUMED, says=f"{_ORDER} forwarded before path.", target="/x",
              headers=(_THROUGH,)),
    no_path(name="order: path, verb", mark=ASSUMED, says=f"{_ORDER} path before verb.", target="/x?a&a", method="PUT",
            headers=()),
    no_verb(name="order: verb, twice", mark=ASSUMED, says=f"{_ORDER} verb before names given twice.", method="PUT",
            target=f"{EVENTS}?a&a", headers=()),
    twice(name="order: twice, header", mark=ASSUMED, says=f"{_ORDER} names given twice before the header.",
          target=f"{EVENTS}?a&a", headers=()),
    Row(name="order: header, version", mark=ASSUMED, says=f"{_ORDER} header before version.", target=at("junk"),
        headers=(), status=400, answer=NO_HEADER),
    Row(name="order: version, body", mark=ASSUMED, says=f"{_ORDER} version before body.", method="POST", target=EVENTS,
        body=b"junk", status=400, answer=BAD_VERSION),
    Row(name="order: header, body", mark=ASSUMED, says=f"{_ORDER} header before body, even one that is too large.",
        method="POST", headers=(), body=b" " * 70000, status=400, answer=NO_HEADER),
    twice(name="order: twice, first preview", mark=ASSUMED, says=f"{_ORDER} names given twice, whatever the version.",
          target=f"{at('2017-03-01')}&a&a", headers=()),
)  # fmt: skip

_INTERFACE = (
    b'{"ipv4":{"ipAddress":[{"privateIpAddress":"127.0.0.3","publicIpAddress":""}],'
    b'"subnet":[{"address":"127.0.0.0","prefix":"24"}]},"ipv6":{"ipAddress":[]},"macAddress":"000D3A008F07"}'
)


def _instance(name: str, path: str, answer: str | bytes, says: str, *, mark: str = DOCUMENTED, status: int = 200,
              query: str = "api-version=2021-02-01", source: str = QUIET) -> Row:  # fmt: skip
    body = answer if isinstance(answer, bytes) else answer.encode()
    kind = TEXT if "format=text" in query and status == 200 else JSON
    target = f"/metadata/instance{path}?{query}"
    return Row(name=f"instance: {name}", mark=mark, says=says, target=target, source=source, status=status, answer=body,
               content_type=kind)  # fmt: skip


def _error(text: str) -> str:
    return f'{{ "error": "{text}" }}'


_AS_TEXT = "api-version=2021-02-01&format=text"
INSTANCE = (
    _instance("whole tree", "", b'{"network":{"interface":[' + _INTERFACE + b"]}}", query="api-version=2017-03-01",
              says="The whole of what a version tells; the first one knew the network alone."),
    _instance("branch", "/network/interface", b"[" + _INTERFACE + b"]", "A branch is asked for by its path."),
    _instance("index", "/network/interface/0", _INTERFACE, "A place in an array is asked for by its number."),
    _instance("index beyond", "/network/interface/1", _error("Not found. /metadata/instance/network/interface has no "
              "'1' at api-version 2021-02-01."), "A place that is not there is not found.", status=404),
    _instance("leaf as text", "/compute/name", "quiet", "A single value as text is bare, without a line's end.",
              query=_AS_TEXT),
    _instance("leaf in another letter case", "/Compute/NAME", "quiet", "Letter case of the path means nothing.",
              query=_AS_TEXT, mark=ASSUMED),
    _instance("scale-set name", "/compute/vmScaleSetName", "app", "A scale-set instance knows its set.", query=_AS_TEXT,
              source=APP_0),
    _instance("numbers are text", "/compute/platformUpdateDomain", "0", "All primitives are strings.", query=_AS_TEXT),
    _instance("empty leaf", "/compute/zone", "", "What is absent is an empty string.", query=_AS_TEXT),
    _instance("list as text", "/network", "interface/", "A branch as text lists what is below it.", query=_AS_TEXT,
              mark=ASSUMED),
    _instance("leaf without format", "/compute/name", _error("Bad request. /metadata/instance/compute/name is a single "
              "value: ask for it with format=text."), "A single value is not JSON.", status=400),
    _instance("unknown element", "/compute/colour", _error("Not found. /metadata/instance/compute has no 'colour' at "
              "api-version 2021-02-01."), "What is not there is not found.", status=404),
    _instance("element of a later version", "/compute/osProfile", _error("Not found. /metadata/instance/compute has no "
              "'osProfile' at api-version 2019-06-01. Did you mean 'provider'?"),
              "What a version did not have yet is not found.", status=404, query="api-version=2019-06-01"),
    _instance("no version", "", BAD_INSTANCE_VERSION, "Without a version: 400 and the newest ones.", mark=OBSERVED,
              status=400, query=""),
    _instance("unknown version", "", BAD_INSTANCE_VERSION, "An unknown version gets the same here, not 404.",
              mark=OBSERVED, status=400, query="api-version=2018-01-01"),
    Row(name="instance: no header", mark=DOCUMENTED, says="The header is required at every version here.",
        target="/metadata/instance?api-version=2017-03-01", headers=(), status=400, answer=NO_HEADER),
    Row(name="instance: POST", mark=DOCUMENTED, says="The tree can only be read.", method="POST", status=405,
        answer=ONLY_GET,
        target="/metadata/instance?api-version=2021-02-01", allow="GET"),
    twice(name="instance: query name twice", mark=DOCUMENTED, says="A query name may be given once.",
          target="/metadata/instance?api-version=2021-02-01&format=json&format=text"),
    Row(name="versions", mark=OBSERVED, says="All versions of the sister endpoint, ascending; no api-version needed.",
        target="/metadata/versions",
        answer=('{"apiVersions":[' + ",".join(f'"{name}"' for name in INSTANCE_VERSIONS) + "]}").encode()),
    Row(name="versions without header", mark=ASSUMED, says="The list of versions requires the header.", headers=(),
        target="/metadata/versions", status=400, answer=NO_HEADER),
    Row(name="versions: HEAD", mark=ASSUMED, says="The list of versions takes GET alone.", method="HEAD",
        target="/metadata/versions",
        status=405, answer=ONLY_GET, allow="GET"),
)  # fmt: skip

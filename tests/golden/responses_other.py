"""Other responses: paths and methods, unknown callers, the validation order, /metadata/instance."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from forewarn.wire.versions import INSTANCE_VERSIONS
from golden.cases import ASSUMED, DOCUMENTED, OBSERVED
from golden.responses_poll import at
from golden.rows import (
    APP_0,
    BAD_INSTANCE_VERSION,
    BAD_VERSION,
    EMPTY,
    EVENTS,
    FORWARDED,
    FULL,
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

INSTANCE_DOCUMENTS = Path(__file__).with_name("instance")

_THROUGH = ("X-Forwarded-For", "10.0.0.1")

forwarded = partial(Row, status=400, answer=FORWARDED)
no_path = partial(Row, status=404, answer=NO_PATH)
no_verb = partial(Row, status=405, answer=NO_VERB, allow="GET, POST")
twice = partial(Row, status=400, answer=TWICE)

PATHS = (
    forwarded(name="forwarded", mark=DOCUMENTED, says="A request through a proxy gets 400.", headers=(*TRUE, _THROUGH)),
    forwarded(
        name="forwarded in lower case",
        mark=DOCUMENTED,
        says="X-Forwarded-For is rejected in any letter case.",
        headers=(*TRUE, ("x-forwarded-for", "127.0.0.1")),
    ),
    forwarded(
        name="forwarded, empty",
        mark=ASSUMED,
        says="X-Forwarded-For is rejected with any value.",
        headers=(*TRUE, ("X-Forwarded-For", "")),
    ),
    forwarded(
        name="forwarded approval",
        mark=DOCUMENTED,
        says="An approval through a proxy gets 400.",
        method="POST",
        body=b"{}",
        headers=(*TRUE, _THROUGH),
    ),
    forwarded(
        name="forwarded instance",
        mark=DOCUMENTED,
        says="/metadata/instance rejects a request through a proxy.",
        target="/metadata/instance?api-version=2021-02-01",
        headers=(*TRUE, _THROUGH),
    ),
    *(
        no_path(name=f"path {path}", mark=DOCUMENTED, says="An unknown path gets 404.", target=path)
        for path in ("/", "/metadata", "/metadata/identity/oauth2/token?api-version=2018-02-01", "/latest/meta-data/")
    ),
    no_path(
        name="path below the document",
        mark=ASSUMED,
        says="A path below the document gets 404.",
        target=NEWEST.replace("events?", "events/x?"),
    ),
    *(
        Row(
            name=f"path with a trailing slash at {version}",
            mark=ASSUMED,
            says="A slash at the end of the path has no effect.",
            target=f"{EVENTS}/?api-version={version}",
            source=QUIET,
            answer=EMPTY,
            tag=0,
        )
        for version in ("2017-03-01", "2020-07-01")
    ),
    no_path(
        name="path with two trailing slashes",
        mark=ASSUMED,
        says="Only one slash at the end of the path is ignored.",
        target=NEWEST.replace("events?", "events//?"),
    ),
    no_verb(
        name="path with a trailing slash: PUT",
        mark=ASSUMED,
        says="A slash at the end of the path has no effect on the methods.",
        target=NEWEST.replace("events?", "events/?"),
        method="PUT",
    ),
    *(
        no_verb(name=f"method {verb}", mark=DOCUMENTED, says="The document supports only GET and POST.", method=verb)
        for verb in ("HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
    ),
    twice(
        name="duplicate query parameter",
        mark=DOCUMENTED,
        says="A query parameter may occur once.",
        target=f"{NEWEST}&api-version=2020-07-01",
    ),
    twice(
        name="duplicate query parameter, other letter case",
        mark=ASSUMED,
        says="Letter case does not distinguish query parameters.",
        target=f"{NEWEST}&API-VERSION=2019-08-01",
    ),
    twice(
        name="duplicate unknown query parameter",
        mark=DOCUMENTED,
        says="An unknown query parameter may occur once, too.",
        target=f"{NEWEST}&a=1&a",
    ),
)

STRANGERS = tuple(
    Row(
        name=f"unknown caller: {name}",
        mark=ASSUMED,
        says="A caller whose address belongs to no VM gets the same 404 at every path.",
        source=STRANGER,
        method=method,
        target=target,
        headers=headers,
        status=404,
        answer=NOT_A_VM,
    )
    for name, method, target, headers in (
        ("document", "GET", NEWEST, TRUE),
        ("no header", "GET", NEWEST, ()),
        ("junk version", "GET", at("junk"), TRUE),
        ("approval", "POST", NEWEST, TRUE),
        ("method", "DELETE", NEWEST, TRUE),
        ("forwarded", "GET", NEWEST, (*TRUE, ("X-Forwarded-For", "127.0.0.1"))),
        ("instance", "GET", "/metadata/instance?api-version=2021-02-01", TRUE),
        ("versions", "GET", "/metadata/versions", TRUE),
        ("root", "GET", "/", ()),
    )
)

_ORDER = "The service reports the first error in the validation order:"
ORDER = (
    forwarded(
        name="order: forwarded, path",
        mark=ASSUMED,
        says=f"{_ORDER} forwarded before path.",
        target="/x",
        headers=(_THROUGH,),
    ),
    no_path(
        name="order: path, method",
        mark=ASSUMED,
        says=f"{_ORDER} path before method.",
        target="/x?a&a",
        method="PUT",
        headers=(),
    ),
    no_verb(
        name="order: method, duplicate",
        mark=ASSUMED,
        says=f"{_ORDER} method before duplicate parameter.",
        method="PUT",
        target=f"{EVENTS}?a&a",
        headers=(),
    ),
    twice(
        name="order: duplicate, header",
        mark=ASSUMED,
        says=f"{_ORDER} duplicate parameter before header.",
        target=f"{EVENTS}?a&a",
        headers=(),
    ),
    Row(
        name="order: header, version",
        mark=ASSUMED,
        says=f"{_ORDER} header before version.",
        target=at("junk"),
        headers=(),
        status=400,
        answer=NO_HEADER,
    ),
    Row(
        name="order: version, body",
        mark=ASSUMED,
        says=f"{_ORDER} version before body.",
        method="POST",
        target=EVENTS,
        body=b"junk",
        status=400,
        answer=BAD_VERSION,
    ),
    Row(
        name="order: header, body",
        mark=ASSUMED,
        says=f"{_ORDER} header before body, also before a body that is too large.",
        method="POST",
        headers=(),
        body=b" " * 70000,
        status=400,
        answer=NO_HEADER,
    ),
    twice(
        name="order: duplicate, first preview",
        mark=ASSUMED,
        says=f"{_ORDER} duplicate parameter, also at the first preview.",
        target=f"{at('2017-03-01')}&a&a",
        headers=(),
    ),
)

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
    _instance(
        "whole tree",
        "",
        b'{"network":{"interface":[' + _INTERFACE + b"]}}",
        query="api-version=2017-03-01",
        says="The whole tree of a version. The first version has only the network.",
    ),
    *(
        _instance(
            f"every element at {version}",
            "",
            INSTANCE_DOCUMENTS.joinpath(f"{version}.json").read_bytes(),
            query=f"api-version={version}",
            source=FULL,
            says="The whole tree of a VM for which the fleet file has every key.",
        )
        for version in ("2017-03-01", "2017-04-02", "2025-04-07")
    ),
    _instance("branch", "/network/interface", b"[" + _INTERFACE + b"]", "A path selects a branch."),
    _instance("index", "/network/interface/0", _INTERFACE, "A number selects an element of an array."),
    _instance(
        "index out of range",
        "/network/interface/1",
        _error("Not found. /metadata/instance/network/interface has no '1' at api-version 2021-02-01."),
        "An index out of range gets 404.",
        status=404,
    ),
    _instance(
        "value as text", "/compute/name", "quiet", "A single value as text is bare, without a newline.", query=_AS_TEXT
    ),
    _instance(
        "value in another letter case",
        "/Compute/NAME",
        "quiet",
        "The path matches in any letter case.",
        query=_AS_TEXT,
        mark=ASSUMED,
    ),
    _instance(
        "scale-set name",
        "/compute/vmScaleSetName",
        "app",
        "A scale set instance has the name of its set.",
        query=_AS_TEXT,
        source=APP_0,
    ),
    _instance(
        "numbers are text", "/compute/platformUpdateDomain", "0", "All primitive values are strings.", query=_AS_TEXT
    ),
    _instance("empty value", "/compute/zone", "", "An absent value is an empty string.", query=_AS_TEXT),
    _instance(
        "user data",
        "/compute/userData",
        "c2l6ZTogZ3LDtsOfZQ==",
        "User data is in base64.",
        query="api-version=2021-01-01&format=text",
        source=FULL,
    ),
    _instance(
        "user data of a VM without",
        "/compute/userData",
        "",
        "A VM reads only its own user data.",
        query="api-version=2025-04-07&format=text",
    ),
    _instance(
        "user data before its version",
        "/compute/userData",
        _error(
            "Not found. /metadata/instance/compute has no "
            "'userData' at api-version 2020-12-01. Did you mean 'customData'?"
        ),
        "An element of a later version gets 404.",
        status=404,
        query="api-version=2020-12-01&format=text",
        source=FULL,
    ),
    _instance(
        "custom data",
        "/compute/customData",
        "",
        "Without custom data in the fleet file it is empty, as on Azure.",
        query="api-version=2019-02-01&format=text",
    ),
    _instance(
        "password authentication",
        "/compute/osProfile/disablePasswordAuthentication",
        "false",
        "It is true only for a VM with public keys.",
        query=_AS_TEXT,
        mark=ASSUMED,
    ),
    *(
        _instance(
            f"trailing slash: {path}",
            path,
            answer,
            "A slash at the end of the path has no effect.",
            query=query,
            mark=mark,
        )
        for path, query, answer, mark in (
            ("/", "api-version=2017-03-01", b'{"network":{"interface":[' + _INTERFACE + b"]}}", OBSERVED),
            ("/network/interface/0/", "api-version=2025-04-07", _INTERFACE, ASSUMED),
            ("/compute/name/", _AS_TEXT, "quiet", ASSUMED),
        )
    ),
    _instance(
        "two trailing slashes",
        "/compute//",
        _error("Not found. /metadata/instance/compute has no '' at api-version 2021-02-01."),
        "Only one slash at the end of the path is ignored.",
        mark=ASSUMED,
        status=404,
    ),
    _instance(
        "list as text",
        "/network",
        "interface/",
        "A branch as text lists the names below it.",
        query=_AS_TEXT,
        mark=ASSUMED,
    ),
    _instance(
        "value without format",
        "/compute/name",
        _error("Bad request. /metadata/instance/compute/name is a single value: ask for it with format=text."),
        "A single value needs format=text.",
        status=400,
    ),
    _instance(
        "unknown element",
        "/compute/colour",
        _error("Not found. /metadata/instance/compute has no 'colour' at api-version 2021-02-01."),
        "An unknown element gets 404.",
        status=404,
    ),
    _instance(
        "element of a later version",
        "/compute/osProfile",
        _error("Not found. /metadata/instance/compute has no 'osProfile' at api-version 2019-06-01."),
        "An element of a later version gets 404.",
        status=404,
        query="api-version=2019-06-01",
    ),
    _instance(
        "no version",
        "",
        BAD_INSTANCE_VERSION,
        "A missing version gets 400 with the newest versions.",
        mark=OBSERVED,
        status=400,
        query="",
    ),
    _instance(
        "unknown version",
        "",
        BAD_INSTANCE_VERSION,
        "An unknown version gets the same 400, not 404.",
        mark=OBSERVED,
        status=400,
        query="api-version=2018-01-01",
    ),
    Row(
        name="instance: no header",
        mark=DOCUMENTED,
        says="/metadata/instance requires the header at every version.",
        target="/metadata/instance?api-version=2017-03-01",
        headers=(),
        status=400,
        answer=NO_HEADER,
    ),
    Row(
        name="instance: POST",
        mark=DOCUMENTED,
        says="The tree supports only GET.",
        method="POST",
        status=405,
        answer=ONLY_GET,
        target="/metadata/instance?api-version=2021-02-01",
        allow="GET",
    ),
    twice(
        name="instance: duplicate query parameter",
        mark=DOCUMENTED,
        says="A query parameter may occur once.",
        target="/metadata/instance?api-version=2021-02-01&format=json&format=text",
    ),
    Row(
        name="versions",
        mark=OBSERVED,
        says="All versions of /metadata/instance, ascending. It needs no api-version.",
        target="/metadata/versions",
        answer=('{"apiVersions":[' + ",".join(f'"{name}"' for name in INSTANCE_VERSIONS) + "]}").encode(),
    ),
    Row(
        name="versions with a trailing slash",
        mark=ASSUMED,
        says="A slash at the end of the path has no effect.",
        target="/metadata/versions/",
        answer=('{"apiVersions":[' + ",".join(f'"{name}"' for name in INSTANCE_VERSIONS) + "]}").encode(),
    ),
    Row(
        name="versions without header",
        mark=ASSUMED,
        says="The list of versions requires the header.",
        headers=(),
        target="/metadata/versions",
        status=400,
        answer=NO_HEADER,
    ),
    Row(
        name="versions: HEAD",
        mark=ASSUMED,
        says="The list of versions supports only GET.",
        method="HEAD",
        target="/metadata/versions",
        status=405,
        answer=ONLY_GET,
        allow="GET",
    ),
)

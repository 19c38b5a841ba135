"""Section 6 of the contract: /metadata/instance and /metadata/versions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import CheckRegistry, CheckSkipped, Mark
from forewarn.verify.endpoint import INSTANCE_PATH, target_for
from forewarn.verify.exchange import CONNECTION_CLOSE, METADATA_TRUE, truncate
from forewarn.verify.refusals import BAD_VERSION_TEXT, MISSING_HEADER, error_text, expect_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.verify.exchange import HttpResponse
    from forewarn.verify.session import Session

check = CheckRegistry(6, "instance")

_VERSION = "2021-02-01"
_CLIENT_VERSIONS = ("2017-08-01", "2019-06-01", "2019-08-01", "2020-06-01", "2020-09-01", "2021-02-01", "2021-12-13")
_CLIENT_FIELDS = [
    "name",
    "resourceGroupName",
    "subscriptionId",
    "vmScaleSetName",
    "resourceId",
    "location",
    "vmId",
    "vmSize",
    "placementGroupId",
    "platformFaultDomain",
    "platformUpdateDomain",
    "tags",
    "tagsList",
    "osProfile",
    "priority",
    "evictionPolicy",
    "zone",
]
"""Members of compute that clients read."""
_FIRST_VERSION = {
    **dict.fromkeys(("name", "location", "vmId", "platformFaultDomain", "platformUpdateDomain"), "2017-04-02"),
    **dict.fromkeys(("placementGroupId", "resourceGroupName", "subscriptionId", "tags"), "2017-08-01"),
    **dict.fromkeys(("vmScaleSetName", "zone"), "2017-12-01"),
    "resourceId": "2019-03-11",
    "tagsList": "2019-06-04",
    "osProfile": "2020-07-15",
    **dict.fromkeys(("priority", "evictionPolicy"), "2020-12-01"),
    "virtualMachineScaleSet": "2021-03-01",
    **dict.fromkeys(("plan", "publicKeys"), "2018-04-02"),
    "customData": "2019-02-01",
    "storageProfile": "2019-06-01",
    **dict.fromkeys(("isHostCompatibilityLayerVm", "securityProfile"), "2020-06-01"),
    "licenseType": "2020-09-01",
    "userData": "2021-01-01",
    "extendedLocation": "2021-03-01",
    "platformSubFaultDomain": "2021-10-01",
    "additionalCapabilities": "2021-11-01",
    **dict.fromkeys(("host", "hostGroup"), "2021-11-15"),
}
"""Members of compute: name to the first version that has it."""


def _json(response: HttpResponse) -> Any:
    try:
        value = json.loads(response.body)
    except ValueError:
        value = None
    response.expect(response.status == 200 and value is not None, "200 and JSON")
    return value


def _tree(session: Session, version: str = _VERSION) -> tuple[HttpResponse, dict[str, Any]]:
    def request(session: Session) -> tuple[HttpResponse, Any]:
        response = session.endpoint.request(target=target_for(version, INSTANCE_PATH))
        return response, _json(response)

    response, value = session.cached(f"instance {version}", request)
    response.expect(isinstance(value, dict), "a JSON object")
    return response, value


def _compute(session: Session, version: str = _VERSION) -> tuple[HttpResponse, dict[str, Any]]:
    response, value = _tree(session, version)
    compute = value.get("compute")
    response.expect(isinstance(compute, dict), "an object compute")
    return response, compute if isinstance(compute, dict) else {}


def _nodes(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in parts:
        yield from _nodes(below, f"{path}/{key}")


def _text(session: Session, path: str) -> HttpResponse:
    return session.endpoint.request(target=f"{target_for(_VERSION, INSTANCE_PATH + path)}&format=text")


@check("whole-tree", Mark.DOCUMENTED, "GET /metadata/instance returns a tree with compute and network.")
def whole_tree(session: Session) -> None:
    response, value = _tree(session)
    response.expect({"compute", "network"} <= set(value), "members compute and network", actual=", ".join(value))


@check("all-strings", Mark.DOCUMENTED, 'All primitive values are strings ("0", "false"). An absent value is "".')
def all_strings(session: Session) -> None:
    response, value = _tree(session)
    for path, node in _nodes(value):
        response.expect(isinstance(node, str | list | dict), f"a string at {path}", actual=f"{node!r} at {path}")


@check("keys-alphabetical", Mark.OBSERVED, "Keys are in alphabetical order.")
def keys_alphabetical(session: Session) -> None:
    response, value = _tree(session)
    for path, node in _nodes(value):
        if isinstance(node, dict) and not path.endswith("/tags"):
            keys = list(node)
            expected = f"{path or 'the tree'} with its keys in alphabetical order"
            response.expect(keys == sorted(keys, key=str.lower), expected, actual=truncate(", ".join(keys)))


@check("client-fields", Mark.OBSERVED, "The tree has the fields of compute and network that clients read.")
def client_fields(session: Session) -> None:
    response, compute = _compute(session)
    missing = [name for name in _CLIENT_FIELDS if name not in compute]
    response.expect(
        not missing, f"compute with {', '.join(_CLIENT_FIELDS)}", actual=f"compute without {', '.join(missing)}"
    )
    _, value = _tree(session)
    paths = dict(_nodes(value))
    for path in (
        "/network/interface/0/ipv4/ipAddress/0/privateIpAddress",
        "/network/interface/0/macAddress",
        "/compute/osProfile/computerName",
    ):
        response.expect(path in paths, f"{path} in the tree", actual=truncate(", ".join(paths)))


@check(
    "fields-by-version",
    Mark.DOCUMENTED,
    "A field of compute is present from the version that introduced it, and not at older versions.",
)
def fields_by_version(session: Session) -> None:
    for version in ("2017-04-02", "2019-06-01", _VERSION, "2021-12-13"):
        response, compute = _compute(session, version)
        for name, since in _FIRST_VERSION.items():
            expected = f"compute.{name} from {since} on" if since <= version else f"no compute.{name} before {since}"
            actual = f"at {version} {', '.join(compute)}"
            response.expect((name in compute) == (since <= version), expected, actual=actual)


@check("scale-set-name", Mark.DOCUMENTED, "The name of a scale set instance is {set}_{number}.")
def scale_set_name(session: Session) -> None:
    response, compute = _compute(session)
    scale_set, name = str(compute.get("vmScaleSetName", "")), str(compute.get("name"))
    if not scale_set:
        raise CheckSkipped("this VM is not in a scale set")
    number = name.removeprefix(f"{scale_set}_")
    response.expect(number != name and number.isdecimal(), f"a name like {scale_set}_0", actual=name)


@check("subtree", Mark.DOCUMENTED, "The path of a request selects a branch of the tree.")
def subtree(session: Session) -> None:
    _, compute = _compute(session)
    response = session.endpoint.request(target=target_for(_VERSION, f"{INSTANCE_PATH}/compute"))
    response.expect(_json(response) == compute, "the same as compute in the whole tree")


@check("value-as-text", Mark.DOCUMENTED, "With format=text, a single value is plain text without a newline.")
def value_as_text(session: Session) -> None:
    _, compute = _compute(session)
    response = _text(session, "/compute/name")
    valid = response.status == 200 and response.body == str(compute.get("name")).encode()
    response.expect(valid, f"200 and exactly {compute.get('name')}", actual=f"{response.status}: {response.body!r}")
    content_type = response.header("content-type") or ""
    response.expect(
        content_type.lower().startswith("text/plain"),
        "Content-Type: text/plain",
        actual=f"Content-Type: {content_type}",
    )


@check("value-without-format", Mark.DOCUMENTED, "A request for a single value without format=text gets 400.")
def value_without_format(session: Session) -> None:
    expect_error(session.endpoint.request(target=target_for(_VERSION, f"{INSTANCE_PATH}/compute/name")), 400)


@check("array-index", Mark.DOCUMENTED, "A number in the path selects an element of an array.")
def array_index(session: Session) -> None:
    _, value = _tree(session)
    response = session.endpoint.request(target=target_for(_VERSION, f"{INSTANCE_PATH}/network/interface/0"))
    whole = dict(_nodes(value)).get("/network/interface/0")
    response.expect(_json(response) == whole, f"the first interface in the whole tree: {whole}")
    expect_error(session.endpoint.request(target=target_for(_VERSION, f"{INSTANCE_PATH}/network/interface/99")), 404)


@check("unknown-element", Mark.DOCUMENTED, "A request for an unknown element gets 404.")
def unknown_element(session: Session) -> None:
    expect_error(session.endpoint.request(target=target_for(_VERSION, f"{INSTANCE_PATH}/compute/colour")), 404)


@check("header-required", Mark.DOCUMENTED, "Every version requires the header Metadata.")
def header_required(session: Session) -> None:
    for version in (_VERSION, "2017-03-01"):
        expect_error(
            session.endpoint.request(target=target_for(version, INSTANCE_PATH), headers=()), 400, text=MISSING_HEADER
        )


@check("forwarded-rejected", Mark.DOCUMENTED, "A request through a proxy gets 400.")
def forwarded_rejected(session: Session) -> None:
    headers = (*METADATA_TRUE, ("X-Forwarded-For", "10.0.0.1"))
    expect_error(session.endpoint.request(target=target_for(_VERSION, INSTANCE_PATH), headers=headers), 400)


@check("duplicate-query-parameter", Mark.DOCUMENTED, "A request with the same query parameter twice gets 400.")
def duplicate_query_parameter(session: Session) -> None:
    expect_error(session.endpoint.request(target=f"{target_for(_VERSION, INSTANCE_PATH)}&format=json&format=json"), 400)


@check("only-get", Mark.DOCUMENTED, "A method other than GET gets 405.")
def only_get(session: Session) -> None:
    for method in ("POST", "HEAD"):
        expect_error(
            session.endpoint.request(method, target_for(_VERSION, INSTANCE_PATH), (*METADATA_TRUE, CONNECTION_CLOSE)),
            405,
        )


def _expect_bad_version(response: HttpResponse) -> None:
    try:
        value = json.loads(response.body)
    except ValueError:
        value = {}
    newest = value.get("newest-versions") if isinstance(value, dict) else None
    listed = isinstance(newest, list) and bool(newest) and newest == sorted(map(str, newest), reverse=True)
    expected = f'400 with the error "{BAD_VERSION_TEXT}" and newest-versions in descending order'
    response.expect(response.status == 400 and error_text(response) == BAD_VERSION_TEXT and listed, expected)


@check(
    "version-missing",
    Mark.OBSERVED,
    "A request without api-version gets 400. The body has the list `newest-versions`, which libraries read.",
)
def version_missing(session: Session) -> None:
    _expect_bad_version(session.endpoint.request(target=INSTANCE_PATH))


@check(
    "version-unknown",
    Mark.OBSERVED,
    "A request with an unknown version gets the same response as one without a version: 400, not 404.",
)
def version_unknown(session: Session) -> None:
    _expect_bad_version(session.endpoint.request(target=target_for("2018-01-01", INSTANCE_PATH)))


@check(
    "versions-list",
    Mark.OBSERVED,
    "GET /metadata/versions lists the versions in ascending order. The request needs no api-version.",
)
def versions_list(session: Session) -> None:
    response = session.endpoint.request(target="/metadata/versions")
    value = _json(response)
    found = value.get("apiVersions") if isinstance(value, dict) else None
    valid = isinstance(found, list) and bool(found) and found == sorted(set(map(str, found)))
    response.expect(valid, '{"apiVersions":[…]}, ascending')
    missing = [version for version in _CLIENT_VERSIONS if version not in (found or [])]
    response.expect(not missing, f"the versions that clients use, {', '.join(missing)} included")

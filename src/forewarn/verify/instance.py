"""Section 6 of the contract: /metadata/instance and /metadata/versions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import Mark, Rules, Skip
from forewarn.verify.endpoint import INSTANCE, at
from forewarn.verify.exchange import CLOSE, TRUE, cut
from forewarn.verify.refusals import BAD_VERSION_TEXT, NO_HEADER, error_of, refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.verify.exchange import Reply
    from forewarn.verify.session import Session

rules = Rules(6, "instance")

_VERSION = "2021-02-01"
_IN_USE = ("2017-08-01", "2019-06-01", "2019-08-01", "2020-06-01", "2020-09-01", "2021-02-01", "2021-12-13")
_READ = [
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
"""What clients read of compute."""
_INTRODUCED = {
    **dict.fromkeys(("name", "location", "vmId", "platformFaultDomain", "platformUpdateDomain"), "2017-04-02"),
    **dict.fromkeys(("placementGroupId", "resourceGroupName", "subscriptionId", "tags"), "2017-08-01"),
    **dict.fromkeys(("vmScaleSetName", "zone"), "2017-12-01"),
    "resourceId": "2019-03-11",
    "tagsList": "2019-06-04",
    "osProfile": "2020-07-15",
    **dict.fromkeys(("priority", "evictionPolicy"), "2020-12-01"),
    "virtualMachineScaleSet": "2021-03-01",
}
"""Fields of compute, by the version that introduced them."""


def _json(reply: Reply) -> Any:
    try:
        value = json.loads(reply.body)
    except ValueError:
        value = None
    reply.must(reply.status == 200 and value is not None, "200 and JSON")
    return value


def _tree(session: Session, version: str = _VERSION) -> tuple[Reply, dict[str, Any]]:
    def ask(session: Session) -> tuple[Reply, Any]:
        reply = session.here.ask(target=at(version, INSTANCE))
        return reply, _json(reply)

    reply, value = session.once(f"instance {version}", ask)
    reply.must(isinstance(value, dict), "a JSON object")
    return reply, value


def _compute(session: Session, version: str = _VERSION) -> tuple[Reply, dict[str, Any]]:
    reply, value = _tree(session, version)
    compute = value.get("compute")
    reply.must(isinstance(compute, dict), "an object compute")
    return reply, compute if isinstance(compute, dict) else {}


def _nodes(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in parts:
        yield from _nodes(below, f"{path}/{key}")


def _text(session: Session, path: str) -> Reply:
    return session.here.ask(target=f"{at(_VERSION, INSTANCE + path)}&format=text")


@rules("whole-tree", Mark.DOCUMENTED, "GET /metadata/instance gives a tree with compute and network.")
def whole_tree(session: Session) -> None:
    reply, value = _tree(session)
    reply.must({"compute", "network"} <= set(value), "members compute and network", came=", ".join(value))


@rules("all-strings", Mark.DOCUMENTED, 'All primitives are strings ("0", "false"), absent ones are "".')
def all_strings(session: Session) -> None:
    reply, value = _tree(session)
    for path, node in _nodes(value):
        reply.must(isinstance(node, str | list | dict), f"text at {path}", came=f"{node!r} at {path}")


@rules("keys-alphabetical", Mark.OBSERVED, "Keys stand in the order of the alphabet.")
def keys_alphabetical(session: Session) -> None:
    reply, value = _tree(session)
    for path, node in _nodes(value):
        if isinstance(node, dict) and not path.endswith("/tags"):
            keys = list(node)
            right = f"{path or 'the tree'} with its keys in order"
            reply.must(keys == sorted(keys, key=str.lower), right, came=cut(", ".join(keys)))


@rules("read-by-clients", Mark.OBSERVED, "What clients of Scheduled Events read of compute and network is there.")
def read_by_clients(session: Session) -> None:
    reply, compute = _compute(session)
    missing = [name for name in _READ if name not in compute]
    reply.must(not missing, f"compute with {', '.join(_READ)}", came=f"compute without {', '.join(missing)}")
    _, value = _tree(session)
    paths = dict(_nodes(value))
    for path in (
        "/network/interface/0/ipv4/ipAddress/0/privateIpAddress",
        "/network/interface/0/macAddress",
        "/compute/osProfile/computerName",
    ):
        reply.must(path in paths, f"{path} in the tree", came=cut(", ".join(paths)))


@rules("gated", Mark.DOCUMENTED, "A field of compute is there from the version that introduced it, and not before.")
def gated(session: Session) -> None:
    for version in ("2017-04-02", "2019-06-01", _VERSION):
        reply, compute = _compute(session, version)
        for name, since in _INTRODUCED.items():
            right = f"compute.{name} from {since} on" if since <= version else f"no compute.{name} before {since}"
            came = f"at {version} {', '.join(compute)}"
            reply.must((name in compute) == (since <= version), right, came=came)


@rules("scale-set-name", Mark.DOCUMENTED, "An instance of a scale set is called by the set's name and its number.")
def scale_set_name(session: Session) -> None:
    reply, compute = _compute(session)
    scale_set, name = str(compute.get("vmScaleSetName", "")), str(compute.get("name"))
    if not scale_set:
        raise Skip("this VM is in no scale set")
    number = name.removeprefix(f"{scale_set}_")
    reply.must(number != name and number.isdecimal(), f"a name like {scale_set}_0", came=name)


@rules("subtree", Mark.DOCUMENTED, "A branch of the tree is had by its path.")
def subtree(session: Session) -> None:
    _, compute = _compute(session)
    reply = session.here.ask(target=at(_VERSION, f"{INSTANCE}/compute"))
    reply.must(_json(reply) == compute, "the same as compute of the whole tree")


@rules("leaf-as-text", Mark.DOCUMENTED, "A single value is had as bare text with format=text, without a newline.")
def leaf_as_text(session: Session) -> None:
    _, compute = _compute(session)
    reply = _text(session, "/compute/name")
    fine = reply.status == 200 and reply.body == str(compute.get("name")).encode()
    reply.must(fine, f"200 and exactly {compute.get('name')}", came=f"{reply.status}: {reply.body!r}")
    kind = reply.header("content-type") or ""
    reply.must(kind.lower().startswith("text/plain"), "Content-Type: text/plain", came=f"Content-Type: {kind}")


@rules("leaf-without-format", Mark.DOCUMENTED, "A single value without format=text: 400.")
def leaf_without_format(session: Session) -> None:
    refused(session.here.ask(target=at(_VERSION, f"{INSTANCE}/compute/name")), 400)


@rules("array-index", Mark.DOCUMENTED, "A place in an array is had by its number.")
def array_index(session: Session) -> None:
    _, value = _tree(session)
    reply = session.here.ask(target=at(_VERSION, f"{INSTANCE}/network/interface/0"))
    whole = dict(_nodes(value)).get("/network/interface/0")
    reply.must(_json(reply) == whole, f"the first interface of the tree: {whole}")
    refused(session.here.ask(target=at(_VERSION, f"{INSTANCE}/network/interface/99")), 404)


@rules("unknown-element", Mark.DOCUMENTED, "What is not in the tree is not found: 404.")
def unknown_element(session: Session) -> None:
    refused(session.here.ask(target=at(_VERSION, f"{INSTANCE}/compute/colour")), 404)


@rules("header-required", Mark.DOCUMENTED, "The header Metadata is required, at every version.")
def header_required(session: Session) -> None:
    for version in (_VERSION, "2017-03-01"):
        refused(session.here.ask(target=at(version, INSTANCE), headers=()), 400, text=NO_HEADER)


@rules("forwarded-refused", Mark.DOCUMENTED, "What came through a proxy is refused here too.")
def forwarded_refused(session: Session) -> None:
    headers = (*TRUE, ("X-Forwarded-For", "10.0.0.1"))
    refused(session.here.ask(target=at(_VERSION, INSTANCE), headers=headers), 400)


@rules("query-name-twice", Mark.DOCUMENTED, "A query name that is given twice is refused here too.")
def query_name_twice(session: Session) -> None:
    refused(session.here.ask(target=f"{at(_VERSION, INSTANCE)}&format=json&format=json"), 400)


@rules("only-get", Mark.DOCUMENTED, "The tree can only be read: any verb but GET gets 405.")
def only_get(session: Session) -> None:
    for verb in ("POST", "HEAD"):
        refused(session.here.ask(verb, at(_VERSION, INSTANCE), (*TRUE, CLOSE)), 405)


def _bad_version(reply: Reply) -> None:
    try:
        value = json.loads(reply.body)
    except ValueError:
        value = {}
    newest = value.get("newest-versions") if isinstance(value, dict) else None
    listed = isinstance(newest, list) and bool(newest) and newest == sorted(map(str, newest), reverse=True)
    right = f'400 with the error "{BAD_VERSION_TEXT}" and newest-versions, the newest first'
    reply.must(reply.status == 400 and error_of(reply) == BAD_VERSION_TEXT and listed, right)


@rules("version-missing", Mark.OBSERVED, "Without a version: 400 and newest-versions, on which libraries depend.")
def version_missing(session: Session) -> None:
    _bad_version(session.here.ask(target=INSTANCE))


@rules("version-unknown", Mark.OBSERVED, "An unknown version gets the same here: 400, not 404.")
def version_unknown(session: Session) -> None:
    _bad_version(session.here.ask(target=at("2018-01-01", INSTANCE)))


@rules("versions-list", Mark.OBSERVED, "GET /metadata/versions lists the versions, ascending; it needs no api-version.")
def versions_list(session: Session) -> None:
    reply = session.here.ask(target="/metadata/versions")
    value = _json(reply)
    found = value.get("apiVersions") if isinstance(value, dict) else None
    fine = isinstance(found, list) and bool(found) and found == sorted(set(map(str, found)))
    reply.must(fine, '{"apiVersions":[…]}, ascending')
    missing = [version for version in _IN_USE if version not in (found or [])]
    reply.must(not missing, f"the versions that clients use: {', '.join(missing)} too")

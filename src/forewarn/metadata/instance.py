"""/metadata/instance: what a VM can read about itself (docs/explanation/contract.md, section 6).

FIELDS says which facts there are, since which api-version, and where each comes from; the rest of the
module nests them into a tree and answers a path into it. To add a field, add a row.
"""

from __future__ import annotations

import json
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import UUID, uuid5

from forewarn.core.fleet import VM, Group, GroupKind
from forewarn.errors import nearest
from forewarn.metadata.answers import TEXT, Answer, error_answer
from forewarn.wire.versions import INSTANCE_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


Node: TypeAlias = "str | list[Node] | dict[str, Node]"

_SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
_RESOURCE_GROUP = "forewarn"
_COMPUTE = f"/subscriptions/{_SUBSCRIPTION}/resourceGroups/{_RESOURCE_GROUP}/providers/Microsoft.Compute"
# Ids are made from names within this namespace, so that they outlive a restart. It must never change.
_NAMESPACE = UUID("5b0c7f4e-3d52-5a8e-9d0b-6f2a1c84e7d3")


class Subject(NamedTuple):
    """Whom the answer is about: the VM that asks, and its group."""

    vm: VM
    group: Group


class Field(NamedTuple):
    """One fact: where it stands, the api-version that introduced it, how it is had from a subject."""

    path: str
    since: str
    value: Callable[[Subject], Node]


# --- Values that take more than a name --------------------------------------------------------------


def _scale_set_id(subject: Subject) -> str:
    """The resource id of the VM's scale set; empty when it is in none."""
    if subject.group.kind != GroupKind.SCALE_SET:
        return ""
    return f"{_COMPUTE}/virtualMachineScaleSets/{subject.group.name}"


def _resource_id(subject: Subject) -> str:
    """The resource id of the VM. A scale set numbers its instances: web_3 is number 3 of web."""
    vm, group = subject
    scale_set = _scale_set_id(subject)
    if scale_set:
        return f"{scale_set}/virtualMachines/{vm.name.removeprefix(f'{group.name}_')}"
    return f"{_COMPUTE}/virtualMachines/{vm.name}"


def _host_id(subject: Subject) -> str:
    return f"{_COMPUTE}/hostGroups/{_RESOURCE_GROUP}/hosts/{subject.vm.host}"


def _vm_id(subject: Subject) -> str:
    return str(uuid5(_NAMESPACE, _resource_id(subject)))


def _placement_group_id(subject: Subject) -> str:
    scale_set = _scale_set_id(subject)
    return str(uuid5(_NAMESPACE, f"{scale_set}/placementGroup")) if scale_set else ""


def _scale_set_name(subject: Subject) -> str:
    return subject.group.name if subject.group.kind == GroupKind.SCALE_SET else ""


def _eviction_policy(subject: Subject) -> str:
    return "Deallocate" if subject.vm.priority == "spot" else ""


def _tags(subject: Subject) -> str:
    return ";".join(f"{name}:{value}" for name, value in subject.vm.tags)


def _tags_list(subject: Subject) -> Node:
    return [{"name": name, "value": value} for name, value in subject.vm.tags]


def _address(subject: Subject) -> IPv4Address | IPv6Address | None:
    """The VM's address; none for a VM that is known by where it is listened to instead."""
    try:
        return ip_address(subject.vm.address)
    except ValueError:
        return None


def _ipv4_addresses(subject: Subject) -> Node:
    address = _address(subject)
    if isinstance(address, IPv6Address):
        return []
    return [{"privateIpAddress": str(address or ""), "publicIpAddress": ""}]


def _ipv4_subnet(subject: Subject) -> Node:
    """The fleet knows no subnets; a /24 around the address is what most networks would say."""
    address = _address(subject)
    if not isinstance(address, IPv4Address):
        return [{"address": "", "prefix": ""}]
    subnet = IPv4Network((address, 24), strict=False)
    return [{"address": str(subnet.network_address), "prefix": str(subnet.prefixlen)}]


def _ipv6_addresses(subject: Subject) -> Node:
    address = _address(subject)
    return [{"privateIpAddress": str(address)}] if isinstance(address, IPv6Address) else []


def _mac_address(subject: Subject) -> str:
    """000D3A is the vendor prefix that clients expect; the rest follows from the VM's name."""
    return "000D3A" + sha256(subject.vm.name.encode()).hexdigest()[:6].upper()


# --- The table --------------------------------------------------------------------------------------

# A number in a path is a place in an array. 2017-03-01 was a preview that knew the network alone.
FIELDS: tuple[Field, ...] = (
    Field("compute/azEnvironment", "2018-10-01", lambda _: "AzurePublicCloud"),
    Field("compute/evictionPolicy", "2020-12-01", _eviction_policy),
    Field("compute/host/id", "2021-11-15", _host_id),
    Field("compute/location", "2017-04-02", lambda _: "local"),
    Field("compute/name", "2017-04-02", lambda subject: subject.vm.name),
    Field("compute/offer", "2017-04-02", lambda _: ""),
    Field("compute/osProfile/adminUsername", "2020-07-15", lambda _: ""),
    Field("compute/osProfile/computerName", "2020-07-15", lambda subject: subject.vm.hostname or subject.vm.name),
    Field("compute/osType", "2017-04-02", lambda _: "Linux"),
    Field("compute/placementGroupId", "2017-08-01", _placement_group_id),
    Field("compute/platformFaultDomain", "2017-04-02", lambda subject: str(subject.vm.fault_domain)),
    Field("compute/platformUpdateDomain", "2017-04-02", lambda subject: str(subject.vm.update_domain)),
    Field("compute/priority", "2020-12-01", lambda subject: subject.vm.priority.capitalize()),
    Field("compute/provider", "2018-10-01", lambda _: "Microsoft.Compute"),
    Field("compute/publisher", "2017-04-02", lambda _: ""),
    Field("compute/resourceGroupName", "2017-08-01", lambda _: _RESOURCE_GROUP),
    Field("compute/resourceId", "2019-03-11", _resource_id),
    Field("compute/sku", "2017-04-02", lambda _: ""),
    Field("compute/subscriptionId", "2017-08-01", lambda _: _SUBSCRIPTION),
    Field("compute/tags", "2017-08-01", _tags),
    Field("compute/tagsList", "2019-06-04", _tags_list),
    Field("compute/version", "2017-04-02", lambda _: ""),
    Field("compute/virtualMachineScaleSet/id", "2021-03-01", _scale_set_id),
    Field("compute/vmId", "2017-04-02", _vm_id),
    Field("compute/vmScaleSetName", "2017-12-01", _scale_set_name),
    Field("compute/vmSize", "2017-04-02", lambda subject: subject.vm.size),
    Field("compute/zone", "2017-12-01", lambda subject: subject.vm.zone),
    Field("network/interface/0/ipv4/ipAddress", "2017-03-01", _ipv4_addresses),
    Field("network/interface/0/ipv4/subnet", "2017-03-01", _ipv4_subnet),
    Field("network/interface/0/ipv6/ipAddress", "2017-03-01", _ipv6_addresses),
    Field("network/interface/0/macAddress", "2017-03-01", _mac_address),
)


# --- From the table to a tree -----------------------------------------------------------------------


def tree(subject: Subject, version: str) -> dict[str, Node]:
    """All that a version tells of a subject, keys alphabetical at every level."""
    return _nest((field.path, field.value(subject)) for field in FIELDS if field.since <= version)


def _nest(leaves: Iterable[tuple[str, Node]]) -> dict[str, Node]:
    """Put each value where its path says. A container exists only by what it holds."""
    held: dict[str, list[tuple[str, Node]]] = {}
    for path, value in leaves:
        name, _, rest = path.partition("/")
        held.setdefault(name, []).append((rest, value))
    return {name: _branch(held[name]) for name in sorted(held)}


def _branch(leaves: list[tuple[str, Node]]) -> Node:
    """The value itself where the path ends here, else an object, or an array where places are numbered."""
    path, value = leaves[0]
    if not path:
        return value
    children = _nest(leaves)
    return list(children.values()) if "0" in children else children


# --- Answers ----------------------------------------------------------------------------------------


def read(
    subject: Subject,
    version: str,
    path_parts: list[str],
    format: str | None,  # noqa: A002 - it is the name of the query parameter
) -> Answer:
    """Answer GET /metadata/instance/{path_parts}. The version must be one of INSTANCE_VERSIONS."""
    wanted = "json" if format is None else format.lower()
    if wanted not in ("json", "text"):
        return error_answer(400, f"Bad request. There is no format {format!r}: use json or text.")
    node: Node = tree(subject, version)
    place = "/metadata/instance"
    for part in path_parts[:-1] if path_parts[-1:] == [""] else path_parts:
        children = _children(node)
        name = next((name for name in children if name.lower() == part.lower()), None)
        if name is None:
            hint = nearest(part, children)
            return error_answer(404, f"Not found. {place} has no {part!r} at api-version {version}.{hint}")
        node, place = children[name], f"{place}/{name}"
    if wanted == "text":
        return Answer(200, _text(node).encode(), TEXT)
    if isinstance(node, str):
        return error_answer(400, f"Bad request. {place} is a single value: ask for it with format=text.")
    return Answer(200, _compact(node))


def versions_body() -> bytes:
    """What GET /metadata/versions answers."""
    return _compact({"apiVersions": list(INSTANCE_VERSIONS)})


def _children(node: Node) -> dict[str, Node]:
    """What a path may name next. Array places are names too, so 00 or -1 lead nowhere."""
    if isinstance(node, str):
        return {}
    return node if isinstance(node, dict) else {str(place): item for place, item in enumerate(node)}


def _text(node: Node) -> str:
    """A value bare; a container as its children's names, with a slash where one can go deeper."""
    if isinstance(node, str):
        return node
    return "\n".join(name if isinstance(child, str) else f"{name}/" for name, child in _children(node).items())


def _compact(node: Node) -> bytes:
    return json.dumps(node, ensure_ascii=False, separators=(",", ":")).encode()

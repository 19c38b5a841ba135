"""/metadata/instance: the instance document of a VM (docs/explanation/contract.md, section 6).

FIELDS lists each field, the api-version that introduced it, and the source of its value. The rest of the module builds
a tree from it and looks up paths. To add a field, add a row.
"""

from __future__ import annotations

import json
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import UUID, uuid5

from forewarn.core.fleet import VM, Group, GroupKind, eviction_policy
from forewarn.errors import nearest
from forewarn.metadata.fixed_responses import TEXT, Response, error_response
from forewarn.wire.versions import INSTANCE_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


Node: TypeAlias = "str | list[Node] | dict[str, Node]"

_SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
_RESOURCE_GROUP = "forewarn"
_COMPUTE = f"/subscriptions/{_SUBSCRIPTION}/resourceGroups/{_RESOURCE_GROUP}/providers/Microsoft.Compute"
# Ids are derived from names within this namespace, so they survive a restart. It must never change.
_NAMESPACE = UUID("5b0c7f4e-3d52-5a8e-9d0b-6f2a1c84e7d3")


class InstanceContext(NamedTuple):
    """The VM that the document describes, and its group."""

    vm: VM
    group: Group


class InstanceField(NamedTuple):
    """One field: its path, the api-version that introduced it, and a function for its value."""

    path: str
    since: str
    value: Callable[[InstanceContext], Node]


# --- Computed values --------------------------------------------------------------------------------


def _scale_set_id(about: InstanceContext) -> str:
    """Return the resource id of the VM's scale set, or an empty string."""
    if about.group.kind != GroupKind.SCALE_SET:
        return ""
    return f"{_COMPUTE}/virtualMachineScaleSets/{about.group.name}"


def _resource_id(about: InstanceContext) -> str:
    """Return the resource id of the VM. In a scale set it ends with the instance number: 3 for web_3."""
    vm, group = about
    scale_set = _scale_set_id(about)
    if scale_set:
        return f"{scale_set}/virtualMachines/{vm.name.removeprefix(f'{group.name}_')}"
    return f"{_COMPUTE}/virtualMachines/{vm.name}"


def _host_id(about: InstanceContext) -> str:
    return f"{_COMPUTE}/hostGroups/{_RESOURCE_GROUP}/hosts/{about.vm.host}"


def _vm_id(about: InstanceContext) -> str:
    return str(uuid5(_NAMESPACE, _resource_id(about)))


def _placement_group_id(about: InstanceContext) -> str:
    scale_set = _scale_set_id(about)
    return str(uuid5(_NAMESPACE, f"{scale_set}/placementGroup")) if scale_set else ""


def _scale_set_name(about: InstanceContext) -> str:
    return about.group.name if about.group.kind == GroupKind.SCALE_SET else ""


def _eviction_policy(about: InstanceContext) -> str:
    return eviction_policy(about.vm, about.group).capitalize()


def _tags(about: InstanceContext) -> str:
    return ";".join(f"{name}:{value}" for name, value in about.vm.tags)


def _tags_list(about: InstanceContext) -> Node:
    return [{"name": name, "value": value} for name, value in about.vm.tags]


def _address(about: InstanceContext) -> IPv4Address | IPv6Address | None:
    """Return the VM's address; None for a VM that is identified by its listener."""
    try:
        return ip_address(about.vm.address)
    except ValueError:
        return None


def _ipv4_addresses(about: InstanceContext) -> Node:
    address = _address(about)
    if isinstance(address, IPv6Address):
        return []
    return [{"privateIpAddress": str(address or ""), "publicIpAddress": ""}]


def _ipv4_subnet(about: InstanceContext) -> Node:
    """Return a /24 around the address. The fleet has no subnets, and most networks use this size."""
    address = _address(about)
    if not isinstance(address, IPv4Address):
        return [{"address": "", "prefix": ""}]
    subnet = IPv4Network((address, 24), strict=False)
    return [{"address": str(subnet.network_address), "prefix": str(subnet.prefixlen)}]


def _ipv6_addresses(about: InstanceContext) -> Node:
    address = _address(about)
    return [{"privateIpAddress": str(address)}] if isinstance(address, IPv6Address) else []


def _mac_address(about: InstanceContext) -> str:
    """Return a MAC address with the vendor prefix that clients expect. The rest is derived from the VM's name."""
    return "000D3A" + sha256(about.vm.name.encode()).hexdigest()[:6].upper()


# --- The table --------------------------------------------------------------------------------------

# A number in a path is an array index. 2017-03-01 was a preview with network fields only.
FIELDS: tuple[InstanceField, ...] = (
    InstanceField("compute/azEnvironment", "2018-10-01", lambda _: "AzurePublicCloud"),
    InstanceField("compute/evictionPolicy", "2020-12-01", _eviction_policy),
    InstanceField("compute/host/id", "2021-11-15", _host_id),
    InstanceField("compute/location", "2017-04-02", lambda _: "local"),
    InstanceField("compute/name", "2017-04-02", lambda about: about.vm.name),
    InstanceField("compute/offer", "2017-04-02", lambda _: ""),
    InstanceField("compute/osProfile/adminUsername", "2020-07-15", lambda _: ""),
    InstanceField("compute/osProfile/computerName", "2020-07-15", lambda about: about.vm.hostname or about.vm.name),
    InstanceField("compute/osType", "2017-04-02", lambda _: "Linux"),
    InstanceField("compute/placementGroupId", "2017-08-01", _placement_group_id),
    InstanceField("compute/platformFaultDomain", "2017-04-02", lambda about: str(about.vm.fault_domain)),
    InstanceField("compute/platformUpdateDomain", "2017-04-02", lambda about: str(about.vm.update_domain)),
    InstanceField("compute/priority", "2020-12-01", lambda about: about.vm.priority.capitalize()),
    InstanceField("compute/provider", "2018-10-01", lambda _: "Microsoft.Compute"),
    InstanceField("compute/publisher", "2017-04-02", lambda _: ""),
    InstanceField("compute/resourceGroupName", "2017-08-01", lambda _: _RESOURCE_GROUP),
    InstanceField("compute/resourceId", "2019-03-11", _resource_id),
    InstanceField("compute/sku", "2017-04-02", lambda _: ""),
    InstanceField("compute/subscriptionId", "2017-08-01", lambda _: _SUBSCRIPTION),
    InstanceField("compute/tags", "2017-08-01", _tags),
    InstanceField("compute/tagsList", "2019-06-04", _tags_list),
    InstanceField("compute/version", "2017-04-02", lambda _: ""),
    InstanceField("compute/virtualMachineScaleSet/id", "2021-03-01", _scale_set_id),
    InstanceField("compute/vmId", "2017-04-02", _vm_id),
    InstanceField("compute/vmScaleSetName", "2017-12-01", _scale_set_name),
    InstanceField("compute/vmSize", "2017-04-02", lambda about: about.vm.size),
    InstanceField("compute/zone", "2017-12-01", lambda about: about.vm.zone),
    InstanceField("network/interface/0/ipv4/ipAddress", "2017-03-01", _ipv4_addresses),
    InstanceField("network/interface/0/ipv4/subnet", "2017-03-01", _ipv4_subnet),
    InstanceField("network/interface/0/ipv6/ipAddress", "2017-03-01", _ipv6_addresses),
    InstanceField("network/interface/0/macAddress", "2017-03-01", _mac_address),
)


# --- From the table to a tree -----------------------------------------------------------------------


def tree(about: InstanceContext, version: str) -> dict[str, Node]:
    """Return the instance document at an api-version, with sorted keys at every level."""
    return _nest((field.path, field.value(about)) for field in FIELDS if field.since <= version)


def _nest(leaves: Iterable[tuple[str, Node]]) -> dict[str, Node]:
    """Nest values by their paths. There are no empty containers."""
    held: dict[str, list[tuple[str, Node]]] = {}
    for path, value in leaves:
        name, _, rest = path.partition("/")
        held.setdefault(name, []).append((rest, value))
    return {name: _branch(held[name]) for name in sorted(held)}


def _branch(leaves: list[tuple[str, Node]]) -> Node:
    """Return the value if the path ends here, otherwise an object, or an array if the keys are indexes."""
    path, value = leaves[0]
    if not path:
        return value
    children = _nest(leaves)
    return list(children.values()) if "0" in children else children


# --- Responses --------------------------------------------------------------------------------------


def read(
    about: InstanceContext,
    version: str,
    path_parts: list[str],
    format: str | None,  # noqa: A002 - it is the name of the query parameter
) -> Response:
    """Respond to GET /metadata/instance/{path_parts}. The version must be one of INSTANCE_VERSIONS."""
    response_format = "json" if format is None else format.lower()
    if response_format not in ("json", "text"):
        return error_response(400, f"Bad request. There is no format {format!r}: use json or text.")
    node: Node = tree(about, version)
    place = "/metadata/instance"
    for part in path_parts[:-1] if path_parts[-1:] == [""] else path_parts:
        children = _children(node)
        name = next((name for name in children if name.lower() == part.lower()), None)
        if name is None:
            hint = nearest(part, children)
            return error_response(404, f"Not found. {place} has no {part!r} at api-version {version}.{hint}")
        node, place = children[name], f"{place}/{name}"
    if response_format == "text":
        return Response(200, _text(node).encode(), TEXT)
    if isinstance(node, str):
        return error_response(400, f"Bad request. {place} is a single value: ask for it with format=text.")
    return Response(200, _compact(node))


def versions_body() -> bytes:
    """Return the body of GET /metadata/versions."""
    return _compact({"apiVersions": list(INSTANCE_VERSIONS)})


def _children(node: Node) -> dict[str, Node]:
    """Return the valid next path parts. Array indexes are exact names: 00 and -1 are invalid."""
    if isinstance(node, str):
        return {}
    return node if isinstance(node, dict) else {str(place): item for place, item in enumerate(node)}


def _text(node: Node) -> str:
    """Return a value as it is, a container as the names of its children, with a slash after each container."""
    if isinstance(node, str):
        return node
    return "\n".join(name if isinstance(child, str) else f"{name}/" for name, child in _children(node).items())


def _compact(node: Node) -> bytes:
    return json.dumps(node, ensure_ascii=False, separators=(",", ":")).encode()

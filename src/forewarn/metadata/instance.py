"""/metadata/instance: the instance document of a VM (docs/explanation/contract.md, section 6).

FIELDS lists each field, the api-version that introduced it, and the source of its value. The rest of the module builds
a tree from it and looks up paths. To add a field, add a row.
"""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID, uuid5

from forewarn.core.fleet import VM, Group, GroupKind, SetMode, eviction_policy
from forewarn.errors import nearest, shown
from forewarn.metadata.fixed_responses import TEXT, Response, error_response
from forewarn.wire.versions import INSTANCE_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


Node: TypeAlias = "str | list[Node] | dict[str, Node]"
Value: TypeAlias = "Callable[[InstanceContext], Node]"
Template: TypeAlias = "str | Value | list[Any] | dict[str, Any]"
"""A tree whose leaves can be functions, so that a request evaluates only the selected branch."""

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
    value: Value


# --- Computed values --------------------------------------------------------------------------------


def _scale_set_id(about: InstanceContext) -> str:
    """Return the resource id of the VM's scale set, or an empty string."""
    if about.group.kind != GroupKind.SCALE_SET:
        return ""
    return f"{_COMPUTE}/virtualMachineScaleSets/{about.group.name}"


def _resource_id(about: InstanceContext) -> str:
    """Return the resource id of the VM. In a uniform scale set it ends with the instance number: 3 for web_3."""
    vm, group = about
    scale_set = _scale_set_id(about)
    if scale_set and group.mode is SetMode.UNIFORM:
        return f"{scale_set}/virtualMachines/{vm.name.removeprefix(f'{group.name}_')}"
    return f"{_COMPUTE}/virtualMachines/{vm.name}"


def _flexible_set_id(about: InstanceContext) -> str:
    """Return the resource id of the VM's flexible scale set. Azure has none for instances of uniform sets."""
    return _scale_set_id(about) if about.group.mode is SetMode.FLEXIBLE else ""


def _host_id(about: InstanceContext) -> str:
    return f"{_COMPUTE}/hostGroups/{_RESOURCE_GROUP}/hosts/{about.vm.host}"


def _vm_id(about: InstanceContext) -> str:
    return str(uuid5(_NAMESPACE, _resource_id(about)))


def _placement_group_id(about: InstanceContext) -> str:
    scale_set = _scale_set_id(about)
    number = f"/{about.vm.placement_group}" if about.vm.placement_group > 1 else ""
    return str(uuid5(_NAMESPACE, f"{scale_set}/placementGroup{number}")) if scale_set else ""


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


def _os_type(about: InstanceContext) -> str:
    return about.vm.os.capitalize()


def _password_disabled(about: InstanceContext) -> str:
    """Return whether a Linux VM has only keys; an empty string for Windows."""
    if about.vm.os == "windows":
        return ""
    return "true" if about.vm.public_keys else "false"


def _public_keys(about: InstanceContext) -> Node:
    return [{"keyData": key, "path": "~/.ssh/authorized_keys"} for key in about.vm.public_keys]


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _empty(_: InstanceContext) -> str:
    """Return the value of a field about which the fleet says nothing."""
    return ""


def _false(_: InstanceContext) -> str:
    return "false"


def _mac_address(about: InstanceContext) -> str:
    """Return a MAC address with the vendor prefix that clients expect. The rest is derived from the VM's name."""
    return "000D3A" + sha256(about.vm.name.encode()).hexdigest()[:6].upper()


# --- The table --------------------------------------------------------------------------------------

# A number in a path is an array index. 2017-03-01 was a preview with network fields only.
_STORAGE = "compute/storageProfile"
_ENCRYPTION = f"{_STORAGE}/osDisk/encryptionSettings"
FIELDS: tuple[InstanceField, ...] = (
    InstanceField("compute/additionalCapabilities/hibernationEnabled", "2021-11-01", _false),
    InstanceField("compute/azEnvironment", "2018-10-01", lambda _: "AzurePublicCloud"),
    InstanceField("compute/customData", "2019-02-01", lambda about: _base64(about.vm.custom_data)),
    InstanceField("compute/evictionPolicy", "2020-12-01", _eviction_policy),
    InstanceField("compute/extendedLocation/name", "2021-03-01", _empty),
    InstanceField("compute/extendedLocation/type", "2021-03-01", _empty),
    InstanceField("compute/host/id", "2021-11-15", _host_id),
    InstanceField("compute/hostGroup/id", "2021-11-15", _empty),
    InstanceField("compute/isHostCompatibilityLayerVm", "2020-06-01", _false),
    InstanceField("compute/isVmInStandbyPool", "2023-11-15", _empty),
    InstanceField("compute/licenseType", "2020-09-01", _empty),
    InstanceField("compute/location", "2017-04-02", lambda about: about.vm.location),
    InstanceField("compute/name", "2017-04-02", lambda about: about.vm.name),
    InstanceField("compute/offer", "2017-04-02", _empty),
    InstanceField("compute/osProfile/adminUsername", "2020-07-15", _empty),
    InstanceField("compute/osProfile/computerName", "2020-07-15", lambda about: about.vm.hostname or about.vm.name),
    InstanceField("compute/osProfile/disablePasswordAuthentication", "2020-10-01", _password_disabled),
    InstanceField("compute/osType", "2017-04-02", _os_type),
    InstanceField("compute/physicalZone", "2023-11-15", _empty),
    InstanceField("compute/placementGroupId", "2017-08-01", _placement_group_id),
    InstanceField("compute/plan/name", "2018-04-02", _empty),
    InstanceField("compute/plan/product", "2018-04-02", _empty),
    InstanceField("compute/plan/publisher", "2018-04-02", _empty),
    InstanceField("compute/platformFaultDomain", "2017-04-02", lambda about: str(about.vm.fault_domain)),
    InstanceField("compute/platformSubFaultDomain", "2021-10-01", _empty),
    InstanceField("compute/platformUpdateDomain", "2017-04-02", lambda about: str(about.vm.update_domain)),
    InstanceField("compute/priority", "2020-12-01", lambda about: about.vm.priority.capitalize()),
    InstanceField("compute/provider", "2018-10-01", lambda _: "Microsoft.Compute"),
    InstanceField("compute/publicKeys", "2018-04-02", _public_keys),
    InstanceField("compute/publisher", "2017-04-02", _empty),
    InstanceField("compute/resourceGroupName", "2017-08-01", lambda _: _RESOURCE_GROUP),
    InstanceField("compute/resourceId", "2019-03-11", _resource_id),
    InstanceField("compute/securityProfile/encryptionAtHost", "2021-11-01", _false),
    InstanceField("compute/securityProfile/secureBootEnabled", "2020-06-01", _false),
    InstanceField("compute/securityProfile/securityType", "2021-12-13", _empty),
    InstanceField("compute/securityProfile/virtualTpmEnabled", "2020-06-01", _false),
    InstanceField("compute/sku", "2017-04-02", _empty),
    InstanceField(f"{_STORAGE}/dataDisks", "2019-06-01", lambda _: []),
    InstanceField(f"{_STORAGE}/imageReference/communityGalleryImageId", "2023-07-01", _empty),
    InstanceField(f"{_STORAGE}/imageReference/exactVersion", "2023-07-01", _empty),
    InstanceField(f"{_STORAGE}/imageReference/id", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/imageReference/offer", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/imageReference/publisher", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/imageReference/sharedGalleryImageId", "2023-07-01", _empty),
    InstanceField(f"{_STORAGE}/imageReference/sku", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/imageReference/version", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/osDisk/caching", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/osDisk/createOption", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/osDisk/diffDiskSettings/option", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/osDisk/diskSizeGB", "2019-06-01", _empty),
    InstanceField(f"{_ENCRYPTION}/diskEncryptionKey/secretUrl", "2021-11-01", _empty),
    InstanceField(f"{_ENCRYPTION}/diskEncryptionKey/sourceVault/id", "2021-11-01", _empty),
    InstanceField(f"{_ENCRYPTION}/enabled", "2019-06-01", _false),
    InstanceField(f"{_ENCRYPTION}/keyEncryptionKey/keyUrl", "2021-11-01", _empty),
    InstanceField(f"{_ENCRYPTION}/keyEncryptionKey/sourceVault/id", "2021-11-01", _empty),
    InstanceField(f"{_STORAGE}/osDisk/image/uri", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/osDisk/managedDisk/id", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/osDisk/managedDisk/storageAccountType", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/osDisk/name", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/osDisk/osType", "2019-06-01", _os_type),
    InstanceField(f"{_STORAGE}/osDisk/vhd/uri", "2019-06-01", _empty),
    InstanceField(f"{_STORAGE}/osDisk/writeAcceleratorEnabled", "2019-06-01", _false),
    InstanceField(f"{_STORAGE}/resourceDisk/size", "2021-02-01", lambda _: "0"),
    InstanceField("compute/subscriptionId", "2017-08-01", lambda _: _SUBSCRIPTION),
    InstanceField("compute/tags", "2017-08-01", _tags),
    InstanceField("compute/tagsList", "2019-06-04", _tags_list),
    InstanceField("compute/userData", "2021-01-01", lambda about: _base64(about.vm.user_data)),
    InstanceField("compute/version", "2017-04-02", _empty),
    InstanceField("compute/virtualMachineScaleSet/id", "2021-03-01", _flexible_set_id),
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


def tree(about: InstanceContext, version: str) -> Node:
    """Return the instance document at an api-version, with sorted keys at every level."""
    return _evaluate(_template(version), about)


@cache
def _template(version: str) -> dict[str, Template]:
    """Return the tree of an api-version, with functions as leaves."""
    return _nest((field.path, field.value) for field in FIELDS if field.since <= version)


def _nest(leaves: Iterable[tuple[str, Value]]) -> dict[str, Template]:
    """Nest functions by their paths. There are no empty containers."""
    held: dict[str, list[tuple[str, Value]]] = {}
    for path, value in leaves:
        name, _, rest = path.partition("/")
        held.setdefault(name, []).append((rest, value))
    return {name: _branch(held[name]) for name in sorted(held)}


def _branch(leaves: list[tuple[str, Value]]) -> Template:
    """Return the function if the path ends here, otherwise an object, or an array if the keys are indexes."""
    path, value = leaves[0]
    if not path:
        return value
    children = _nest(leaves)
    return list(children.values()) if "0" in children else children


def _evaluate(template: Template, about: InstanceContext) -> Node:
    if isinstance(template, dict):
        return {name: _evaluate(child, about) for name, child in template.items()}
    if isinstance(template, list):
        return [_evaluate(child, about) for child in template]
    return template if isinstance(template, str) else template(about)


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
        return error_response(400, f"Bad request. There is no format {shown(format)}: use json or text.")
    found: Template = _template(version)
    place = "/metadata/instance"
    for part in path_parts:
        if not isinstance(found, str | list | dict):
            found = found(about)
        children = _children(found)
        name = next((name for name in children if name.lower() == part.lower()), None)
        if name is None:
            hint = nearest(part, children)
            return error_response(404, f"Not found. {place} has no {shown(part)} at api-version {version}.{hint}")
        found, place = children[name], f"{place}/{name}"
    node = _evaluate(found, about)
    if response_format == "text":
        return Response(200, _text(node).encode(), TEXT)
    if isinstance(node, str):
        return error_response(400, f"Bad request. {place} is a single value: ask for it with format=text.")
    return Response(200, _compact(node))


def versions_body() -> bytes:
    """Return the body of GET /metadata/versions."""
    return _compact({"apiVersions": list(INSTANCE_VERSIONS)})


def _children(node: Template) -> dict[str, Template]:
    """Return the valid next path parts. Array indexes are exact names: 00 and -1 are invalid."""
    if isinstance(node, list):
        return {str(place): item for place, item in enumerate(node)}
    return node if isinstance(node, dict) else {}


def _text(node: Node) -> str:
    """Return a value as it is, a container as the names of its children, with a slash after each container."""
    if isinstance(node, str):
        return node
    return "\n".join(name if isinstance(child, str) else f"{name}/" for name, child in _children(node).items())


def _compact(node: Node) -> bytes:
    return json.dumps(node, ensure_ascii=False, separators=(",", ":")).encode()

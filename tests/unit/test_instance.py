"""/metadata/instance: the tree, its gating by version, and every kind of path into it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from forewarn.core.fleet import VM, Group, GroupKind
from forewarn.metadata.instance import FIELDS, InstanceContext, InstanceField, read, tree, versions_body
from forewarn.wire.versions import INSTANCE_VERSIONS, NEWEST_INSTANCE_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.metadata.instance import Node

NEWEST = INSTANCE_VERSIONS[-1]
PROVIDER = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/forewarn/providers/Microsoft.Compute"

MEMBER = InstanceContext(
    VM(
        "web_3",
        "web",
        "host-a",
        update_domain=2,
        fault_domain=1,
        address="10.0.7.4",
        hostname="web00000A",
        priority="spot",
        size="Standard_B1s",
        zone="2",
        tags=(("role", "front"), ("team", "größe")),
        location="westeurope",
        user_data="größe\n",
        custom_data="#cloud-config",
        public_keys=("ssh-rsa 0", "ssh-rsa 1"),
    ),
    Group("web", GroupKind.SCALE_SET, update_domains=5, fault_domains=2),
)
ALONE = InstanceContext(VM("db-0", "db-0", "db-0-host"), Group("db-0", GroupKind.STANDALONE))
WINDOWS = InstanceContext(VM("win", "win", "win-host", os="windows"), Group("win", GroupKind.STANDALONE))
SIX = InstanceContext(VM("six", "six", "six-host", address="2001:db8::4"), Group("six", GroupKind.STANDALONE))

IPV4 = (
    '{"ipAddress":[{"privateIpAddress":"10.0.7.4","publicIpAddress":""}],'
    '"subnet":[{"address":"10.0.7.0","prefix":"24"}]}'
)
INTERFACE = f'{{"ipv4":{IPV4},"ipv6":{{"ipAddress":[]}},"macAddress":"000D3A895BE3"}}'
NETWORK = f'{{"interface":[{INTERFACE}]}}'
# A literal, since what names a machine must survive every release.
VM_ID = "0e55c0b3-c310-5b5c-a7fc-1dd7cce22205"
COMPUTE_AT_FIRST = (
    '{"location":"westeurope","name":"web_3","offer":"","osType":"Linux","platformFaultDomain":"1",'
    '"platformUpdateDomain":"2","publisher":"","sku":"","version":"",'
    f'"vmId":"{VM_ID}","vmSize":"Standard_B1s"}}'
)

# path below /metadata/instance, api-version, format, then the expected status and body; for an error,
# words that its message holds.
CASES = [
    # Containers.
    ("", "2017-03-01", None, 200, f'{{"network":{NETWORK}}}'),
    ("", "2017-04-02", None, 200, f'{{"compute":{COMPUTE_AT_FIRST},"network":{NETWORK}}}'),
    ("network", "2017-04-02", "json", 200, NETWORK),
    ("network/interface", NEWEST, None, 200, f"[{INTERFACE}]"),
    ("network/interface/0", NEWEST, "JSON", 200, INTERFACE),
    ("network/interface/0/ipv4", NEWEST, None, 200, IPV4),
    ("network/interface/0/ipv6/ipAddress", NEWEST, None, 200, "[]"),
    ("compute/osProfile", "2020-09-01", None, 200, '{"adminUsername":"","computerName":"web00000A"}'),
    (
        "compute/osProfile",
        NEWEST,
        None,
        200,
        '{"adminUsername":"","computerName":"web00000A","disablePasswordAuthentication":"true"}',
    ),
    ("compute/publicKeys/1", "2018-04-02", None, 200, '{"keyData":"ssh-rsa 1","path":"~/.ssh/authorized_keys"}'),
    ("compute/plan", "2018-04-02", None, 200, '{"name":"","product":"","publisher":""}'),
    ("compute/storageProfile/dataDisks", "2019-06-01", None, 200, "[]"),
    ("compute/storageProfile/resourceDisk", "2021-02-01", None, 200, '{"size":"0"}'),
    ("compute/securityProfile", "2020-06-01", None, 200, '{"secureBootEnabled":"false","virtualTpmEnabled":"false"}'),
    ("compute/storageProfile/osDisk/encryptionSettings", "2019-06-01", None, 200, '{"enabled":"false"}'),
    ("compute/tagsList/1", NEWEST, None, 200, '{"name":"team","value":"größe"}'),
    # Leaves.
    ("compute/name", "2021-02-01", "text", 200, "web_3"),
    ("compute/offer", NEWEST, "text", 200, ""),
    ("compute/userData", "2021-01-01", "text", 200, "Z3LDtsOfZQo="),
    ("compute/customData", "2019-02-01", "text", 200, "I2Nsb3VkLWNvbmZpZw=="),
    ("compute/publicKeys/0/keyData", NEWEST, "text", 200, "ssh-rsa 0"),
    ("compute/tags", "2017-08-01", "text", 200, "role:front;team:größe"),
    ("compute/tagsList/0/value", NEWEST, "text", 200, "front"),
    ("network/interface/0/ipv4/ipAddress/0/privateIpAddress", "2017-04-02", "text", 200, "10.0.7.4"),
    ("network/interface/0/macAddress", "2017-03-01", "text", 200, "000D3A895BE3"),
    # A leaf is not JSON.
    ("compute/name", NEWEST, None, 400, "Bad request. /metadata/instance/compute/name format=text"),
    ("compute/name", NEWEST, "json", 400, "Bad request. format=text"),
    # Containers as text: what one may ask for next.
    ("", "2017-03-01", "text", 200, "network/"),
    ("", NEWEST, "text", 200, "compute/\nnetwork/"),
    ("network/interface", NEWEST, "text", 200, "0/"),
    ("network/interface/0", NEWEST, "text", 200, "ipv4/\nipv6/\nmacAddress"),
    ("compute/tagsList", NEWEST, "text", 200, "0/\n1/"),
    ("network/interface/0/ipv6/ipAddress", NEWEST, "text", 200, ""),
    # Letter case, of path and format.
    ("COMPUTE/NAME", NEWEST, "TEXT", 200, "web_3"),
    ("Network/Interface/0/IPv4/ipaddress/0/PrivateIPAddress", NEWEST, "Text", 200, "10.0.7.4"),
    # An element without a name. The request has lost one trailing slash already.
    ("compute/", NEWEST, None, 404, "Not found. /metadata/instance/compute ''"),
    ("compute//name", NEWEST, "text", 404, "Not found."),
    # Nothing there.
    ("compue", NEWEST, None, 404, "Not found. 'compue' Did you mean 'compute'?"),
    ("compute", "2017-03-01", None, 404, "Not found. 2017-03-01"),
    ("compute/osProfile/computerName", "2020-06-01", "text", 404, "Not found. 'osProfile' 2020-06-01"),
    ("compute/name/more", NEWEST, "text", 404, "Not found. 'more'"),
    ('compute/"{}\n', NEWEST, None, 404, "Not found."),
    ("network/interface/1", NEWEST, None, 404, "Not found. '1'"),
    ("network/interface/-1", NEWEST, None, 404, "Not found."),
    ("network/interface/00", NEWEST, None, 404, "Not found."),
    ("network/interface/٠", NEWEST, None, 404, "Not found."),
    # No such format.
    ("compute", NEWEST, "xml", 400, "Bad request. 'xml'"),
    ("compute", NEWEST, "", 400, "Bad request. ''"),
]


def leaf(subject: InstanceContext, path: str, version: str = NEWEST) -> str:
    answer = read(subject, version, path.split("/"), "text")
    assert answer.status == 200
    return answer.body.decode()


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    if not isinstance(node, str):
        for child in node.values() if isinstance(node, dict) else node:
            yield from walk(child)


@pytest.mark.parametrize(("path", "version", "format_", "status", "expected"), CASES)
def test_every_kind_of_request_gets_its_response(
    path: str, version: str, format_: str | None, status: int, expected: str
) -> None:
    answer = read(MEMBER, version, path.split("/") if path else [], format_)
    assert answer.status == status
    if status == 200:
        kind = "text/plain" if (format_ or "json").lower() == "text" else "application/json"
        assert answer.body.decode() == expected
        assert answer.content_type == f"{kind}; charset=utf-8"
    else:
        assert answer.content_type == "application/json; charset=utf-8"
        assert answer.body.startswith(b'{ "error": "')
        assert answer.body.endswith(b'" }')
        message = json.loads(answer.body)["error"]
        assert not [word for word in expected.split() if word not in message]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.path)
def test_a_field_is_there_from_its_version_on(field: InstanceField) -> None:
    assert field.since in INSTANCE_VERSIONS
    for version in INSTANCE_VERSIONS:
        status = read(MEMBER, version, field.path.split("/"), "text").status
        assert (version, status) == (version, 200 if version >= field.since else 404)


@pytest.mark.parametrize("subject", [MEMBER, ALONE, WINDOWS, SIX], ids=lambda subject: subject.vm.name)
def test_keys_are_alphabetical_and_primitives_are_strings(subject: InstanceContext) -> None:
    for version in INSTANCE_VERSIONS:
        for node in walk(tree(subject, version)):
            assert isinstance(node, str | list | dict), version
            if isinstance(node, dict):
                assert list(node) == sorted(node), version


def test_each_path_is_in_the_table_once() -> None:
    paths = [field.path.lower() for field in FIELDS]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("path", "in_scale_set", "alone"),
    [
        ("azEnvironment", "AzurePublicCloud", "AzurePublicCloud"),
        ("evictionPolicy", "Deallocate", ""),
        ("host/id", f"{PROVIDER}/hostGroups/forewarn/hosts/host-a", None),
        ("customData", "I2Nsb3VkLWNvbmZpZw==", ""),
        ("location", "westeurope", "local"),
        ("osProfile/computerName", "web00000A", "db-0"),
        ("osProfile/disablePasswordAuthentication", "true", "false"),
        ("osType", "Linux", "Linux"),
        ("storageProfile/osDisk/osType", "Linux", "Linux"),
        ("userData", "Z3LDtsOfZQo=", ""),
        ("priority", "Spot", "Regular"),
        ("provider", "Microsoft.Compute", "Microsoft.Compute"),
        ("resourceGroupName", "forewarn", "forewarn"),
        (
            "resourceId",
            f"{PROVIDER}/virtualMachineScaleSets/web/virtualMachines/3",
            f"{PROVIDER}/virtualMachines/db-0",
        ),
        ("subscriptionId", "00000000-0000-0000-0000-000000000000", None),
        ("tags", "role:front;team:größe", ""),
        ("virtualMachineScaleSet/id", "", ""),
        ("vmScaleSetName", "web", ""),
        ("zone", "2", ""),
    ],
)
def test_values_follow_from_the_vm_and_its_group(path: str, in_scale_set: str, alone: str | None) -> None:
    assert leaf(MEMBER, f"compute/{path}") == in_scale_set
    assert alone is None or leaf(ALONE, f"compute/{path}") == alone


def test_a_windows_vm_has_its_type_and_says_nothing_about_passwords() -> None:
    assert leaf(WINDOWS, "compute/osType") == leaf(WINDOWS, "compute/storageProfile/osDisk/osType") == "Windows"
    assert leaf(WINDOWS, "compute/osProfile/disablePasswordAuthentication") == ""


# Microsoft's sample and its table of versions, as of May 2026.
SAMPLE = {
    "2018-04-02": "plan/name plan/product plan/publisher publicKeys",
    "2019-02-01": "customData",
    "2019-06-01": "storageProfile/dataDisks storageProfile/imageReference/id storageProfile/imageReference/offer "
    "storageProfile/imageReference/publisher storageProfile/imageReference/sku storageProfile/imageReference/version "
    "storageProfile/osDisk/caching storageProfile/osDisk/createOption storageProfile/osDisk/diffDiskSettings/option "
    "storageProfile/osDisk/diskSizeGB storageProfile/osDisk/encryptionSettings/enabled storageProfile/osDisk/image/uri "
    "storageProfile/osDisk/managedDisk/id storageProfile/osDisk/managedDisk/storageAccountType "
    "storageProfile/osDisk/name storageProfile/osDisk/osType storageProfile/osDisk/vhd/uri "
    "storageProfile/osDisk/writeAcceleratorEnabled",
    "2020-06-01": "isHostCompatibilityLayerVm securityProfile/secureBootEnabled securityProfile/virtualTpmEnabled",
    "2020-09-01": "licenseType",
    "2020-10-01": "osProfile/disablePasswordAuthentication",
    "2021-01-01": "userData",
    "2021-02-01": "storageProfile/resourceDisk/size",
    "2021-03-01": "extendedLocation/name extendedLocation/type",
    "2021-10-01": "platformSubFaultDomain",
    "2021-11-01": "additionalCapabilities/hibernationEnabled securityProfile/encryptionAtHost "
    "storageProfile/osDisk/encryptionSettings/diskEncryptionKey/secretUrl "
    "storageProfile/osDisk/encryptionSettings/diskEncryptionKey/sourceVault/id "
    "storageProfile/osDisk/encryptionSettings/keyEncryptionKey/keyUrl "
    "storageProfile/osDisk/encryptionSettings/keyEncryptionKey/sourceVault/id",
    "2021-11-15": "host/id hostGroup/id",
    "2021-12-13": "securityProfile/securityType",
    "2023-07-01": "storageProfile/imageReference/communityGalleryImageId storageProfile/imageReference/exactVersion "
    "storageProfile/imageReference/sharedGalleryImageId",
    "2023-11-15": "isVmInStandbyPool physicalZone",
}


def test_the_elements_of_the_sample_have_their_documented_versions() -> None:
    versions = {field.path: field.since for field in FIELDS}
    wanted = {f"compute/{path}": since for since, paths in SAMPLE.items() for path in paths.split()}
    assert {path: versions.get(path) for path in wanted} == wanted


def test_ids_are_stable_guids_and_unique_where_required() -> None:
    sibling = InstanceContext(MEMBER.vm._replace(name="web_4"), MEMBER.group)
    moved = InstanceContext(MEMBER.vm._replace(host="host-b", address="10.0.7.5"), MEMBER.group)
    assert leaf(MEMBER, "compute/vmId") == leaf(moved, "compute/vmId") == VM_ID
    assert leaf(sibling, "compute/vmId") != leaf(MEMBER, "compute/vmId")
    assert leaf(sibling, "compute/placementGroupId") == leaf(MEMBER, "compute/placementGroupId")
    assert UUID(leaf(MEMBER, "compute/placementGroupId")).version == 5
    assert leaf(ALONE, "compute/placementGroupId") == ""


def test_an_ipv6_address_is_listed_under_ipv6() -> None:
    interface = json.loads(read(SIX, NEWEST, ["network", "interface", "0"], None).body)
    assert interface["ipv6"] == {"ipAddress": [{"privateIpAddress": "2001:db8::4"}]}
    assert interface["ipv4"] == {"ipAddress": [], "subnet": [{"address": "", "prefix": ""}]}


def test_a_vm_without_an_address_has_empty_strings() -> None:
    ipv4 = json.loads(read(ALONE, NEWEST, ["network", "interface", "0", "ipv4"], None).body)
    assert ipv4["ipAddress"] == [{"privateIpAddress": "", "publicIpAddress": ""}]
    assert ipv4["subnet"] == [{"address": "", "prefix": ""}]


def test_versions_ascend_and_the_newest_three_are_offered_newest_first() -> None:
    assert list(INSTANCE_VERSIONS) == sorted(set(INSTANCE_VERSIONS))
    assert len(INSTANCE_VERSIONS) == 35
    assert NEWEST_INSTANCE_VERSIONS == ("2025-04-07", "2024-07-17", "2024-03-15")
    assert versions_body().startswith(b'{"apiVersions":["2017-03-01","2017-04-02",')
    assert json.loads(versions_body()) == {"apiVersions": list(INSTANCE_VERSIONS)}

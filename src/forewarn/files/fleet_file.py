"""Parse a fleet file. The error lists all mistakes, each with its line and key.

A check that depends on other keys runs only if these are right, so no mistake is reported that follows from another.
"""

from __future__ import annotations

import re
from collections import Counter
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from sys import intern
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from forewarn.core.fleet import (
    EVICTION_POLICIES,
    OPERATING_SYSTEMS,
    PLACEMENT_GROUP_SIZE,
    SPOT,
    TERMINATE_NOTICE_KINDS,
    VM,
    Fleet,
    Group,
    GroupKind,
    Host,
    SetMode,
    Visibility,
    own_host,
)
from forewarn.core.fleet_parts import MAX_PART_ITEMS, FleetPart
from forewarn.core.operations import AUTO_APPROVE_VALUES
from forewarn.core.placement import UNPLACED, find_clashes, spread_domains, spread_hosts
from forewarn.core.windows import MAX_WINDOWS, parse_window
from forewarn.errors import nearest, nearest_name, shortened, shown
from forewarn.files.policy import parse_os_image_notice, parse_terminate_notice
from forewarn.files.toml_reader import TomlFile, TomlTable, free, lines_of, on_line

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
    from datetime import timedelta

    from forewarn.core.windows import Window


_Address: TypeAlias = IPv4Address | IPv6Address
_Declared = TypeVar("_Declared", Group, Host)

_KEYS = (
    *("name", "group", "host", "update_domain", "fault_domain", "address", "listen", "hostname"),
    *("priority", "eviction_policy", "size", "zone", "tags", "auto_approve", "terminate_notice"),
    *("count", "first", "addresses", "hosts", "placement_group"),
    *("os", "location", "user_data", "custom_data", "public_keys", "approve_when_down"),
)
_SET_KEYS = {
    "addresses": 'write address = "10.0.0.4"',
    "hosts": 'write host = "host-a"',
    "first": "omit it",
}
"""Keys that need `count`, each with an alternative."""
_PRIORITIES = ("regular", SPOT)
_MAX_DATA_BYTES = 65_535
"""Azure's maximum for custom data before base64. Azure's maximum for user data is 64 KB."""

_NAME = re.compile(r"""[^\s/\\"'<>|:*?#&%]{1,80}""")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")  # fits into six digits of base 36
_LARGEST_FIRST = 100_000_000
MAX_VMS = 1_000_000
MAX_FLEET_BYTES = 32 * 1_048_576
"""About 100,000 VMs that are written one by one. A copy of a larger text would delay polls."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

_LISTEN = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+)):([0-9]{1,5})(?:-([0-9]{1,5}))?")
_LAST_PORT = 65535
_LAST_PLACEMENT_GROUP = 10_000


class Declared(NamedTuple, Generic[_Declared]):
    """The groups or hosts that a VM can name."""

    by_name: Mapping[str, _Declared | None]
    """None: a mistake in its own table decides what it is."""
    is_complete: bool
    """False: because of a mistake, the names of some of them are not known."""
    fleet: Fleet
    """The fleet that the file adds to."""


def read_vms(entry: TomlTable, groups: Declared[Group], hosts: Declared[Host], shared: dict[Hashable, Any]) -> list[VM]:
    """Return the VMs of one [[vm]]. Domains that are not given stay UNPLACED.

    `shared` has the long values of earlier entries, so that VMs with equal values share one object. After a mistake,
    a VM can have an empty name or host.
    """
    entry.reject_unknown(_KEYS)
    _check_set_keys(entry)
    group = _declared(entry, groups, entry.text("group"), "group") if "group" in entry else None
    first = entry.integer("first", 0, 0, _LARGEST_FIRST)
    numbers = range(first, first + entry.integer("count", 1, 1, MAX_VMS))
    names = _names(entry, group, numbers)
    if group is None and entry.is_right("group"):
        _check_group_names(entry, names, groups)
    update_domain = _given_domain(entry, "update_domain", group.update_domains if group else 1)
    fault_domain = _given_domain(entry, "fault_domain", group.fault_domains if group else 1)
    # Interned, because each [[vm]] has its own copy of these strings.
    priority = intern(entry.choice("priority", _PRIORITIES, _PRIORITIES[0]))
    size = intern(_plain_text(entry, "size"))
    zone = intern(_plain_text(entry, "zone"))
    tags = _tags(entry)
    auto_approve = _auto_approve(entry, group)
    placement_group = _placement_group(entry, group)
    system = intern(entry.choice("os", OPERATING_SYSTEMS, OPERATING_SYSTEMS[0]))
    location = intern(_location(entry))
    # Not interned, because Python 3.12 never frees an interned string.
    data = [shared.setdefault(text, text) for text in (_data(entry, "user_data"), _data(entry, "custom_data"))]
    public_keys = _public_keys(entry)
    public_keys = shared.setdefault(public_keys, public_keys)
    terminate_notice = _own_terminate_notice(entry, group)
    eviction_policy = _own_eviction_policy(entry, priority)
    _reject_in_group(entry, group, "approve_when_down")
    approve_when_down = entry.flag("approve_when_down")
    return [
        VM(
            *(name, group.name if group else name, host, update_domain, fault_domain, address, listen),
            *(hostname, priority, size, zone, tags, auto_approve),
            placement_group=placement_group,
            os=system,
            location=location,
            user_data=data[0],
            custom_data=data[1],
            public_keys=public_keys,
            terminate_notice=terminate_notice,
            eviction_policy=eviction_policy,
            approve_when_down=approve_when_down is not False,
        )
        for name, host, address, listen, hostname in zip(
            names,
            _hosts(entry, hosts, names),
            _addresses(entry, len(names)),
            _listeners(entry, len(names)),
            _hostnames(entry, group, names, numbers),
            strict=True,
        )
    ]


def check_name(entry: TomlTable, key: str, name: str) -> None:
    """Reject an invalid name of a VM, group or host."""
    if "{n}" in name:
        if entry.is_right("count"):
            problem = "{n} is the number of a VM in a set. Write a name without it"
            entry.report(f"{problem}, or add count.", key)
    elif name in {".", ".."}:
        entry.report(
            f"{shown(name)} cannot be a name: clients and proxies remove it from URLs. Write another name.", key
        )
    elif not _NAME.fullmatch(name) or not name.isprintable():
        problem = f"{shown(name)} is not a valid name. Write 1 to 80 characters"
        without = """without white space, control characters and / \\ " ' < > | : * ? # & %"""
        entry.report(f"{problem}, {without}.", key)


def _check_set_keys(entry: TomlTable) -> None:
    if "count" not in entry:
        for key, remedy in _SET_KEYS.items():
            if key in entry and entry.is_right("count"):
                entry.report(f"Needs count, because it is for a set of VMs. Add count, or {remedy}.", key)
    elif "address" in entry:
        entry.report('A set needs a range. Write addresses = "10.0.0.4-10.0.0.103".', "address")
    if "host" in entry and "hosts" in entry:
        entry.report("Write host (one for all VMs) or hosts (assigned in turn), not both.", "hosts")


def _declared(entry: TomlTable, declared: Declared[_Declared], name: str, key: str, *deeper: int) -> _Declared | None:
    """Return the group or host with this name. None: it is not known, because of a mistake here or there."""
    found = declared.by_name.get(name)
    if found is None:
        if name not in declared.by_name and declared.is_complete:
            table = key.removesuffix("s")
            entry.report(f"No [[{table}]] is named {shown(name)}.{nearest(name, declared.by_name)}", key, *deeper)
        entry.distrust(key, *deeper)
    return found


def _names(entry: TomlTable, group: Group | None, numbers: Sequence[int]) -> list[str]:
    """Return the names of the VMs; empty ones, if a mistake decides about them."""
    if entry.is_right("group"):
        names = _numbered(entry, "name", _name_pattern(entry, group), numbers)
    else:
        # The group decides about the names of a set.
        names = [entry.text("name")] if "count" not in entry else [""] * len(numbers)
    return names if entry.is_right("name", "count", "first") else [""] * len(numbers)


def _name_pattern(entry: TomlTable, group: Group | None) -> str:
    """Return the name of a VM, or the pattern of a set with {n} for the number. Azure prescribes some forms."""
    if group and _is_uniform_set(group):
        return _scale_set_pattern(entry, group.name)
    if group and group.kind == GroupKind.CLOUD_SERVICE:
        return _cloud_service_pattern(entry)
    name = entry.required_text("name", 'Write it like name = "web-0", or for a set name = "web-{n}".')
    if "count" in entry and "{n}" not in name:
        entry.report('The names of a set need {n} where the number goes, like "web-{n}".', "name")
    return name


def _scale_set_pattern(entry: TomlTable, scale_set: str) -> str:
    if "count" in entry:
        if entry.text("name", scale_set) != scale_set:
            problem = f"Omit it. The VMs of this scale set are named {scale_set}_0, {scale_set}_1 and so on."
            entry.report(problem, "name")
        return scale_set + "_{n}"
    name = entry.required_text("name", f'Write it like name = "{scale_set}_0".')
    stem, _, number = name.rpartition("_")
    if stem != scale_set or not _NUMBER.fullmatch(number):
        problem = f"In this scale set a VM is named {scale_set}_0, {scale_set}_1 and so on."
        entry.report(f'{problem} In a set with mode = "flexible" you choose the names.', "name")
    return name


def _cloud_service_pattern(entry: TomlTable) -> str:
    if "count" in entry:
        remedy = 'Write only the role, like "Worker". Its VMs are named Worker_IN_0, Worker_IN_1 and so on.'
        role = entry.required_text("name", remedy)
        if not role or "{n}" in role:
            entry.report(remedy, "name")
        return role + "_IN_{n}"
    name = entry.required_text("name", 'Write it like name = "Worker_IN_0".')
    role, _, number = name.rpartition("_IN_")
    if not role or not _NUMBER.fullmatch(number):
        entry.report("In a cloud service a VM is named after its role, like Worker_IN_0.", "name")
    return name


def _numbered(entry: TomlTable, key: str, pattern: str, numbers: Sequence[int]) -> list[str]:
    """Return the pattern with each number inserted."""
    if "count" not in entry:
        check_name(entry, key, pattern)
        return [pattern]
    numbered = [pattern.replace("{n}", str(number)) for number in numbers]
    check_name(entry, key, numbered[-1])  # the longest one; the others differ only in the number
    return numbered


def _check_group_names(entry: TomlTable, names: Sequence[str], groups: Declared[Group]) -> None:
    """Reject VMs without a group that have the name of a group. Such a VM is a group with its own name."""
    for name in names:
        group = groups.by_name.get(name)
        is_own = group is groups.fleet.groups.get(name) and groups.fleet.standalone(name) is not None
        if name in groups.by_name and not is_own:
            problem = f'{shown(name)} is also the name of a group. Write group = "{name}", or choose another name.'
            entry.report(problem, "name")


def _hostnames(entry: TomlTable, group: Group | None, names: list[str], numbers: Sequence[int]) -> list[str]:
    if "hostname" in entry:
        return _numbered(entry, "hostname", entry.text("hostname"), numbers)
    if group and _is_uniform_set(group) and entry.is_right("name"):
        return [group.name + _base36(int(name.rpartition("_")[2])) for name in names]
    return names


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.rjust(6, "0")


def _is_uniform_set(group: Group) -> bool:
    return group.kind == GroupKind.SCALE_SET and group.mode is SetMode.UNIFORM


def _placement_group(entry: TomlTable, group: Group | None) -> int:
    """Return the number of the placement group; 0: the service assigns one."""
    if group is None or group.kind != GroupKind.SCALE_SET:
        if "placement_group" in entry and entry.is_right("group"):
            entry.report("Only VMs of a scale set have a placement group. Omit it.", "placement_group")
        return 1
    return entry.integer("placement_group", 0, 1, _LAST_PLACEMENT_GROUP)


def _given_domain(entry: TomlTable, key: str, count: int) -> int:
    reason = f", because the group has {count}" if count > 1 else ", because there is only one"
    if not entry.is_right("group"):
        count, reason = max(_MAX_DOMAINS), ""
    return entry.integer(key, UNPLACED, 0, count - 1, reason)


def _auto_approve(entry: TomlTable, group: Group | None) -> tuple[str, ...]:
    _reject_in_group(entry, group, "auto_approve")
    return entry.choices("auto_approve", AUTO_APPROVE_VALUES)


def _plain_text(entry: TomlTable, key: str) -> str:
    text = entry.text(key)
    _check_plain(entry, text, key)
    return text


def _tags(entry: TomlTable) -> tuple[tuple[str, str], ...]:
    tags = entry.text_table("tags")
    for name, value in tags:
        _check_plain(entry, name, "tags", name)
        _check_plain(entry, value, "tags", name)
    return tags


def _check_plain(entry: TomlTable, text: str, *keys: str) -> None:
    if not text.isprintable():
        entry.report(
            f"{shown(text)} contains control characters or other invisible characters. Write plain text in one line.",
            *keys,
        )


def _location(entry: TomlTable) -> str:
    location = entry.text("location", VM._field_defaults["location"])
    check_name(entry, "location", location)
    return location


# The messages do not contain the values, because these can be confidential.


def _data(entry: TomlTable, key: str) -> str:
    """Return user data or custom data."""
    text = entry.text(key)
    size = len(text.encode())
    if size > _MAX_DATA_BYTES:
        entry.report(f"Has {size} bytes in UTF-8. The maximum is {_MAX_DATA_BYTES}.", key)
    return text


def _public_keys(entry: TomlTable) -> tuple[str, ...]:
    keys = entry.texts("public_keys")
    for index, key in enumerate(keys):
        if not key.isprintable() or len(key.split()) < 2:
            problem = "Must be one line with the type and the data of an OpenSSH public key"
            entry.report(f'{problem}, like "ssh-ed25519 AAAAC3Nz ops@example.org".', "public_keys", index)
    return tuple(keys)


def _own_terminate_notice(entry: TomlTable, group: Group | None) -> timedelta | None:
    _reject_in_group(entry, group, "terminate_notice")
    return _terminate_notice(entry, GroupKind.STANDALONE)


def _reject_in_group(entry: TomlTable, group: Group | None, key: str) -> None:
    if group and key in entry:
        entry.report(f"Applies to the whole group. Write it in [[group]] {shown(group.name)}.", key)


def _own_eviction_policy(entry: TomlTable, priority: str) -> str:
    if "eviction_policy" in entry and priority != SPOT and entry.is_right("priority"):
        entry.report(f'Only Spot VMs are evicted. Write priority = "{SPOT}", or omit it.', "eviction_policy")
    return _eviction_policy(entry)


def _eviction_policy(entry: TomlTable) -> str:
    return intern(entry.choice("eviction_policy", EVICTION_POLICIES, "")) if "eviction_policy" in entry else ""


def _hosts(entry: TomlTable, declared: Declared[Host], names: Sequence[str]) -> list[str]:
    """Return the host of each VM; an empty one, if a mistake decides about it."""
    if "host" in entry:
        host = _declared(entry, declared, entry.text("host"), "host")
        return [host.name if host else ""] * len(names)
    if "hosts" in entry:
        given = enumerate(entry.texts("hosts"))
        hosts = [_declared(entry, declared, name, "hosts", index) for index, name in given]
        if not hosts:
            entry.report("Name at least one host, or omit it.", "hosts")
        return spread_hosts([host.name if host else "" for host in hosts] or [""], len(names))
    own_hosts = [own_host(name) if name else "" for name in names]
    for name, own in zip(names, own_hosts, strict=True):
        known = declared.fleet.vms.get(name) if own in declared.fleet.hosts else None
        if own in declared.by_name and not (known and own in (known.host, known.configured_host)):
            problem = f"Without it {shown(name)} gets its own host {shown(own)}, but a [[host]] has this name."
            entry.report(f"{problem} Write host, or rename the [[host]].", "host")
    return own_hosts


def _addresses(entry: TomlTable, count: int) -> list[str]:
    """Return the address of each VM; an empty one, if it has none."""
    none = [""] * count
    if "address" in entry:
        address = _address(entry, "address", entry.text("address"))
        return [str(address), *none[1:]] if address else none
    addresses = _address_range(entry, entry.text("addresses")) if "addresses" in entry else None
    if addresses is None:
        return none
    first, last = addresses
    available = int(last) - int(first) + 1
    if first.version != last.version or available < 1:
        problem = f"{first} to {last} is not a range. Write two IPv4 or two IPv6 addresses, the lower one first."
        entry.report(problem, "addresses")
        return none
    if available < count:
        entry.report(f"The range has {available} addresses, but {count} VMs need {count}.", "addresses")
        return none
    return [str(type(first)(number)) for number in range(int(first), int(first) + count)]


def _address_range(entry: TomlTable, text: str) -> tuple[_Address, _Address] | None:
    """Return the first and last address of `A-B`, of a network, or of all addresses from `A` on."""
    if "/" in text:
        return _usable(entry, text)
    start, dash, end = text.partition("-")
    first = _address(entry, "addresses", start.strip())
    last = _address(entry, "addresses", end.strip()) if dash else first and type(first)(2**first.max_prefixlen - 1)
    return (first, last) if first and last else None


def _usable(entry: TomlTable, text: str) -> tuple[_Address, _Address] | None:
    """Return the usable addresses of a network: without the network and (IPv4) broadcast address."""
    try:
        network = ip_network(text)
    except ValueError:
        problem = f"{shown(text)} is not a network. Write it like 10.1.0.0/24, with zeros after the prefix."
        entry.report(problem, "addresses")
        return None
    if network.num_addresses <= 2:  # point-to-point link or single address: all are usable
        return _unmapped(network[0]), _unmapped(network[-1])
    return _unmapped(network[1]), _unmapped(network[-2 if network.version == 4 else -1])


def _address(entry: TomlTable, key: str, text: str) -> _Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        address = None
    # An address with a zone (fe80::1%eth0) means different callers on different interfaces.
    if address is None or "%" in text:
        entry.report(f"{shown(text)} is not an address. Write it like 10.0.0.4 or fd00::4.", key)
        return None
    return _unmapped(address)


def _unmapped(address: _Address) -> _Address:
    """Convert an IPv4-mapped IPv6 address (::ffff:10.0.0.4) to IPv4, because it is the same caller."""
    return getattr(address, "ipv4_mapped", None) or address


def _listeners(entry: TomlTable, count: int) -> list[str]:
    """Return the listener of each VM; an empty one, if it has none."""
    none = [""] * count
    if "listen" not in entry:
        return none
    parts = _LISTEN.fullmatch(entry.text("listen"))
    if parts is None:
        problem = 'Must be an address and a port, like "127.0.0.1:9000" or "[::1]:9000"'
        entry.report(f'{problem}; in a set, "127.0.0.1:9000-9099".', "listen")
        return none
    address = _address(entry, "listen", parts[1] or parts[2])
    if address is None:
        return none
    host = f"[{address}]" if address.version == 6 else str(address)
    first, last = int(parts[3]), int(parts[4] or _LAST_PORT)
    if parts[4] and "count" not in entry and entry.is_right("count"):
        entry.report("A range of ports needs count. Add count, or write one port.", "listen")
    elif not 1 <= first <= last <= _LAST_PORT:
        entry.report(f"Must be ports from 1 to {_LAST_PORT}, the lower one first.", "listen")
    elif last - first + 1 < count:
        entry.report(f"The range has {last - first + 1} ports, but {count} VMs need {count}.", "listen")
    else:
        return [f"{host}:{port}" for port in range(first, first + count)]
    return none


# --- The file -------------------------------------------------------------------------------------


_Groups: TypeAlias = "Mapping[str, Group | None]"
_TABLES = ("group", "host", "vm")
_GROUP_KEYS = (
    *("name", "kind", "update_domains", "fault_domains", "auto_approve", "terminate_notice", "windows"),
    *("mode", "visibility", "eviction_policy", "os_image_notice", "approve_when_down"),
)
_HOST_KEYS = ("name",)
_KINDS = tuple(kind.value for kind in GroupKind)

_DEFAULT_DOMAINS = {
    GroupKind.STANDALONE: (1, 1),
    GroupKind.CLOUD_SERVICE: (5, 2),
    GroupKind.AVAILABILITY_SET: (5, 2),
    GroupKind.SCALE_SET: (5, 5),
}
"""Default numbers of update and fault domains."""
_MAX_DOMAINS = (100, 10)


def parse_fleet(text: str, source: str, beside: Fleet | None = None) -> Fleet:
    """Parse a fleet file. `source` is the name of the file in error messages.

    With `beside`, the file adds to that fleet and may refer to its groups and hosts. Returns the whole fleet.
    """
    there = beside or Fleet()
    part = _parse(text, source, there, is_part=False)
    groups = {**there.groups, **part.groups}
    placed = spread_domains([*there.vms.values(), *part.vms], groups)
    return Fleet(placed, groups.values(), {**there.hosts, **part.hosts}.values(), part.host_choices)


def parse_part(text: str, source: str, there: Fleet) -> FleetPart:
    """Parse a file with VMs, groups and hosts to add to this fleet, or to change in it."""
    return _parse(text, source, there, is_part=True)


def _parse(text: str, source: str, there: Fleet, *, is_part: bool) -> FleetPart:
    file = TomlFile(text, source)
    document = file.load()
    tables: dict[str, list[TomlTable]] = {}
    vms: list[VM] = []
    entries: list[TomlTable] = []  # the [[vm]] of each VM
    try:
        misspelled = _read_tables(file, document, tables)
        return _read_fleet(file, tables, misspelled, there, vms, entries, is_part=is_part)
    finally:
        for large in (vms, entries, tables, document):
            free(large)


def _read_fleet(
    file: TomlFile,
    tables: Mapping[str, list[TomlTable]],
    misspelled: set[str],
    there: Fleet,
    vms: list[VM],
    entries: list[TomlTable],
    *,
    is_part: bool,
) -> FleetPart:
    groups = _read_declared(file, tables["group"], _read_group, there.groups, there, "group" not in misspelled)
    hosts = _read_declared(file, tables["host"], _read_host, there.hosts, there, "host" not in misspelled)
    shared: dict[Hashable, Any] = {}
    declared_items = len(tables["group"]) + len(tables["host"])
    for entry in tables["vm"]:
        if (count := len(vms) + entry.integer("count", 1, 1, MAX_VMS)) > MAX_VMS:
            problem = f"The fleet has at most {MAX_VMS} VMs. With this set it has {count}."
            entry.report(problem, "count" if "count" in entry else "name")
            break
        if is_part and declared_items + count > MAX_PART_ITEMS:
            break
        declared = read_vms(entry, groups, hosts, shared)
        for vm in declared if not is_part else ():
            if vm.name in there.vms:
                entry.report(f"{shown(vm.name)} is already in the fleet. Names of VMs must be unique.", "name")
        vms += declared
        entries += [entry] * len(declared)
    else:
        count = len(vms)
    if is_part:
        _check_part_size(file, declared_items + count, there, vms)
    elif not vms:
        file.report("The fleet has no VM. Add at least one [[vm]] with a name.", "vm", ("vm",))
    _check_unique(file.text, vms, entries)
    _check_group_membership(vms, entries, groups.by_name)
    _check_scope_names(vms, entries, tables["group"], groups.by_name)
    _check_placement_groups(vms, entries, groups.by_name)
    _check_spot(vms, entries, groups.by_name)
    if all(entry.is_right("group", "priority") for entry in tables["vm"]):
        _check_eviction_policies(tables["group"], vms, there)
    _check_domains(vms, entries)
    if is_part:
        replaced = {vm.name for vm in vms}
        _check_beside_vms(vms, entries, there, replaced)
        _check_beside_groups(tables["group"], groups.by_name, there, replaced)
        _check_beside_hosts(tables["host"], there, replaced)
    file.raise_mistakes()
    of_entry = {id(entry): tuple(entry.texts("hosts")) for entry in tables["vm"] if "hosts" in entry}
    choices = {vm.name: of_entry[id(entry)] for vm, entry in zip(vms, entries, strict=True) if id(entry) in of_entry}
    own_groups = {name: group for entry in tables["group"] if (group := groups.by_name[name := entry.text("name")])}
    own_hosts = {name: host for entry in tables["host"] if (host := hosts.by_name[name := entry.text("name")])}
    return FleetPart(vms.copy(), own_groups, own_hosts, choices)


def _check_part_size(file: TomlFile, items: int, there: Fleet, vms: Sequence[VM]) -> None:
    if not items:
        file.report("The file has nothing to add. Write at least one [[vm]], [[group]] or [[host]].", "vm", ("vm",))
    if items > MAX_PART_ITEMS:
        problem = f"A change of a part of the fleet has at most {MAX_PART_ITEMS} VMs, groups and hosts"
        remedy = "Write several files, or apply a file with the whole fleet."
        file.report(f"{problem}, and this file has more. {remedy}", "vm", ("vm",))
    if (count := len(there.vms) + sum(vm.name not in there.vms for vm in vms)) > MAX_VMS:
        file.report(f"The fleet has at most {MAX_VMS} VMs. With this file it has {count}.", "vm", ("vm",))


def _read_tables(file: TomlFile, document: dict[str, Any], tables: dict[str, list[TomlTable]]) -> set[str]:
    """Add the tables by name. Return the names that are misspelled somewhere, so that their tables are incomplete."""
    top = TomlTable(file, "", None, document)
    misspelled = set()
    for table in document:
        if table not in _TABLES:
            top.report(f"Unknown table. Tables: {', '.join(_TABLES)}.{nearest(table, _TABLES)}", table)
            misspelled.add(nearest_name(table, _TABLES))
    for table in _TABLES:
        tables[table] = top.rows(table, f"Must be written [[{table}]] with double brackets, once for each {table}.")
    for table in _TABLES:
        if table in misspelled and table not in document:
            top.distrust(table)
    return misspelled | {table for table in _TABLES if not top.is_right(table)}


def _read_declared(
    file: TomlFile,
    entries: Sequence[TomlTable],
    read: Callable[[TomlTable, str], _Declared | None],
    there: Mapping[str, _Declared],
    fleet: Fleet,
    is_complete: bool,
) -> Declared[_Declared]:
    """Read groups or hosts, and add those that are there."""
    declared: dict[str, _Declared | None] = {}
    firsts: dict[str, TomlTable] = {}
    again: list[tuple[TomlTable, str]] = []
    for entry in entries:
        name = entry.required_text("name", 'Write it like name = "web".')
        is_complete = is_complete and entry.is_right("name")
        check_name(entry, "name", name)
        value = read(entry, name)
        if name in firsts:
            again.append((entry, name))
        elif name:
            firsts[name], declared[name] = entry, value
    lines = lines_of(file.text, [firsts[name].path("name") for _, name in again])
    for (entry, name), line in zip(again, lines, strict=True):
        entry.report(f"{shown(name)} is already used{on_line(line)}. Names must be unique.", "name")
    return Declared({**there, **declared}, is_complete, fleet)


def _read_group(entry: TomlTable, name: str) -> Group | None:
    entry.reject_unknown(_GROUP_KEYS)
    entry.required_text("kind", f"Write one of {', '.join(_KINDS)}.")
    # After a mistake, continue as for a scale set: it can have all keys.
    kind = entry.choice("kind", _KINDS, "") or GroupKind.SCALE_SET
    update_domains, fault_domains = _DEFAULT_DOMAINS[GroupKind(kind)]
    alone = kind == GroupKind.STANDALONE
    max_update, max_fault = (1, 1) if alone else _MAX_DOMAINS
    reason = ", because a standalone group has one VM" if alone else ""
    group = Group(
        name,
        kind,
        entry.integer("update_domains", update_domains, 1, max_update, reason),
        entry.integer("fault_domains", fault_domains, 1, max_fault, reason),
        entry.choices("auto_approve", AUTO_APPROVE_VALUES),
        _terminate_notice(entry, kind),
        _windows(entry),
        SetMode(_of_scale_set(entry, kind, "mode", [mode.value for mode in SetMode])),
        Visibility(_of_scale_set(entry, kind, "visibility", [visibility.value for visibility in Visibility])),
        eviction_policy=_set_eviction_policy(entry, kind),
        os_image_notice=_os_image_notice(entry, kind),
        approve_when_down=entry.flag("approve_when_down") is not False,
    )
    decisive = ("kind", "update_domains", "fault_domains", "mode", "visibility")
    return group if entry.is_right(*decisive) else None


def _of_scale_set(entry: TomlTable, kind: str, key: str, choices: Sequence[str]) -> str:
    """Return a choice that only scale sets have."""
    if key in entry and kind != GroupKind.SCALE_SET:
        entry.report(f"Only a scale set has a {key}. The kind of this group is {shown(kind)}.", key)
    return entry.choice(key, choices, choices[0])


def _terminate_notice(entry: TomlTable, kind: str) -> timedelta | None:
    if "terminate_notice" in entry and kind not in TERMINATE_NOTICE_KINDS:
        problem = f"Only scale sets and standalone VMs can have one. The kind of this group is {shown(kind)}."
        entry.report(problem, "terminate_notice")
    return _notice(entry, "terminate_notice", parse_terminate_notice)


def _os_image_notice(entry: TomlTable, kind: str) -> timedelta | None:
    if "os_image_notice" in entry and kind != GroupKind.SCALE_SET:
        problem = f"Only a scale set has an OS image notice. The kind of this group is {shown(kind)}."
        entry.report(problem, "os_image_notice")
    return _notice(entry, "os_image_notice", parse_os_image_notice)


def _notice(entry: TomlTable, key: str, parse: Callable[[str], timedelta]) -> timedelta | None:
    if key not in entry:
        return None
    try:
        return parse(entry.text(key))
    except ValueError as error:
        entry.report(str(error), key)
        return None


def _set_eviction_policy(entry: TomlTable, kind: str) -> str:
    if "eviction_policy" in entry and kind != GroupKind.SCALE_SET:
        problem = f"Only a scale set can have one. The kind of this group is {shown(kind)}. Write it in [[vm]]."
        entry.report(problem, "eviction_policy")
    return _eviction_policy(entry)


def _windows(entry: TomlTable) -> tuple[Window, ...]:
    windows = []
    texts = entry.texts("windows")
    if len(texts) > MAX_WINDOWS:
        entry.report(f"Has {len(texts):,} windows. Write at most {MAX_WINDOWS}.", "windows")
        return ()
    for index, text in enumerate(texts):
        try:
            windows.append(parse_window(text))
        except ValueError as error:
            entry.report(str(error), "windows", index)
    return tuple(dict.fromkeys(windows))


def _read_host(entry: TomlTable, name: str) -> Host:
    entry.reject_unknown(_HOST_KEYS)
    return Host(name)


def _check_unique(text: str, vms: Sequence[VM], entries: Sequence[TomlTable]) -> None:
    """Reject VMs with the same name, address or listener."""
    again: list[tuple[int, int, str]] = []  # positions of two VMs, and what they share
    for field in ("name", "address", "listen"):
        holders: dict[str, int] = {}
        for position, vm in enumerate(vms):
            value: str = getattr(vm, field)
            other = holders.setdefault(value, position) if value else position
            if other != position:
                again.append((position, other, field))
    lines = lines_of(text, [entries[other].path() for _, other, _ in again])
    for (position, other, field), line in zip(again, lines, strict=True):
        entry, value = entries[position], getattr(vms[position], field)
        key = "addresses" if field == "address" and "count" in entry else field
        known_line = f" (line {line})" if line else ""
        holder = f'vm "{shortened(vms[other].name)}"{known_line}' if vms[other].name else f"another VM{on_line(line)}"
        entry.report(f"{shown(value)} is already used by {holder}. It must be unique.", key)


def _check_group_membership(vms: Sequence[VM], entries: Sequence[TomlTable], groups: _Groups) -> None:
    """Reject a second VM in a standalone group."""
    held: dict[str, str] = {}
    for vm, entry in zip(vms, entries, strict=True):
        group = groups.get(vm.group)
        if group is None or group.kind != GroupKind.STANDALONE:
            continue
        first = held.setdefault(vm.group, vm.name)
        if first != vm.name:
            problem = f'Standalone group {shown(vm.group)} already has its VM "{first}". Omit group.'
            entry.report(problem, "group")


_SCOPE_NAME = re.compile(r"(.+)\.[1-9][0-9]*")


def _check_scope_names(
    vms: Sequence[VM], entries: Sequence[TomlTable], declared: Iterable[TomlTable], groups: _Groups
) -> None:
    """Reject names that the scopes of a scale set have: web.2, web.3 and so on; or names of VMs with own visibility."""
    named = [(entry, entry.text("name")) for entry in declared]
    for vm, entry in zip(vms, entries, strict=True):
        group = groups.get(vm.group)
        has_own_scope = group is not None and group.visibility is Visibility.OWN
        if entry.is_right("group") and (has_own_scope or not _is_scale_set(group)):
            named.append((entry, vm.name))
        if has_own_scope and groups.get(vm.name) is not None:
            entry.report(f"{shown(vm.name)} is also the name of a group. Choose another name.", "name")
    for entry, name in named:
        parts = _SCOPE_NAME.fullmatch(name) if "." in name else None
        if parts and _is_scale_set(groups.get(parts[1])):
            problem = f"{shown(name)} is the name of a placement group of {shown(parts[1])}. Choose another name."
            entry.report(problem, "name")


def _is_scale_set(group: Group | None) -> bool:
    return group is not None and group.kind == GroupKind.SCALE_SET


def _check_placement_groups(vms: Sequence[VM], entries: Sequence[TomlTable], groups: _Groups) -> None:
    """Reject a placement group with too many VMs. The service assigns VMs that name no placement group."""
    sizes: Counter[tuple[str, int]] = Counter()
    for vm, entry in zip(vms, entries, strict=True):
        group, number = groups.get(vm.group), vm.placement_group
        if group is None or group.kind != GroupKind.SCALE_SET or not number:
            continue
        sizes[group.name, number] += 1
        if sizes[group.name, number] > PLACEMENT_GROUP_SIZE:
            problem = f"Placement group {number} of {shown(group.name)} has at most {PLACEMENT_GROUP_SIZE} VMs"
            remedy = "Write another number, or omit it."
            entry.report(f"{problem}, and {shown(vm.name)} is one too many. {remedy}", "placement_group")


def _check_spot(vms: Sequence[VM], entries: Sequence[TomlTable], groups: _Groups) -> None:
    """Reject Spot VMs with a terminate notice, which Azure does not offer."""
    for vm, entry in zip(vms, entries, strict=True):
        if vm.priority != SPOT:
            continue
        group = groups.get(vm.group)
        if vm.terminate_notice is not None or (group is not None and group.terminate_notice is not None):
            holder = f"group {shown(group.name)}" if group is not None else "it"
            problem = f"Azure offers no terminate notice for Spot VMs, and {holder} has one. Omit one of the two."
            entry.report(problem, "priority")


def _check_eviction_policies(groups: Sequence[TomlTable], vms: Sequence[VM], there: Fleet) -> None:
    """Reject the eviction policy of a set with VMs, but without a Spot VM."""
    named = [entry.text("name") for entry in groups if "eviction_policy" in entry]
    replaced = {vm.name for vm in vms} if named else ()
    staying = (there.vms[member] for name in named for member in there.members(name) if member not in replaced)
    has_spot: dict[str, bool] = {}
    for vm in (*staying, *vms):
        has_spot[vm.group] = has_spot.get(vm.group, False) or vm.priority == SPOT
    for entry in groups:
        if "eviction_policy" in entry and has_spot.get(entry.text("name")) is False:
            problem = f'Only Spot VMs are evicted, and the set has none. Write priority = "{SPOT}" in [[vm]].'
            entry.report(problem, "eviction_policy")


def _check_domains(vms: Sequence[VM], entries: Sequence[TomlTable]) -> None:
    """Reject a host with two update domains of a group."""
    for first, second in find_clashes(vms):
        _report_clash(entries[second], vms[first])


def _report_clash(entry: TomlTable, held: VM) -> None:
    if held.host and entry.is_right("group"):
        problem = (
            f"Host {shown(held.host)} already holds update domain {held.update_domain} of group "
            f'{shown(held.group)}, with vm "{held.name}". A host holds at most one. Write {held.update_domain}, '
            "or another host."
        )
        entry.report(problem, "update_domain")


# --- A part of a fleet: checks against what stays -------------------------------------------------

_SHAPE = ("kind", "mode", "visibility", "update_domains", "fault_domains")
"""What the VMs of a group depend on."""


def _check_beside_vms(vms: Sequence[VM], entries: Sequence[TomlTable], there: Fleet, replaced: Container[str]) -> None:
    for vm, entry in zip(vms, entries, strict=True):
        for key, holder in (("address", there.at_address(vm.address)), ("listen", there.at_listener(vm.listen))):
            if holder is not None and holder.name not in replaced:
                value, field = getattr(vm, key), "addresses" if key == "address" and "count" in entry else key
                problem = f'{shown(value)} is already used by vm "{shortened(holder.name)}" of the fleet'
                entry.report(f"{problem}. It must be unique.", field)
        there_group = there.groups.get(vm.group)
        if there_group is not None and there_group.kind == GroupKind.STANDALONE and vm.group != vm.name:
            holders = [name for name in there.members(vm.group) if name not in replaced]
            if holders:
                problem = f'Standalone group {shown(vm.group)} already has its VM "{holders[0]}". Omit group.'
                entry.report(problem, "group")
        if vm.update_domain != UNPLACED and vm.host in there.hosts:
            tenants = (there.vms[name] for name in there.on_host(vm.host) if name not in replaced)
            of_group = (one for one in tenants if one.group == vm.group and one.update_domain != vm.update_domain)
            if (held := next(of_group, None)) is not None:
                _report_clash(entry, held)


def _check_beside_groups(entries: Iterable[TomlTable], groups: _Groups, there: Fleet, replaced: Container[str]) -> None:
    new_sets: dict[str, TomlTable] = {}
    for entry in entries:
        name = entry.text("name")
        group, known, vm = groups.get(name), there.groups.get(name), there.vms.get(name)
        if group is None:
            continue
        if vm is not None and name not in replaced and known is None and there.scope_of(vm) == name:
            entry.report(f"{shown(name)} is also the name of a VM. Choose another name.", "name")
        if known is None and group.kind == GroupKind.SCALE_SET:
            new_sets[name] = entry
        staying = [member for member in there.members(name) if member not in replaced] if known is not None else []
        for key in _SHAPE if known is not None and staying else ():
            if getattr(group, key) != getattr(known, key):
                value = getattr(known, key)
                value = shown(str(value)) if isinstance(value, str) else value
                problem = f'The group has {key} = {value}, and vm "{shortened(staying[0])}" depends on it'
                entry.report(f"{problem}. Write this value, or apply a file with the whole fleet.", key)
    for name in (*there.vms, *there.groups) if new_sets else ():
        parts = _SCOPE_NAME.fullmatch(name) if "." in name and name not in replaced else None
        if parts and parts[1] in new_sets:
            problem = f"A placement group of this set would have the name of {shown(name)} in the fleet"
            new_sets[parts[1]].report(f"{problem}. Choose another name.", "name")


def _check_beside_hosts(entries: Iterable[TomlTable], there: Fleet, replaced: Container[str]) -> None:
    for entry in entries:
        name = entry.text("name")
        if name not in there.hosts and there.has_host(name) and there.on_host(name)[0] not in replaced:
            problem = f"{shown(name)} is the own host of VM {shown(there.on_host(name)[0])}, which names no host"
            entry.report(f"{problem}. Choose another name.", "name")

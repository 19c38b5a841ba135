"""The fleet file: TOML in, a Fleet out, or an error with the line and the key that are wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from forewarn.core.fleet import Fleet, Group, GroupKind, Host
from forewarn.core.operations import AUTO_APPROVE_WORDS
from forewarn.core.placement import find_clash, spread_domains
from forewarn.core.windows import parse_window
from forewarn.errors import nearest
from forewarn.wire.policy import parse_terminate_notice
from forewarn.wire.toml_entries import Entry, TomlFile
from forewarn.wire.vm_entry import check_name, read_vms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import timedelta

    from forewarn.core.fleet import VM
    from forewarn.core.windows import Window

_Declared = TypeVar("_Declared", Group, Host)

_TABLES = ("group", "host", "vm")
_GROUP_KEYS = ("name", "kind", "update_domains", "fault_domains", "auto_approve", "terminate_notice", "windows")
_HOST_KEYS = ("name",)
_KINDS = tuple(kind.value for kind in GroupKind)

_DEFAULT_DOMAINS = {
    GroupKind.STANDALONE: (1, 1),
    GroupKind.CLOUD_SERVICE: (5, 2),
    GroupKind.AVAILABILITY_SET: (5, 2),
    GroupKind.SCALE_SET: (5, 5),
}
"""Update and fault domains of a group that does not say."""
_MOST_DOMAINS = (100, 10)


def parse_fleet(text: str, source: str, beside: Fleet | None = None) -> Fleet:
    """The fleet that a file declares. `source` is what messages call the file.

    Beside a fleet, the file is an addition to it: it may refer to what is there, and the whole is returned.
    """
    file = TomlFile(text, source)
    tables = _read_tables(file)
    there = beside or Fleet()
    groups = there.groups | _read_declared(tables["group"], _read_group)
    hosts = there.hosts | _read_declared(tables["host"], _read_host)
    vms: list[VM] = []
    entries: list[Entry] = []  # of each VM, the entry that declares it
    for entry in tables["vm"]:
        declared = list(read_vms(entry, groups, hosts))
        for vm in declared:
            if vm.name in there.vms:
                raise entry.wrong(f"{vm.name!r} is in the fleet already: every VM needs its own name.", "name")
        vms += declared
        entries += [entry] * len(declared)
    if not vms:
        raise file.wrong("The fleet has no VM. Add at least one [[vm]] with a name.", "vm", ("vm",))
    _refuse_doubles(vms, entries)
    _refuse_company(vms, entries, groups)
    _refuse_clash(vms, entries)
    return Fleet(spread_domains([*there.vms.values(), *vms], groups), groups.values(), hosts.values())


def _read_tables(file: TomlFile) -> dict[str, list[Entry]]:
    document = file.load()
    for table, rows in document.items():
        if table not in _TABLES:
            problem = f"A fleet file has no such table, only {', '.join(_TABLES)}.{nearest(table, _TABLES)}"
            raise file.wrong(problem, table, (table,))
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            problem = f"Must be written [[{table}]], in two pairs of brackets, once for each {table}."
            raise file.wrong(problem, table, (table,))
    return {
        table: [Entry(file, table, index, row) for index, row in enumerate(document.get(table, ()))]
        for table in _TABLES
    }


def _read_declared(entries: Iterable[Entry], read: Callable[[Entry, str], _Declared]) -> dict[str, _Declared]:
    """Groups or hosts, by name."""
    declared: dict[str, _Declared] = {}
    firsts: dict[str, Entry] = {}
    for entry in entries:
        name = entry.required_text("name", 'Write it like name = "web".')
        check_name(entry, "name", name)
        if name in declared:
            line = firsts[name].line("name")
            raise entry.wrong(f"{name!r} is taken by the one on line {line}: each needs its own.", "name")
        firsts[name] = entry
        declared[name] = read(entry, name)
    return declared


def _read_group(entry: Entry, name: str) -> Group:
    entry.refuse_unknown(_GROUP_KEYS)
    entry.required_text("kind", f"Write one of {', '.join(_KINDS)}.")
    kind = entry.word("kind", _KINDS, "")
    update_domains, fault_domains = _DEFAULT_DOMAINS[GroupKind(kind)]
    alone = kind == GroupKind.STANDALONE
    most_update, most_fault = (1, 1) if alone else _MOST_DOMAINS
    reason = ": a standalone group has one VM" if alone else ""
    return Group(
        name,
        kind,
        entry.whole_number("update_domains", update_domains, 1, most_update, reason),
        entry.whole_number("fault_domains", fault_domains, 1, most_fault, reason),
        entry.words("auto_approve", AUTO_APPROVE_WORDS),
        _terminate_notice(entry, kind),
        _windows(entry),
    )


def _terminate_notice(entry: Entry, kind: str) -> timedelta | None:
    if "terminate_notice" not in entry:
        return None
    if kind != GroupKind.SCALE_SET:
        raise entry.wrong(f"Only a scale set is told of deletions, and this is kind {kind!r}.", "terminate_notice")
    try:
        return parse_terminate_notice(entry.text("terminate_notice"))
    except ValueError as error:
        raise entry.wrong(str(error), "terminate_notice") from None


def _windows(entry: Entry) -> tuple[Window, ...]:
    windows = []
    for index, text in enumerate(entry.texts("windows")):
        try:
            windows.append(parse_window(text))
        except ValueError as error:
            raise entry.wrong(str(error), "windows", index) from None
    return tuple(dict.fromkeys(windows))


def _read_host(entry: Entry, name: str) -> Host:
    entry.refuse_unknown(_HOST_KEYS)
    return Host(name)


def _refuse_doubles(vms: Sequence[VM], entries: Sequence[Entry]) -> None:
    """No two VMs have a name, an address or a listener in common."""
    for field in ("name", "address", "listen"):
        holders: dict[str, int] = {}
        for position, vm in enumerate(vms):
            value: str = getattr(vm, field)
            other = holders.setdefault(value, position) if value else position
            if other != position:
                key = "addresses" if field == "address" and "count" in entries[position] else field
                holder = f'vm "{vms[other].name}" (line {entries[other].line()})'
                problem = f"{value!r} is taken by {holder}: every VM needs its own."
                raise entries[position].wrong(problem, key)


def _refuse_company(vms: Sequence[VM], entries: Sequence[Entry], groups: Mapping[str, Group]) -> None:
    """A standalone group holds one VM at most."""
    held: dict[str, str] = {}
    for vm, entry in zip(vms, entries, strict=True):
        group = groups.get(vm.group)
        if group is None or group.kind != GroupKind.STANDALONE:
            continue
        first = held.setdefault(vm.group, vm.name)
        if first != vm.name:
            problem = f'Standalone group {vm.group!r} has its one VM already: vm "{first}". Leave group out.'
            raise entry.wrong(problem, "group")


def _refuse_clash(vms: Sequence[VM], entries: Sequence[Entry]) -> None:
    """A host holds at most one update domain of a group."""
    clash = find_clash(vms)
    if clash is not None:
        held = vms[clash[0]]
        problem = (
            f"Host {held.host!r} holds update domain {held.update_domain} of group {held.group!r} already, "
            f'with vm "{held.name}", and holds at most one. Write {held.update_domain}, or another host.'
        )
        raise entries[clash[1]].wrong(problem, "update_domain")

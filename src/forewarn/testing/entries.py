"""Entries of a fleet file, made of what a test asks for: so the same rules and messages hold as in a file."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from forewarn.core.durations import format_duration
from forewarn.files.fleet_file import parse_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forewarn.core.fleet import Fleet


def said(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is None: a fleet file has no word for it but silence."""
    return {key: value for key, value in keys.items() if value is not None}


def add_vm(fleet: Fleet, name: str, keys: Mapping[str, Any]) -> Fleet:
    """The fleet with this VM. A host that it names is declared with it."""
    text = _hosts(fleet, keys) + _entry("vm", {"name": name, **keys})
    return parse_fleet(text, f"vm({name!r})", beside=fleet)


GROUP_KEYS = ("update_domains", "fault_domains", "auto_approve", "terminate_notice", "windows")


def add_group(fleet: Fleet, name: str, vms: int, kind: str, keys: Mapping[str, Any]) -> Fleet:
    """The fleet with this group and its VMs: keys of a group are its own, all others are those of its VMs."""
    of_group = {key: value for key, value in keys.items() if key in GROUP_KEYS}
    of_vms = {key: value for key, value in keys.items() if key not in GROUP_KEYS}
    # Azure prescribes the names of scale sets and cloud services.
    names = {"scale-set": {}, "cloud-service": {"name": name}}.get(kind, {"name": f"{name}-{{n}}"})
    text = _entry("group", {"name": name, "kind": kind, **of_group})
    text += _hosts(fleet, of_vms) + _entry("vm", {**names, "group": name, "count": vms, **of_vms})
    return parse_fleet(text, f"group({name!r})", beside=fleet)


def _hosts(fleet: Fleet, keys: Mapping[str, Any]) -> str:
    named = [keys["host"]] if isinstance(keys.get("host"), str) else []
    if isinstance(keys.get("hosts"), (list, tuple)):
        named += [host for host in keys["hosts"] if isinstance(host, str)]
    return "".join(_entry("host", {"name": name}) for name in dict.fromkeys(named) if name not in fleet.hosts)


def _entry(table: str, keys: Mapping[str, Any]) -> str:
    lines = [f"{json.dumps(key, ensure_ascii=False)} = {_value(value)}" for key, value in keys.items()]
    return "\n".join((f"[[{table}]]", *lines, ""))


def _value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, timedelta):
        return json.dumps(format_duration(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_value(inner)}" for key, inner in said(value).items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)

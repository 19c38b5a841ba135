"""Encode the changes of a commit as bytes, so that another node can apply them.

Only changes of the fleet are sent; the receiver applies them to its own fleet. Thousands of VMs can have the same long
texts, so each text is sent once, and a VM has its number. A value is a msgpack array of its fields, so sender and
receiver must have the same fields: each change set says which it has.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
from msgspec import inspect

from forewarn.core.access import StoredResponse, Token
from forewarn.core.events import Event
from forewarn.core.fleet import FleetChange
from forewarn.core.operations import Operation
from forewarn.core.rollouts import Rollout
from forewarn.core.state import Changes, Delivery, HistoryEntry
from forewarn.core.webhooks import Undelivered, Webhook
from forewarn.errors import BadChangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forewarn.core.fleet import VM, Fleet


class ChangeSet(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The fields of `Changes` that are sent: all except the fleet."""

    operations: dict[str, Operation] = {}
    rollouts: dict[str, Rollout] = {}
    events: dict[str, Event] = {}
    deliveries: dict[str, Delivery | None] = {}
    last_seen: dict[str, datetime] = {}
    fleet_changes: list[FleetChange] = []
    facts: dict[str, str] = {}
    tokens: dict[str, Token | None] = {}
    responses: dict[str, StoredResponse] = {}
    webhooks: dict[str, Webhook | None] = {}
    undelivered: dict[tuple[str, int], Undelivered | None] = {}
    history: list[HistoryEntry] = []
    decided_at: datetime | None = None
    texts: list[str] = []
    """Texts of the VMs in `fleet_changes`."""
    layout: int = 0
    """The fields that the sender has: see LAYOUT."""


_SENT = [name for name in ChangeSet.__struct_fields__ if name not in ("texts", "layout")]


def _names(kind: Any) -> Iterator[str]:
    """Yield the names of a type and of its fields, and those of their types."""
    if isinstance(kind, inspect.NamedTupleType | inspect.StructType):
        yield kind.cls.__name__
        for field in kind.fields:
            yield field.name
            yield from _names(field.type)
    elif isinstance(kind, inspect.EnumType):
        yield " ".join(map(str, kind.cls))
    parts = [getattr(kind, name) for name in ("key_type", "value_type", "item_type") if hasattr(kind, name)]
    for part in (*parts, *getattr(kind, "item_types", ()), *getattr(kind, "types", ())):
        yield from _names(part)


LAYOUT = crc32("\n".join(_names(inspect.type_info(ChangeSet))).encode())
"""Differs between releases whose values have other fields."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(ChangeSet)


def encode(changes: Changes) -> bytes:
    """Encode the changes of one commit."""
    sent = ChangeSet(**{name: getattr(changes, name) for name in _SENT})
    numbers: dict[str, int] = {}

    def number(text: str) -> str:
        return str(numbers.setdefault(text, len(numbers))) if text else ""

    def without_texts(vm: VM) -> VM:
        if not (vm.user_data or vm.custom_data or vm.public_keys):
            return vm
        keys = tuple(map(number, vm.public_keys))
        return vm._replace(user_data=number(vm.user_data), custom_data=number(vm.custom_data), public_keys=keys)

    sent.fleet_changes = [_with_vms(change, without_texts) for change in changes.fleet_changes]
    sent.texts = list(numbers)
    sent.layout = LAYOUT
    return _ENCODER.encode(sent)


def _with_vms(change: FleetChange, convert: Callable[[VM], VM]) -> FleetChange:
    added, changed, removed = (tuple(map(convert, vms)) for vms in (change.added, change.changed, change.removed))
    return change._replace(added=added, changed=changed, removed=removed)


class _Time(msgspec.Struct):
    decided_at: datetime | None = None


def decided_at(data: bytes) -> datetime | None:
    """Return when the changes were decided, also if another release wrote them; None: that is not known."""
    try:
        return msgspec.msgpack.decode(data, type=_Time).decided_at
    except msgspec.DecodeError:
        return None


def decode(data: bytes, fleet: Fleet) -> Changes:
    """Decode changes, and apply their fleet changes to a copy of this fleet."""
    try:
        received = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise BadChangeSet(problem=str(error)) from error
    if received.layout != LAYOUT:
        raise BadChangeSet(problem="it has other fields")
    changes = Changes(**{name: getattr(received, name) for name in _SENT})
    texts = received.texts
    key_sets: dict[tuple[str, ...], tuple[str, ...]] = {}

    def with_texts(vm: VM) -> VM:
        if not (vm.user_data or vm.custom_data or vm.public_keys):
            return vm
        keys = key_sets.get(vm.public_keys)
        if keys is None:  # VMs with equal keys share one object
            keys = key_sets[vm.public_keys] = tuple(texts[int(key)] for key in vm.public_keys)
        user_data, custom_data = (texts[int(text)] if text else "" for text in (vm.user_data, vm.custom_data))
        return vm._replace(user_data=user_data, custom_data=custom_data, public_keys=keys)

    if texts:
        changes.fleet_changes = [_with_vms(change, with_texts) for change in changes.fleet_changes]
    for change in changes.fleet_changes:
        if changes.fleet is None:
            changes.fleet = fleet.changed_by(change)
        else:
            changes.fleet.alter(change)  # already a copy since the first change
    return changes

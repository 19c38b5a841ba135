"""Encode the changes of a commit as bytes, so that another node can apply them. A large commit has several parts.

Only changes of the fleet are sent; the receiver applies them to its own fleet. Thousands of VMs can have the same long
texts, so each text is sent once, and a VM has its number. A value is a msgpack array of its fields, so sender and
receiver must have the same fields: each change set says which it has.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
from msgspec import inspect

from forewarn.core.access import StoredResponse, Token
from forewarn.core.events import Event
from forewarn.core.fleet import VM, FleetChange
from forewarn.core.operations import Operation
from forewarn.core.rollouts import Rollout
from forewarn.core.state import Changes, Delivery, HistoryEntry
from forewarn.core.webhooks import Undelivered, Webhook
from forewarn.errors import BadChangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from forewarn.core.fleet import Fleet


PART_ITEMS, PART_BYTES = 1000, 262_144
"""A commit with more items or bytes has several parts. They are encoded and decoded one after the other, because that
stops the whole process, and stored in a row each. Only an item that is larger than a part has a larger row."""


class ChangeSet(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The fields of `Changes` that are sent: all except the fleet."""

    operations: dict[str, Operation] = {}
    rollouts: dict[str, Rollout] = {}
    events: dict[str, Event] = {}
    deliveries: dict[str, Delivery | None] = {}
    last_seen: dict[str, datetime] = {}
    fleet_changes: dict[int, FleetChange] = {}
    """By their place in `Changes`. A large one is in several parts."""
    facts: dict[str, str] = {}
    tokens: dict[str, Token | None] = {}
    responses: dict[str, StoredResponse] = {}
    webhooks: dict[str, Webhook | None] = {}
    undelivered: dict[tuple[str, int], Undelivered | None] = {}
    history: list[HistoryEntry] = []
    decided_at: datetime | None = None
    texts: list[str] = []
    """Texts of the VMs in `fleet_changes`, also of those in later parts."""
    layout: int = 0
    """The fields that the sender has: see LAYOUT."""


_MERGED = [
    name for name in ChangeSet.__struct_fields__ if name not in ("fleet_changes", "decided_at", "texts", "layout")
]
"""Fields that have their items as they are."""


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


def encode(changes: Changes) -> list[bytes]:
    """Encode the changes of one commit, in one part or in several."""
    sent = _with_numbered_texts(changes)
    fleet_items = sum(len(items) for change in sent.fleet_changes.values() for items in _collections(change).values())
    if fleet_items + sum(len(getattr(sent, name)) for name in ("texts", *_MERGED)) <= PART_ITEMS:
        whole = _ENCODER.encode(sent)
        if len(whole) <= PART_BYTES:
            return [whole]
    return list(_parts(sent))


def _collections(change: FleetChange) -> dict[str, Any]:
    return {name: items for name, items in change._asdict().items() if name != "in_place"}


def _parts(sent: ChangeSet) -> Iterator[bytes]:
    make = partial(ChangeSet, decided_at=sent.decided_at, layout=sent.layout)

    def make_part(name: str, items: Any) -> ChangeSet:
        return make(**{name: items})

    def make_part_of_fleet(place: int, name: str, items: Any) -> ChangeSet:
        return make(fleet_changes={place: FleetChange(**{name: items}, in_place=sent.fleet_changes[place].in_place)})

    for name in ("texts", *_MERGED):
        yield from _encode_items(partial(make_part, name), getattr(sent, name), PART_ITEMS)
    for place, change in sent.fleet_changes.items():
        for name, items in _collections(change).items():
            yield from _encode_items(partial(make_part_of_fleet, place, name), items, PART_ITEMS)


def _encode_items(make_part: Callable[[Any], ChangeSet], items: Any, size: int) -> Iterator[bytes]:
    """Encode a collection in parts of this number of items, or of fewer if they are large."""
    listed = list(items.items() if isinstance(items, dict) else items)
    for start in range(0, len(listed), size):
        some = type(items)(listed[start : start + size])
        data = _ENCODER.encode(make_part(some))
        if len(data) > PART_BYTES and len(some) > 1:
            yield from _encode_items(make_part, some, (len(some) + 9) // 10)
        else:
            yield data


def _with_numbered_texts(changes: Changes) -> ChangeSet:
    """Return what is sent: VMs have the numbers of their texts."""
    sent = ChangeSet(**{name: getattr(changes, name) for name in _MERGED}, decided_at=changes.decided_at, layout=LAYOUT)
    numbers: dict[str, int] = {}

    def number(text: str) -> str:
        return str(numbers.setdefault(text, len(numbers))) if text else ""

    def without_texts(vm: VM) -> VM:
        if not (vm.user_data or vm.custom_data or vm.public_keys):
            return vm
        keys = tuple(map(number, vm.public_keys))
        return vm._replace(user_data=number(vm.user_data), custom_data=number(vm.custom_data), public_keys=keys)

    for place, change in enumerate(changes.fleet_changes):
        removed = tuple(VM(vm.name, vm.group, vm.host) for vm in change.removed)  # the receiver has the rest
        sent.fleet_changes[place] = _with_vms(change._replace(removed=removed), without_texts)
    sent.texts = list(numbers)
    return sent


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


def decode(parts: Sequence[bytes], fleet: Fleet) -> Changes:
    """Decode changes, and apply their fleet changes to a copy of this fleet."""
    changes = Changes()
    texts: list[str] = []
    fleet_changes: dict[int, list[FleetChange]] = {}
    key_sets: dict[tuple[str, ...], tuple[str, ...]] = {}

    def with_texts(vm: VM) -> VM:
        if not (vm.user_data or vm.custom_data or vm.public_keys):
            return vm
        keys = key_sets.get(vm.public_keys)
        if keys is None:  # VMs with equal keys share one object
            keys = key_sets[vm.public_keys] = tuple(texts[int(key)] for key in vm.public_keys)
        user_data, custom_data = (texts[int(text)] if text else "" for text in (vm.user_data, vm.custom_data))
        return vm._replace(user_data=user_data, custom_data=custom_data, public_keys=keys)

    for part in map(_decode_part, parts):
        for name in _MERGED:
            ours, theirs = getattr(changes, name), getattr(part, name)
            ours.update(theirs) if isinstance(ours, dict) else ours.extend(theirs)
        texts += part.texts
        for place, change in part.fleet_changes.items():
            converted = _with_vms(change, with_texts) if texts else change
            removed = tuple(fleet.vms.get(vm.name, vm) for vm in change.removed)
            fleet_changes.setdefault(place, []).append(converted._replace(removed=removed))
        changes.decided_at = part.decided_at
    changes.fleet_changes = list(map(_join, fleet_changes.values()))
    for change in changes.fleet_changes:
        if changes.fleet is None:
            changes.fleet = fleet.changed_by(change)
        else:
            changes.fleet.alter(change)  # already a copy since the first change
    return changes


def _decode_part(data: bytes) -> ChangeSet:
    try:
        part = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise BadChangeSet(problem=str(error)) from error
    if part.layout != LAYOUT:
        raise BadChangeSet(problem="it has other fields")
    return part


def _join(parts: list[FleetChange]) -> FleetChange:
    """Return the change of which these are the parts."""
    if len(parts) == 1:
        return parts[0]
    joined = {
        name: type(items)(chain.from_iterable(map(attrgetter(name), parts)))
        for name, items in _collections(parts[0]).items()
    }
    return FleetChange(**joined, in_place=parts[0].in_place)

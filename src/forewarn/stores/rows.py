"""Map values of the core to table rows: one column for each field of the class, with the same name.

The type of a field decides how its column stores it. The statements in statements.sql take their column lists from
here, so a new field only needs a column (a migration). Rows are tuples in the order of the fields, because access by
column name would double the time to load 100,000 VMs.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from sys import intern
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, get_type_hints

import msgspec

from forewarn.core.access import StoredResponse, Token
from forewarn.core.durations import from_text, to_text, to_text_if_any
from forewarn.core.events import Event
from forewarn.core.fleet import VM, Group, GroupPolicy, Host
from forewarn.core.operations import CauseRequest, Operation
from forewarn.core.rollouts import Rollout, RolloutSettings
from forewarn.core.state import Delivery, HistoryEntry, HistorySnapshot
from forewarn.core.waits import Wait
from forewarn.core.webhooks import Undelivered, Webhook
from forewarn.core.windows import Window, format_window, parse_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

V = TypeVar("V")


class Codec(NamedTuple):
    """Conversion of a value to and from a column; None: unchanged."""

    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None


def _to_time(text: str | None) -> datetime | None:
    return from_text(text) if text else None


def _to_seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _to_duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


_PLAIN = Codec()
_TIME = Codec(to_text_if_any, _to_time)
_DURATION = Codec(_to_seconds, _to_duration)


def _codec(hint: Any, field: str) -> Codec:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Codec(str.__str__, hint)
    if hint not in _IN_COLUMNS:
        raise TypeError(f"No codec for {field} of type {hint}.")
    return _IN_COLUMNS[hint]


# --- JSON objects ---------------------------------------------------------------------------------


class JsonObject(Generic[V]):
    """Stores a value as JSON, without the fields that have their default.

    It uses msgspec, because each approval writes two snapshots.
    """

    def __init__(self, kind: type[V]) -> None:
        self._make: Callable[..., V] = kind
        defaults = kind._field_defaults  # type: ignore[attr-defined]  # a NamedTuple
        hints = get_type_hints(kind)
        # Windows are stored as texts, all other fields as msgspec does it.
        self._windows = [number for number, hint in enumerate(hints.values()) if hint == tuple[Window, ...]]
        types = {name: tuple[str, ...] if hint == tuple[Window, ...] else hint for name, hint in hints.items()}
        fields = [(name, hint, defaults[name]) if name in defaults else (name, hint) for name, hint in types.items()]
        self._struct = msgspec.defstruct(kind.__name__, fields, omit_defaults=True)
        self._decoder = msgspec.json.Decoder(self._struct)
        self._list_decoder = msgspec.json.Decoder(list[self._struct])  # type: ignore[name-defined]

    def write(self, value: Any) -> str | None:
        return None if value is None else msgspec.json.encode(self._to_struct(value)).decode()

    def read(self, text: str | None) -> V | None:
        return None if text is None else self._from_struct(self._decoder.decode(text))

    def write_many(self, values: tuple[Any, ...]) -> str:
        return msgspec.json.encode(list(map(self._to_struct, values))).decode() if values else _EMPTY

    def read_many(self, text: str) -> tuple[V, ...]:
        return () if text == _EMPTY else tuple(map(self._from_struct, self._list_decoder.decode(text)))

    def _to_struct(self, value: Any) -> Any:
        fields = list(value)
        for number in self._windows:
            fields[number] = tuple(map(format_window, fields[number]))
        return self._struct(*fields)

    def _from_struct(self, struct: Any) -> V:
        fields = list(msgspec.structs.astuple(struct))
        for number in self._windows:
            fields[number] = tuple(map(parse_window, fields[number]))
        return self._make(*fields)


_REQUEST, _SETTINGS, _POLICY = JsonObject(CauseRequest), JsonObject(RolloutSettings), JsonObject(GroupPolicy)
_SNAPSHOT, _WAIT = JsonObject(HistorySnapshot), JsonObject(Wait)


# --- Columns --------------------------------------------------------------------------------------

_EMPTY = "[]"
"""Most VMs have no tags and no policy, so skip parsing."""


def _names_to_json(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return _name_to_json(names[0])
    return json.dumps(names) if names else _EMPTY


@lru_cache(256)
def _name_to_json(name: str) -> str:
    """Cached, because an operation, its event and its history rows usually name the same single VM."""
    return json.dumps([name])


def _tuple(text: str) -> tuple[Any, ...]:
    return () if text == _EMPTY else tuple(json.loads(text))


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return () if text == _EMPTY else tuple((key, value) for key, value in json.loads(text))


def _windows(windows: Iterable[Window]) -> str:
    return json.dumps([format_window(window) for window in windows])


_IN_COLUMNS = {
    str: _PLAIN,
    str | None: _PLAIN,
    int: _PLAIN,
    bool: Codec(int, bool),
    datetime: Codec(to_text, from_text),
    datetime | None: _TIME,
    timedelta | None: _DURATION,
    tuple[str, ...]: Codec(_names_to_json, _tuple),
    tuple[tuple[str, str], ...]: Codec(lambda pairs: json.dumps(pairs) if pairs else _EMPTY, _pairs),
    tuple[Window, ...]: Codec(_windows, lambda text: tuple(map(parse_window, json.loads(text)))),
    # Cached, because operations that are created together have the same request.
    CauseRequest: Codec(lru_cache(256)(_REQUEST.write), _REQUEST.read),
    RolloutSettings: Codec(_SETTINGS.write, _SETTINGS.read),
    GroupPolicy | None: Codec(_POLICY.write, _POLICY.read),
    HistorySnapshot | None: Codec(_SNAPSHOT.write, _SNAPSHOT.read),
    tuple[Wait, ...]: Codec(_WAIT.write_many, _WAIT.read_many),
}

_RENAMED = {"group": "group_name", "duration": "duration_seconds", "terminate_notice": "terminate_notice_seconds"}
"""Columns with another name than the field: SQL keywords, or names with a unit."""

_NOT_NOTIFIED = Codec(
    lambda pairs: json.dumps(dict(pairs)) if pairs else "{}", lambda text: tuple(json.loads(text).items())
)


class Table(Generic[V]):
    """Table of a class."""

    def __init__(
        self,
        name: str,
        kind: type[V],
        key: int = 1,
        codecs: Mapping[str, Codec] | None = None,
        derived: Mapping[str, Callable[[V], Any]] | None = None,
    ) -> None:
        """`key`: number of leading key fields. `derived`: additional columns that are only written."""
        self.name = name
        self._make: Callable[[Iterable[Any]], V] = kind._make  # type: ignore[attr-defined]  # a NamedTuple
        hints = get_type_hints(kind)
        found = [(codecs or {}).get(field) or _codec(hint, field) for field, hint in hints.items()]
        self._writes = [(number, codec.write) for number, codec in enumerate(found) if codec.write is not None]
        self._reads = [(number, codec.read) for number, codec in enumerate(found) if codec.read is not None]
        self._count = len(found)
        self._derived = list((derived or {}).values())
        self.names = [*(_RENAMED.get(field, field) for field in hints), *(derived or {})]
        # Parts of SQL statements.
        self.columns = ", ".join(self.names)
        self.parameters = ", ".join("?" for _ in self.names)
        self.changes = ", ".join(f"{name} = excluded.{name}" for name in self.names[key:])

    def write(self, value: V) -> list[Any]:
        """Return the row of a value, in the order of `columns`."""
        values: list[Any] = list(value)  # type: ignore[call-overload]  # a NamedTuple
        for number, write in self._writes:
            values[number] = write(values[number])
        values += [derive(value) for derive in self._derived]
        return values

    def read(self, row: Sequence[Any]) -> V:
        """Return the value of a row. Additional columns at the end are ignored."""
        values = list(row[: self._count])
        for number, read in self._reads:
            values[number] = read(values[number])
        return self._make(values)


# --- The tables -----------------------------------------------------------------------------------


@lru_cache(256)
def _text_key(text: str) -> str:
    """Return the key of a text in shared_text. Cached, because thousands of VMs can have the same text."""
    return sha256(text.encode()).hexdigest() if text else ""


def _keys_to_text(public_keys: tuple[str, ...]) -> str:
    return "\n".join(public_keys)


@lru_cache(256)
def _text_to_keys(text: str) -> tuple[str, ...]:
    return tuple(text.splitlines())


def shared_texts(vms: Iterable[VM]) -> dict[str, str]:
    """Return the rows of shared_text that these VMs need: key and text."""
    texts = {text for vm in vms for text in (vm.user_data, vm.custom_data, _keys_to_text(vm.public_keys)) if text}
    return {_text_key(text): text for text in texts}


def vm_table(texts: Mapping[str, str]) -> Table[VM]:
    """Return the table of VMs. Rows have keys of `texts`, so VMs with equal texts share one object."""
    find = {"": "", **texts}.__getitem__
    # Interned, because each row has its own copy of these strings.
    short, text = Codec(None, intern), Codec(_text_key, find)
    public_keys = Codec(lambda keys: _text_key(_keys_to_text(keys)), lambda key: _text_to_keys(find(key)))
    codecs = {"os": short, "location": short, "user_data": text, "custom_data": text, "public_keys": public_keys}
    return Table("vm", VM, codecs=codecs)


VMS = vm_table({})
"""Writes VMs. To read VMs with texts, create a table with these texts."""
GROUPS = Table("fleet_group", Group)
HOSTS = Table("host", Host)
DELIVERIES = Table("delivery", Delivery)
OPERATIONS = Table(
    "operation", Operation, codecs={"not_notified": _NOT_NOTIFIED}, derived={"cause": lambda operation: operation.cause}
)
ROLLOUTS = Table("rollout", Rollout)
EVENTS = Table("event", Event)
HISTORY = Table("history", HistoryEntry)
TOKENS = Table("token", Token)
RESPONSES = Table("kept_answer", StoredResponse)
WEBHOOKS = Table("webhook", Webhook)
UNDELIVERED = Table("undelivered", Undelivered, key=2)

TABLES: dict[str, Table[Any]] = {
    table.name: table
    for table in (
        *(VMS, GROUPS, HOSTS, DELIVERIES, OPERATIONS, ROLLOUTS, EVENTS, HISTORY, TOKENS, RESPONSES),
        *(WEBHOOKS, UNDELIVERED),
    )
}

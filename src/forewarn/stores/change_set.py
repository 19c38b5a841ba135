"""Encode the changes of a commit as bytes, so that another node can apply them.

Only changes of the fleet are sent; the receiver applies them to its own fleet. A value is a msgpack array of its
fields, so sender and receiver must run the same version of Forewarn.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from forewarn.core.access import StoredResponse, Token
from forewarn.core.events import Event
from forewarn.core.fleet import FleetChange
from forewarn.core.operations import Operation
from forewarn.core.rollouts import Rollout
from forewarn.core.state import Changes, Delivery, HistoryEntry
from forewarn.core.webhooks import Undelivered, Webhook
from forewarn.errors import BadChangeSet

if TYPE_CHECKING:
    from forewarn.core.fleet import Fleet


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
    kept: dict[str, StoredResponse] = {}
    webhooks: dict[str, Webhook | None] = {}
    undelivered: dict[tuple[str, int], Undelivered | None] = {}
    history: list[HistoryEntry] = []


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(ChangeSet)


def encode(changes: Changes) -> bytes:
    """Encode the changes of one commit."""
    return _ENCODER.encode(ChangeSet(*(getattr(changes, name) for name in ChangeSet.__struct_fields__)))


def decode(data: bytes, fleet: Fleet) -> Changes:
    """Decode changes, and apply their fleet changes to a copy of this fleet."""
    try:
        received = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise BadChangeSet(problem=str(error)) from error
    changes = Changes(**{name: getattr(received, name) for name in received.__struct_fields__})
    for change in changes.fleet_changes:
        if changes.fleet is None:
            changes.fleet = fleet.changed_by(change)
        else:
            changes.fleet.alter(change)  # already a copy since the first change
    return changes

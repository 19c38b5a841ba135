"""Faults as the control API shows them: the shape, and what it looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.core.durations import to_text, to_text_if_any
from forewarn.core.faults import FAULTS, ON
from forewarn.wire.schema import COUNT, MOMENT, NUMBER, TEXT, Schema, choice, list_of, nullable, record, ref

if TYPE_CHECKING:
    from datetime import timedelta

    from forewarn.core.faults import Fault


def fault_shape(fault: Fault) -> dict[str, Any]:
    """A fault, and how far it has come."""
    order = fault.order
    return {
        "id": fault.id,
        "kind": order.kind,
        "vm": order.vm or None,
        "on": order.on,
        "count": order.count,
        "for_seconds": _seconds(order.length),
        "delay_seconds": _seconds(order.delay),
        "added_by": fault.by,
        "added_at": to_text(fault.added_at),
        "until": to_text_if_any(fault.until),
        "left": fault.left,
        "struck": fault.struck,
    }


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


FAULT_SHAPES: dict[str, Schema] = {
    "Fault": record(
        {
            "id": TEXT,
            "kind": choice(*FAULTS),
            "vm": {**nullable(TEXT), "description": "Whose requests it strikes; null: those of all VMs."},
            "on": choice(*ON),
            "count": nullable(COUNT),
            "for_seconds": nullable(NUMBER),
            "delay_seconds": nullable(NUMBER),
            "added_by": TEXT,
            "added_at": MOMENT,
            "until": {**nullable(MOMENT), "description": "When it is over; null: when its count is."},
            "left": {**nullable(COUNT), "description": "How many requests it will still strike; null: any number."},
            "struck": {**COUNT, "description": "How many requests it has struck; groups, of disabled."},
        }
    ),
    "ClearedFaults": record({"faults": list_of(ref("Fault"))}),
}

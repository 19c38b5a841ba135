"""Whether an agent is well, and whether its machine should be given work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_TURN_SECONDS = 60
"""An agent whose loop has not come round for so long hangs."""


def hanging(snapshot: Mapping[str, Any]) -> str:
    """What is wrong with the agent itself, in words; nothing if it is well."""
    seconds = snapshot.get("turned_seconds_ago") or 0
    return f"the loop has not turned for {seconds:.0f} s" if seconds > LONGEST_TURN_SECONDS else ""


def readiness(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the machine should be given work, and why not: an event is coming, or the agent hangs."""
    hangs = hanging(snapshot)
    ready = bool(snapshot.get("ready")) and not hangs
    return {"ready": ready, "reason": "" if ready else hangs or snapshot.get("ready_reason") or "not ready"}

"""A job as it is told to others: to programs, receivers and logs."""

from __future__ import annotations

import json
from datetime import timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forewarn.agent.handlers.handler import Job

_LONGEST = 30_000
"""Characters of one variable of the environment: the system refuses programs with much longer ones."""


def as_json(job: Job, **more: Any) -> str:
    """The event as it was sent, and what is done about it."""
    told = {"action": job.action, "vm": job.vm, "handler": job.handler, **more, "event": job.event.raw}
    return json.dumps(told)


def as_variables(job: Job) -> dict[str, str]:
    """The same as variables of an environment."""
    event = job.event
    moment = event.not_before
    told = {
        "ACTION": job.action,
        "HANDLER": job.handler,
        "VM_NAME": job.vm,
        "TIMEOUT_SECONDS": int(job.seconds_left()),
        "EVENT_ID": event.id,
        "EVENT_TYPE": event.type,
        "EVENT_STATUS": event.status,
        "EVENT_SOURCE": event.source or "",
        "EVENT_DESCRIPTION": event.description or "",
        "EVENT_DURATION_SECONDS": "" if event.duration_seconds is None else event.duration_seconds,
        "EVENT_RESOURCES": ",".join(event.resources),
        "EVENT_NOT_BEFORE": f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}" if moment else "",
    }
    return {f"FOREWARN_{name}": as_variable(value) for name, value in told.items()}


def as_variable(value: object) -> str:
    """A text that can be a variable: an endpoint may send what no variable can hold."""
    return str(value).replace("\0", "")[:_LONGEST].encode(errors="replace").decode()

"""What the shapes of control.py, rollouts.py and the errors look like, by name: the components of the OpenAPI."""

from __future__ import annotations

from forewarn.core.access import Role
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.events import Status
from forewarn.core.fleet import GroupKind, HostState
from forewarn.core.operations import CAUSES, OVERRIDES, Health, Progress
from forewarn.core.rollouts import Stage
from forewarn.wire.faults import FAULT_SHAPES
from forewarn.wire.scenarios import SCENARIO_SHAPES
from forewarn.wire.schema import (
    COUNT,
    FLAG,
    MOMENT,
    NUMBER,
    TEXT,
    Schema,
    choice,
    list_of,
    map_of,
    nullable,
    record,
    ref,
)
from forewarn.wire.webhooks import WEBHOOK_SHAPES

TEXTS = list_of(TEXT)
MAYBE_TEXT, MAYBE_MOMENT, MAYBE_NUMBER = nullable(TEXT), nullable(MOMENT), nullable(NUMBER)
SOURCES = choice("platform", "user")

_COURSE: dict[str, Schema] = {
    "type": TEXT,
    "duration_seconds": MAYBE_NUMBER,
    "notice_seconds": MAYBE_NUMBER,
    "postpone_until": MAYBE_MOMENT,
    "overrides": list_of(choice(*OVERRIDES)),
    "budget": COUNT,
    "pause_seconds": MAYBE_NUMBER,
    "health_seconds": MAYBE_NUMBER,
}
_SKIPPED = list_of(record({"host": TEXT, "why": TEXT}))
_ROLLOUT: dict[str, Schema] = {
    "id": TEXT,
    "hosts": TEXTS,
    **_COURSE,
    "requested_by": TEXT,
    "requested_at": MOMENT,
    "stage": choice(*(stage.value for stage in Stage)),
    "wave": COUNT,
    "counts": record(dict.fromkeys(("waiting", "under_way", "done", "skipped"), COUNT)),
    "next_at": MAYBE_MOMENT,
    "outcome": MAYBE_TEXT,
    "ended_at": MAYBE_MOMENT,
}
_EXPLANATION: dict[str, Schema] = {
    "operation": TEXT,
    "cause": choice(*CAUSES),
    "meaning": TEXT,
    "requested_by": TEXT,
    "requested_at": MOMENT,
    "host": MAYBE_TEXT,
    "rollout": MAYBE_TEXT,
    "progress": choice(*(progress.value for progress in Progress)),
    "postpone_until": MAYBE_MOMENT,
    "not_told": map_of(TEXT),
    "waits": list_of(
        record(
            {
                "what": TEXT,
                "over": FLAG,
                "group": MAYBE_TEXT,
                "by": MAYBE_TEXT,
                "at": MAYBE_MOMENT,
                "until": MAYBE_MOMENT,
                "words": MAYBE_TEXT,
            }
        )
    ),
    "next": TEXT,
    "latest": MAYBE_MOMENT,
}
_HOST: dict[str, Schema] = {
    "name": TEXT,
    "state": choice(*(state.value for state in HostState)),
    "spare": FLAG,
    "vms": TEXTS,
    "operations": list_of(record({"id": TEXT, "cause": TEXT, "progress": TEXT})),
}
_TOKEN: dict[str, Schema] = {
    "name": TEXT,
    "role": choice(*(role.value for role in Role)),
    "group": MAYBE_TEXT,
    "created_by": TEXT,
    "created_at": MOMENT,
    "expires_at": MAYBE_MOMENT,
}

SHAPES: dict[str, Schema] = {
    "Problem": {
        **record(
            {
                "type": {"type": "string", "description": "urn:forewarn: and the name of the error."},
                "title": choice("Invalid", "NotFound", "Conflict", "Forbidden", "Unavailable", "Internal"),
                "status": COUNT,
                "detail": {"type": "string", "description": "What is wrong, and what would be right."},
                "pointer": {"type": "string", "description": "The member of the body at fault, as a JSON pointer."},
                "parameter": {"type": "string", "description": "The parameter or header at fault."},
                "valid": {"description": "What would be valid there: a list of values, or words."},
            },
            "pointer",
            "parameter",
            "valid",
        ),
        "description": "What went wrong (RFC 9457). The title is one of five families, by what the caller can do.",
    },
    "VM": record(
        {
            "name": TEXT,
            "group": TEXT,
            "kind": choice(*(kind.value for kind in GroupKind)),
            "host": TEXT,
            "home": MAYBE_TEXT,
            "state": choice("running", "deallocated"),
            "update_domain": COUNT,
            "fault_domain": COUNT,
            "address": MAYBE_TEXT,
            "listen": MAYBE_TEXT,
            "hostname": TEXT,
            "priority": TEXT,
            "size": MAYBE_TEXT,
            "zone": MAYBE_TEXT,
            "tags": map_of(TEXT),
            "auto_approve": TEXTS,
            "listening": FLAG,
            "last_heard_at": MAYBE_MOMENT,
            "incarnation": COUNT,
            "events": TEXTS,
        }
    ),
    "Event": record(
        {
            "id": TEXT,
            "operation": TEXT,
            "group": TEXT,
            "type": choice(*EVENT_TYPES),
            "status": choice(*(status.lower() for status in Status)),
            "vms": TEXTS,
            "not_before": MOMENT,
            "description": TEXT,
            "source": SOURCES,
            "duration_seconds": MAYBE_NUMBER,
            "created_at": MOMENT,
            "approved_at": MAYBE_MOMENT,
            "approved_by": MAYBE_TEXT,
            "started_at": MAYBE_MOMENT,
            "ended_at": MAYBE_MOMENT,
        }
    ),
    "Operation": record(
        {
            "id": TEXT,
            "cause": choice(*CAUSES),
            "type": MAYBE_TEXT,
            "host": MAYBE_TEXT,
            "vms": TEXTS,
            "requested_by": TEXT,
            "requested_at": MOMENT,
            "notice_seconds": MAYBE_NUMBER,
            "postpone_until": MAYBE_MOMENT,
            "overrides": list_of(choice(*OVERRIDES)),
            "rollout": MAYBE_TEXT,
            "progress": choice(*(progress.value for progress in Progress)),
            "health": nullable(choice(*(health.value for health in Health if health.value))),
            "outcome": MAYBE_TEXT,
            "events": list_of(ref("Event")),
            "not_told": map_of(TEXT),
            "moves": map_of(TEXT),
            "holds_until": MAYBE_MOMENT,
            "started_at": MAYBE_MOMENT,
            "carried_out_at": MAYBE_MOMENT,
            "settles_at": MAYBE_MOMENT,
            "ended_at": MAYBE_MOMENT,
            "destinations": map_of(MAYBE_TEXT),
        },
        "destinations",
    ),
    "Requested": record({"dry_run": FLAG, "operations": list_of(ref("Operation"))}),
    "Explanation": record(_EXPLANATION),
    "EventExplanation": record({"event": ref("Event"), **_EXPLANATION}),
    "Entry": record(
        {
            "sequence": COUNT,
            "at": MOMENT,
            "what": TEXT,
            "by": TEXT,
            "group": MAYBE_TEXT,
            "event": MAYBE_TEXT,
            "operation": MAYBE_TEXT,
            "host": MAYBE_TEXT,
            "vms": TEXTS,
            "why": MAYBE_TEXT,
        }
    ),
    "Host": record(_HOST),
    "ReturnedHost": record({**_HOST, "withdrawn": TEXTS}),
    "Group": record(
        {
            "name": TEXT,
            "kind": choice(*(kind.value for kind in GroupKind)),
            "update_domains": COUNT,
            "fault_domains": COUNT,
            "auto_approve": TEXTS,
            "terminate_notice": MAYBE_TEXT,
            "windows": TEXTS,
            "vms": COUNT,
        }
    ),
    "Fleet": record({"vms": COUNT, "groups": COUNT, "hosts": COUNT}),
    "FleetChange": record(
        dict.fromkeys(("added", "changed", "removed", "groups", "groups_removed", "hosts", "hosts_removed"), TEXTS)
    ),
    "RolloutSummary": record(_ROLLOUT),
    "Rollout": record(
        {
            **_ROLLOUT,
            "waiting": TEXTS,
            "under_way": list_of(record({"host": TEXT, "operation": TEXT})),
            "done": TEXTS,
            "skipped": _SKIPPED,
        }
    ),
    "Plan": record(
        {
            "hosts": TEXTS,
            **_COURSE,
            "waves": list_of(
                record(
                    {
                        "hosts": TEXTS,
                        "groups": list_of(record({"group": TEXT, "update_domain": COUNT})),
                        "vms": COUNT,
                        "announced_at": MOMENT,
                        "starts_at": MOMENT,
                        "ends_at": MOMENT,
                    }
                )
            ),
            "skipped": _SKIPPED,
            "expected_end": MOMENT,
            "longest_end": MOMENT,
        }
    ),
    "Clock": record({"now": MOMENT, "clock": choice("system", "virtual"), "speed": NUMBER}),
    "Health": record({"status": choice("ok"), "version": TEXT}),
    "Readiness": record({"status": choice("ready", "not ready"), "problems": TEXTS}),
    "Token": record(_TOKEN),
    "NewToken": record(
        {
            **_TOKEN,
            "token": {
                **MAYBE_TEXT,
                "description": "The token itself: shown this once, and null where a request is repeated by its key.",
            },
        }
    ),
    **SCENARIO_SHAPES,
    **FAULT_SHAPES,
    **WEBHOOK_SHAPES,
    "Document": {"type": "object", "description": "What the metadata service would answer, on Azure's own wire."},
}


def page_schema(name: str, shape: str) -> Schema:
    """A page of a list."""
    cursor = {**MAYBE_TEXT, "description": "What to give as cursor for the next page; null: this is the last."}
    return record({name: list_of(ref(shape)), "next": cursor})

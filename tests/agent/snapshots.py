"""Snapshots of an agent, for tests of their output."""

from __future__ import annotations

from typing import Any


def snapshot(**changes: Any) -> dict[str, Any]:
    """Return the snapshot of an agent with one scheduled event."""
    return {
        "vm": "web-0",
        "vm_from": "--vm-name",
        "endpoint": "http://127.0.0.1:8169",
        "endpoint_from": "FOREWARN_ENDPOINT",
        "config": "agent.toml",
        "dry_run": False,
        "uptime_seconds": 3725.5,
        "seconds_since_last_loop": 0.2,
        "now": "2031-05-04T12:00:00Z",
        "ready": False,
        "ready_reason": "Reboot E1: preparing",
        "polling": {
            "responses": 1234,
            "request_errors": {"throttled": 3, "timeout": 1},
            "error": None,
            "failing_seconds": None,
            "seconds_since_last_response": 0.5,
            "incarnation": 5,
            "api_version": "2020-07-01",
            "long_poll": True,
        },
        "events": [event()],
        "peers": None,
        "counts": {
            "prepared": 1,
            "prepare failed": 0,
            "undone": 0,
            "undo failed": 0,
            "approved": 2,
            "approve failed": 0,
        },
        **changes,
    }


def event(**changes: Any) -> dict[str, Any]:
    return {
        "id": "E1",
        "type": "Reboot",
        "status": "Scheduled",
        "resources": ["web-0", "web-1"],
        "not_before": "2031-05-04T12:15:00Z",
        "description": "Host server is undergoing maintenance.",
        "source": "Platform",
        "duration_seconds": 9,
        "mine": True,
        "rule": "web",
        "phase": "preparing",
        "next": "is preparing stop-web",
        "next_at": None,
        "steps": [
            {"handler": "leave-pool", "state": "prepared", "problem": "", "seconds": 1.25},
            {"handler": "stop-web", "state": "preparing", "problem": "", "seconds": 0},
        ],
        "approval": {"mode": "self", "sent_at": None, "reason": "it is not prepared yet"},
        **changes,
    }

"""Forewarn in a test: the whole service in this process, in virtual time. (docs/reference/test-kit.md)"""

from __future__ import annotations

from forewarn.testing.client import Answer
from forewarn.testing.event import Event
from forewarn.testing.process import ServiceProcess
from forewarn.testing.service import AsyncService, ScenarioFailed, Service
from forewarn.testing.vm import VM, Group
from forewarn.wire.document_reader import EventsDocument, ScheduledEvent

__all__ = [
    "VM",
    "Answer",
    "AsyncService",
    "Event",
    "EventsDocument",
    "Group",
    "ScenarioFailed",
    "ScheduledEvent",
    "Service",
    "ServiceProcess",
]

"""The test kit: the whole service in the process of a test, in virtual time. (docs/reference/test-kit.md)"""

from __future__ import annotations

from forewarn.testing.client import HTTPResponse
from forewarn.testing.event import Event
from forewarn.testing.process import ServiceProcess
from forewarn.testing.service import AsyncService, ScenarioFailed, Service
from forewarn.testing.vm import VM, Group
from forewarn.wire.document_reader import EventsDocument, ScheduledEvent

__all__ = [
    "VM",
    "AsyncService",
    "Event",
    "EventsDocument",
    "Group",
    "HTTPResponse",
    "ScenarioFailed",
    "ScheduledEvent",
    "Service",
    "ServiceProcess",
]

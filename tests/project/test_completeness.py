"""Each row of a table has what belongs to it: a new cause without its story or its kill test fails here."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from acceptance import test_causes, test_kill_causes
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.events import Document, Event, EventStatus, Source
from forewarn.core.operations import CAUSES
from forewarn.wire.document import render
from forewarn.wire.versions import API_VERSIONS, KNOWN_VERSIONS

NOW = datetime(2041, 5, 6, tzinfo=UTC)
NEVER_SCHEDULED = {"start", "rebalance"}
"""Causes without an event, or with one that never starts. `acceptance/test_spot.py` has their stories."""


def test_every_cause_has_a_story() -> None:
    assert {story.cause for story in test_causes.STORIES} | NEVER_SCHEDULED == {*CAUSES}


def test_every_cause_has_a_kill_test() -> None:
    assert {case.cause for case in test_kill_causes.CASES} == {*CAUSES}


def test_every_cause_has_a_conflict_case() -> None:
    assert {*test_causes.CONFLICTS} | {*test_causes.CONFLICTS_OF_A_VM} == {*CAUSES}


def test_pinned_the_dangerous_causes() -> None:
    """Their buttons in the portal are marked. A new cause is one of them because of its verb or its notice."""
    dangerous = {cause.name for cause in CAUSES.values() if cause.dangerous}
    assert dangerous == {
        *("delete", "scale-in", "instance-repair"),
        *("reimage", "image-upgrade", "eviction", "hardware-failure"),
    }


def test_every_event_type_has_its_first_api_version() -> None:
    added = [event_type for version in API_VERSIONS for event_type in version.event_types]
    assert sorted(added) == sorted(EVENT_TYPES)


class _EveryField(frozenset[str]):
    """The members of an api-version that leaves nothing out."""

    def __contains__(self, _: object) -> bool:
        return True


@pytest.mark.parametrize("status", [EventStatus.SCHEDULED, EventStatus.STARTED])
def test_every_member_of_an_event_has_its_first_api_version(status: EventStatus) -> None:
    added = [field for version in API_VERSIONS for field in version.fields]
    event = Event("e", "o", "web", "web", "Reboot", status, ("web-0",), NOW, "text", Source.USER, None, NOW)
    document = Document("web", enabling=1, incarnation=1, events=(event,), enabled=True)
    version = KNOWN_VERSIONS["2020-07-01"]._replace(fields=_EveryField())
    (shown,) = json.loads(render(document, version, "standalone"))["Events"]
    assert sorted(shown) == sorted(added)

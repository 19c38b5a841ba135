"""Approvals that come late: after the start of an event, and after its end, also across restarts and kills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from acceptance.causes import NEWEST, OLDEST, VIRTUAL_TIME, act_on_event, document, events, get, request_one
from forewarn.testing import ServiceProcess
from forewarn.wire.document_reader import start_requests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WEB, OTHER = "127.0.0.10", "127.0.0.20"
FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
group = "web"
name = "web-{n}"
count = 2
addresses = "127.0.0.10-127.0.0.11"
[[vm]]
name = "other"
address = "127.0.0.20"
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    (tmp_path / "fleet.toml").write_text(FLEET)
    with ServiceProcess(tmp_path).start("--fleet", str(tmp_path / "fleet.toml"), *VIRTUAL_TIME) as found:
        for address in (WEB, OTHER):
            assert events(found, address) == []
        yield found


def restart(service: ServiceProcess, *, kill: bool) -> None:
    service.kill() if kill else service.stop()
    service.start("--fleet", str(service.folder / "fleet.toml"), *VIRTUAL_TIME)


def statuses_of_approval(service: ServiceProcess, *ids: str, source: str = WEB) -> set[int]:
    """Approve at the oldest and the newest api-version, and return the statuses."""
    body = start_requests(*ids)
    targets = [f"/metadata/scheduledevents?api-version={version}" for version in (OLDEST, NEWEST)]
    return {service.request("POST", target, body=body, source=source).status for target in targets}


def ended_event(service: ServiceProcess, how: str) -> str:
    """The id of an event of web that has been in its document and is over."""
    event_id = str(request_one(service, "restart", "web-0")["events"][0]["id"])
    assert [found["EventId"].lower() for found in events(service, WEB)] == [event_id]
    if how == "cancelled":
        act_on_event(service, event_id, "cancel")
    else:
        assert statuses_of_approval(service, event_id) == {200}
        service.advance("10m")
    assert events(service, WEB) == []
    return event_id


def history(service: ServiceProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(service, "history")["history"]
    return found


@pytest.mark.parametrize("end", ["kill", "stop", "none"])
@pytest.mark.parametrize("how", ["completed", "cancelled"])
def test_an_ended_event_can_be_approved_again_for_a_day(service: ServiceProcess, how: str, end: str) -> None:
    event_id = ended_event(service, how)
    if end != "none":
        restart(service, kill=end == "kill")
    before, seen = history(service), document(service, WEB)
    assert statuses_of_approval(service, event_id) == {200}
    assert statuses_of_approval(service, event_id, source=OTHER) == {400}, "it never belonged to this group"
    assert statuses_of_approval(service, event_id, "00000000-0000-4000-8000-000000000000") == {400}
    service.advance(hours=23)
    assert statuses_of_approval(service, event_id.upper()) == {200}
    assert history(service) == before, "it only repeats itself"
    assert document(service, WEB) == seen
    service.advance(hours=1)
    assert statuses_of_approval(service, event_id) == {400}
    restart(service, kill=True)
    assert statuses_of_approval(service, event_id) == {400}


def test_an_ended_and_a_live_event_in_one_request_approve_the_live_one(service: ServiceProcess) -> None:
    ended = ended_event(service, "completed")
    live = str(request_one(service, "restart", "web-1")["events"][0]["id"])
    assert statuses_of_approval(service, ended, live, "00000000-0000-4000-8000-000000000000") == {400}
    assert [event["EventStatus"] for event in events(service, WEB)] == ["Scheduled"], "all or nothing"
    assert statuses_of_approval(service, ended, live) == {200}
    assert [event["EventStatus"] for event in events(service, WEB)] == ["Started"]


@pytest.mark.parametrize("cause", ["restart", "hardware-failure"])
def test_an_approval_after_the_start_leaves_one_row_and_the_same_document(service: ServiceProcess, cause: str) -> None:
    target = {"host": "web-0-host"} if cause == "hardware-failure" else {}
    vms = () if target else ("web-0",)
    event_id = str(request_one(service, cause, *vms, **target)["events"][0]["id"])
    if cause == "restart":
        service.advance("15m")
    seen = {version: document(service, WEB, version) for version in (OLDEST, NEWEST)}
    assert [event["EventStatus"] for event in seen[NEWEST]["Events"]] == ["Started"]
    assert statuses_of_approval(service, event_id, source=OTHER) == {400}
    assert statuses_of_approval(service, event_id) == {200}
    restart(service, kill=True)
    assert statuses_of_approval(service, event_id) == {200}
    assert {version: document(service, WEB, version) for version in seen} == seen
    service.advance("10m")
    assert statuses_of_approval(service, event_id) == {200}
    rows = [row for row in history(service) if row["kind"] == "approved"]
    assert [(row["event"], row["by"], row["reason"]) for row in rows] == [
        (event_id, "web-0", "after the start, without an effect")
    ]


def test_an_approved_event_has_no_second_row_when_it_is_approved_after_its_start(service: ServiceProcess) -> None:
    event_id = ended_event(service, "completed")
    rows = [row for row in history(service) if row["kind"] == "approved"]
    assert [(row["event"], row["reason"]) for row in rows] == [(event_id, None)]

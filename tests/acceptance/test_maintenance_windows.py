"""Maintenance windows and postponement on the wire: NotBefore is in the window, and never moves earlier."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from acceptance.causes import (
    act_on_event,
    advance_to,
    document,
    event_ids,
    events,
    everything,
    get,
    history,
    incarnation,
    request,
    request_one,
    rfc1123,
    statuses,
)
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FIFTEEN = timedelta(minutes=15)

NIGHT = "daily 02:00 4h UTC"
GROUPS = {
    **{name: [NIGHT] for name in ("wait", "inside", "causes", "insist", "early", "silent", "later", "together")},
    "morning": ["daily 05:00 4h UTC"],
    "noon": ["daily 12:00 1h UTC"],
    "berlin": ["sat,sun 02:30 90m Europe/Berlin"],
    "weekly": ["sun 02:00 4h UTC"],
    "nightly": [NIGHT],
    "changed": [],
    "free": [],
}
"""Groups of one VM on a host of its own, and their windows; some also share hosts."""
SHARED = {"shared-1": ("together", "morning"), "shared-2": ("insist", "noon"), "shared-3": ("nightly", "weekly")}


def address(group: str, host: int = 0) -> str:
    return f"127.5.{host}.{list(GROUPS).index(group) + 1}"


FLEET = (
    "".join(
        f'[[group]]\nname = "{name}"\nkind = "availability-set"\nwindows = {rows}\n' for name, rows in GROUPS.items()
    )
    + "".join(f'[[vm]]\nname = "{name}-0"\ngroup = "{name}"\naddress = "{address(name)}"\n' for name in GROUPS)
    + "".join(
        f'[[vm]]\nname = "{name}-{number}"\ngroup = "{name}"\nhost = "{host}"\naddress = "{address(name, number)}"\n'
        for number, (host, names) in enumerate(SHARED.items(), start=1)
        for name in names
    )
    + "".join(f'[[host]]\nname = "{host}"\n' for host in SHARED)
).replace("'", '"')


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET, enable_groups=False) as found:
        for name in GROUPS:
            if name != "silent":
                document(found, address(name))
        yield found


def at(service: Service, hour: int, minute: int = 0) -> datetime:
    """Go on to the next time that it is so late."""
    now = service.now
    moment = now.replace(hour=hour, minute=minute, second=0)
    moment += DAY if moment < now else timedelta(0)
    advance_to(service, moment)
    return moment


def update(service: Service, group: str, **options: Any) -> dict[str, Any]:
    return request_one(service, "host-update", host=f"{group}-0-host", **options)


def not_before(service: Service, group: str) -> str:
    (event,) = events(service, address(group))
    return str(event["NotBefore"])


# --- Windows --------------------------------------------------------------------------------------------


def test_routine_work_waits_for_the_window_and_starts_as_it_opens(service: Service) -> None:
    noon = at(service, 12)
    operation = update(service, "wait")
    opens = noon + 14 * HOUR
    assert not_before(service, "wait") == rfc1123(opens)
    (window,) = [
        wait for wait in get(service, f"operations/{operation['id']}/explain")["waits"] if wait["kind"] == "window"
    ]
    assert window["group"] == "wait"
    assert window["text"].startswith(f"{NIGHT}, which closes at ")
    advance_to(service, opens - timedelta(seconds=1))
    assert statuses(service, address("wait")) == {"wait-0": "Scheduled"}
    service.advance(timedelta(seconds=1))
    assert statuses(service, address("wait")) == {"wait-0": "Started"}
    assert incarnation(service, address("wait")) == 2


def test_in_an_open_window_the_notice_decides_unless_the_window_closes_first(
    service: Service,
) -> None:
    two = at(service, 2)
    first = update(service, "inside")
    assert not_before(service, "inside") == rfc1123(two + FIFTEEN)
    act_on_event(service, first["events"][0]["id"], "cancel")
    at(service, 5, 45)
    update(service, "inside")
    assert not_before(service, "inside") == rfc1123(two + DAY), "at 06:00 the window is closed"


@pytest.mark.parametrize(
    ("cause", "hours", "options"),
    [
        ("live-migration", 14, {"vms": ["causes-0"]}),
        ("degraded-hardware", 14, {"host": "causes-0-host", "notice": "1h"}),
        ("degraded-hardware", 14 + 7 * 24, {"host": "causes-0-host"}),
        ("emergency-repair", 0.25, {"host": "causes-0-host"}),
        ("restart", 0.25, {"vms": ["causes-0"]}),
        ("live-migration", 0.25, {"vms": ["causes-0"], "overrides": ["windows"]}),
        ("host-update", 1 / 60, {"host": "causes-0-host", "overrides": ["windows", "notice"], "notice": "1m"}),
    ],
    ids=["migration", "degraded soon", "degraded", "repair", "user", "insisted", "insisted twice"],
)
def test_urgent_causes_and_overrides_ignore_windows(
    service: Service, cause: str, hours: float, options: dict[str, Any]
) -> None:
    noon = at(service, 12)
    operation = request_one(service, cause, **options)
    assert not_before(service, "causes") == rfc1123(noon + hours * HOUR)
    insisted = "override: a start outside the maintenance windows"
    assert (insisted in str(history(service, operation))) == ("overrides" in options)
    act_on_event(service, operation["events"][0]["id"], "cancel")


def test_a_window_is_in_the_time_of_its_zone(service: Service) -> None:
    now = at(service, 12)
    update(service, "berlin")
    berlin = ZoneInfo("Europe/Berlin")
    days = (now.astimezone(berlin).date() + number * DAY for number in range(8))
    starts = [datetime(day.year, day.month, day.day, 2, 30, tzinfo=berlin) for day in days if day.weekday() >= 5]
    first = min(start for start in starts if start.astimezone(UTC) >= now)
    assert not_before(service, "berlin") == rfc1123(first.astimezone(UTC))


def test_on_a_shared_host_not_before_is_the_first_time_in_all_windows(service: Service) -> None:
    noon = at(service, 12)
    request(service, "host-update", host="shared-1")
    assert not_before(service, "together") == not_before(service, "morning") == rfc1123(noon + 17 * HOUR)


def test_windows_without_a_common_time_are_rejected_and_can_be_overridden(service: Service) -> None:
    noon = at(service, 12)
    before = everything(service, address("insist"), address("noon"))
    refused = service.control("POST", "/v1/operations", {"cause": "host-update", "host": "shared-2"})
    assert (refused.status, refused.json()["title"]) == (409, "Conflict")
    assert all(word in refused.json()["detail"] for word in ("insist", "noon", "shared-2", "--override-windows"))
    assert everything(service, address("insist"), address("noon")) == before
    request(service, "host-update", host="shared-2", overrides=["windows"])
    assert not_before(service, "insist") == not_before(service, "noon") == rfc1123(noon + FIFTEEN)


def test_a_group_may_approve_outside_its_window(service: Service) -> None:
    """It is the group's own: who approves wants it now."""
    at(service, 12)
    ids = event_ids(update(service, "early"))
    assert service.approve(ids["early"], source=address("early")).status == 200
    assert statuses(service, address("early")) == {"early-0": "Started"}


def test_the_window_of_a_group_without_notice_applies_too(service: Service) -> None:
    noon = at(service, 12)
    operation = update(service, "silent")
    assert operation["not_notified"] == {"silent": "silent has never polled"}
    assert (operation["status"], operation["events"]) == ("pending", [])
    assert datetime.fromisoformat(operation["holds_until"]) == noon + 14 * HOUR
    advance_to(service, noon + 14 * HOUR - timedelta(seconds=1))
    assert get(service, f"operations/{operation['id']}")["status"] == "pending"
    service.advance(timedelta(seconds=1))
    assert get(service, f"operations/{operation['id']}")["status"] == "started"


def test_a_new_window_applies_to_scheduled_operations_too(service: Service) -> None:
    noon = at(service, 12)
    operation = update(service, "changed")
    assert not_before(service, "changed") == rfc1123(noon + FIFTEEN)
    answer = service.control("POST", "/v1/groups/changed/policy", {"windows": [NIGHT]})
    assert answer.json()["windows"] == [NIGHT]
    service.advance(FIFTEEN)
    assert statuses(service, address("changed")) == {"changed-0": "Scheduled"}
    assert not_before(service, "changed") == rfc1123(noon + 14 * HOUR)
    assert incarnation(service, address("changed")) == 2
    assert "the maintenance window was closed" in str(history(service, operation))


# --- Postponement ---------------------------------------------------------------------------------------


def test_a_postponed_event_keeps_its_id_and_starts_later_in_a_window(service: Service) -> None:
    noon, opens = at(service, 12), service.now + 14 * HOUR
    operation = update(service, "later")
    (event_id,) = event_ids(operation).values()
    # The request and the result: at 07:00 the window is closed, so NotBefore is in the next one.
    for count, (options, moment) in enumerate(
        (
            ({"by": "90m"}, opens + 1.5 * HOUR),
            ({"until": (opens + 3 * HOUR).isoformat()}, opens + 3 * HOUR),
            ({"by": "2h"}, opens + DAY),
            ({"until": "2d"}, noon + 2 * DAY + 14 * HOUR),
        ),
        start=2,
    ):
        assert datetime.fromisoformat(act_on_event(service, event_id, "postpone", **options)["not_before"]) == moment
        (event,) = events(service, address("later"))
        assert (event["EventId"].lower(), event["EventStatus"]) == (event_id, "Scheduled")
        assert event["NotBefore"] == rfc1123(moment)
        assert incarnation(service, address("later")) == count
    written = [why for what, why in history(service, operation) if what == "postponed"]
    assert written[0] == f"from {opens:%Y-%m-%d %H:%M:%S} to {opens + 1.5 * HOUR:%Y-%m-%d %H:%M:%S} UTC"
    assert len(written) == 4
    advance_to(service, moment - timedelta(seconds=1))
    assert statuses(service, address("later")) == {"later-0": "Scheduled"}
    service.advance(timedelta(seconds=1))
    assert statuses(service, address("later")) == {"later-0": "Started"}


def test_without_windows_it_is_postponed_to_the_second_and_up_to_the_deadline(service: Service) -> None:
    now = at(service, 12)
    operation = update(service, "free", postpone_deadline="3h")
    assert datetime.fromisoformat(operation["postpone_deadline"]) == now + 3 * HOUR
    (event_id,) = event_ids(operation).values()
    act_on_event(service, event_id, "postpone", by="1s")
    assert not_before(service, "free") == rfc1123(now + FIFTEEN + timedelta(seconds=1))
    act_on_event(service, event_id, "postpone", until="3h")
    assert not_before(service, "free") == rfc1123(now + 3 * HOUR)
    refused = service.control("POST", f"/v1/events/{event_id}/postpone", {"by": "1s"})
    assert (refused.status, refused.json()["title"]) == (409, "Conflict")
    assert f"after the postpone deadline, {now + 3 * HOUR:%Y-%m-%d %H:%M:%S} UTC" in refused.json()["detail"]
    assert not_before(service, "free") == rfc1123(now + 3 * HOUR)


def test_a_postponement_ignores_the_windows_of_groups_that_have_approved(service: Service) -> None:
    at(service, 12)
    ids = event_ids(request_one(service, "host-update", host="shared-3"))
    sunday = datetime.fromisoformat(get(service, f"events/{ids['nightly']}")["not_before"])
    assert sunday.weekday() == 6, "the first time in the windows of both"
    service.approve(ids["weekly"], source=address("weekly", 3))
    answer = act_on_event(service, ids["nightly"], "postpone", by="5h")
    assert datetime.fromisoformat(answer["not_before"]) == sunday + DAY
    (event,) = events(service, address("weekly", 3))
    assert event["NotBefore"] == rfc1123(sunday), "an approved event keeps its time"

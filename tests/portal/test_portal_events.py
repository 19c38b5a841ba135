"""What a person does with events in the portal: request, watch, approve, postpone, cancel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import Service
    from portal_user import PortalUser

FLEET = """
[[group]]
name = "web"
kind = "availability-set"

[[host]]
name = "rack-1-a"

[[vm]]
name = "web-0"
group = "web"
host = "rack-1-a"

[[vm]]
name = "web-1"
group = "web"

[[vm]]
name = "db-0"
host = "rack-1-a"
"""


@pytest.mark.forewarn(fleet=FLEET)
def test_a_restart_from_the_click_to_its_completion(forewarn: Service, user: PortalUser) -> None:
    user.follow("Fleet")
    user.page.get_by_role("link", name="web-0: quiet, on rack-1-a").click()
    user.heading("VM web-0")

    # The dry run comes first, and changes nothing.
    user.sees("Reboot for web, NotBefore")
    assert forewarn.events == []
    user.press("Request restart")

    user.heading("Reboot of web-0")
    (event,) = forewarn.events
    assert user.page.url.endswith(f"/portal/events/{event.id.lower()}")
    user.sees("scheduled", "dl")
    user.sees("Approval of web")

    user.follow("Clock")
    user.press("Advance to the next due item")
    user.sees("It is 2")
    user.follow("Now")
    user.sees("started", "table")
    user.sees("Settle time, until", "table")
    user.follow("Clock")
    user.press("Advance by 15m")
    user.sees("It is 2")
    user.follow("Now")
    user.sees("No event is scheduled or started.")

    user.follow("History")
    user.sees("completed", "table")
    kinds = user.page.locator("table .kind").all_inner_texts()
    assert kinds[:5] == ["completed", "executed", "started", "scheduled", "requested"]
    assert forewarn.events == []


@pytest.mark.forewarn(fleet=FLEET)
def test_two_browsers_watch_the_same_change(
    forewarn: Service, user: PortalUser, visit: Callable[..., PortalUser]
) -> None:
    other = visit(forewarn.control_url, forewarn.token)
    other.sees("No event is scheduled or started.")
    forewarn.vm("web-0").restart()
    for one in (user, other):
        one.sees("Reboot", "table")
    user.press("Approve Reboot of web-0")
    for one in (user, other):
        one.sees("started", "table")
    other.follow("Clock")
    other.press("Advance by 15m")
    user.sees("No event is scheduled or started.")
    # The clock of the first browser follows the second one.
    time = forewarn.now.strftime("%Y-%m-%d %H:%M:%S")
    user.sees(time, "header")


@pytest.mark.forewarn(fleet=FLEET)
def test_approve_postpone_and_cancel(forewarn: Service, user: PortalUser) -> None:
    forewarn.request_operation("host-update", host="rack-1-a")
    user.sees("0 of 2 scopes", "table")
    user.press("Approve Freeze of db-0")
    user.sees("1 of 2 scopes", "table")
    user.sees("Approval of web", "tr:has-text('db-0')")

    user.press("Postpone Freeze of web-0")
    dialog = user.page.get_by_role("dialog")
    dialog.get_by_label("By").fill("no duration")
    dialog.get_by_text("no duration").wait_for()
    assert dialog.get_by_role("button", name="Postpone").is_disabled()
    dialog.get_by_label("By").fill("2h")
    dialog.get_by_text("NotBefore moves from").wait_for()
    before = next(event for event in forewarn.events if "web-0" in event.vms).not_before
    dialog.get_by_role("button", name="Postpone").click()
    user.sees("NotBefore is now")
    after = next(event for event in forewarn.events if "web-0" in event.vms).not_before
    assert (after - before).total_seconds() == 7200

    user.press("Cancel Freeze of web-0")
    user.page.get_by_role("dialog").get_by_role("button", name="Back").click()
    assert len(forewarn.events) == 2
    user.press("Cancel Freeze of web-0")
    user.page.get_by_role("dialog").get_by_role("button", name="Cancel the event").click()
    user.sees("No event is scheduled or started.")
    assert forewarn.events == []


SPOT = """
[[vm]]
name = "spot"
priority = "spot"
"""


@pytest.mark.forewarn(fleet=SPOT)
def test_an_advisory_has_no_deadline_and_waits_for_no_approval(forewarn: Service, user: PortalUser) -> None:
    forewarn.request_operation("rebalance", "spot")
    user.sees("advisory", "table")
    assert user.page.get_by_text("next NotBefore in").count() == 0
    assert user.page.get_by_text("not approved").count() == 0
    assert user.page.get_by_role("button", name="Approve").count() == 0
    user.page.locator("table").get_by_role("link", name="Rebalance").click()
    user.sees("advisory", "dl")
    assert "NotBefore" not in user.page.locator("dl").inner_text()
    user.sees("It is a recommendation and never starts.")
    user.page.locator("dl").get_by_role("link", name="spot").first.click()
    user.heading("VM spot")
    user.sees("Rebalance advisory", "dl")
    user.page.get_by_role("link", name="Rebalance").first.click()
    user.press("Cancel")
    user.page.get_by_role("dialog").get_by_role("button", name="Cancel the event").click()
    user.sees("cancelled", "dl")
    assert forewarn.events == []


POOL = """
[[group]]
name = "pool"
kind = "scale-set"
[[vm]]
group = "pool"
count = 1
priority = "spot"
"""


@pytest.mark.forewarn(fleet=POOL)
def test_the_button_of_a_dangerous_cause_is_marked(forewarn: Service, user: PortalUser) -> None:
    dangerous = {cause["name"]: cause["dangerous"] for cause in forewarn.get_json("/v1/causes")["causes"]}
    user.follow("Fleet")
    user.page.get_by_role("link", name="pool_0: ").click()
    choice = user.page.get_by_label("Operation", exact=True)
    choice.locator("option").first.wait_for(state="attached")
    names = choice.locator("option").evaluate_all("options => options.map((option) => option.value)")
    assert {dangerous[name] for name in names} == {True, False}
    for name in names:
        choice.select_option(name)
        style = user.button(f"Request {name}").get_attribute("class")
        assert style == ("danger" if dangerous[name] else "primary"), name


@pytest.mark.forewarn(fleet=SPOT)
def test_an_eviction_with_a_notice_below_the_minimum(forewarn: Service, user: PortalUser) -> None:
    user.follow("Fleet")
    user.page.get_by_role("link", name="spot: ").click()
    user.page.get_by_label("Operation", exact=True).select_option("eviction")
    user.page.get_by_label("Notice", exact=True).fill("0s")
    user.sees("the minimum for Preempt is 30s")
    assert user.button("Request eviction").is_disabled()
    user.page.get_by_label("Minimum notice").select_option("notice")
    user.sees("Overrides")
    assert forewarn.events == []
    user.press("Request eviction")
    user.heading("Preempt of spot")
    user.sees("started", "dl")
    (event,) = forewarn.events
    assert event.started_at == event.not_before


@pytest.mark.forewarn(fleet=FLEET)
def test_the_timeline_shows_what_comes_next(forewarn: Service, user: PortalUser) -> None:
    """An event in a week does not make the events of the next hour too small to see."""
    forewarn.request_operation("degraded-hardware", host="rack-1-a")
    user.sees("Freeze", "table")
    assert user.button("8 days").get_attribute("aria-pressed") == "true"
    forewarn.vm("web-1").restart()
    user.sees("Reboot", "table")
    assert user.button("1 hour").get_attribute("aria-pressed") == "true"
    user.sees("in 7d 0h →", "fw-timeline")
    user.press("1 day")
    assert user.button("1 day").get_attribute("aria-pressed") == "true"


MANY = """
[[group]]
name = "many"
kind = "scale-set"

[[vm]]
group = "many"
count = 20
"""


@pytest.mark.forewarn(fleet=MANY)
def test_the_timeline_stays_small_with_many_events(forewarn: Service, user: PortalUser) -> None:
    for number in range(20):
        forewarn.vm(f"many_{number}").restart()
    user.sees("14 more events are not shown.", "fw-timeline")
    assert user.page.locator("fw-timeline a").count() == 6
    assert user.page.locator("tr.event").count() == 20


@pytest.mark.forewarn(fleet=FLEET)
def test_the_document_by_api_version(forewarn: Service, user: PortalUser) -> None:
    forewarn.vm("web-0").restart()
    user.open("vms/web-1")
    user.sees('"EventSource": "User"')
    user.page.get_by_label("api-version", exact=True).select_option("2017-08-01")
    user.no_longer_sees('"EventSource": "User"')
    shown = json.loads(user.page.locator("pre").inner_text())
    served = forewarn.control("GET", "/v1/vms/web-1/document?api-version=2017-08-01").json()
    assert shown == served


@pytest.mark.forewarn(fleet=FLEET)
def test_a_request_that_the_service_rejects(forewarn: Service, user: PortalUser) -> None:
    forewarn.vm("web-0").restart()
    user.open("vms/web-0")
    user.sees("web-0 already has a pending restart")
    assert user.button("Request restart").is_disabled()
    user.page.get_by_label("Operation", exact=True).select_option("redeploy")
    user.page.get_by_label("Notice").fill("1s")
    user.sees("Use a longer one")
    assert user.button("Request redeploy").is_disabled()


@pytest.mark.forewarn(fleet=FLEET)
def test_polls_of_a_vm(forewarn: Service, user: PortalUser) -> None:
    for _ in range(3):
        forewarn.vm("web-0").poll()
    user.open("vms/web-0")
    user.sees("3 polls since the start of the service")


@pytest.mark.forewarn(fleet=FLEET)
def test_a_rollout_from_its_plan_to_its_end(forewarn: Service, user: PortalUser) -> None:
    user.follow("Rollouts")
    user.sees("Enter hosts to see the plan.")
    assert user.button("Start the rollout").is_disabled()
    user.page.get_by_label("Hosts", exact=True).fill("rack-*")
    user.sees("Expected end")
    user.press("Start the rollout")
    user.sees("0 of 1 hosts")
    user.sees("Health gate")
    user.sees("in progress", "table[aria-label='Update domains']")
    user.press("Pause")
    user.sees("paused", "dl")
    user.press("Resume")
    user.sees("running", "dl")
    forewarn.advance("1h")
    user.sees("1 of 1 hosts")
    user.sees("rollout-completed", "table")
    user.sees("1 of 1 hosts", "table[aria-label='Update domains']")
    assert user.page.get_by_role("button", name="Cancel").count() == 0


TWO_HOSTS = """
[[group]]
name = "web"
kind = "availability-set"

[[host]]
name = "rack-1-a"

[[host]]
name = "rack-1-b"

[[vm]]
name = "web-0"
group = "web"
host = "rack-1-a"

[[vm]]
name = "web-1"
group = "web"
host = "rack-1-b"
"""


@pytest.mark.forewarn(fleet=TWO_HOSTS)
def test_a_rollout_is_cancelled(forewarn: Service, user: PortalUser) -> None:
    rollout = forewarn.control("POST", "/v1/rollouts", {"hosts": ["rack-*"]}).json()["id"]
    user.open(f"rollouts/{rollout}")
    user.sees("Work in progress: operation")
    user.sees("Freeze of web", "table[aria-label='Hosts in progress']")
    # The first wave is in progress, so the rest begins with the second one.
    assert user.page.locator("table[aria-label=Waves] tbody td").first.inner_text() == "2"
    user.press("Cancel")
    confirm = user.page.get_by_role("dialog").get_by_role("button", name="Cancel the rollout")
    confirm.wait_for()
    forewarn.control("POST", f"/v1/rollouts/{rollout}/cancel", {})
    user.sees("cancelled", "dl")
    confirm.click()
    user.page.locator(".notice.problem").wait_for()
    assert "Cancelled the rollout." not in user.text


@pytest.mark.forewarn(fleet=FLEET)
def test_work_on_a_host_is_cancelled(forewarn: Service, user: PortalUser) -> None:
    forewarn.request_operation("host-update", host="rack-1-a")
    user.open("hosts/rack-1-a")
    user.sees("0 of 2", "table[aria-label=Operations]")
    user.press("Cancel host-update")
    user.page.get_by_role("dialog").get_by_role("button", name="Cancel the operation").click()
    user.sees("Cancelled host-update of rack-1-a.")
    user.page.locator("table[aria-label=Operations]").wait_for(state="detached")
    assert forewarn.events == []


@pytest.mark.forewarn(fleet=FLEET)
def test_a_failed_host_is_visible_and_returns(forewarn: Service, user: PortalUser) -> None:
    user.open("hosts/rack-1-a")
    user.page.get_by_label("Operation", exact=True).select_option("degraded-hardware")
    user.sees("What would happen")
    user.press("Request degraded-hardware")
    user.heading("Freeze of")
    user.open("fleet")
    user.sees("degraded", "aside")
    user.follow("rack-1-a")
    user.press("Return to service")
    user.sees("in-service")

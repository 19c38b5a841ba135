"""Who sees what in the portal: sign-in, one-time links, roles, hostile text."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from shifted_system_clock import ShiftedSystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.testing import Service, ServiceProcess
    from portal_user import PortalUser

FLEET = """
[[group]]
name = "web"
kind = "availability-set"

[[vm]]
name = "web-0"
group = "web"

[[vm]]
name = "web-1"
group = "web"

[[vm]]
name = "db-0"
"""
MARKUP = "<img src=x onerror=document.title=9><b>bold</b>"


def token_of(service: Service, name: str, role: str, **others: str) -> str:
    body = {"name": name, "role": role, **others}
    token: str = service.control("POST", "/v1/tokens", body).json()["token"]
    return token


@pytest.mark.forewarn(fleet=FLEET)
def test_sign_in_and_sign_out(forewarn: Service, visit: Callable[..., PortalUser]) -> None:
    user = visit(forewarn.control_url)
    user.open("history")
    user.page.get_by_label("Token").fill("fw_wrong")
    user.press("Sign in")
    user.sees("token")
    assert user.page.locator("[role=alert]").count() == 1
    user.page.get_by_label("Token").fill(forewarn.token)
    user.press("Sign in")
    user.heading("History")  # the requested page
    (cookie,) = user.page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert user.page.evaluate("document.cookie") == ""
    user.page.reload()
    user.heading("History")
    user.press("Sign out")
    user.page.get_by_label("Token").wait_for()
    user.page.reload()
    user.page.get_by_label("Token").wait_for()


@pytest.mark.forewarn(fleet=FLEET)
def test_a_link_is_valid_once(forewarn: Service, visit: Callable[..., PortalUser]) -> None:
    link = forewarn.control("POST", "/v1/session/links", {}).json()["path"].removeprefix("/portal/")
    user, other = visit(forewarn.control_url), visit(forewarn.control_url)
    user.open(link)
    user.heading("Now")
    assert "code" not in user.page.url
    other.open(link)
    other.page.get_by_label("Token").wait_for()
    assert other.page.locator("[role=alert]").count() == 1


@pytest.mark.forewarn(fleet=FLEET)
def test_a_session_that_is_revoked_ends_at_once(forewarn: Service, visit: Callable[..., PortalUser]) -> None:
    user = visit(forewarn.control_url, token_of(forewarn, "eve", "operator"))
    forewarn.control("DELETE", "/v1/tokens/eve")
    user.page.get_by_label("Token").wait_for()
    user.sees("session")


@pytest.mark.forewarn(fleet=FLEET)
def test_a_viewer_sees_no_buttons(forewarn: Service, visit: Callable[..., PortalUser]) -> None:
    (event,) = forewarn.request_operation("restart", "web-0")
    viewer = visit(forewarn.control_url, token_of(forewarn, "vic", "viewer"))
    viewer.sees("Reboot", "table")
    allowed = {"Sign out", "1 hour", "6 hours", "1 day", "8 days", "Counts", "Squares", "Names", "Filter", "Clear"}
    pages = ("", "fleet", "vms/web-0", f"events/{event.id}", "rollouts", "history", "clock", "service")
    for path in (*pages, "groups/web"):
        viewer.open(path)
        viewer.page.locator("h1").wait_for()
        viewer.page.wait_for_function("() => !document.querySelector('main').innerText.includes('Loading …')")
        assert set(viewer.page.get_by_role("button").all_inner_texts()) <= allowed, path


@pytest.mark.forewarn(fleet=FLEET)
def test_a_tenant_sees_and_approves_the_events_of_its_group(
    forewarn: Service, visit: Callable[..., PortalUser]
) -> None:
    forewarn.request_operation("restart", "db-0")
    (event,) = forewarn.request_operation("restart", "web-0")
    tenant = visit(forewarn.control_url, token_of(forewarn, "tia", "tenant", group="web"))
    tenant.sees("Reboot", "table")
    assert "db-0" not in tenant.text
    assert tenant.page.locator("nav a").all_inner_texts() == ["Now", "Fleet", "History"]
    assert tenant.page.locator("table").get_by_role("button").all_inner_texts() == ["Approve"]
    tenant.follow("Fleet")
    tenant.page.get_by_role("link", name="web-0: notified").wait_for()
    assert "db-0" not in tenant.text
    assert tenant.page.locator("aside").count() == 0
    tenant.page.get_by_role("link", name="web-0: notified").click()
    tenant.sees("DocumentIncarnation")
    tenant.open("vms/db-0")
    tenant.page.locator("[role=alert]").wait_for()
    tenant.open(f"events/{event.id}")
    tenant.press("Approve")
    tenant.sees("by tia", "dl")
    assert forewarn.event(event.id).approved_by == "tia"
    tenant.open("history")
    tenant.sees("approved", "table")
    assert "db-0" not in tenant.text


HOSTILE_NAME = "`${document.title=9}`"
HOSTILE_FLEET = f"""
[[vm]]
name = "{HOSTILE_NAME}"
tags = {{ note = "{MARKUP}" }}

[[vm]]
name = "__proto__"
"""


@pytest.mark.forewarn(fleet=HOSTILE_FLEET)
def test_names_and_descriptions_are_text(forewarn: Service, user: PortalUser) -> None:
    forewarn.request_operation("live-migration", HOSTILE_NAME, description=MARKUP)
    forewarn.request_operation("restart", "__proto__")
    user.sees(MARKUP)
    for path in ("fleet", "history"):
        user.open(path)
        user.sees("__proto__", "main")
        user.sees(HOSTILE_NAME, "main")
    for name in ("__proto__", HOSTILE_NAME):
        user.open(f"vms/{quote(name)}")
        user.heading(f"VM {name}")
        user.sees(f'"{name}"', "pre")
    user.sees("note=<img src=x", "dl")
    assert user.page.locator("main img, main b, main script").count() == 0
    assert user.page.title().startswith(f"VM {HOSTILE_NAME} · ")


def test_a_session_expires(
    make_service: Callable[..., ServiceProcess], visit: Callable[..., PortalUser], tmp_path: Path
) -> None:
    """In real time, also if the service has a virtual clock."""
    clock = ShiftedSystemClock(tmp_path)
    service = make_service("--clock", "virtual", "--portal-session", "1h", **clock.variables)
    user = visit(service.control_url, service.token)
    service.control("POST", "/v1/clock/advance", {"by": "7d"})
    user.follow("History")
    user.sees("session-started", "table")
    clock.shift(3700)
    user.follow("Fleet")
    user.page.get_by_label("Token").wait_for()
    user.page.get_by_label("Token").fill(service.token)
    user.press("Sign in")
    user.heading("Fleet")

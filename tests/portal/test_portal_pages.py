"""Every page is accessible, fits the screen, and works with the keyboard. Makes the screenshots of the docs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from portal_user import PortalUser

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
update_domains = 3
fault_domains = 2

[[group]]
name = "workers"
kind = "scale-set"

[[host]]
name = "rack-1-a"

[[host]]
name = "rack-1-b"

[[host]]
name = "rack-2-a"

[[vm]]
name = "web-0"
group = "web"
host = "rack-1-a"

[[vm]]
name = "web-1"
group = "web"
host = "rack-1-b"

[[vm]]
name = "web-2"
group = "web"
host = "rack-2-a"

[[vm]]
name = "db-0"
host = "rack-1-a"

[[vm]]
group = "workers"
count = 20
priority = "spot"
"""
WIDTHS = (360, 768, 1440)
SHOWN_WIDTH = 1280
SCREENSHOTS = {
    "now": "",
    "fleet": "fleet",
    "vm": "vms/web-1",
    "rollout": "rollouts/{rollout}",
    "history": "history",
    "service": "service",
}
PAGES = (
    *SCREENSHOTS.values(),
    "events/{event}",
    "groups/web",
    "hosts/rack-1-a",
    "rollouts",
    "clock",
    "no-such-page",
)


@pytest.fixture(scope="module")
def busy() -> Iterator[tuple[Service, dict[str, str]]]:
    """A service in the middle of its work, and the ids of what it does."""
    with Service(FLEET, name="demo") as service:
        service.run_scenario("live-migration", ["web-2"])
        service.request_operation("eviction", "workers_3")
        service.advance("5m")
        (event,) = service.request_operation("restart", "web-0")
        service.request_operation("degraded-hardware", host="rack-2-a")
        service.event(service.request_operation("redeploy", "db-0")[0].id).approve()
        rollout = service.control("POST", "/v1/rollouts", {"hosts": ["rack-1-b"]}).json()["id"]
        service.control("POST", "/v1/webhooks", {"name": "pager", "url": "https://pager.example.org/forewarn"})
        yield service, {"event": event.id, "rollout": rollout}


def open_page(user: PortalUser, path: str, ids: dict[str, str]) -> None:
    user.open(path.format(**ids))
    user.page.locator("h1").wait_for()
    user.page.wait_for_function("() => !/Loading …|Checking …/.test(document.querySelector('main').innerText)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(
    busy: tuple[Service, dict[str, str]], visit: Callable[..., PortalUser], scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    service, ids = busy
    axe = Axe()
    options = {"rules": {"target-size": {"enabled": True}}}  # WCAG 2.2, which axe does not check by default
    user = visit(service.control_url, color_scheme=scheme)

    def violations() -> list[str]:
        found: dict[str, Any] = axe.run(user.page, options=options).response
        return [f"{each['id']}: {node['html'][:200]}" for each in found["violations"] for node in each["nodes"]]

    user.open("")
    user.page.get_by_label("Token").wait_for()
    found = {"sign-in": violations()}
    user.sign_in(service.token)
    for path in PAGES:
        open_page(user, path, ids)
        found[path] = violations()
    open_page(user, "", ids)
    user.press("Postpone Freeze of web-1")
    user.sees("NotBefore moves from")
    found["dialog"] = violations()
    assert {path: each for path, each in found.items() if each} == {}


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_the_screen(
    busy: tuple[Service, dict[str, str]], visit: Callable[..., PortalUser], width: int
) -> None:
    service, ids = busy
    user = visit(service.control_url, service.token, viewport={"width": width, "height": 800})
    for path in PAGES:
        open_page(user, path, ids)
        assert user.page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_a_restart_with_the_keyboard_only(visit: Callable[..., PortalUser]) -> None:
    with Service(FLEET) as service:
        user = visit(service.control_url, service.token)
        keyboard = user.page.keyboard
        user.page.locator("body").focus()
        _tab_to(user, "Fleet")
        keyboard.press("Enter")
        user.heading("Fleet")
        _tab_to(user, "web-0: quiet, on rack-1-a")
        keyboard.press("ArrowRight")
        assert user.page.evaluate("document.activeElement.textContent") == "web-1"
        keyboard.press("ArrowLeft")
        keyboard.press("Enter")
        user.heading("VM web-0")
        user.sees("Reboot for web, NotBefore")
        _tab_to(user, "Request restart")
        keyboard.press("Enter")
        user.heading("Reboot of web-0")
        _tab_to(user, "Cancel")
        keyboard.press("Enter")
        user.page.get_by_role("dialog").wait_for()
        keyboard.press("Escape")
        user.page.get_by_role("dialog").wait_for(state="hidden")
        assert _focused(user) == "Cancel"  # the focus is where it was before the dialog
        assert len(service.events) == 1
        _tab_to(user, "Approve")
        keyboard.press("Enter")
        user.sees("Approved the event.")
        # The button has gone. The keyboard continues at the heading.
        user.button("Approve").wait_for(state="hidden")
        assert _focused(user) == "Reboot of web-0"


def _tab_to(user: PortalUser, name: str) -> None:
    """Press Tab until the element with this name has the focus."""
    for _ in range(80):
        user.page.keyboard.press("Tab")
        if _focused(user) == name:
            return
    raise AssertionError(f"Tab does not reach {name}.")


def _focused(user: PortalUser) -> str:
    found: str = user.page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent")
    return found


def test_screenshots(busy: tuple[Service, dict[str, str]], visit: Callable[..., PortalUser], tmp_path: Path) -> None:
    """Make the pictures of README.md and docs/. `script/screenshots` keeps them."""
    service, ids = busy
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    user = visit(service.control_url, service.token, viewport={"width": SHOWN_WIDTH, "height": 800})
    for name, path in SCREENSHOTS.items():
        open_page(user, path, ids)
        user.page.screenshot(path=folder / f"portal-{name}.png")
        assert (folder / f"portal-{name}.png").stat().st_size > 10_000
    in_docs = {path.name for path in (Path(__file__).parents[2] / "docs" / "images").glob("portal-*.png")}
    assert in_docs == {f"portal-{name}.png" for name in SCREENSHOTS}

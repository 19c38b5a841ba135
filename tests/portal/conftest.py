"""A real browser for the tests of the portal."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from portal_user import PortalUser
from programs import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser

    from forewarn.testing import Service


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium of the distribution. Playwright keeps an event loop in this thread, so it ends with the module."""
    need("chromium")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., PortalUser]]:
    """Open the portal of a service in a browser of its own. After the test, no page may have had an error."""
    users: list[PortalUser] = []

    def make(url: str, token: str | None = None, **options: Any) -> PortalUser:
        user = PortalUser(browser.new_context(**options), url)
        users.append(user)
        if token is not None:
            user.sign_in(token)
        return user

    yield make
    problems = [problem for user in users for problem in user.problems]
    for user in users:
        user.close()
    assert problems == []


@pytest.fixture
def user(forewarn: Service, visit: Callable[..., PortalUser]) -> PortalUser:
    """The administrator of the service in the fixture `forewarn`."""
    return visit(forewarn.control_url, forewarn.token)

"""History and the page of the service: filters, downloads, settings, tokens and webhooks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import Service
    from portal_user import PortalUser

FLEET = """
[[vm]]
name = "web-0"

[[vm]]
name = "db-0"
"""


@pytest.mark.forewarn(fleet=FLEET)
def test_filters_links_and_downloads_of_history(forewarn: Service, user: PortalUser) -> None:
    forewarn.vm("web-0").restart()
    forewarn.vm("db-0").redeploy()
    user.follow("History")
    user.sees("db-0", "tbody")
    user.page.get_by_label("VM").fill("web-0")
    user.press("Filter")
    user.no_longer_sees("db-0", "tbody")
    assert user.page.url.endswith("/portal/history?vm=web-0")
    user.page.reload()
    user.sees("web-0", "tbody")
    user.no_longer_sees("db-0", "tbody")

    with user.page.expect_download() as download:
        user.follow("CSV")
    with Path(download.value.path()).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == ["requested", "scheduled"]
    with user.page.expect_download() as download:
        user.follow("JSON")
    assert [row["kind"] for row in json.loads(Path(download.value.path()).read_text())] == ["requested", "scheduled"]

    user.page.get_by_label("VM").fill("wbe-0")
    user.press("Filter")
    user.sees("Did you mean 'web-0'?")
    user.press("Clear")
    user.sees("db-0", "tbody")
    # A row has a permanent link. It shows the row and those before it.
    user.page.locator("tbody tr", has_text="redeploy").last.locator("a").first.click()
    user.sees("Rows up to")
    assert user.page.locator("table .kind").first.inner_text() == "requested"


@pytest.mark.forewarn(fleet=FLEET, rate_limit=7)
def test_settings_tokens_and_webhooks(forewarn: Service, user: PortalUser, visit: Callable[..., PortalUser]) -> None:
    eve = forewarn.control("POST", "/v1/tokens", {"name": "eve", "role": "viewer"}).json()["token"]
    forewarn.control("POST", "/v1/webhooks", {"name": "pager", "url": "https://pager.invalid/forewarn"})
    user.follow("Service")
    user.sees("7", "tr:has-text('rate_limit')")
    user.sees("ready", "dl")
    forewarn.vm("web-0").poll()
    user.page.reload()
    user.sees("1", "dl div:has-text('Polls')")
    user.sees("MB", "dl div:has-text('Memory')")

    other = visit(forewarn.control_url, eve)
    user.sees("session of eve")
    user.press("Revoke eve")
    user.page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    user.no_longer_sees("session of eve")
    other.page.get_by_label("Token").wait_for()

    user.press("Send a test event to pager")
    user.sees("Not delivered")
    forewarn.vm("web-0").restart()
    user.page.wait_for_function(
        "() => Number(document.querySelector('table[aria-label=Webhooks] tbody td:nth-child(3)').innerText) > 0"
    )

"""The fleet page with 10,000 VMs: filter, search, zoom, and changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from portal_user import PortalUser

VMS = 10_000
SETS = 20
FLEET = "".join(
    f'[[group]]\nname = "set-{number}"\nkind = "scale-set"\n\n[[vm]]\ngroup = "set-{number}"\ncount = 400\n\n'
    for number in range(SETS)
)
FLEET += '[[vm]]\nname = "single-{n}"\ncount = 2000\n'


@pytest.fixture(scope="module")
def large() -> Iterator[Service]:
    with Service(FLEET) as service:
        yield service


def squares(user: PortalUser) -> int:
    return user.page.locator(".groups a.vm").count()


def test_search_filter_and_zoom(large: Service, visit: Callable[..., PortalUser]) -> None:
    user = visit(large.control_url, large.token)
    user.follow("Fleet")
    user.page.wait_for_function(f"() => document.querySelectorAll('.groups a.vm').length === {VMS}")
    assert user.page.locator(".groups section").count() == SETS + 1

    user.page.get_by_label("VM, group or host").fill("set-7_39")
    user.sees("11 of 10000 VMs match.")
    assert squares(user) == 11
    assert "q=set-7_39" in user.page.url  # a permanent link
    user.page.reload()
    user.sees("11 of 10000 VMs match.")
    user.press("Counts")
    assert squares(user) == 0
    user.sees("11 VMs")
    user.press("Names")
    user.sees("set-7_399")
    user.page.get_by_label("VM, group or host").fill("")

    (event,) = large.request_operation("restart", "set-7_399")
    user.page.get_by_label("State").select_option("notified")
    user.sees("1 of 10000 VMs match.")
    event.approve()
    user.sees("0 of 10000 VMs match.")
    user.page.get_by_label("State").select_option("started")
    user.page.get_by_role("link", name="set-7_399: started").wait_for()
    large.advance("1h")


def test_the_hosts_of_a_large_fleet(large: Service, visit: Callable[..., PortalUser]) -> None:
    user = visit(large.control_url, large.token)
    user.open("fleet?q=single-17")
    user.sees("111 of 10000 VMs match.")
    assert user.page.locator("aside li").count() == 111
    user.page.get_by_label("VM, group or host").fill("")
    user.sees("9800 more hosts", "aside")

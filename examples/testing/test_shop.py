"""Test how the shop handles Scheduled Events. Run: pytest examples/testing

With SHOP_HANDLER=careless the same tests fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.testing import VM, Service

SHOP = Path(__file__).with_name("shop.py")


class RunningShop:
    """The shop in its own process, as the VM `vm`."""

    def __init__(self, vm: VM, folder: Path) -> None:
        self.vm = vm
        self._state = folder / "shop.json"
        handler = os.environ.get("SHOP_HANDLER", "careful")
        self.process = subprocess.Popen(
            [sys.executable, SHOP, "--state", self._state, "--handler", handler],
            env={**os.environ, **vm.environment, "POLL_SECONDS": "0.02"},
        )

    @property
    def state(self) -> Any:
        return json.loads(self._state.read_text())


@pytest.fixture
def shop(forewarn: Service, tmp_path: Path) -> Iterator[RunningShop]:
    running = RunningShop(forewarn.group("shop", vms=2, host="rack-1")[0], tmp_path)
    forewarn.advance(seen_by=running.vm)  # without a duration: waits until the shop has polled
    yield running
    running.process.kill()
    running.process.wait()


def test_it_saves_and_leaves_the_pool_before_it_approves_a_reboot(forewarn: Service, shop: RunningShop) -> None:
    event = shop.vm.restart()
    forewarn.advance(seen_by=shop.vm)
    assert event.was_approved_by(shop.vm)
    assert shop.state == {"in_pool": False, "orders": 3, "saved": 3}


def test_it_returns_to_the_pool_after_the_reboot(forewarn: Service, shop: RunningShop) -> None:
    event = shop.vm.restart()
    forewarn.advance(minutes=25, seen_by=shop.vm)
    assert event.status == "Completed"
    assert shop.state["in_pool"]
    statuses = [seen.status for document in forewarn.documents_seen_by(shop.vm) for seen in document.events]
    assert statuses == ["Scheduled", "Started"]


def test_it_returns_to_the_pool_when_the_event_is_cancelled(forewarn: Service, shop: RunningShop) -> None:
    (event,) = forewarn.request_operation("host-update", host="rack-1", type="Reboot")
    forewarn.advance(minutes=8, seen_by=shop.vm)
    assert not event.was_approved, "the event affects both VMs"
    assert not shop.state["in_pool"]
    event.cancel()
    forewarn.advance(seen_by=shop.vm)
    assert shop.state["in_pool"]


def test_it_ignores_the_event_of_another_vm(forewarn: Service, shop: RunningShop) -> None:
    event = forewarn.group("shop")[1].restart()
    forewarn.advance(minutes=14, seen_by=shop.vm)
    assert not event.was_approved
    assert shop.state["in_pool"]


def test_it_stays_in_the_pool_during_a_short_freeze(forewarn: Service, shop: RunningShop) -> None:
    event = shop.vm.migrate(seconds=5)
    forewarn.advance(minutes=15, seen_by=shop.vm)
    assert event.was_approved_by(shop.vm)
    assert shop.state["in_pool"]


def test_it_saves_within_the_thirty_seconds_of_an_eviction(forewarn: Service, shop: RunningShop) -> None:
    event = shop.vm.evict()
    forewarn.advance_to_start(event, seen_by=shop.vm)
    assert shop.state["saved"] == 3


def test_it_retries_when_the_endpoint_fails(forewarn: Service, shop: RunningShop) -> None:
    for kind in ("500", "429", "410", "empty", "reset", "length"):
        shop.vm.fault(kind)
    event = shop.vm.restart()
    forewarn.advance(minutes=15, seen_by=shop.vm, timeout=5)
    assert event.was_approved_by(shop.vm)

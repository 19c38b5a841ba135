"""Orders that an earlier release has given to a program are seen through: none is lost, and none is given twice.

The release was killed while five programs were at work or had just ended. (tests/fixtures/README.md)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from fixtures.releases import RELEASES, differences, unpack
from forewarn.testing import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """#!/bin/sh
read -r order
echo "$order" >>"{folder}/ran"
echo "$1 by the later release"
"""


class Scene(NamedTuple):
    service: ServiceProcess
    options: tuple[str, ...]
    ran: Path
    facts: Any

    def operation(self, vm: str) -> Any:
        return self.service.get_json(f"/v1/operations/{self.facts['operations'][vm]['id']}")

    def orders(self) -> list[tuple[str, str, bool]]:
        """The orders of the program: operation, verb, and whether it is a repetition."""
        orders = [json.loads(line) for line in self.ran.read_text().splitlines()]
        return sorted((order["vms"][0], order["verb"], order["again"]) for order in orders)


@pytest.fixture(params=RELEASES)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    facts = unpack(request.param, "command", tmp_path)
    program = tmp_path / "program"
    program.write_text(PROGRAM.format(folder=tmp_path))
    program.chmod(0o755)
    options = ("--clock", "virtual", "--fabric", "command", "--fabric-command", str(program))
    with ServiceProcess(tmp_path).start(*options) as service:
        yield Scene(service, options, tmp_path / "ran", facts)


def test_every_order_is_completed_and_none_is_given_twice(scene: Scene) -> None:
    service, facts = scene.service, scene.facts
    service.advance("0s")  # returns when all that is due is done
    again = [("later", "reboot", True), ("running", "reboot", True)]
    assert scene.orders() == again, (
        "only interrupted and postponed orders run again, and they are marked as repetitions"
    )
    output = Path(service.data) / "orders" / facts["operations"]["running"]["id"] / "output"
    assert output.read_text() == "reboot by the later release\n"
    broken = scene.operation("broken")
    assert broken["status"] == "failed"
    assert "broken ended" in broken["reason"], "the last output of the program"
    for vm in ("finished", "running", "later", "settling"):
        operation = scene.operation(vm)
        assert (operation["status"], bool(operation["executed_at"])) == ("started", True), vm
    assert scene.operation("settling")["executed_at"] == facts["operations"]["settling"]["executed_at"]

    service.kill()
    service.start(*scene.options)
    service.advance("15m")
    assert scene.orders() == [*again, ("waiting", "reboot", False)]
    service.advance("10m")
    ends = {vm: scene.operation(vm)["status"] for vm in facts["operations"]}
    assert ends == dict.fromkeys(ends, "done") | {"broken": "failed"}
    for address in facts["addresses"].values():
        assert service.document(source=address)["Events"] == []
    assert len(scene.orders()) == 3

    rows = service.list_all("/v1/history")
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    assert list(differences(facts["history"], rows[: len(facts["history"])])) == []
    for vm, before in facts["operations"].items():
        happened = [row["kind"] for row in rows if row["operation"] == before["id"]]
        assert len(happened) == len({*happened}), f"something happened twice to {vm}: {happened}"
        assert list(differences([event["id"] for event in before["events"]], event_ids(scene.operation(vm)))) == []


def event_ids(operation: Any) -> list[str]:
    return [event["id"] for event in operation["events"]]

"""Rollouts that wait for each other and for work by hand, with real commands, restarts and kills."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.causes import VIRTUAL_TIME, events, get, request_one
from command_line import run_command
from forewarn.testing import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WEB = "127.0.0.10"
FLEET = """
[[host]]
name = "left-1"
[[host]]
name = "left-2"
[[host]]
name = "right-1"
[[host]]
name = "right-2"
[[group]]
name = "web"
kind = "availability-set"
update_domains = 4
[[vm]]
group = "web"
name = "web-{n}"
count = 4
hosts = ["left-1", "left-2", "right-1", "right-2"]
addresses = "127.0.0.10-127.0.0.13"
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    (tmp_path / "fleet.toml").write_text(FLEET)
    with ServiceProcess(tmp_path).start("--fleet", str(tmp_path / "fleet.toml"), *VIRTUAL_TIME) as found:
        assert events(found, WEB) == []
        yield found


def run(service: ServiceProcess, *arguments: str) -> str:
    done = run_command(service, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(service: ServiceProcess, hosts: str) -> str:
    started = json.loads(run(service, "rollout", "start", "--hosts", hosts, "--json"))
    return str(started["id"])


def rollout(service: ServiceProcess, rollout_id: str) -> Any:
    return get(service, f"rollouts/{rollout_id}")


def restart(service: ServiceProcess, *, kill: bool) -> None:
    service.kill() if kill else service.stop()
    service.start("--fleet", str(service.folder / "fleet.toml"), *VIRTUAL_TIME)


def end_the_event(service: ServiceProcess) -> list[str]:
    """Approve the only event, wait for its end, and return the names in it: never two update domains at once."""
    (event,) = events(service, WEB)
    assert service.approve(event["EventId"], source=WEB).status == 200
    service.advance("10m")
    names: list[str] = event["Resources"]
    return names


@pytest.mark.parametrize("kill", [True, False])
def test_the_second_rollout_waits_for_the_first_also_after_a_restart(service: ServiceProcess, kill: bool) -> None:
    first, second = start(service, "left-*"), start(service, "right-*")
    (held,) = rollout(service, first)["in_progress"]
    for _ in range(2):
        waiting = rollout(service, second)
        assert (waiting["status"], waiting["wave"], waiting["in_progress"]) == ("running", 0, [])
        explained = run(service, "rollout", "explain", second[:8])
        text = f"operation {held['operation']} (host-update) must end before right-1, right-2 can be updated"
        assert f"  [ ] rollout {first}: {text}; it affects update domain 0 of web\n" in explained
        assert "Next: It schedules the next wave when one of its hosts is free." in explained
        assert "when a host is free; see: forewarn rollout explain" in run(service, "rollout", "show", second)
        assert ", unless it is paused, postponed or waits for other work" in run(
            service, "rollout", "show", second, "--plan"
        )
        restart(service, kill=kill)
    explained = run(service, "rollout", "explain", first)
    assert f"  [ ] operation {held['operation']} on left-1\n" in explained
    seen = [end_the_event(service) for _ in range(4)]
    assert seen == [["web-0"], ["web-1"], ["web-2"], ["web-3"]]
    for rollout_id in (first, second):
        assert rollout(service, rollout_id)["status"] == "done"
        assert "Nothing. It is done." in run(service, "rollout", "explain", rollout_id)


def test_a_rollout_waits_for_a_host_update_by_hand_and_does_not_request_another(service: ServiceProcess) -> None:
    by_hand = request_one(service, "host-update", host="left-1")
    mine = start(service, "left-1")
    restart(service, kill=True)
    found = json.loads(run(service, "rollout", "explain", mine, "--json"))
    assert found["waits"] == [
        {
            "kind": "host",
            "done": False,
            "group": None,
            "scope": None,
            "by": None,
            "time": None,
            "until": None,
            "text": f"operation {by_hand['id']} (host-update) must end before left-1 can be updated",
        }
    ]
    assert [event["Resources"] for event in events(service, WEB)] == [["web-0"]]
    end_the_event(service)
    assert get(service, f"operations/{by_hand['id']}")["status"] == "done"
    assert rollout(service, mine)["wave"] == 1, "it continues at once when the other update has ended"
    end_the_event(service)
    assert rollout(service, mine)["done"] == ["left-1"]


def test_operations_of_a_cancelled_rollout_are_still_waited_for(service: ServiceProcess) -> None:
    first, second = start(service, "left-1"), start(service, "right-1")
    (event,) = events(service, WEB)
    assert service.approve(event["EventId"], source=WEB).status == 200
    run(service, "rollout", "cancel", first)
    assert f"rollout {first}: " in run(service, "rollout", "explain", second)
    service.advance("10m")
    assert rollout(service, second)["wave"] == 1


def test_a_cancelled_rollout_frees_the_hosts_of_its_pending_operations(service: ServiceProcess) -> None:
    first, second = start(service, "left-*"), start(service, "right-1")
    run(service, "rollout", "cancel", first)
    assert rollout(service, second)["wave"] == 1


def test_paused_rollouts_do_not_wait_for_each_other(service: ServiceProcess) -> None:
    first, second = start(service, "left-*"), start(service, "right-*")
    run(service, "rollout", "pause", first)
    assert "an operator who resumes it" in run(service, "rollout", "explain", first)
    assert end_the_event(service) == ["web-0"]
    assert end_the_event(service) == ["web-2"], "a paused rollout without operations is no obstacle"
    run(service, "rollout", "resume", first)
    assert f"rollout {second}: " in run(service, "rollout", "explain", first)
    assert [end_the_event(service) for _ in range(2)] == [["web-3"], ["web-1"]]

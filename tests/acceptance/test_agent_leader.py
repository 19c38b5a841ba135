"""Three agents in processes, and one event: machines that are killed or cut off, a member that is never ready."""

from __future__ import annotations

import socket
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from agent.agent_process import AgentProcess, Diary
from agent.peer_groups import Link
from tcp_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from forewarn.testing import Event, Service

NAMES = ("web-0", "web-1", "web-2")
CONFIG = """
[[rule]]
on = ["Freeze"]
prepare = ["web"]
approve = "leader"
{more}

[peers]
listen = "127.0.0.1:{port}"
secret_file = "../peers.secret"
timeout = "6s"
members = {{{members}}}
"""


class Trio:
    """Three machines on one host, an agent in each, and a link from each to each."""

    def __init__(self, service: Service, folder: Path, more: str = "") -> None:
        self.service = service
        secret = folder / "peers.secret"
        secret.write_text("three may keep a secret")
        secret.chmod(0o600)
        self.vms = {vm.name: vm for vm in service.group("web", vms=3, host="host-a")}
        self.links = {(one, other): Link() for one in NAMES for other in NAMES if one != other}
        self.diaries: dict[str, Diary] = {}
        self.agents: dict[str, AgentProcess] = {}
        for name in NAMES:
            place = folder / name
            place.mkdir()
            self.diaries[name] = Diary(place)
            port = free_port()
            for other in NAMES:
                if other != name:
                    self.links[other, name].target = ("127.0.0.1", port)
            members = ", ".join(f'{other} = "127.0.0.1:{self.links[name, other].port}"' for other in self.others(name))
            config = CONFIG.format(port=port, members=members, more=more)
            config += self.diaries[name].handler("web") + self.diaries[name].handler("alone")
            self.agents[name] = AgentProcess(place, config, self.vms[name].environment)

    @staticmethod
    def others(name: str) -> list[str]:
        return [other for other in NAMES if other != name]

    def start(self, **arguments: tuple[str, ...]) -> None:
        for name, agent in self.agents.items():
            agent.start(*arguments.get(name, ()))
        for name, agent in self.agents.items():
            agent.until(partial(self._has_polled, name), "the first answer")

    def _has_polled(self, name: str) -> bool:
        return self.service.poll_count(name) > 0

    def hold(self, *names: str) -> None:
        for name in names:
            self.diaries[name].hold("prepare", "web")

    def freeze(self) -> Event:
        """One event for all three."""
        event = self.vms["web-0"].freeze()
        assert event.vms == NAMES
        return event

    def cut_off(self, name: str) -> None:
        for pair, link in self.links.items():
            if name in pair:
                link.cut()

    def shown(self, name: str) -> dict[str, Any]:
        events = self.agents[name].status()["events"]
        return events[0] if events else {"phase": "", "approval": {"reason": ""}}

    def until_phase(self, name: str, phase: str) -> None:
        self.agents[name].until(lambda: self.shown(name)["phase"] == phase, f"{phase} of {name}")

    def until_reason(self, name: str, *words: str) -> None:
        def says_so() -> bool:
            why = self.shown(name)["approval"]["reason"] or ""
            return all(word in why for word in words)

        self.agents[name].until(says_so, f"{words} of {name}")

    def until_started(self, event: Event, by: str) -> None:
        self.agents[by].until(lambda: event.status == "Started", f"the approval of {by}")

    def approvers(self, event: Event) -> set[str]:
        """Whose approval has arrived, whether or not it was the first."""
        return {name for name in NAMES if event.was_approved_by(name)}

    def advance_to_not_before(self, event: Event, but: str = "") -> None:
        """No member has approved, and none does until NotBefore."""
        assert event.status == "Scheduled"
        alive = [self.vms[name] for name, agent in self.agents.items() if agent.runs]
        self.service.advance(event.not_before - self.service.now - timedelta(seconds=10), seen_by=alive)
        assert event.status == "Scheduled"
        assert self.approvers(event) == set()
        self.service.advance_to_start(event)
        assert event.status == "Started"
        assert event.started_at == event.not_before
        for name, agent in self.agents.items():
            if agent.runs and name != but:
                self.until_phase(name, "started")
        assert self.approvers(event) == set()

    def advance_to_the_end(self, event: Event) -> None:
        """The event is over, and everybody undoes."""
        self.service.advance(minutes=15)
        assert event.status == "Completed"
        for agent in self.agents.values():
            if agent.runs:
                agent.until_logged("work_undone")

    def close(self) -> None:
        for name, agent in self.agents.items():
            for handler in ("web", "alone"):
                if (agent.folder / f"hold-prepare-{handler}").exists():
                    self.diaries[name].release("prepare", handler)
            if agent.runs:
                agent.kill()
        for link in self.links.values():
            link.close()


@pytest.fixture
def make_trio(forewarn: Service, tmp_path: Path) -> Iterator[Callable[..., Trio]]:
    made: list[Trio] = []

    def make(more: str = "") -> Trio:
        made.append(Trio(forewarn, tmp_path, more))
        return made[-1]

    yield make
    for trio in made:
        trio.close()


def test_the_first_approves_when_the_last_is_ready(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    trio.start()
    trio.hold("web-2")
    event = trio.freeze()
    trio.until_reason("web-0", "waiting for web-2 (preparing)")
    trio.until_reason("web-1", "waiting for web-2 (preparing)")
    assert event.status == "Scheduled"
    trio.diaries["web-2"].release("prepare", "web")
    trio.until_started(event, by="web-0")
    assert "web-0" in trio.approvers(event)
    trio.advance_to_the_end(event)
    assert "web-0" in trio.approvers(event)
    for diary in trio.diaries.values():
        diary.check()


def test_a_member_that_is_never_ready_leaves_it_to_not_before(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    trio.start()
    trio.hold("web-1")
    event = trio.freeze()
    trio.until_reason("web-0", "waiting for web-1 (preparing)")
    trio.until_reason("web-2", "waiting for web-1 (preparing)")
    trio.advance_to_not_before(event)


def test_a_member_that_has_failed_leaves_it_to_not_before(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    trio.start()
    trio.diaries["web-2"].fail("prepare", "web")
    event = trio.freeze()
    trio.until_reason("web-0", "waiting for web-2 (failed)")
    trio.advance_to_not_before(event)
    trio.advance_to_the_end(event)


def test_a_leader_killed_while_it_waits(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio('when = "5m"')
    trio.start()
    event = trio.freeze()
    trio.until_phase("web-0", "waiting")
    trio.until_phase("web-1", "waiting")
    trio.agents["web-0"].kill()
    trio.service.advance(minutes=11)
    trio.until_phase("web-1", "prepared")
    trio.until_phase("web-2", "prepared")
    trio.until_reason("web-1", "waiting for web-0 (", "unreachable)")
    trio.advance_to_not_before(event)


def test_a_leader_killed_while_it_prepares(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    trio.start()
    trio.hold("web-0")
    event = trio.freeze()
    trio.until_reason("web-1", "waiting for web-0 (preparing)")
    trio.agents["web-0"].kill()
    trio.until_reason("web-1", "waiting for web-0 (preparing, unreachable)")
    trio.advance_to_not_before(event)


def test_a_leader_killed_during_preparation_continues_after_its_restart(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    trio.start()
    trio.hold("web-0")
    event = trio.freeze()
    trio.until_reason("web-1", "waiting for web-0 (preparing)")
    trio.agents["web-0"].kill()
    trio.until_reason("web-1", "waiting for web-0 (preparing, unreachable)")
    trio.diaries["web-0"].release("prepare", "web")
    trio.agents["web-0"].start()
    trio.until_started(event, by="web-0")
    assert "web-0" in trio.approvers(event)


@pytest.mark.parametrize(("killed", "approver"), [("web-0", "web-1"), ("web-1", "web-0")])
def test_a_member_killed_when_it_is_ready(make_trio: Callable[..., Trio], killed: str, approver: str) -> None:
    """It counts for a few seconds more: long enough for the next one to approve."""
    trio = make_trio()
    trio.start()
    trio.hold("web-2")
    event = trio.freeze()
    # It waits only for web-2, so it has a response of the one that is killed, which is ready.
    trio.until_reason(approver, "waiting for web-2 (preparing)")
    trio.agents[killed].kill()
    trio.diaries["web-2"].release("prepare", "web")
    trio.until_started(event, by=approver)
    assert killed not in trio.approvers(event)
    trio.advance_to_the_end(event)


def test_a_member_killed_ready_and_long_ago_leaves_it_to_not_before(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    trio.start()
    trio.hold("web-2")
    event = trio.freeze()
    trio.until_reason("web-1", "waiting for web-2 (preparing)")
    trio.agents["web-0"].kill()
    trio.until_reason("web-1", "web-0 (ready, unreachable)")
    trio.diaries["web-2"].release("prepare", "web")
    trio.until_reason("web-1", "waiting for web-0 (ready, unreachable)")
    trio.advance_to_not_before(event)


def test_a_member_that_runs_a_handler_again_is_not_ready_until_it_ends(make_trio: Callable[..., Trio]) -> None:
    """It is ready for one event when a second one starts a handler. No member approves until that ends."""
    trio = make_trio('[[rule]]\non = ["Reboot"]\nprepare = ["alone"]')
    trio.start()
    trio.hold("web-2")
    event = trio.freeze()
    trio.until_reason("web-0", "waiting for web-2 (preparing)")
    trio.diaries["web-1"].hold("prepare", "alone")
    trio.vms["web-1"].restart()
    trio.until_reason("web-0", "web-1 (preparing)")
    trio.agents["web-1"].until_logged("handler_started: Handler started. handler=alone action=prepare")
    trio.diaries["web-2"].release("prepare", "web")
    trio.until_reason("web-0", "waiting for web-1 (preparing)")
    assert event.status == "Scheduled"
    assert trio.approvers(event) == set()
    trio.diaries["web-1"].release("prepare", "alone")
    trio.until_started(event, by="web-0")


def test_a_leader_killed_after_its_approval(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    trio.start()
    event = trio.freeze()
    trio.until_started(event, by="web-0")
    trio.agents["web-0"].kill()
    trio.until_phase("web-1", "started")
    trio.until_phase("web-2", "started")
    assert "web-0" in trio.approvers(event)
    trio.advance_to_the_end(event)
    assert "web-0" in trio.approvers(event)
    # It comes back when all is over, and undoes what it had prepared.
    trio.agents["web-0"].start()
    trio.agents["web-0"].until_logged("work_undone")
    trio.diaries["web-0"].check()


def test_a_member_that_is_cut_off_leaves_it_to_not_before(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    trio.start()
    trio.hold("web-2")
    event = trio.freeze()
    trio.until_reason("web-0", "waiting for web-2 (preparing)")
    trio.until_reason("web-1", "waiting for web-2 (preparing)")
    trio.cut_off("web-0")
    trio.until_reason("web-0", "web-2 (preparing, unreachable)")
    trio.diaries["web-2"].release("prepare", "web")
    trio.until_reason("web-1", "waiting for web-0 (ready, unreachable)")
    trio.advance_to_not_before(event)


def test_when_a_link_is_cut_the_member_that_reaches_all_others_approves(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    trio.links["web-0", "web-2"].cut()
    trio.links["web-2", "web-0"].cut()
    trio.start()
    event = trio.freeze()
    trio.until_started(event, by="web-1")
    assert trio.approvers(event) == {"web-1"}


def test_all_are_cut_off_from_each_other(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    for name in NAMES:
        trio.cut_off(name)
    trio.start()
    event = trio.freeze()
    for name in NAMES:
        trio.until_phase(name, "prepared")
        trio.until_reason(name, "(no response, unreachable)")
    trio.advance_to_not_before(event)


def test_a_member_in_dry_run_is_not_ready_for_the_others(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    trio.start(**{"web-2": ("--dry-run",)})
    event = trio.freeze()
    trio.agents["web-2"].until_logged("would run")
    trio.until_reason("web-0", "waiting for web-2 (no response, unreachable)")
    trio.advance_to_not_before(event, but="web-2")


def test_an_address_in_use_is_an_error_at_the_start(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio()
    agent = trio.agents["web-0"]
    address = trio.links["web-1", "web-0"].target
    assert address is not None
    with socket.create_server(address):
        agent.start()
        agent.until_logged(f"[peers] listen: cannot listen on 127.0.0.1:{address[1]}: ")
        assert agent.wait() != 0
    assert "Traceback" not in "".join(agent.messages())

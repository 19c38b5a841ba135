"""Guarantees of the loop: status pages work while it hangs, and peers can rely on its readiness."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from agent.events import ME, NOW, make_event
from forewarn.agent.clock import real_seconds
from forewarn.agent.loop import Agent, AgentOptions
from forewarn.agent.peers.network import PeerClient
from forewarn.agent.peers.participation import Participation
from forewarn.agent.policy import Config, Member, PeersSettings, Rule
from forewarn.agent.state import PREPARED, new_work

if TYPE_CHECKING:
    from pathlib import Path

READY = new_work(
    make_event(resources=(ME, "web-1")), ME, Rule("r", prepare=("a",), approve="leader"), "boot"
).with_step(0, state=PREPARED)


def test_the_status_comes_from_the_loop(tmp_path: Path) -> None:
    agent = Agent(Config(), AgentOptions("http://127.0.0.1:1", ME, tmp_path / "state"))
    shown = agent.snapshot()  # the loop does not run
    assert not shown["ready"]
    assert shown["loop_problem"] == shown["ready_reason"] == "the agent's loop did not answer within 2 s"
    assert "events" not in shown
    running = threading.Thread(target=agent.run)
    running.start()
    shown = agent.snapshot()
    assert shown["ready"]
    assert shown["events"] == []
    assert "loop_problem" not in shown
    agent.stop()
    running.join()
    assert agent.snapshot()["ready_reason"] == "the agent is stopping"


def test_no_handler_starts_while_a_peer_can_rely_on_this_machines_readiness() -> None:
    address = socket.create_server(("127.0.0.1", 0))
    listen: tuple[str, int] = address.getsockname()
    address.close()
    members = (Member(ME, *listen), Member("web-1", "127.0.0.1", 1))
    settings = PeersSettings(listen, b"x" * 32, members, timedelta(seconds=1))
    participation = Participation(settings, lambda: None)
    client = PeerClient(members[0], settings.secret, 60)

    def until_it_may() -> None:
        begun = real_seconds()
        while not participation.may_run_handler():
            assert real_seconds() < begun + 60

    def reported_state() -> str:
        return client.request_status("web-1").events[0].state

    try:
        assert not participation.may_run_handler()  # an earlier run may have said so
        until_it_may()
        participation.start(ME)
        participation.report([READY], NOW, busy=False)
        assert participation.may_run_handler()  # there was no request
        assert reported_state() == "ready"
        participation.report([READY], NOW, busy=True)
        assert reported_state() == "preparing"
        assert not participation.may_run_handler()
        until_it_may()
    finally:
        client.close()
        participation.stop()

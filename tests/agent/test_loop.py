"""What the loop promises to those around it: pages that ask while it hangs, peers that count on its word."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from agent.events import ME, told
from forewarn.agent.clock import real_seconds
from forewarn.agent.loop import Agent, Options
from forewarn.agent.peers.participation import Together
from forewarn.agent.policy import Config, Member, PeersSettings, Rule
from forewarn.agent.state import PREPARED, begin

if TYPE_CHECKING:
    from pathlib import Path

READY = begin(told(resources=(ME, "web-1")), ME, Rule("r", prepare=("a",), approve="leader"), "boot").with_step(
    0, state=PREPARED
)


def test_a_loop_that_hangs_keeps_nobody_waiting_who_asks_how_it_is(tmp_path: Path) -> None:
    agent = Agent(Config(), Options("http://127.0.0.1:1", ME, tmp_path / "state"))
    held, go = threading.Event(), threading.Event()

    def hang() -> None:
        with agent._lock:
            held.set()
            go.wait(60)

    hanging = threading.Thread(target=hang)
    hanging.start()
    assert held.wait(60)
    shown = agent.snapshot()
    assert shown["turned_seconds_ago"] > 0
    assert shown["ready"]
    go.set()
    hanging.join()
    assert agent.snapshot()["vm"] == ME


def test_no_handler_begins_while_another_may_act_on_the_word_that_this_machine_is_ready() -> None:
    settings = PeersSettings(
        ("127.0.0.1", 0), b"x" * 32, (Member(ME, "127.0.0.1", 1), Member("web-1", "127.0.0.1", 1)), timedelta(seconds=1)
    )
    together = Together(settings, lambda: None)
    try:
        assert together.may_begin()
        together.begin(ME)
        together.tell([READY], busy=False)
        assert not together.may_begin()
        together.tell([READY], busy=True)
        begun = real_seconds()
        while not together.may_begin():
            assert real_seconds() < begun + 60
    finally:
        together.stop()

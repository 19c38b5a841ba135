"""A simulated network of agents: links are cut in one direction, messages are slow, agents die.

It checks from outside that the rules hold, because it knows all messages in transit.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import NamedTuple

from forewarn.agent.peers.messages import PREPARING, READY, StatusMessage, read_status, write_status
from forewarn.agent.peers.readiness import Readiness
from forewarn.agent.policy import Member, PeersSettings

EVENT = "E-1"
TICK = 0.0625
SLOW = (0.0, 0.0, 0.0, 0.125, 0.25, 0.5, 1.0, 1.75)
QUICK = (0.0, 0.0625)


class Approval(NamedTuple):
    who: str
    at: float


class _Exchange(NamedTuple):
    """A request in transit, or its response."""

    sent: float
    due: float
    message: StatusMessage | None
    requester: Readiness
    """An agent that has died and come back does not get the answers of its earlier life."""


class Machine:
    """One VM and its agent, with a clock of its own."""

    def __init__(self, name: str, offset: float) -> None:
        self.name = name
        self.offset = offset
        self.agent: Readiness | None = None
        self.state = ""
        self.handler_runs_until: float | None = None
        self.needs_handler = False
        self.said_ready: dict[str, float] = {}
        """By requester: when the question was sent that was last answered with ready."""
        self.heard: dict[str, tuple[float, bool]] = {}
        """By peer: when the question of its last answer was sent, and whether the answer was ready."""


class Network:
    """Run tick by tick, record who may approve, and fail if that breaks a rule."""

    def __init__(self, count: int, seed: int, silence: float = 4.0) -> None:
        self.random = random.Random(seed)  # noqa: S311 - the same course for the same seed
        self.names = tuple(f"web-{number}" for number in range(count))
        members = tuple(Member(name, "127.0.0.1", 1) for name in self.names)
        self.settings = PeersSettings(("127.0.0.1", 0), b"", members, timedelta(seconds=silence))
        self.now = 0.0
        self.machines = {name: Machine(name, self.random.uniform(0, 1e6)) for name in self.names}
        self.cut: set[tuple[str, str]] = set()
        self.delays: tuple[float, ...] = SLOW
        self.exchanges: dict[tuple[str, str], _Exchange] = {}
        self.next_request = dict.fromkeys(((a, b) for a in self.names for b in self.names if a != b), 0.0)
        self.approvals: list[Approval] = []
        for name in self.names:
            self.start(name)

    # What a test does to it.

    def start(self, name: str) -> None:
        machine = self.machines[name]
        if machine.agent is None:
            machine.agent = Readiness(self.settings, self.now + machine.offset)
            machine.agent.me = name
            self.timing = machine.agent.timing
            machine.heard = {}
            machine.state, machine.needs_handler = "", False

    def crash(self, name: str) -> None:
        """The agent dies. A handler of it dies with it."""
        self.machines[name].agent = None
        self.machines[name].handler_runs_until = None

    def report(self, name: str, state: str) -> None:
        machine = self.machines[name]
        if machine.agent is not None and not machine.needs_handler:
            machine.state = state
            machine.agent.report(EVENT, self.names, state, name, self.now + machine.offset)

    def prepare(self, name: str) -> None:
        """The machine must run a handler, and is ready afterwards."""
        self.report(name, PREPARING)
        self.machines[name].needs_handler = self.machines[name].agent is not None

    def heal(self) -> None:
        """All alive, all linked, all quick, all ready once their handlers are done."""
        self.cut.clear()
        self.delays = QUICK
        for name in self.names:
            self.start(name)
            self.report(name, READY)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.tick()

    # How it goes on.

    def tick(self) -> None:
        self.now += TICK
        pairs = list(self.next_request)
        self.random.shuffle(pairs)
        for requester, responder in pairs:
            self._move(requester, responder)
        machines = list(self.machines.values())
        self.random.shuffle(machines)
        for machine in machines:
            if machine.agent is None:
                continue
            self._handle(machine, machine.agent)
            if machine.agent.decide(EVENT, self.now + machine.offset).allowed:
                self._check_approval(machine)
                self.approvals.append(Approval(machine.name, self.now))

    def _handle(self, machine: Machine, agent: Readiness) -> None:
        if machine.handler_runs_until is not None:
            if self.now >= machine.handler_runs_until:
                machine.handler_runs_until, machine.needs_handler = None, False
                self.report(machine.name, READY)
        elif machine.needs_handler and agent.may_run_handler(self.now + machine.offset):
            self._check_handler(machine)
            machine.handler_runs_until = self.now + self.random.choice((0.125, 0.5, 2.0))

    def _move(self, requester: str, responder: str) -> None:
        agent = self.machines[requester].agent
        exchange = self.exchanges.get((requester, responder))
        if exchange and (exchange.requester is not agent or self.now - exchange.sent >= self.timing.request_timeout):
            exchange = self.exchanges.pop((requester, responder)) and None
        is_time = self.now >= self.next_request[requester, responder]
        if exchange is None and agent is not None and is_time and agent.members_to_poll():
            exchange = _Exchange(self.now, self.now + self.random.choice(self.delays), None, agent)
            self.exchanges[requester, responder] = exchange
        if exchange and exchange.message is None and self.now >= exchange.due:
            exchange = self._reach(requester, responder, exchange)
        if exchange and exchange.message is not None and self.now >= exchange.due:
            self._return(requester, responder, exchange)

    def _reach(self, requester: str, responder: str, exchange: _Exchange) -> _Exchange | None:
        machine = self.machines[responder]
        if (requester, responder) in self.cut or machine.agent is None:
            self.next_request[requester, responder] = self.now + self.timing.poll_interval
            self.exchanges.pop((requester, responder))
            return None
        message = machine.agent.status_message(responder, self.now + machine.offset)
        assert message is not None
        if machine.state == READY:
            machine.said_ready[requester] = exchange.sent
        due = self.now + self.random.choice(self.delays)
        exchange = exchange._replace(message=read_status(write_status(message)), due=due)
        self.exchanges[requester, responder] = exchange
        return exchange

    def _return(self, requester: str, responder: str, exchange: _Exchange) -> None:
        machine = self.machines[requester]
        self.exchanges.pop((requester, responder))
        self.next_request[requester, responder] = self.now + self.timing.poll_interval
        # An answer goes back on the way on which the question came: that way may be cut by now.
        if (requester, responder) in self.cut or machine.agent is None or exchange.message is None:
            return
        machine.agent.record_response(
            responder, exchange.message, exchange.sent + machine.offset, self.now + machine.offset
        )
        event_state = exchange.message.event(EVENT)
        machine.heard[responder] = exchange.sent, event_state is not None and event_state.state == READY

    # What must never happen.

    def _check_approval(self, approver: Machine) -> None:
        assert approver.state == READY, f"{approver.name} would approve and is {approver.state}"
        for other in self.machines.values():
            if other is approver:
                continue
            sent, is_ready = approver.heard.get(other.name, (0.0, False))
            assert is_ready, f"{approver.name} would approve and has no response that {other.name} is ready"
            assert self.now - sent < self.timing.fresh, f"{approver.name} would approve on an old word of {other.name}"
            assert other.handler_runs_until is None, f"{approver.name} would approve and a handler of {other.name} runs"

    def _check_handler(self, machine: Machine) -> None:
        for other, sent in machine.said_ready.items():
            assert self.now - sent >= self.timing.fresh, f"{machine.name} runs a handler, {other} may act on its word"

"""Polls that are held, in the protocol: a change of the document costs each of them hardly more than a write.

A poll that may wait, and whose tag is still the document's, is a request of uvicorn's like any other, so that
pipelining, stopping and closing are as ever; but instead of a task that sleeps there is one entry among the
waiters. What cannot be answered from a rendered page is handed on to the application after all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.server.approvals import Approvals

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from forewarn.server.callers import Caller
    from forewarn.server.lane import Lane, Poll
    from forewarn.server.pages import Page


class Hold:
    """The poll that a connection holds: for which group's document it waits, and what ends that."""

    __slots__ = ("cycle", "group", "poll", "timer")

    def __init__(self, cycle: RequestResponseCycle, poll: Poll, group: str, timer: asyncio.TimerHandle) -> None:
        self.cycle = cycle
        self.poll = poll
        self.group = group
        self.timer = timer


class Holds(Approvals):
    """A connection that can hold a poll. `take_hold` says which request is one."""

    def __init__(self, lane: Lane, *arguments: Any, **options: Any) -> None:
        super().__init__(lane, *arguments, **options)
        self._listener: str | None = self.app_state.get("listener")
        self._caller: Caller | None = None
        self._generation = -1
        self._hold: Hold | None = None
        # Others have still to be told what this one was: it is not read from meanwhile.
        self._aside = False

    def take_hold(self, poll: Poll) -> None:
        """The request whose head has just been read is this poll, and it may wait."""
        self.scope["state"]["hold"] = poll

    def connection_lost(self, exc: Exception | None) -> None:
        if self._hold is not None:
            self._lane.waiters.leave(self._hold.group, self)
            self._let_go(self._hold)
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        poll: Poll | None = cycle.scope["state"].pop("hold", None)
        caller = self._settle_caller() if poll is not None else None
        if poll is None or caller is None or not caller.allowed():
            super()._start_asgi_task(cycle, app)
            return
        self._under_way = cycle
        self._lane.asked.add(caller.group)
        timer = self.loop.call_later(poll.wait_seconds, self._run_out)
        self._hold = Hold(cycle, poll, caller.group, timer)
        page = self._lane.pages.page(caller.group, poll.version)
        if page is not None and poll.if_none_match in page.same_tags and not self._lane.waiters.stopping:
            self._lane.waiters.join(caller.group, self)
        else:
            # Not within the parser's callback: an answer lets the next request be parsed.
            self.loop.call_soon(self.wake)

    def wake(self) -> None:
        """Something has changed: answer, if it is what was waited for."""
        if self._hold is not None:
            self._look(self._hold, over=self._lane.waiters.stopping)

    def _run_out(self) -> None:
        if self._hold is not None:
            self._lane.waiters.leave(self._hold.group, self)
            self._look(self._hold, over=True)

    def _look(self, hold: Hold, *, over: bool) -> None:
        """Answer the poll if its document has changed or its time is over; else hold it on."""
        caller = self._settle_caller()
        page = self._lane.pages.page(caller.group, hold.poll.version) if caller is not None else None
        if caller is None or page is None or not self._lane.targets:
            self._hand_on(hold, caller)
        elif over or hold.poll.if_none_match not in page.same_tags:
            self._answer_hold(hold, page)
        else:
            hold.group = caller.group
            self._lane.waiters.join(caller.group, self)

    def _answer_hold(self, hold: Hold, page: Page) -> None:
        self._let_go(hold)
        cycle, poll = hold.cycle, hold.poll
        head, status, body = page.found_head, 200, page.body
        if poll.if_none_match in page.same_tags:
            head, status, body = page.unchanged_head, 304, b""
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        self.transport.write(head + self._stamp.next() + poll.applied + end + body)
        self._lane.tallies.poll(poll.version.name, status).count += 1
        if not cycle.keep_alive:
            self.transport.close()
        elif self._lane.waiters.set_aside(self):
            self._aside = True
            self.flow.pause_reading()
        self._complete(cycle)

    def read_on(self) -> None:
        """All have been told: take what the client has sent since."""
        self._aside = False
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _may_read(self) -> bool:
        return not self._aside and super()._may_read()

    def _hand_on(self, hold: Hold, caller: Caller | None) -> None:
        """It is for the application: the VM has left the fleet, its group is to be enabled again, or all is watched."""
        state = hold.cycle.scope["state"]
        state["wait_seconds"] = max(hold.timer.when() - self.loop.time(), 0.0)
        self._let_go(hold)
        state["caller"] = caller
        state["counted"] = True
        super()._start_asgi_task(hold.cycle, self.app)

    def _let_go(self, hold: Hold) -> None:
        hold.timer.cancel()
        self._hold = None

    def _settle_caller(self) -> Caller | None:
        """Who is calling: settled once per connection, and again when the fleet has changed."""
        if self._generation != self._lane.callers.generation:
            self._generation = self._lane.callers.generation
            peer = self.client[0] if self.client else None
            called = self.server[0] if self.server else None
            self._caller = self._lane.callers.find(peer, called, self._listener)
        return self._caller

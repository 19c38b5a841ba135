"""Long polls: requests that wait for a scope's document to change."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forewarn.engine.engine import Engine, Published
    from forewarn.metadata.routes import Result

WAKE_BATCH_SIZE = 250
"""Long polls woken per turn of the event loop, so that other polls are served in between."""


class WaitingPoll(Protocol):
    """A long poll that waits."""

    def wake(self) -> None:
        """Check for a change, and join again if there is none. The poll was removed before this call."""


class DeferredConnection(Protocol):
    """A connection whose long poll was completed."""

    def resume_reading(self) -> None:
        """Read the next request."""


class LongPolls:
    """All waiting long polls, by the scope they wait for."""

    def __init__(self, engine: Engine) -> None:
        self.count = 0
        """Number of waiting long polls."""
        self.stopping = False
        """Whether the service is stopping: no poll may wait."""
        self.by_scope: dict[str, dict[WaitingPoll, None]] = {}
        self._to_wake: dict[WaitingPoll, None] = {}
        """Polls that will be woken in the next turns of the loop."""
        self._deferred: list[DeferredConnection] = []
        """Connections that are not read until all other polls are woken."""
        self._wake_scheduled = False
        engine.subscribe(self._on_published)

    def join(self, scope: str, waiter: WaitingPoll) -> None:
        """Wait for a change of the scope or the fleet. `wake` is then called once."""
        self.by_scope.setdefault(scope, {})[waiter] = None
        self.count += 1

    def leave(self, scope: str, waiter: WaitingPoll) -> None:
        """Stop waiting. Does nothing if the poll does not wait."""
        of_scope = self.by_scope.get(scope, {})
        waiting = of_scope if waiter in of_scope else self._to_wake
        if waiter in waiting:
            del waiting[waiter]
            self.count -= 1
            if not of_scope:
                self.by_scope.pop(scope, None)

    def defer_reading(self, connection: DeferredConnection) -> bool:
        """Stop reading from this connection while other polls still have to be woken. Return whether that is so.

        A client polls again immediately after its response. If those requests came first, the last waiting poll
        would wait for all of them.
        """
        if self._to_wake:
            self._deferred.append(connection)
        return bool(self._to_wake)

    def stop(self) -> None:
        """Complete all long polls, and hold no new ones."""
        self.stopping = True
        self.wake_all()

    def wake_all(self) -> None:
        """Wake all polls. Those without a change join again."""
        self._queue_wakeups(list(self.by_scope))

    def _on_published(self, published: Published) -> None:
        # With a new fleet, the same address may belong to another VM: all polls must check.
        self._queue_wakeups(list(self.by_scope) if published.fleet else published.scopes)

    def _queue_wakeups(self, scopes: Iterable[str]) -> None:
        for scope in scopes:
            self._to_wake.update(self.by_scope.pop(scope, {}))
        self._schedule_wakeups()

    def _schedule_wakeups(self) -> None:
        if (self._to_wake or self._deferred) and not self._wake_scheduled:
            self._wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake_batch)

    def _wake_batch(self) -> None:
        self._wake_scheduled = False
        try:
            for _ in range(WAKE_BATCH_SIZE):
                if self._to_wake:
                    waiter, _ = self._to_wake.popitem()
                    self.count -= 1
                    waiter.wake()
                elif self._deferred:
                    self._deferred.pop().resume_reading()
                else:
                    break
        finally:  # an error in one poll must not block the others
            self._schedule_wakeups()


class LongPoll:
    """One poll that waits until its document changes or its wait time ends.

    It consists of one registration, one timer and one future instead of a task: there may be many thousands.
    """

    __slots__ = ("_check", "_long_polls", "_response", "_scope", "_timer")

    def __init__(self, long_polls: LongPolls, check: Callable[[bool], Result | str], seconds: float) -> None:
        """`check(is_expired)` returns the response, or the scope to keep waiting for."""
        self._long_polls = long_polls
        self._check = check
        self._scope = ""
        loop = asyncio.get_running_loop()
        self._response: asyncio.Future[Result] = loop.create_future()
        self._timer = loop.call_later(seconds, self._expire)

    def begin(self, scope: str) -> asyncio.Future[Result]:
        """Start to wait. Return a future of the response; cancelling it ends the wait."""
        self._response.add_done_callback(self._end)
        self._join(scope)
        return self._response

    def wake(self) -> None:
        """Check for a change, and respond if there is one."""
        self._try(expired=self._long_polls.stopping)

    def _expire(self) -> None:
        self._long_polls.leave(self._scope, self)
        self._try(expired=True)

    def _try(self, *, expired: bool) -> None:
        if self._response.done():
            return
        found = self._check(expired)
        if isinstance(found, str):
            self._join(found)
        else:
            self._response.set_result(found)

    def _join(self, scope: str) -> None:
        self._scope = scope
        self._long_polls.join(scope, self)

    def _end(self, _: object) -> None:
        self._timer.cancel()
        self._long_polls.leave(self._scope, self)

"""Long polls: requests that wait for a group's document to change."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forewarn.engine.engine import Engine, Published
    from forewarn.metadata.routes import Result

WOKEN_AT_ONCE = 250
"""So many are woken in a turn of the loop: others' polls are answered in between."""


class Waiter(Protocol):
    """One held poll."""

    def wake(self) -> None:
        """What was waited for may have happened: look again, and join again if not. It has left before."""


class WokenConnection(Protocol):
    """One that was woken, and has been told."""

    def read_on(self) -> None:
        """Take the next request."""


class Waiters:
    """All held polls by the group they wait for."""

    def __init__(self, engine: Engine) -> None:
        self.count = 0
        """How many are held."""
        self.stopping = False
        """Nobody is to wait any more."""
        self.by_group: dict[str, dict[Waiter, None]] = {}
        self._woken: dict[Waiter, None] = {}
        """Those whose turn to be woken comes."""
        self._set_aside: list[WokenConnection] = []
        """Those who are not listened to until all others are woken."""
        self._waking = False
        engine.subscribe(self._on_published)

    def join(self, group: str, waiter: Waiter) -> None:
        """Wait until something of the group has changed, or the fleet has: then `wake` is called, once."""
        self.by_group.setdefault(group, {})[waiter] = None
        self.count += 1

    def leave(self, group: str, waiter: Waiter) -> None:
        """Wait no longer. Who does not wait may leave, too."""
        of_group = self.by_group.get(group, {})
        waiting = of_group if waiter in of_group else self._woken
        if waiter in waiting:
            del waiting[waiter]
            self.count -= 1
            if not of_group:
                self.by_group.pop(group, None)

    def set_aside(self, connection: WokenConnection) -> bool:
        """Whether others have still to be woken: then this one, which has been, is asked to `read_on` behind them.

        Whoever is told asks again at once. To take those requests first would make the last wait for all of them.
        """
        if self._woken:
            self._set_aside.append(connection)
        return bool(self._woken)

    def stop(self) -> None:
        """Wake all, and let nobody wait from now on."""
        self.stopping = True
        self.look_again()

    def look_again(self) -> None:
        """Wake all; who has still nothing to tell joins again."""
        self._rouse(list(self.by_group))

    def _on_published(self, published: Published) -> None:
        # Who calls may be another VM in another fleet: then all have to look.
        self._rouse(list(self.by_group) if published.fleet else published.groups)

    def _rouse(self, groups: Iterable[str]) -> None:
        for group in groups:
            self._woken.update(self.by_group.pop(group, {}))
        self._go_on()

    def _go_on(self) -> None:
        if (self._woken or self._set_aside) and not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        self._waking = False
        try:
            for _ in range(WOKEN_AT_ONCE):
                if self._woken:
                    waiter, _ = self._woken.popitem()
                    self.count -= 1
                    waiter.wake()
                elif self._set_aside:
                    self._set_aside.pop().read_on()
                else:
                    break
        finally:  # one that fails must not keep the others waiting
            self._go_on()


class LongPoll:
    """One poll that is held until its document changes or its time is over.

    It is no task, but one entry among the waiters, one timer and one future: thousands of them must cost little.
    """

    __slots__ = ("_answer", "_group", "_look", "_timer", "_waiters")

    def __init__(self, waiters: Waiters, look: Callable[[bool], Result | str], seconds: float) -> None:
        """`look` gives the answer, or the group for which to wait on; it is told whether the time is over."""
        self._waiters = waiters
        self._look = look
        self._group = ""
        loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Result] = loop.create_future()
        self._timer = loop.call_later(seconds, self._expire)

    def begin(self, group: str) -> asyncio.Future[Result]:
        """The answer to come. To cancel it is to wait no longer."""
        self._answer.add_done_callback(self._end)
        self._join(group)
        return self._answer

    def wake(self) -> None:
        """Something has changed: answer, if it is what was waited for."""
        self._try(over=self._waiters.stopping)

    def _expire(self) -> None:
        self._waiters.leave(self._group, self)
        self._try(over=True)

    def _try(self, *, over: bool) -> None:
        if self._answer.done():
            return
        found = self._look(over)
        if isinstance(found, str):
            self._join(found)
        else:
            self._answer.set_result(found)

    def _join(self, group: str) -> None:
        self._group = group
        self._waiters.join(group, self)

    def _end(self, _: object) -> None:
        self._timer.cancel()
        self._waiters.leave(self._group, self)

"""Work of requests that grows with the fleet, in slices: one in each iteration of the event loop.

All requests take turns, also to begin. So a poll waits for at most one slice, however many requests there are, and a
short list does not wait for a long plan. Plans together have one turn, because an operator may request many. Work ends
when its client disconnects; what takes long also ends when the service stops.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect

from forewarn.control.input import wait_for_disconnect
from forewarn.core.steps import take_slice
from forewarn.errors import ServiceBusy, ServiceStopping

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from forewarn.control.input import BodyLimit
    from forewarn.core.steps import Steps

T = TypeVar("T")


def in_parts(items: Iterable[T], size: Callable[[T], int], largest: int) -> Iterator[list[T]]:
    """Split items into parts. A part ends with the item with which it reaches this size."""
    part, total = list[T](), 0
    for item in items:
        part.append(item)
        total += size(item)
        if total >= largest:
            yield part
            part, total = [], 0
    if part:
        yield part


MAX_PLANS = 8
"""Maximum number of plans at a time."""


class Slices:
    """Takes turns between requests."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._plan_turn = asyncio.Lock()
        self._taken: dict[str, int] = {}
        self._long_work: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    async def turn(self) -> None:
        """Return in an iteration of the event loop in which no other request gets a turn."""
        async with self._turn:
            await asyncio.sleep(0)

    async def collect(self, items: Iterable[T], at_once: int = 20) -> list[T]:
        """Return the items as a list. `at_once`: how many of them to compute in a slice."""
        remaining, found = iter(items), list[T]()
        while True:
            async with self._turn:
                part = list(islice(remaining, at_once))
                found += part
                if len(part) < at_once:
                    return found
                await asyncio.sleep(0)

    async def run(self, request: Request, steps: Steps[T]) -> T:
        """Run all steps, and return the result."""
        return await self.while_wanted(request, self._run(steps, asyncio.Lock()))

    async def plan(self, request: Request, steps: Steps[T]) -> T:
        """Run all steps of a plan, which many requests may want at once."""
        with self.place("plans", MAX_PLANS):
            return await self.while_wanted(request, self._run(steps, self._plan_turn))

    async def _run(self, steps: Steps[T], shared_turn: asyncio.Lock) -> T:
        while True:
            async with shared_turn, self._turn:
                if (result := take_slice(steps)) is not None:
                    return result.value
                await asyncio.sleep(0)

    async def while_wanted(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work. Cancel it if the client disconnects, or the service stops."""
        if self._is_stopping:
            work.close()
            raise ServiceStopping
        task, gone = asyncio.create_task(work), asyncio.create_task(wait_for_disconnect(request))
        self._long_work.add(task)
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientDisconnect
            if task.cancelled():
                raise ServiceStopping
            return task.result()
        finally:
            self._long_work.discard(task)
            task.cancel()
            gone.cancel()

    def body_place(self, limit: BodyLimit) -> AbstractContextManager[None]:
        """Take a place for a body before it is read, if it may be so large that only some are received at a time."""
        return self.place(limit.what, limit.at_once) if limit.at_once else nullcontext()

    @contextmanager
    def place(self, what: str, maximum: int) -> Iterator[None]:
        """Take one of the places for this kind of work. Raises ServiceBusy if there is none."""
        if self._taken.get(what, 0) >= maximum:
            raise ServiceBusy(maximum=maximum, what=what)
        self._taken[what] = self._taken.get(what, 0) + 1
        try:
            yield
        finally:
            self._taken[what] -= 1

    def begin_in_turn(self, app: ASGIApp) -> ASGIApp:
        """ASGI middleware that lets one request begin in an iteration, and go on with its complete body, however many
        arrive at once."""

        async def begin(scope: Scope, receive: Receive, send: Send) -> None:
            async def receive_in_turn() -> Message:
                message = await receive()
                if message["type"] == "http.request" and not message.get("more_body"):
                    await self.turn()
                return message

            await self.turn()
            await app(scope, receive_in_turn, send)

        return begin

    def stop(self) -> None:
        """End the work that takes long: its clients get an error, and may repeat the request elsewhere."""
        self._is_stopping = True
        for task in self._long_work:
            task.cancel()

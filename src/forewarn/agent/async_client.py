"""The client for asyncio: the same one, in threads of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from forewarn.agent.changes import Account, BaseChange
from forewarn.agent.client import Client
from forewarn.agent.clock import real_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from forewarn.agent.address import Endpoint
    from forewarn.agent.client import Polled
    from forewarn.agent.clock import EndpointClock
    from forewarn.agent.identity import Me
    from forewarn.agent.transport import EndpointConnection
    from forewarn.wire.document_reader import ToldDocument, ToldEvent


T = TypeVar("T")

_LEAVING_SECONDS = 1.0
"""How long is waited for a thread that shall end. A search for an address can take longer, and ends when it ends."""


class AsyncChange(BaseChange):
    """What happened to an event, and a way to answer."""

    sender: Callable[[ToldEvent], Awaitable[bool]]

    async def approve(self) -> bool:
        """As Change.approve."""
        return self.waits and await self.sender(self.event)


class AsyncClient:
    """As Client. A task that is cancelled is so at once: the connection it waits for is closed."""

    def __init__(self, endpoint: str = "", vm_name: str = "", *, poll_seconds: float = 1.0) -> None:
        """As Client."""
        self._client = Client(endpoint, vm_name, poll_seconds=poll_seconds)
        polls, others = self._client.lines
        # Two, since an approval must not wait for a poll that is held.
        self._polls, self._others = _Worker(polls, "forewarn-polls"), _Worker(others, "forewarn-approvals")

    @property
    def clock(self) -> EndpointClock:
        """As of Client."""
        return self._client.clock

    @property
    def offers_long_poll(self) -> bool | None:
        """As of Client."""
        return self._client.offers_long_poll

    async def endpoint(self) -> Endpoint:
        """As of Client, where it is a property."""
        return await self._others.do(lambda: self._client.endpoint)

    async def me(self) -> Me:
        """As of Client, where it is a property."""
        return await self._others.do(lambda: self._client.me)

    async def document(self) -> ToldDocument:
        """As Client.document."""
        return await self._others.do(self._client.document)

    async def approve(self, *events_or_ids: ToldEvent | str) -> None:
        """As Client.approve."""
        await self._others.do(lambda: self._client.approve(*events_or_ids))

    async def poll(self, wait_seconds: int = 0) -> Polled:
        """As Client.poll."""
        return await self._polls.do(lambda: self._client.poll(wait_seconds))

    async def changes(self, mine: bool = True) -> AsyncIterator[AsyncChange]:
        """As Client.changes."""
        account = Account()
        while not self._client.closed:
            changes, pause_seconds = await self._polls.do(lambda: self._client.turn(account, mine=mine))
            for change in changes:
                told = AsyncChange(*change)
                told.sender = self._send_approval
                yield told
            await asyncio.sleep(pause_seconds)

    async def _send_approval(self, event: ToldEvent) -> bool:
        return await self._others.do(lambda: self._client.send_approval(event))

    async def close(self) -> None:
        """End it: what is under way ends, and so do its threads."""
        self._client.close()
        await self._polls.end()
        await self._others.end()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Worker:
    """A thread that does one thing after the other over one connection. It is there when it is first needed."""

    def __init__(self, connection: EndpointConnection, name: str) -> None:
        self._connection = connection
        self._thread = ThreadPoolExecutor(1, name)
        self._ended = False
        self._under_way: set[asyncio.Future[None]] = set()

    async def do(self, work: Callable[[], T]) -> T:
        """Have it done; when the task that waits for it is cancelled, it ends at once."""
        if self._ended:
            return work()  # the client is closed: it says so, and asks nobody
        job = _Job(work, self._connection)
        under_way = asyncio.get_running_loop().run_in_executor(self._thread, job.run)
        self._under_way.add(under_way)
        under_way.add_done_callback(self._under_way.discard)
        try:
            await asyncio.shield(under_way)
        except asyncio.CancelledError:
            if job.leave():
                await _end_of([under_way])
            raise
        return job.result()

    async def end(self) -> None:
        """The connection is closed, so that hardly anything keeps the thread; and the loop goes on meanwhile."""
        self._ended = True
        try:
            await _end_of(self._under_way)
        finally:
            self._thread.shutdown(wait=not self._under_way)


class _Job(Generic[T]):
    """Something to do over a connection, that may be left."""

    def __init__(self, work: Callable[[], T], connection: EndpointConnection) -> None:
        self._work = work
        self._connection = connection
        self._guard = threading.Lock()
        self._left = threading.Event()
        self._begun = threading.Event()
        self._outcome: Future[T] = Future()

    def run(self) -> None:
        """In the thread."""
        with self._guard:
            if self._left.is_set():
                return
            self._begun.set()
        try:
            self._outcome.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            self._outcome.set_exception(error)
        with self._guard:
            if self._left.is_set():
                self._connection.mend()  # the next job is another's

    def result(self) -> T:
        """What came of it, when it has been run."""
        return self._outcome.result()

    def leave(self) -> bool:
        """Nobody waits for it any more. True: it is ending; False: it has not begun, and never will."""
        with self._guard:
            self._left.set()
            if self._begun.is_set() and not self._outcome.done():
                self._connection.cut()
            return self._begun.is_set()


async def _end_of(under_way: Collection[asyncio.Future[None]]) -> None:
    """Wait for all of it, whatever else is cancelled meanwhile, but not for long."""
    until = real_seconds() + _LEAVING_SECONDS
    while (waiting := [one for one in under_way if not one.done()]) and (left := until - real_seconds()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait(waiting, timeout=left)

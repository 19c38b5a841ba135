"""The client for asyncio: it runs `Client` in threads of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from forewarn.agent.changes import BaseChange, ChangeTracker
from forewarn.agent.client import Client
from forewarn.agent.clock import real_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from forewarn.agent.address import EndpointAddress
    from forewarn.agent.client import PollResult
    from forewarn.agent.clock import EndpointClock
    from forewarn.agent.identity import MachineIdentity
    from forewarn.agent.transport import EndpointConnection
    from forewarn.wire.document_reader import EventsDocument, ScheduledEvent


T = TypeVar("T")

_END_SECONDS = 1.0
"""Maximum wait for a thread to end. A DNS lookup can take longer; that thread ends by itself."""


class AsyncChange(BaseChange):
    """A change of an event, with an awaitable `approve`."""

    approver: Callable[[ScheduledEvent], Awaitable[bool]]

    async def approve(self) -> bool:
        """Do the same as Change.approve."""
        return self.waits and await self.approver(self.event)


class AsyncClient:
    """Client for asyncio. Cancelling a task closes the connection that it waits for, so the task ends at once."""

    def __init__(
        self, endpoint: str = "", vm_name: str = "", *, poll_seconds: float = 1.0, preview_versions: bool = False
    ) -> None:
        """Take the same arguments as Client."""
        self._client = Client(endpoint, vm_name, poll_seconds=poll_seconds, preview_versions=preview_versions)
        polls, requests = self._client.connections
        # Two threads: an approval must not wait for a long poll.
        self._polls, self._requests = _Worker(polls, "forewarn-polls"), _Worker(requests, "forewarn-approvals")

    @property
    def clock(self) -> EndpointClock:
        """Same as Client.clock."""
        return self._client.clock

    @property
    def api_version(self) -> str | None:
        """Same as Client.api_version."""
        return self._client.api_version

    @property
    def offers_long_poll(self) -> bool | None:
        """Same as Client.offers_long_poll."""
        return self._client.offers_long_poll

    async def endpoint(self) -> EndpointAddress:
        """Return Client.endpoint."""
        return await self._requests.do(lambda: self._client.endpoint)

    async def me(self) -> MachineIdentity:
        """Return Client.me."""
        return await self._requests.do(lambda: self._client.me)

    async def document(self) -> EventsDocument:
        """Do the same as Client.document."""
        return await self._requests.do(self._client.document)

    async def approve(self, *events_or_ids: ScheduledEvent | str) -> None:
        """Do the same as Client.approve."""
        await self._requests.do(lambda: self._client.approve(*events_or_ids))

    async def poll(self, wait_seconds: int = 0) -> PollResult:
        """Do the same as Client.poll."""
        return await self._polls.do(lambda: self._client.poll(wait_seconds))

    async def changes(self, mine: bool = True) -> AsyncIterator[AsyncChange]:
        """Do the same as Client.changes."""
        tracker = ChangeTracker()
        while not self._client.closed:
            changes, pause_seconds = await self._polls.do(lambda: self._client.poll_changes(tracker, mine=mine))
            for change in changes:
                bound = AsyncChange(*change)
                bound.approver = self._send_approval
                yield bound
            await asyncio.sleep(pause_seconds)

    async def _send_approval(self, event: ScheduledEvent) -> bool:
        return await self._requests.do(lambda: self._client.send_approval(event))

    async def close(self) -> None:
        """Close the client: end its requests and its threads."""
        self._client.close()
        await self._polls.end()
        await self._requests.end()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Worker:
    """A thread that runs one job at a time over one connection. It starts with the first job."""

    def __init__(self, connection: EndpointConnection, name: str) -> None:
        self._connection = connection
        self._thread = ThreadPoolExecutor(1, name)
        self._closed = False
        self._running: set[asyncio.Future[None]] = set()

    async def do(self, work: Callable[[], T]) -> T:
        """Run the job in the thread. If the waiting task is cancelled, abort the job."""
        if self._closed:
            return work()  # the client is closed: the call raises that error without any request
        job = _Job(work, self._connection)
        running = asyncio.get_running_loop().run_in_executor(self._thread, job.run)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            if job.cancel():
                await _end_of([running])
            raise
        return job.result()

    async def end(self) -> None:
        """Wait for the thread to end without blocking the event loop. The client has already closed the connection."""
        self._closed = True
        try:
            await _end_of(self._running)
        finally:
            self._thread.shutdown(wait=not self._running)


class _Job(Generic[T]):
    """A call over a connection that can be cancelled."""

    def __init__(self, work: Callable[[], T], connection: EndpointConnection) -> None:
        self._work = work
        self._connection = connection
        self._guard = threading.Lock()
        self._cancelled = threading.Event()
        self._started = threading.Event()
        self._result: Future[T] = Future()

    def run(self) -> None:
        """Run the call, in the thread."""
        with self._guard:
            if self._cancelled.is_set():
                return
            self._started.set()
        try:
            self._result.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - passed on to the waiting task
            self._result.set_exception(error)
        with self._guard:
            if self._cancelled.is_set():
                self._connection.reset()  # the next job uses the same connection

    def result(self) -> T:
        """Return the result of the finished call, or raise its error."""
        return self._result.result()

    def cancel(self) -> bool:
        """Cancel the job. True: it is running and will end soon. False: it will never start."""
        with self._guard:
            self._cancelled.set()
            if self._started.is_set() and not self._result.done():
                self._connection.abort()
            return self._started.is_set()


async def _end_of(running: Collection[asyncio.Future[None]]) -> None:
    """Wait for all of them, for a short time, even if this task is cancelled meanwhile."""
    until = real_seconds() + _END_SECONDS
    while (waiting := [one for one in running if not one.done()]) and (left := until - real_seconds()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait(waiting, timeout=left)

"""An event loop in its own thread, so that a test that blocks does not block the service."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from forewarn.errors import ForewarnError, NotRunning

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

__tracebackhide__ = True

T = TypeVar("T")


class LoopThread:
    """Runs coroutines of the service for other threads."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        # A daemon thread, so that an interrupted test run can exit.
        self._thread = threading.Thread(target=self._loop.run_forever, name="forewarn", daemon=True)
        self._thread.start()
        self._ended = False
        self._ending = threading.Lock()
        """Held while the loop ends, so that no new work starts."""

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the work, and return a future for its result."""
        with self._ending:
            if not self._ended:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise NotRunning

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work and wait for its result. If the wait is interrupted, the work is cancelled."""
        future = self.submit(work)
        try:
            return future.result()
        except (ForewarnError, AssertionError) as error:
            # The reader of a test report does not need the frames inside the service.
            raise error.with_traceback(None) from error.__cause__
        except CancelledError:
            if self._ended:  # another thread has stopped the loop
                raise NotRunning from None
            raise
        except BaseException:
            future.cancel()
            raise

    async def run_async(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work and await its result in the loop of the caller."""
        try:
            return await asyncio.wrap_future(self.submit(work))
        except (ForewarnError, AssertionError) as error:
            raise error.with_traceback(None) from error.__cause__

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread of the loop. Only that thread may read the state of the service."""

        async def calling() -> T:
            return function(*arguments)

        return self.run(calling())

    def stop(self) -> None:
        """End the loop, its thread and all work that still runs there."""
        with self._ending:
            self._ended = True
        for last in (self._end_tasks(), self._loop.shutdown_default_executor()):
            asyncio.run_coroutine_threadsafe(last, self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            if not task.cancelling():  # a task that is already cancelled ends by itself
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""A loop in a thread of its own: whatever the test does, the service goes on."""

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

T = TypeVar("T")


class LoopThread:
    """Runs coroutines of the service, for other threads."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        # A daemon: a test run that ends in the middle does not hang on it.
        self._thread = threading.Thread(target=self._loop.run_forever, name="forewarn", daemon=True)
        self._thread.start()
        self._ended = False
        self._ending = threading.Lock()
        """Nothing is begun while it ends: nobody would finish it."""

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin it; what came of it is in the future."""
        with self._ending:
            if not self._ended:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise NotRunning

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done, and wait for it. Who is interrupted in that leaves nothing under way."""
        __tracebackhide__ = True
        future = self.submit(work)
        try:
            return future.result()
        except (ForewarnError, AssertionError) as error:
            # It is meant for whoever reads the test's report, where the way through the service says nothing.
            raise error.with_traceback(None) from error.__cause__
        except CancelledError:
            if self._ended:  # by another thread, in the middle of it
                raise NotRunning from None
            raise
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call something there: what the loop owns is read by its thread alone."""
        __tracebackhide__ = True

        async def calling() -> T:
            return function(*arguments)

        return self.run(calling())

    def stop(self) -> None:
        """End the loop and its thread, and whatever still runs there."""
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
            if not task.cancelling():  # else it is about to end, and must not be disturbed in that
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

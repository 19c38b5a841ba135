"""A loop in a thread of its own: whatever the test does, the service goes on."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

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

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin it; what came of it is in the future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done, and wait for it."""
        return self.submit(work).result()

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call something there: what the loop owns is read by its thread alone."""

        async def calling() -> T:
            return function(*arguments)

        return self.run(calling())

    def stop(self) -> None:
        """End the loop and its thread, and whatever still runs there."""
        self.run(self._end_tasks())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""The thread in which the store is called: it blocks, and one caller at a time may use it.

A queue and a callback instead of an executor: that takes a quarter of the time to go there and back,
which is a good part of a small commit.
"""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    Done = Callable[[Any, BaseException | None], None]

T = TypeVar("T")


class StoreThread:
    """Runs what it is given, one after the other."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Done, asyncio.AbstractEventLoop] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any], done: Done) -> None:
        """Run the call there; `done` is called here with what it returned or raised."""
        self._calls.put((call, done, asyncio.get_running_loop()))

    async def call(self, call: Callable[[], T]) -> T:
        """What the call returned or raised, there."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T, error: BaseException | None) -> None:
            if future.done():  # whoever waited has gone away
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(call, done)
        return await future

    def stop(self) -> None:
        """When all that was given before is done."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (given := self._calls.get()) is not None:
            call, done, loop = given
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                loop.call_soon_threadsafe(done, None, error)
            else:
                loop.call_soon_threadsafe(done, result, None)

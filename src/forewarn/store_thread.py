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

T = TypeVar("T")


class StoreThread:
    """Runs what it is given, one after the other."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    async def call(self, call: Callable[[], T]) -> T:
        """What the call returned or raised, there."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        return await future

    def stop(self) -> None:
        """When all that was given before is done."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (given := self._calls.get()) is not None:
            call, future = given
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                future.get_loop().call_soon_threadsafe(_settle, future, None, error)
            else:
                future.get_loop().call_soon_threadsafe(_settle, future, result, None)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # whoever waited has gone away
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

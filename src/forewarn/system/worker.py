"""One thread for work that cannot be cut into steps, like the decoder of a large file.

There is one such thread at a time, because the threads of a process share the interpreter: each of them delays every
poll by some milliseconds. The end of the process does not wait for it.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.system.futures import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Worker:
    """Runs calls in a thread, one after the other."""

    def __init__(self) -> None:
        self._free = asyncio.Lock()

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a call, or raise its error. If the caller is cancelled, the call still ends first."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def finish(result: Any, error: BaseException | None) -> None:
            self._free.release()
            resolve(future, result, error)

        def work() -> None:
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = call(*arguments), None
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                outcome = None, error
            with suppress(RuntimeError):  # the loop may be closed
                loop.call_soon_threadsafe(finish, *outcome)

        threading.Thread(target=work, name="worker", daemon=True).start()
        return await future

"""Give the outcome of work to the future that its caller waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


def resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Give a future its result, or its error. If its caller was cancelled, the outcome is dropped."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # behind a shield, the future outlives a cancelled caller: asyncio must not log the error

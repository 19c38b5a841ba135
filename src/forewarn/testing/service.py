"""Service for ordinary tests, AsyncService for asynchronous ones: they differ where a test has to wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forewarn.testing.kit import Kit
from forewarn.testing.lengths import Length, distance
from forewarn.testing.names import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime, timedelta
    from pathlib import Path
    from typing import Self

    from forewarn.core.scenarios import Run
    from forewarn.testing.event import Event
    from forewarn.testing.vm import VM


class Service(Kit):
    """The whole service, for `with Service() as forewarn:` and the fixture `forewarn`."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def advance(
        self,
        length: timedelta | str | None = None,
        *,
        seen_by: VM | str | Iterable[VM | str] | None = (),
        limit: Length | None = None,
        **units: float,
    ) -> datetime:
        """Move the clock on, by `minutes=15` or "15m"; returns when everything due by then is done.

        It never waits for an application, unless VMs are named: then it goes from deadline to deadline, and at each
        one until each of them has been given its document and has come back for more. An error, if a step takes one
        of them longer than `limit`, 30 seconds of real time if it is not said: then the clock stands at that step.
        """
        return self.loop.run(self._advance(distance(length, units), names_of(seen_by), limit))

    def advance_to_start(
        self, event: Event | str, *, seen_by: VM | str | Iterable[VM | str] | None = (), limit: Length | None = None
    ) -> datetime:
        """Move the clock to where the event starts; it may have been approved, and have started, before."""
        return self.loop.run(self._advance_to_start(event, names_of(seen_by), limit))

    def play(
        self,
        scenario: str | Path,
        vms: VM | str | Iterable[VM | str] | None = (),
        *,
        group: str = "",
        seen_by: VM | str | Iterable[VM | str] | None = (),
    ) -> Run:
        """Play a scenario to its end (docs/scenarios.md), one that comes with Forewarn or one's own by its path.

        With no VM named, those that fit; in a fleet that has none at all, with the scenario's own. An AssertionError
        that says which step went otherwise, if one did.
        """
        return self.loop.run(self._play(scenario, names_of(vms), group, names_of(seen_by)))


class AsyncService(Kit):
    """The whole service, for `async with AsyncService() as forewarn:`.

    It runs in a thread of its own. What only gives an order comes back at once and is not awaited; what waits for
    the application under test, which may run in this loop, is.
    """

    async def __aenter__(self) -> Self:
        try:
            await _to_the_end(self.start)
        except asyncio.CancelledError:
            await _to_the_end(self.stop)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await _to_the_end(self.stop)

    async def advance(
        self,
        length: timedelta | str | None = None,
        *,
        seen_by: VM | str | Iterable[VM | str] | None = (),
        limit: Length | None = None,
        **units: float,
    ) -> datetime:
        """As Service.advance."""
        return await asyncio.wrap_future(
            self.loop.submit(self._advance(distance(length, units), names_of(seen_by), limit))
        )

    async def advance_to_start(
        self, event: Event | str, *, seen_by: VM | str | Iterable[VM | str] | None = (), limit: Length | None = None
    ) -> datetime:
        """As Service.advance_to_start."""
        return await asyncio.wrap_future(self.loop.submit(self._advance_to_start(event, names_of(seen_by), limit)))

    async def play(
        self,
        scenario: str | Path,
        vms: VM | str | Iterable[VM | str] | None = (),
        *,
        group: str = "",
        seen_by: VM | str | Iterable[VM | str] | None = (),
    ) -> Run:
        """As Service.play."""
        return await asyncio.wrap_future(
            self.loop.submit(self._play(scenario, names_of(vms), group, names_of(seen_by)))
        )


async def _to_the_end(work: Callable[[], None]) -> None:
    """Have it done in a thread. A thread cannot be cancelled: who is, is so when it has ended."""
    under_way = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not under_way.done():
        try:
            await asyncio.wait([under_way])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        under_way.exception()  # it has been seen
        raise cancelled
    under_way.result()

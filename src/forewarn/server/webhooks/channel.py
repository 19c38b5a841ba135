"""One webhook at work: reads history, sends what is due, and writes what came of it."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from typing import TYPE_CHECKING

from forewarn.clock import real_seconds, unix_seconds
from forewarn.core.webhooks import MOST_GIVEN_UP, settle
from forewarn.errors import Stopping, StoreFailed
from forewarn.ports import HistoryFilter
from forewarn.server.webhooks.outbound import LONGEST_PROBLEM, Outcome
from forewarn.wire.cloud_event import cloud_event, signed_headers

if TYPE_CHECKING:
    from collections import Counter

    from forewarn.core.state import Entry
    from forewarn.core.webhooks import Attempt, Backlog, Webhook
    from forewarn.engine import Engine
    from forewarn.server.webhooks.outbound import Outbound

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 8
"""How many groups' rows are on their way to one receiver at the same time."""
PAGE = 200
LOOK_AGAIN_SECONDS = 1.0
"""When the store cannot be read or written, until it is tried again."""
STOP_SECONDS = 2.0
"""How long attempts that are under way may take at a stop."""


async def row_of(engine: Engine, sequence: int) -> Entry | None:
    """A row of history; None when it is not kept any more."""
    found = await engine.archive.history(HistoryFilter(after=sequence - 1, before=sequence + 1))
    return found[0] if found else None


class _Gone(Exception):
    """There is nobody to tell any more."""


class Channel:
    """Has one webhook told, until it is stopped."""

    def __init__(
        self, engine: Engine, outbound: Outbound, backlog: Backlog, source: str, tally: Counter[tuple[str, str]]
    ) -> None:
        self.writing: Webhook | None = None
        """The webhook as this is writing it: whoever sees it committed knows that it is not another of the name."""
        self._engine = engine
        self._outbound = outbound
        self.backlog = backlog
        self._source = source
        self._tally = tally
        self._webhook = backlog.webhook
        self._attempts: set[asyncio.Task[None]] = set()
        self._stirred = asyncio.Event()
        self._closing = False
        self._behind = False
        self._dropping = False
        self._unsaid = 0
        self._task = asyncio.create_task(self._run())

    def stir(self) -> None:
        """There may be something to do."""
        self._stirred.set()

    def is_of(self, webhook: Webhook) -> bool:
        """Whether this tells that very webhook, not a later one of its name: those begin beyond all it has come to."""
        return webhook.position >= self._webhook.position

    def drop(self) -> None:
        """The webhook is no more: what is under way does not matter."""
        for task in (self._task, *self._attempts):
            task.cancel()

    async def stop(self) -> None:
        """Begin nothing more, give what is under way a moment, and write what is known."""
        self._closing = True
        if self._attempts:
            _, late = await asyncio.wait(self._attempts, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self.stir()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- The loop -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._closing or self._attempts:
            self._stirred.clear()
            seconds: float | None = LOOK_AGAIN_SECONDS
            try:
                if await self._read_page():
                    self._stirred.set()  # there may be more
                self._launch()
                await self._write()
                self._say_lost()
                seconds = self._seconds_to_next()
            except Stopping:
                return
            except _Gone:  # whoever follows the commits drops this too; it does not go on until then
                for task in self._attempts:
                    task.cancel()
                return
            except Exception as error:  # whatever it is, the webhook must go on
                expected = isinstance(error, StoreFailed)
                said = (self._webhook.name, error)
                logger.warning("Webhook %s goes on a little later: %s", *said, exc_info=not expected)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stirred.wait()
        with suppress(StoreFailed, Stopping, _Gone):
            await self._write(whole=True)

    async def _read_page(self) -> bool:
        """Take more of history if there is room for it. Whether there was any."""
        backlog, newest = self.backlog, self._engine.archive.newest
        if self._closing or not backlog.has_room or backlog.newest >= newest:
            return False
        wanted = HistoryFilter(after=backlog.newest, limit=PAGE)
        entries = await self._engine.archive.history(wanted)
        self._lose(backlog.skip(entries[0].sequence if entries else newest + 1))
        backlog.take(entries, real_seconds())
        return bool(entries)

    def _lose(self, count: int) -> None:
        """History keeps so many rows no more that were not sent."""
        self._engine.draft().told.lost[self._webhook.name] += count
        self._unsaid += count

    def _say_lost(self) -> None:
        """Together: rows are found to be gone one after the other."""
        if self._unsaid:
            what = "Webhook %s: %s rows were not sent while history kept them, and are lost."
            logger.warning(what, self._webhook.name, self._unsaid)
        self._unsaid = 0

    def _launch(self) -> None:
        now = real_seconds()
        while not self._closing and len(self._attempts) < MOST_AT_ONCE:
            attempt = self.backlog.begin(now)
            if attempt is None:
                return
            task = asyncio.create_task(self._try(attempt))
            self._attempts.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._attempts.discard(task)
        self.stir()

    def _seconds_to_next(self) -> float | None:
        """None: until something happens."""
        due_at = self.backlog.next_due()
        if due_at is None or len(self._attempts) >= MOST_AT_ONCE:
            return None
        return max(due_at - real_seconds(), 0)

    # --- One attempt ----------------------------------------------------------------------------------

    async def _try(self, attempt: Attempt) -> None:
        """Whatever happens, the attempt ends: its group would wait for it for ever."""
        try:
            outcome = await self._send(attempt)
        except (StoreFailed, Stopping):
            self.backlog.abandon(attempt, real_seconds() + LOOK_AGAIN_SECONDS)
            return
        except Exception as error:  # of this row, perhaps: it has its attempts like any other, and then others go on
            logger.exception("Webhook %s: row %s of history could not be sent.", self._webhook.name, attempt.sequence)
            outcome = Outcome(delivered=False, problem=f"{type(error).__name__}: {error}"[:LONGEST_PROBLEM])
        if outcome is None:
            # What was noted as undelivered is counted where history lets it go.
            if not self.backlog.pass_over(attempt, real_seconds()):
                self._lose(1)
            return
        self._tally[self._webhook.name, "delivered" if outcome.delivered else "failed"] += 1
        if outcome.delivered:
            self.backlog.delivered(attempt, real_seconds())
        else:
            luck = random.random()  # noqa: S311 - only so that many webhooks do not come at the same moment
            self.backlog.failed(attempt, outcome.problem, real_seconds(), luck)
        self._say(outcome)

    async def _send(self, attempt: Attempt) -> Outcome | None:
        """None: the row was too old to be kept."""
        entry = await row_of(self._engine, attempt.sequence)
        if entry is None:
            return None
        body = cloud_event(entry, self._source)
        headers = signed_headers(self._webhook.secret, str(unix_seconds()), body, attempt.number)
        return await self._outbound.post(self._webhook.url, headers, body)

    def _say(self, outcome: Outcome) -> None:
        """Once when something begins to wait, and once when nothing does any more: not for each attempt."""
        if self.backlog.is_behind and not self._behind:
            logger.warning("Webhook %s is not delivered, and tried again: %s", self._webhook.name, outcome.problem)
        elif self._behind and not self.backlog.is_behind:
            logger.warning("Webhook %s: nothing is waiting any more.", self._webhook.name)
        self._behind = self.backlog.is_behind

    # --- Writing --------------------------------------------------------------------------------------

    async def _write(self, *, whole: bool = False) -> None:
        """Put on disk what came of the attempts; what ends meanwhile is written together, next time."""
        settlement = self.backlog.settlement(whole=whole)
        if settlement is None:
            return
        self.writing = settlement.after
        while True:
            try:
                dropped = await self._engine.order(settle, *settlement[:3])
            except Stopping:
                raise
            except Exception as error:  # whatever it is: who is not written goes on no more
                if self._closing:
                    raise
                expected, said = isinstance(error, StoreFailed), (self._webhook.name, error)
                logger.warning(
                    "Webhook %s: what was delivered is written a little later: %s", *said, exc_info=not expected
                )
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
            else:
                break
        if dropped is None:
            raise _Gone
        self.backlog.written(settlement)
        if dropped:
            self._engine.draft().told.lost[self._webhook.name] += dropped
            if not self._dropping:  # it is likely to go on like this: the count says how long
                what = "Webhook %s: more than %s rows were given up; the oldest are kept no more."
                logger.warning(what, self._webhook.name, MOST_GIVEN_UP)
            self._dropping = True

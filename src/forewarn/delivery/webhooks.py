"""Webhooks: a dispatcher that follows every commit, and a channel for each webhook that sends what is due."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from forewarn.clock import real_seconds, unix_seconds
from forewarn.core.webhooks import MOST_GIVEN_UP, Backlog, find_webhook
from forewarn.delivery.cloud_events import cloud_event, signed_headers, source_of, trial_event
from forewarn.delivery.outbound import LONGEST_PROBLEM, Outcome
from forewarn.errors import Stopping, StoreFailed
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.limits import Terms
    from forewarn.core.state import Changes, Draft, Entry
    from forewarn.core.webhooks import Attempt, Pace, Undelivered, Webhook
    from forewarn.delivery.outbound import Outbound
    from forewarn.engine.engine import Engine


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
        self._engine.count_lost(self._webhook.name, count)
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
                dropped = await self._engine.settle_webhook(*settlement[:3])
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
            self._engine.count_lost(self._webhook.name, dropped)
            if not self._dropping:  # it is likely to go on like this: the count says how long
                what = "Webhook %s: more than %s rows were given up; the oldest are kept no more."
                logger.warning(what, self._webhook.name, MOST_GIVEN_UP)
            self._dropping = True


# --- All webhooks ---------------------------------------------------------------------------------


_INSTALLATION = "installation"
"""The fact that tells this service's events from those of any other."""


class Dispatcher:
    """Begins and ends a channel for each webhook, as they are added and removed."""

    def __init__(self, engine: Engine, outbound: Outbound, pace: Pace) -> None:
        self._engine = engine
        self._outbound = outbound
        self._pace = pace
        self.attempts: Counter[tuple[str, str]] = Counter()
        """How many there were, by webhook and outcome."""
        self._channels: dict[str, Channel] = {}
        self._trials: set[asyncio.Task[Outcome]] = set()
        self._stopping = False

    async def start(self) -> None:
        """Take up where each webhook stood. The engine must have been started."""
        if _INSTALLATION not in self._engine.facts:
            await self._engine.execute(_name_installation, uuid.uuid4().hex)
        for webhook in self._engine.draft().webhooks().values():
            self._open(webhook)
        self._engine.follow(self._follow)

    async def stop(self) -> None:
        """Nothing is lost; what is not delivered is tried at the next start."""
        self._stopping = True
        for trial in self._trials:
            trial.cancel()
        await asyncio.gather(*(channel.stop() for channel in self._channels.values()))
        await self._outbound.close()

    async def try_out(self, name: str) -> Outcome:
        """Send a webhook an event about nothing, now and once."""
        webhook = find_webhook(self._engine.draft(), name)
        body = trial_event(str(uuid.uuid4()), self._source, name, self._engine.clock.now())
        headers = signed_headers(webhook.secret, str(unix_seconds()), body, 1)
        if self._stopping:
            raise Stopping
        trial = asyncio.create_task(self._outbound.post(webhook.url, headers, body))
        self._trials.add(trial)
        trial.add_done_callback(self._trials.discard)
        await asyncio.wait([trial])
        if trial.cancelled():
            raise Stopping
        return trial.result()

    async def retry(self, name: str, sequence: int | None = None) -> list[Undelivered]:
        """Have what is undelivered tried now, also what was given up; or one row of it."""
        webhook, rows = await self._engine.retry_webhook(name, sequence)
        channel = self._channels.get(name)
        if channel is not None and channel.is_of(webhook):
            # What was given up has been revived with the commit: see _follow.
            channel.backlog.wake({row.group for row in rows}, real_seconds())
            channel.stir()
        return rows

    def position(self, webhook: Webhook) -> int:
        """How far it has come by now; what is on disk may be a little behind."""
        channel = self._channels.get(webhook.name)
        return webhook.position if channel is None else channel.backlog.position

    @property
    def _source(self) -> str:
        return source_of(self._engine.facts[_INSTALLATION])

    def _open(self, webhook: Webhook) -> None:
        undelivered = self._engine.draft().undelivered(webhook.name).values()
        backlog = Backlog(webhook, undelivered, self._pace, real_seconds())
        self._channels[webhook.name] = Channel(self._engine, self._outbound, backlog, self._source, self.attempts)

    def _follow(self, changes: Changes) -> None:
        if self._stopping:  # requests may still be under way: what they bring about is for the next start
            return
        for name, webhook in changes.webhooks.items():
            channel = self._channels.get(name)
            # A removal is never its own: a channel that has written nothing yet is `writing` None as well.
            if webhook is not None and channel is not None and channel.writing is webhook:
                continue
            if channel is not None:
                channel.drop()
                del self._channels[name]
                for outcome in ("delivered", "failed"):  # another of the name begins anew
                    self.attempts.pop((name, outcome), None)
            if webhook is not None:
                self._open(webhook)
        if changes.undelivered:
            self._revive(changes)
        if changes.history:
            for channel in self._channels.values():
                channel.stir()

    def _revive(self, changes: Changes) -> None:
        """Try what is asked for again.

        With the commit, not when whoever asked goes on: in between a row may be delivered, or its webhook be
        another, or nobody be there to go on.
        """
        found: dict[str, list[Undelivered]] = {}
        for (name, _), row in changes.undelivered.items():
            if row is not None:
                found.setdefault(name, []).append(row)
        for name, rows in found.items():
            if (channel := self._channels.get(name)) is not None:
                channel.backlog.revive(rows, real_seconds())
                channel.stir()


def _name_installation(draft: Draft, now: datetime, terms: Terms, installation: str) -> None:
    draft.changes.facts[_INSTALLATION] = installation

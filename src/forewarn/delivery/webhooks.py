"""Webhooks: a channel for each delivers its outbox, and a dispatcher begins and ends channels."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from forewarn.clock import real_seconds, unix_seconds
from forewarn.core.webhooks import MAX_FAILED_ROWS, MAX_UNCONFIRMED, Outbox, find_webhook
from forewarn.delivery.cloud_events import cloud_event, signed_headers, source_of, trial_event
from forewarn.delivery.outbound import MAX_ERROR_LENGTH, DeliveryOutcome
from forewarn.errors import ServiceStopping, StoreFailed
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Changes, DeliveryStats, Draft, HistoryEntry
    from forewarn.core.webhooks import Attempt, DeliveryUpdate, Undelivered, Webhook, WebhookRetryPolicy
    from forewarn.delivery.outbound import Outbound
    from forewarn.engine.engine import Engine


logger = logging.getLogger(__name__)

PAGE = 200
LOOK_AGAIN_SECONDS = 1.0
"""When the store cannot be read or written, until it is tried again."""
STOP_SECONDS = 2.0
"""How long an attempt that is under way may take at a stop."""


async def row_of(engine: Engine, sequence: int) -> HistoryEntry | None:
    """A row of history; None when it is not kept any more."""
    found = await engine.records.history(HistoryFilter(after=sequence - 1, before=sequence + 1))
    return found[0] if found else None


class _Gone(Exception):
    """The webhook was removed."""


class Channel:
    """Delivers to one webhook, one row after the other, until it is stopped.

    Outcomes are written while later rows go out, but at most `MOST_IN_DOUBT` rows are ahead of the disk.
    """

    def __init__(
        self, engine: Engine, outbound: Outbound, outbox: Outbox, source: str, attempts: Counter[tuple[str, str]]
    ) -> None:
        self.outbox = outbox
        self.writing: Webhook | None = None
        """The webhook as this is writing it: whoever sees it committed knows that it is not another of the name."""
        self._engine = engine
        self._outbound = outbound
        self._source = source
        self._attempts = attempts
        self._webhook = outbox.webhook
        self._stirred = asyncio.Event()
        self._closing = False
        self._was_retrying = False
        self._dropping = False
        self._write_task: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run())

    def stir(self) -> None:
        """There may be something to do."""
        self._stirred.set()

    def drop(self) -> None:
        """The webhook is removed: what is under way does not matter."""
        self._task.cancel()
        if self._write_task is not None:
            self._write_task.cancel()

    async def stop(self) -> None:
        """Begin nothing more, give the attempt that is under way a moment, and write what is known."""
        self._closing = True
        self.stir()
        _, late = await asyncio.wait([self._task], timeout=STOP_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(Exception):  # rows whose outcome is not written are sent again
            await self._until_written()
            if (settlement := self.outbox.settlement(whole=True)) is not None:
                await self._write(settlement)

    # --- Sending --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._closing:
            self._stirred.clear()
            seconds: float | None = LOOK_AGAIN_SECONDS
            try:
                seconds = await self._step()
            except (ServiceStopping, _Gone):  # if it is gone, whoever follows the commits drops this
                return
            except Exception as error:  # whatever it is, the webhook must go on
                expected = isinstance(error, StoreFailed)
                said = (self._webhook.name, error)
                logger.warning("Webhook %s goes on a little later: %s", *said, exc_info=not expected)
            if seconds != 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._stirred.wait()

    async def _step(self) -> float | None:
        """Send the next row, if it is due. Returns how many seconds to wait then; None: until something happens."""
        if self.outbox.needs_history and self.outbox.newest < self._engine.records.newest:
            await self._read_page()
        self._begin_write()
        due_at = self.outbox.due_at()
        if due_at is None:
            return 0 if self.outbox.newest < self._engine.records.newest else None
        attempt = self.outbox.next()
        if attempt.entry is None and attempt.sequence not in self._engine.draft().undelivered(self._webhook.name):
            self.outbox.pass_over(attempt)  # it has gone with history: nothing needs to wait for it
            return 0
        if (seconds := due_at - real_seconds()) > 0:
            return seconds
        outcome = await self._send(attempt)
        if outcome is not None:
            await self._record(attempt, outcome)
        return 0

    async def _read_page(self) -> None:
        newest = self._engine.records.newest
        entries = await self._engine.records.history(HistoryFilter(after=self.outbox.newest, limit=PAGE))
        if dropped := self.outbox.take(entries, newest):
            self._engine.count_dropped(self._webhook.name, dropped)
            what = "Webhook %s: %s rows were not sent while history kept them, and are lost."
            logger.warning(what, self._webhook.name, dropped)

    async def _send(self, attempt: Attempt) -> DeliveryOutcome | None:
        """What came of an attempt. None: it did not come to it, because history does not keep the row any more."""
        try:
            entry = attempt.entry or await row_of(self._engine, attempt.sequence)
            if entry is None:
                self.outbox.pass_over(attempt)
                return None
            body = cloud_event(entry, self._source)
            headers = signed_headers(self._webhook.secret, str(unix_seconds()), body, attempt.number)
            return await self._outbound.post(self._webhook.url, headers, body)
        except (StoreFailed, ServiceStopping):
            raise
        except Exception as error:  # of this row, perhaps: it has its attempts like any other, and then others go on
            logger.exception("Webhook %s: row %s of history could not be sent.", self._webhook.name, attempt.sequence)
            return DeliveryOutcome(delivered=False, error=f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH])

    async def _record(self, attempt: Attempt, outcome: DeliveryOutcome) -> None:
        """Have the outcome written. A failure is on disk before the next row goes out."""
        self._attempts[self._webhook.name, "delivered" if outcome.delivered else "failed"] += 1
        if outcome.delivered:
            self.outbox.delivered(attempt)
        else:
            luck = random.random()  # noqa: S311 - only so that many webhooks do not come at the same moment
            self.outbox.failed(attempt, outcome.error, real_seconds(), luck)
        self._log(outcome)
        self._begin_write()
        if not outcome.delivered or self.outbox.in_doubt >= MAX_UNCONFIRMED:
            await self._until_written()

    def _log(self, outcome: DeliveryOutcome) -> None:
        """Once when retries begin, and once when they end: not for each attempt."""
        retrying = self.outbox.is_retrying
        if retrying and not self._was_retrying:
            logger.warning("Webhook %s is not delivered, and tried again: %s", self._webhook.name, outcome.error)
        elif self._was_retrying and not retrying:
            logger.warning("Webhook %s: nothing is tried again any more.", self._webhook.name)
        self._was_retrying = retrying

    # --- Writing --------------------------------------------------------------------------------------

    def _begin_write(self) -> None:
        """Write what is worth it, unless a write is under way: that one goes on with it."""
        if self._write_task is not None and self._write_task.done():
            task, self._write_task = self._write_task, None
            task.result()  # what has ended the task ends the channel
        if self._write_task is None and (settlement := self.outbox.settlement()) is not None:
            self._write_task = asyncio.create_task(self._write(settlement))
            self._write_task.add_done_callback(lambda _: self.stir())

    async def _until_written(self) -> None:
        if self._write_task is not None:
            await asyncio.wait([self._write_task])  # to cancel this does not cancel the task
            self._begin_write()

    async def _write(self, settlement: DeliveryUpdate | None) -> None:
        """Put on disk what came of the attempts; what ends meanwhile is written together, next time."""
        while settlement is not None:
            self.writing = settlement.after
            while True:
                try:
                    dropped = await self._engine.settle_webhook(*settlement[:3])
                    break
                except ServiceStopping:
                    raise
                except Exception as error:  # whatever it is: rows that are not written are not followed by others
                    if self._closing:
                        raise
                    expected, said = isinstance(error, StoreFailed), (self._webhook.name, error)
                    logger.warning(
                        "Webhook %s: what was delivered is written a little later: %s", *said, exc_info=not expected
                    )
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
            if dropped is None:
                raise _Gone
            self.outbox.written(settlement)
            if dropped:
                self._engine.count_dropped(self._webhook.name, dropped)
                if not self._dropping:  # it is likely to go on like this: the count says how long
                    what = "Webhook %s: more than %s rows were given up; the oldest are kept no more."
                    logger.warning(what, self._webhook.name, MAX_FAILED_ROWS)
                self._dropping = True
            settlement = self.outbox.settlement()


# --- All webhooks ---------------------------------------------------------------------------------


_INSTALLATION = "installation"
"""The fact that tells this service's events from those of any other."""


class Dispatcher:
    """Begins and ends a channel for each webhook, as they are added and removed."""

    def __init__(self, engine: Engine, outbound: Outbound, pace: WebhookRetryPolicy) -> None:
        self._engine = engine
        self._outbound = outbound
        self._pace = pace
        self.attempts: Counter[tuple[str, str]] = Counter()
        """How many there were, by webhook and outcome."""
        self._channels: dict[str, Channel] = {}
        self._trials: set[asyncio.Task[DeliveryOutcome]] = set()
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

    async def try_out(self, name: str) -> DeliveryOutcome:
        """Send a webhook an event about nothing, now and once."""
        webhook = find_webhook(self._engine.draft(), name)
        body = trial_event(str(uuid.uuid4()), self._source, name, self._engine.clock.now())
        headers = signed_headers(webhook.secret, str(unix_seconds()), body, 1)
        if self._stopping:
            raise ServiceStopping
        trial = asyncio.create_task(self._outbound.post(webhook.url, headers, body))
        self._trials.add(trial)
        trial.add_done_callback(self._trials.discard)
        await asyncio.wait([trial])
        if trial.cancelled():
            raise ServiceStopping
        return trial.result()

    async def retry(self, name: str, sequence: int | None = None) -> list[Undelivered]:
        """Have undelivered rows sent now, also those that were given up; or one of them."""
        rows = await self._engine.retry_webhook(name, sequence)
        if (channel := self._channels.get(name)) is not None:
            # What was given up has been taken up with the commit: see _follow.
            channel.outbox.hurry(row.sequence for row in rows)
            channel.stir()
        return rows

    def position(self, webhook: Webhook) -> int:
        """The cursor by now; what is on disk may be a little behind."""
        channel = self._channels.get(webhook.name)
        return webhook.cursor if channel is None else channel.outbox.cursor

    def stats(self, webhook: Webhook) -> DeliveryStats:
        """How it fares. What waits are undelivered rows with attempts left, and all of history after the cursor."""
        draft = self._engine.draft()
        stats = draft.webhook_deliveries.stats(webhook.name)
        return stats._replace(pending=stats.pending + draft.sequence - self.position(webhook))

    @property
    def _source(self) -> str:
        return source_of(self._engine.facts[_INSTALLATION])

    def _open(self, webhook: Webhook) -> None:
        outbox = Outbox(webhook, self._engine.draft().undelivered(webhook.name).values(), self._pace)
        self._channels[webhook.name] = Channel(self._engine, self._outbound, outbox, self._source, self.attempts)

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
        # With the commit, not when whoever asked for a retry goes on: in between a row may be delivered, or its webhook
        # be another, or nobody be there to go on.
        for name in {name for name, _ in changes.undelivered} & self._channels.keys():
            rows = (row for row in changes.undelivered.values() if row is not None and row.webhook == name)
            self._channels[name].outbox.take_up(rows)
            self._channels[name].stir()
        if changes.history:
            for channel in self._channels.values():
                channel.stir()


def _name_installation(draft: Draft, now: datetime, limits: OperatorLimits, installation: str) -> None:
    draft.changes.facts[_INSTALLATION] = installation

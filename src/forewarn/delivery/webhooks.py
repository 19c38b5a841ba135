"""Webhooks: one sender for each webhook delivers its outbox. The dispatcher starts and stops senders."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from forewarn.clock import real_seconds, unix_seconds
from forewarn.core.webhooks import MAX_FAILED_ROWS, MAX_UNCONFIRMED, Outbox, find_webhook
from forewarn.delivery.cloud_events import cloud_event, signed_headers, source_of, webhook_test_event
from forewarn.delivery.outbound import MAX_ERROR_LENGTH, DeliveryOutcome
from forewarn.errors import ServiceStopping, StoreFailed
from forewarn.ports import HistoryFilter
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Changes, DeliveryStats, Draft, HistoryEntry
    from forewarn.core.webhooks import Attempt, DeliveryUpdate, Undelivered, Webhook, WebhookRetryPolicy
    from forewarn.delivery.outbound import OutboundClient
    from forewarn.engine.engine import Engine


_log = get_logger(__name__)

PAGE_ROWS = 200
RETRY_SECONDS = 1.0
"""Delay after an error of the store."""
STOP_SECONDS = 2.0
"""Timeout of an attempt that is in progress when the service stops."""


async def find_row(engine: Engine, sequence: int) -> HistoryEntry | None:
    """Return a history row; None if it has expired."""
    found = await engine.records.history(HistoryFilter(after=sequence - 1, before=sequence + 1))
    return found[0] if found else None


class _WebhookRemoved(Exception):
    """The webhook was removed."""


class WebhookSender:
    """Delivers rows to one webhook, one after the other, until it is stopped.

    Results are written while later rows are sent. At most `MAX_UNCONFIRMED` results are not on disk.
    """

    def __init__(
        self, engine: Engine, outbound: OutboundClient, outbox: Outbox, source: str, attempts: Counter[tuple[str, str]]
    ) -> None:
        self.outbox = outbox
        self.writing: Webhook | None = None
        """The webhook that this sender is writing. So its own commit differs from a new webhook of the same name."""
        self._engine = engine
        self._outbound = outbound.with_own_connections()
        self._source = source
        self._attempts = attempts
        self._webhook = outbox.webhook
        self._woken = asyncio.Event()
        self._closing = False
        self._was_retrying = False
        self._dropping = False
        self._write_task: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """Make the sender look for something to do."""
        self._woken.set()

    def cancel(self) -> None:
        """Stop at once, because the webhook was removed."""
        self._task.cancel()
        if self._write_task is not None:
            self._write_task.cancel()

    async def stop(self) -> None:
        """Start no new attempt, wait shortly for the current one, and write the results."""
        self._closing = True
        self.wake()
        _, late = await asyncio.wait([self._task], timeout=STOP_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(Exception):  # rows without a written result are sent again
            await self._wait_until_written()
            if (update := self.outbox.next_update(whole=True)) is not None:
                await self._write(update)

    # --- Sending --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._send_rows()
        finally:
            await self._outbound.close()

    async def _send_rows(self) -> None:
        while not self._closing:
            self._woken.clear()
            seconds: float | None = RETRY_SECONDS
            try:
                seconds = await self._step()
            except (ServiceStopping, _WebhookRemoved):  # the dispatcher cancels the sender of a removed webhook
                return
            except Exception as error:  # noqa: BLE001 - the webhook must continue
                _log.warning(
                    "webhook_sender_failed",
                    "Cannot continue deliveries; retrying.",
                    webhook=self._webhook.name,
                    error=str(error),
                    exc_info=_is_unexpected(error),
                )
            if seconds != 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._woken.wait()

    async def _step(self) -> float | None:
        """Send the next row if it is due. Returns the seconds to wait; None: until `wake`."""
        if self.outbox.needs_history and self.outbox.newest < self._engine.records.newest:
            await self._read_page()
        self._begin_write()
        due_at = self.outbox.due_at()
        if due_at is None:
            return 0 if self.outbox.newest < self._engine.records.newest else None
        attempt = self.outbox.next()
        deliveries = self._engine.draft().webhook_deliveries
        if attempt.entry is None and not deliveries.is_undelivered(self._webhook.name, attempt.sequence):
            self.outbox.skip(attempt)  # it has expired, so later rows need not wait for it
            return 0
        if (seconds := due_at - real_seconds()) > 0:
            return seconds
        outcome = await self._send(attempt)
        if outcome is not None:
            await self._record(attempt, outcome)
        return 0

    async def _read_page(self) -> None:
        newest = self._engine.records.newest
        entries = await self._engine.records.history(HistoryFilter(after=self.outbox.newest, limit=PAGE_ROWS))
        if dropped := self.outbox.add_entries(entries, newest):
            self._engine.count_dropped(self._webhook.name, dropped)
            _log.warning(
                "webhook_rows_expired",
                "Rows expired before they were delivered, and were dropped.",
                webhook=self._webhook.name,
                rows=dropped,
            )

    async def _send(self, attempt: Attempt) -> DeliveryOutcome | None:
        """Make an attempt. Returns its outcome; None if the row has expired."""
        try:
            entry = attempt.entry or await find_row(self._engine, attempt.sequence)
            if entry is None:
                self.outbox.skip(attempt)
                return None
            body = cloud_event(entry, self._source)
            headers = signed_headers(self._webhook.secret, str(unix_seconds()), body, attempt.number)
            return await self._outbound.post(self._webhook.url, headers, body)
        except (StoreFailed, ServiceStopping):
            raise
        except Exception as error:  # noqa: BLE001 - may concern only this row, so it counts as a failed attempt
            _log.exception(
                "webhook_row_failed",
                "Unexpected error while sending a row.",
                webhook=self._webhook.name,
                sequence=attempt.sequence,
            )
            return DeliveryOutcome(delivered=False, error=f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH])

    async def _record(self, attempt: Attempt, outcome: DeliveryOutcome) -> None:
        """Record an outcome. A failure is on disk before the next row is sent."""
        self._attempts[self._webhook.name, "delivered" if outcome.delivered else "failed"] += 1
        if outcome.delivered:
            self.outbox.delivered(attempt)
        else:
            jitter = random.random()  # noqa: S311 - jitter, so that many webhooks do not retry at the same time
            self.outbox.failed(attempt, outcome.error, real_seconds(), jitter)
        self._log_retries(outcome)
        self._begin_write()
        if not outcome.delivered or self.outbox.unconfirmed >= MAX_UNCONFIRMED:
            await self._wait_until_written()

    def _log_retries(self, outcome: DeliveryOutcome) -> None:
        """Log only the start and the end of retries, not each attempt."""
        retrying = self.outbox.is_retrying
        if retrying and not self._was_retrying:
            _log.warning(
                "webhook_delivery_failed",
                "Delivery failed; retrying.",
                webhook=self._webhook.name,
                error=outcome.error,
            )
        elif self._was_retrying and not retrying:
            _log.info("webhook_retries_ended", "No row is waiting for a retry.", webhook=self._webhook.name)
        self._was_retrying = retrying

    # --- Writing --------------------------------------------------------------------------------------

    def _begin_write(self) -> None:
        """Start to write results, unless a write is in progress: that one also writes later results."""
        if self._write_task is not None and self._write_task.done():
            task, self._write_task = self._write_task, None
            task.result()  # an error of the task ends the sender
        if self._write_task is None and (update := self.outbox.next_update()) is not None:
            self._write_task = asyncio.create_task(self._write(update))
            self._write_task.add_done_callback(lambda _: self.wake())

    async def _wait_until_written(self) -> None:
        if self._write_task is not None:
            await asyncio.wait([self._write_task])  # cancelling this does not cancel the task
            self._begin_write()

    async def _write(self, update: DeliveryUpdate | None) -> None:
        """Write results until none are left. Results that arrive during a write are in the next one."""
        while update is not None:
            self.writing = update.after
            while True:
                try:
                    dropped = await self._engine.record_deliveries(*update[:3])
                    break
                except ServiceStopping:
                    raise
                except Exception as error:  # later results must not be written before these
                    if self._closing:
                        raise
                    _log.warning(
                        "webhook_results_not_written",
                        "Cannot write delivery results; retrying.",
                        webhook=self._webhook.name,
                        error=str(error),
                        exc_info=_is_unexpected(error),
                    )
                    await asyncio.sleep(RETRY_SECONDS)
            if dropped is None:
                raise _WebhookRemoved
            self.outbox.written(update)
            if dropped:
                self._engine.count_dropped(self._webhook.name, dropped)
                if not self._dropping:  # log it once; the metrics count the rows
                    _log.warning(
                        "webhook_rows_dropped",
                        "Too many failed rows; the oldest are dropped.",
                        webhook=self._webhook.name,
                        max_failed_rows=MAX_FAILED_ROWS,
                    )
                self._dropping = True
            update = self.outbox.next_update()


def _is_unexpected(error: Exception) -> bool:
    """Return whether to log a trace. Errors of the store are expected."""
    return not isinstance(error, StoreFailed)


# --- All webhooks ---------------------------------------------------------------------------------


_INSTALLATION = "installation"
"""The fact that identifies this installation in the source of its events."""


class Dispatcher:
    """Starts and stops senders when webhooks are added and removed."""

    def __init__(self, engine: Engine, outbound: OutboundClient, retry_policy: WebhookRetryPolicy) -> None:
        self._engine = engine
        self._outbound = outbound
        self._retry_policy = retry_policy
        self.attempts: Counter[tuple[str, str]] = Counter()
        """Number of attempts by webhook and result."""
        self._senders: dict[str, WebhookSender] = {}
        self._tests: set[asyncio.Task[DeliveryOutcome]] = set()
        self._active = False
        """Whether it sends. Only the leader does."""
        self._stopping = False
        engine.subscribe_to_commits(self._on_commit)

    async def start(self) -> None:
        """Start a sender for each webhook. The engine must be started."""
        if _INSTALLATION not in self._engine.facts:
            await self._engine.execute(_set_installation, uuid.uuid4().hex)
        self._active = True
        for webhook in self._engine.draft().webhooks().values():
            self._open(webhook)

    async def suspend(self) -> None:
        """Stop all senders at once: another node leads. It sends what has no stored result."""
        self._active = False
        for sender in self._senders.values():
            sender.cancel()
        self._senders.clear()

    async def stop(self) -> None:
        """Stop all senders. The next start continues with undelivered rows."""
        self._stopping = True
        for test in self._tests:
            test.cancel()
        await asyncio.gather(*(sender.stop() for sender in self._senders.values()))
        await self._outbound.close()

    async def send_test(self, name: str) -> DeliveryOutcome:
        """Send a test event to a webhook, without retries."""
        webhook = find_webhook(self._engine.draft(), name)
        body = webhook_test_event(str(uuid.uuid4()), self._source, name, self._engine.clock.now())
        headers = signed_headers(webhook.secret, str(unix_seconds()), body, 1)
        if self._stopping:
            raise ServiceStopping
        test = asyncio.create_task(self._outbound.post(webhook.url, headers, body))
        self._tests.add(test)
        test.add_done_callback(self._tests.discard)
        await asyncio.wait([test])
        if test.cancelled():
            raise ServiceStopping
        return test.result()

    async def retry(self, name: str, sequence: int | None = None) -> list[Undelivered]:
        """Send undelivered rows now, or one of them, including rows that have failed permanently."""
        rows = await self._engine.retry_webhook(name, sequence)
        if (sender := self._senders.get(name)) is not None:
            # Permanently failed rows were already requeued with the commit: see _on_commit.
            sender.outbox.retry_now(row.sequence for row in rows)
            sender.wake()
        return rows

    def position(self, webhook: Webhook) -> int:
        """Return the current cursor. The stored one may be a little behind."""
        sender = self._senders.get(webhook.name)
        return webhook.cursor if sender is None else sender.outbox.cursor

    def stats(self, webhook: Webhook) -> DeliveryStats:
        """Return counts of rows. Pending are rows with attempts left, and all history after the cursor."""
        draft = self._engine.draft()
        stats = draft.webhook_deliveries.stats(webhook.name)
        return stats._replace(pending=stats.pending + draft.sequence - self.position(webhook))

    @property
    def _source(self) -> str:
        return source_of(self._engine.facts[_INSTALLATION])

    def _open(self, webhook: Webhook) -> None:
        outbox = Outbox(webhook, self._engine.draft().undelivered(webhook.name).values(), self._retry_policy)
        self._senders[webhook.name] = WebhookSender(self._engine, self._outbound, outbox, self._source, self.attempts)

    def _on_commit(self, changes: Changes) -> None:
        if self._stopping or not self._active:  # the next start sends rows of requests that are still in progress
            return
        for name, webhook in changes.webhooks.items():
            sender = self._senders.get(name)
            # A removal (None) is never the sender's own commit, although `writing` is None at first.
            if webhook is not None and sender is not None and sender.writing is webhook:
                continue
            if sender is not None:
                sender.cancel()
                del self._senders[name]
                for outcome in ("delivered", "failed"):  # a new webhook of this name starts at zero
                    self.attempts.pop((name, outcome), None)
            if webhook is not None:
                self._open(webhook)
        # With the commit, not in `retry`: before that continues, a row may be delivered, the webhook replaced, or the
        # request cancelled.
        for name in {name for name, _ in changes.undelivered} & self._senders.keys():
            rows = (row for row in changes.undelivered.values() if row is not None and row.webhook == name)
            self._senders[name].outbox.requeue(rows)
            self._senders[name].wake()
        if changes.history:
            for sender in self._senders.values():
                sender.wake()


def _set_installation(draft: Draft, now: datetime, limits: OperatorLimits, installation: str) -> None:
    draft.changes.facts[_INSTALLATION] = installation

"""The outbox of one webhook: order, pauses, what is written, and what a kill leaves behind."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import amount
from forewarn.core.history import HISTORY_KINDS, SKIPPING_KINDS
from forewarn.core.state import HistoryEntry
from forewarn.core.webhooks import (
    MAX_SKIPPED,
    MAX_UNCONFIRMED,
    MAX_WEBHOOK_GROUPS,
    Attempt,
    DeliveryUpdate,
    Outbox,
    Undelivered,
    Webhook,
    WebhookRetryPolicy,
)

NOW = datetime(2041, 5, 6, 7, 8, 9, tzinfo=UTC)
HOOK = Webhook("hook", "http://example.com/", "s" * 16, "test", NOW)


def rows(*groups: str, first: int = 1) -> list[HistoryEntry]:
    return [HistoryEntry(NOW, "scheduled", "test", sequence=first + i, group=group) for i, group in enumerate(groups)]


def take(outbox: Outbox, entries: list[HistoryEntry]) -> int:
    return outbox.add_entries(entries, entries[-1].sequence)


class Disk:
    """What is written, and the same webhook after a restart."""

    def __init__(self, webhook: Webhook = HOOK, pace: WebhookRetryPolicy | None = None) -> None:
        self.webhook = webhook
        self.undelivered: dict[int, Undelivered] = {}
        self._pace = pace or WebhookRetryPolicy(1.0, 3)

    def load(self) -> Outbox:
        return Outbox(self.webhook, list(self.undelivered.values()), self._pace)

    def commit(self, settlement: DeliveryUpdate) -> None:
        assert settlement.before == self.webhook
        self.webhook = settlement.after
        for sequence, row in settlement.undelivered.items():
            if row is None:
                del self.undelivered[sequence]
            else:
                self.undelivered[sequence] = row

    def write(self, outbox: Outbox, *, whole: bool = False) -> None:
        if (settlement := outbox.next_update(whole=whole)) is not None:
            self.commit(settlement)
            outbox.written(settlement)

    def retry(self, outbox: Outbox, *sequences: int) -> None:
        """As the command does, and the dispatcher that follows its commit."""
        wanted = sequences or tuple(self.undelivered)
        again = [self.undelivered[number]._replace(attempts_left=1) for number in wanted if self.given_up(number)]
        self.undelivered.update((row.sequence, row) for row in again)
        outbox.requeue(again)
        outbox.retry_now(wanted)

    def given_up(self, sequence: int) -> bool:
        return sequence in self.undelivered and self.undelivered[sequence].failed


def test_rows_are_sent_one_by_one_and_the_cursor_follows() -> None:
    disk = Disk()
    outbox = disk.load()
    assert outbox.needs_history
    assert outbox.due_at() is None
    history = rows("a", "b", "a")
    take(outbox, history)
    for entry in history:
        assert outbox.due_at() == 0
        assert outbox.next() == outbox.next() == Attempt(entry.sequence, 1, entry)
        assert outbox.cursor == entry.sequence - 1
        outbox.delivered(outbox.next())
    assert (outbox.cursor, outbox.unconfirmed, disk.webhook.cursor) == (3, 3, 0)
    disk.write(outbox)
    assert (outbox.unconfirmed, disk.webhook.cursor, disk.undelivered) == (0, 3, {}), "three rows, one write"
    assert disk.load().needs_history


def test_results_that_arrive_during_a_write_are_in_the_next_write() -> None:
    disk = Disk()
    outbox = disk.load()
    take(outbox, rows("a", "b"))
    outbox.delivered(outbox.next())
    settlement = outbox.next_update()
    assert settlement is not None
    outbox.delivered(outbox.next())
    assert outbox.unconfirmed == 2
    disk.commit(settlement)
    outbox.written(settlement)
    assert (outbox.unconfirmed, disk.webhook.cursor) == (1, 1)
    disk.write(outbox)
    assert (outbox.unconfirmed, disk.webhook.cursor) == (0, 2)


def test_rows_that_do_not_match_are_skipped_without_a_write() -> None:
    disk = Disk(HOOK._replace(groups=("b",), kinds=("scheduled",)))
    outbox = disk.load()
    other = HistoryEntry(NOW, "approved", "test", sequence=3, group="b")
    take(outbox, [*rows("a", "b"), other, *rows("", first=4)])
    assert outbox.next().sequence == 2
    assert outbox.next_update() is None
    outbox.delivered(outbox.next())
    disk.write(outbox)
    assert disk.webhook.cursor == 4
    take(outbox, rows("a", first=5))
    assert outbox.next_update() is None
    disk.write(outbox, whole=True)
    assert disk.webhook.cursor == 5
    take(outbox, rows(*"a" * MAX_SKIPPED, first=6))
    disk.write(outbox)
    assert disk.webhook.cursor == 5 + MAX_SKIPPED, "a webhook that wants little does not fall behind"


class CountedName(str):
    """A name that counts its comparisons."""

    __slots__ = ()
    __hash__ = str.__hash__
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return super().__eq__(other)


def test_a_row_is_not_compared_with_every_group_and_kind_of_a_webhook() -> None:
    groups = tuple(f"group-{each}" for each in range(MAX_WEBHOOK_GROUPS))
    outbox = Outbox(HOOK._replace(groups=groups, kinds=tuple(HISTORY_KINDS)), (), WebhookRetryPolicy())
    names = [CountedName(name) for name in reversed(groups)]
    history = [
        HistoryEntry(NOW, CountedName("scheduled"), "test", sequence=number, group=name)
        for number, name in enumerate(names, 1)
    ]
    CountedName.compared = 0
    take(outbox, history)
    assert outbox.next() == Attempt(1, 1, history[0])
    assert CountedName.compared <= 2 * len(history) + 10


def test_a_failing_row_blocks_later_rows_and_is_retried_with_backoff_until_it_fails() -> None:
    disk = Disk()
    outbox = disk.load()
    take(outbox, rows("a", "b"))
    outbox.failed(outbox.next(), "HTTP 500", 0, jitter=0)
    disk.write(outbox)
    assert disk.webhook.cursor == 1
    assert disk.undelivered == {1: Undelivered("hook", 1, 1, 2, "HTTP 500")}
    assert outbox.is_retrying, "the next row waits"
    assert (outbox.due_at(), outbox.next()) == (1.0, Attempt(1, 2))
    outbox.failed(outbox.next(), "HTTP 500", 1.0, jitter=0)
    disk.write(outbox)
    assert (outbox.due_at(), outbox.next()) == (3.0, Attempt(1, 3))
    outbox.failed(outbox.next(), "HTTP 502", 3.0, jitter=0)
    disk.write(outbox)
    assert disk.undelivered == {1: Undelivered("hook", 1, 3, 0, "HTTP 502")}
    assert disk.given_up(1)
    assert outbox.needs_history, "it goes on, with what history keeps by now"
    assert (outbox.newest, outbox.cursor) == (1, 1)


def test_a_row_that_is_finally_delivered_leaves_the_list() -> None:
    disk = Disk()
    outbox = disk.load()
    take(outbox, rows("a", "b"))
    outbox.failed(outbox.next(), "no", 0, jitter=0)
    disk.write(outbox)
    outbox.delivered(outbox.next())
    disk.write(outbox)
    assert (disk.undelivered, disk.webhook.cursor, outbox.newest) == ({}, 1, 1)


def test_the_backoff_doubles_up_to_an_hour_with_at_most_a_fifth_of_jitter() -> None:
    pace = WebhookRetryPolicy(1.0, 80)
    assert [pace.delay_seconds(n, 0) for n in (1, 2, 3, 12, 13, 79)] == [1, 2, 4, 2048, 3600, 3600]
    assert pace.delay_seconds(3, 1) == 4 * 1.2
    days = sum(pace.delay_seconds(n, 0.5) for n in range(1, 80)) / 86400
    assert 2.9 < days < 3.3


def test_a_restart_ends_the_pause_and_keeps_the_number_of_attempts() -> None:
    disk = Disk()
    outbox = disk.load()
    take(outbox, rows("a", "b"))
    outbox.failed(outbox.next(), "down", 0, jitter=0)
    disk.write(outbox)
    again = disk.load()
    assert (again.due_at(), again.next(), again.newest) == (0, Attempt(1, 2), 1)


def test_a_retried_row_is_sent_once_more_and_other_rows_keep_their_pause() -> None:
    disk = Disk(pace=WebhookRetryPolicy(1.0, 2))
    outbox = disk.load()
    for number in (1, 2):
        take(outbox, rows("a", first=number))
        for _ in range(2):
            outbox.failed(outbox.next(), "no", 0, jitter=0)
            disk.write(outbox)
    take(outbox, rows("c", first=3))
    outbox.failed(outbox.next(), "no", 0, jitter=0)
    disk.write(outbox)
    assert [disk.given_up(number) for number in (1, 2, 3)] == [True, True, False]
    assert outbox.due_at() == 1.0
    disk.retry(outbox, 2)
    assert (outbox.due_at(), outbox.next()) == (0, Attempt(2, 3))
    outbox.failed(outbox.next(), "no", 0, jitter=0)
    disk.write(outbox)
    assert disk.undelivered[2] == Undelivered("hook", 2, 3, 0, "no"), "once, and it is given up again"
    assert (outbox.due_at(), outbox.next()) == (1.0, Attempt(3, 2)), "this row was not retried"
    disk.retry(outbox)
    sent = []
    while outbox.due_at() == 0:
        sent.append(outbox.next().sequence)
        outbox.delivered(outbox.next())
    disk.write(outbox)
    assert (sent, disk.undelivered) == ([1, 2, 3], {})
    assert outbox.needs_history


def test_a_retried_row_is_sent_between_rows_of_history() -> None:
    disk = Disk(pace=WebhookRetryPolicy(1.0, 1))
    outbox = disk.load()
    take(outbox, rows("a"))
    outbox.failed(outbox.next(), "no", 0, jitter=0)
    disk.write(outbox)
    take(outbox, rows("a", "b", first=2))
    under_way = outbox.next()
    disk.retry(outbox)
    outbox.delivered(under_way)
    sent = [under_way.sequence]
    while outbox.due_at() is not None:
        sent.append(outbox.next().sequence)
        outbox.delivered(outbox.next())
    disk.write(outbox)
    assert (sent, disk.undelivered, disk.webhook.cursor) == ([2, 1, 3], {}, 3)


def test_a_retry_that_a_kill_prevented_is_made_after_the_restart() -> None:
    disk = Disk(pace=WebhookRetryPolicy(1.0, 1))
    outbox = disk.load()
    take(outbox, rows("a"))
    outbox.failed(outbox.next(), "no", 0, jitter=0)
    disk.write(outbox)
    assert disk.load().due_at() is None, "what was given up stays so after a restart"
    disk.retry(outbox)
    assert disk.load().next() == Attempt(1, 2)


def test_a_commit_does_not_start_a_second_retry_of_a_row() -> None:
    disk = Disk()
    outbox = disk.load()
    take(outbox, rows("a"))
    outbox.failed(outbox.next(), "no", 0, jitter=0)
    disk.write(outbox)
    outbox.requeue(disk.undelivered.values())  # a dispatcher follows this outbox's own commits too
    assert outbox.due_at() == 1.0


def test_undelivered_rows_beyond_the_retention_are_skipped() -> None:
    disk = Disk()
    outbox = disk.load()
    take(outbox, rows("a"))
    outbox.failed(outbox.next(), "no", 0, jitter=0)
    disk.write(outbox)
    outbox.skip(outbox.next())
    assert outbox.needs_history
    assert outbox.next_update(whole=True) is None, "history forgets them, and counts them"


def test_a_dropped_row_is_counted_once() -> None:
    disk = Disk(HOOK._replace(cursor=2))
    outbox = disk.load()
    assert take(outbox, rows("a", first=3)) == 0
    outbox.delivered(outbox.next())
    assert outbox.add_entries(rows("a", first=7), 7) == 3, "4, 5 and 6"
    assert outbox.cursor == 6
    outbox.delivered(outbox.next())
    assert outbox.add_entries([], 9) == 2, "nothing is left of it"
    disk.write(outbox, whole=True)
    assert disk.webhook.cursor == 9


@settings(max_examples=amount(300))
@given(seed=st.integers(0, 2**32), length=st.integers(1, 40), limit=st.integers(1, 4))
def test_every_row_is_delivered_or_failed_in_order(seed: int, length: int, limit: int) -> None:
    """Failures, late writes, kills and retries at random.

    Nothing is skipped, nothing is sent after it was recorded as delivered, and no more rows than a handful are in
    doubt at a kill.
    """
    luck = random.Random(seed)  # noqa: S311
    history = rows(*(f"group-{luck.randrange(3)}" for _ in range(length)))
    disk = Disk(HOOK._replace(groups=("group-0", "group-1")), WebhookRetryPolicy(1.0, limit))
    wanted = [entry.sequence for entry in history if entry.group in disk.webhook.groups]
    outbox, now = disk.load(), 0.0
    writing: DeliveryUpdate | None = None
    taken: list[int] = []
    asked_for: set[int] = set()  # these may come out of order
    unwritten: list[int] = []

    def recorded() -> set[int]:
        return {number for number in wanted if number <= disk.webhook.cursor} - disk.undelivered.keys()

    for step in range(2000):
        now += luck.random()
        ending = step >= 1500  # from here on the receiver takes everything, and nobody kills
        match luck.randrange(10):
            case 0 | 1 if outbox.needs_history and outbox.newest < length:
                take(outbox, history[outbox.newest : outbox.newest + luck.randint(1, 5)])
            case 2 | 3 | 4 | 5:
                due_at = outbox.due_at()
                # As the channel: a failure is on disk before the next row goes out.
                unwritten_rows = [*outbox._unwritten.values(), *(writing.undelivered.values() if writing else ())]
                held_up = outbox.unconfirmed >= MAX_UNCONFIRMED or any(row is not None for row in unwritten_rows)
                if due_at is None or due_at > now or held_up:
                    continue
                attempt = outbox.next()
                assert attempt.sequence not in recorded(), "it is on disk that this is delivered"
                if ending or luck.random() < 0.6:
                    outbox.delivered(attempt)
                    taken.append(attempt.sequence)
                    unwritten.append(attempt.sequence)
                else:
                    outbox.failed(attempt, "no", now, luck.random())
            case 6 if writing is None:
                writing, being_written = outbox.next_update(whole=luck.random() < 0.5), list(unwritten)
            case 7 if writing is not None:
                disk.commit(writing)
                outbox.written(writing)
                writing, unwritten = None, [number for number in unwritten if number not in being_written]
            case 8 if luck.random() < 0.1:
                asked_for |= disk.undelivered.keys()
                disk.retry(outbox)
            case 9 if luck.random() < 0.1 and not ending:
                assert len(unwritten) <= MAX_UNCONFIRMED
                outbox, writing, unwritten = disk.load(), None, []
    for _ in range(20 * length + 20):
        if writing is not None:
            disk.commit(writing)
            outbox.written(writing)
            writing = None
        if outbox.needs_history and outbox.newest < length:
            take(outbox, history[outbox.newest :])
        if outbox.due_at() is not None:
            taken.append(outbox.next().sequence)
            outbox.delivered(outbox.next())
        disk.write(outbox, whole=True)
    assert disk.webhook.cursor == length
    assert all(row.failed for row in disk.undelivered.values())
    assert {*taken} | disk.undelivered.keys() == {*wanted}
    in_order = [number for number in dict.fromkeys(taken) if number not in asked_for]
    assert in_order == sorted(in_order)
    disk.retry(outbox)
    while outbox.due_at() is not None:
        taken.append(outbox.next().sequence)
        outbox.delivered(outbox.next())
    disk.write(outbox)
    assert (disk.undelivered, {*taken}) == ({}, {*wanted})


@pytest.mark.parametrize("kind", SKIPPING_KINDS)
def test_rows_that_a_restore_skipped_are_not_counted_as_dropped(kind: str) -> None:
    outbox = Disk(HOOK._replace(cursor=7)).load()
    restored = HistoryEntry(NOW, kind, "test", sequence=1_000_007)
    assert take(outbox, [restored]) == 0
    assert outbox.next() == Attempt(1_000_007, 1, restored)
    assert take(outbox, rows("a", first=1_000_010)) == 2, "later rows are counted as before"

"""The queues of one webhook: order, pauses, what is written, and that nothing grows without bound."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from depth import amount
from forewarn.core.state import Entry
from forewarn.core.webhooks import MOST_WAITING, WINDOW, Attempt, Backlog, Pace, Settlement, Undelivered, Webhook

if TYPE_CHECKING:
    from collections.abc import Iterable

NOW = datetime(2041, 5, 6, 7, 8, 9, tzinfo=UTC)
HOOK = Webhook("hook", "http://example.com/", "s" * 16, "test", NOW)


def rows(*groups: str, first: int = 1) -> list[Entry]:
    return [Entry(NOW, "scheduled", "test", sequence=first + i, group=group) for i, group in enumerate(groups)]


class Disk:
    """What is written, and the same webhook after a restart."""

    def __init__(self, webhook: Webhook = HOOK, pace: Pace | None = None) -> None:
        self.webhook = webhook
        self.undelivered: dict[int, Undelivered] = {}
        self._pace = pace or Pace(1.0, 3)

    def load(self, now: float = 0.0) -> Backlog:
        return Backlog(self.webhook, list(self.undelivered.values()), self._pace, now)

    def write(self, backlog: Backlog, *, whole: bool = False) -> None:
        settlement = backlog.settlement(whole=whole)
        if settlement is None:
            return
        assert settlement.before == self.webhook
        self.webhook = settlement.after
        for sequence, row in settlement.undelivered.items():
            if row is None:
                del self.undelivered[sequence]
            else:
                self.undelivered[sequence] = row
        backlog.written(settlement)


def begin_all(backlog: Backlog, now: float = 0.0) -> list[Attempt]:
    found = []
    while (attempt := backlog.begin(now)) is not None:
        found.append(attempt)
    return found


def sequences(attempts: Iterable[Attempt]) -> list[int]:
    return sorted(attempt.sequence for attempt in attempts)


def test_a_groups_rows_go_one_after_the_other_and_groups_do_not_wait_for_each_other() -> None:
    disk = Disk()
    backlog = disk.load()
    backlog.take(rows("a", "a", "b", "a", ""), 0)
    first = begin_all(backlog)
    assert sequences(first) == [1, 3, 5]
    backlog.delivered(first[0], 0)
    assert begin_all(backlog) == []  # not before it is written
    disk.write(backlog)
    assert sequences(begin_all(backlog)) == [2]
    assert (disk.webhook.position, disk.webhook.ahead) == (1, ())


def test_the_position_waits_for_the_slowest_and_the_rest_is_noted_ahead() -> None:
    disk = Disk()
    backlog = disk.load()
    backlog.take(rows("slow", "b", "c"), 0)
    slow, *others = begin_all(backlog)
    for attempt in others:
        backlog.delivered(attempt, 0)
    disk.write(backlog)
    assert (disk.webhook.position, disk.webhook.ahead) == (0, (2, 3))
    again = disk.load()
    again.take(rows("slow", "b", "c"), 0)
    assert sequences(begin_all(again)) == [1], "what was delivered is not delivered again after a restart"
    backlog.delivered(slow, 0)
    disk.write(backlog)
    assert (disk.webhook.position, disk.webhook.ahead) == (3, ())


def test_what_is_not_wanted_is_passed_over_and_costs_no_write() -> None:
    disk = Disk(HOOK._replace(groups=("b",), kinds=("scheduled",)))
    backlog = disk.load()
    other = Entry(NOW, "approved", "test", sequence=3, group="b")
    backlog.take([*rows("a", "b"), other, *rows("", first=4)], 0)
    (attempt,) = begin_all(backlog)
    assert attempt.sequence == 2
    assert backlog.settlement() is None
    backlog.delivered(attempt, 0)
    disk.write(backlog)
    assert disk.webhook.position == 4
    backlog.take(rows("a", first=5), 0)
    assert backlog.settlement() is None
    disk.write(backlog, whole=True)
    assert disk.webhook.position == 5
    backlog.take(rows(*"a" * WINDOW, first=6), 0)
    disk.write(backlog)
    assert disk.webhook.position == 5 + WINDOW, "a webhook that wants little does not fall behind"


def test_a_row_that_fails_holds_up_its_own_group_alone_and_is_tried_after_growing_pauses() -> None:
    disk = Disk()
    backlog = disk.load()
    backlog.take(rows("a", "a", "b"), 0)
    bad, good = begin_all(backlog)
    backlog.failed(bad, "answered with status 500", 0, luck=0)
    backlog.delivered(good, 0)
    disk.write(backlog)
    assert disk.webhook.position == 3
    assert disk.undelivered == {
        1: Undelivered("hook", 1, "a", 1, "answered with status 500"),
        2: Undelivered("hook", 2, "a"),
    }
    backlog.take(rows("a", "c", first=4), 0)
    assert [attempt.group for attempt in begin_all(backlog, 0.9)] == ["c"]
    (again,) = begin_all(backlog, 1.0)
    assert again == Attempt(1, "a", 2)
    backlog.failed(again, "answered with status 500", 1.0, luck=0)
    disk.write(backlog)
    assert begin_all(backlog, 2.9) == []
    (last,) = begin_all(backlog, 3.0)
    backlog.failed(last, "answered with status 502", 3.0, luck=0)
    disk.write(backlog)
    assert disk.undelivered[1] == Undelivered("hook", 1, "a", 3, "answered with status 502", given_up=True)
    assert begin_all(backlog, 3.0) == [Attempt(2, "a", 1)], "its group goes on with the next"


def test_pauses_double_up_to_an_hour_and_are_a_fifth_longer_at_most() -> None:
    pace = Pace(1.0, 80)
    assert [pace.pause_seconds(n, 0) for n in (1, 2, 3, 12, 13, 79)] == [1, 2, 4, 2048, 3600, 3600]
    assert pace.pause_seconds(3, 1) == 4 * 1.2
    days = sum(pace.pause_seconds(n, 0.5) for n in range(1, 80)) / 86400
    assert 2.9 < days < 3.3


def test_after_a_restart_all_that_is_undelivered_is_tried_at_once_and_in_order() -> None:
    disk = Disk()
    backlog = disk.load()
    backlog.take(rows("a", "a", "b", "b"), 0)
    for attempt in begin_all(backlog):
        backlog.failed(attempt, "down", 0, luck=0)
    disk.write(backlog)
    again = disk.load(now=0.0)
    assert again.newest == 4
    again.take(rows("a", first=5), 0)
    attempts = begin_all(again)
    assert [(attempt.sequence, attempt.number) for attempt in attempts] == [(1, 2), (3, 2)]
    backlog_order = []
    while attempts:
        for attempt in attempts:
            backlog_order.append(attempt.sequence)
            again.delivered(attempt, 0)
        disk.write(again)
        attempts = begin_all(again)
    assert [number for number in backlog_order if number in (1, 2, 5)] == [1, 2, 5]
    assert disk.undelivered == {}
    assert disk.webhook.position == 5


def test_the_first_success_after_a_failure_ends_the_pauses_once() -> None:
    disk = Disk(pace=Pace(1000.0, 80))
    backlog = disk.load()
    backlog.take(rows("a", "b"), 0)
    for attempt in begin_all(backlog):
        backlog.failed(attempt, "down", 0, luck=0)
    disk.write(backlog)
    backlog.take(rows("c", first=3), 1)
    (probe,) = begin_all(backlog, 1)
    backlog.delivered(probe, 1)
    back = begin_all(backlog, 1)
    assert sequences(back) == [1, 2], "the receiver is back"
    for attempt in back:
        backlog.failed(attempt, "answered with status 500", 1, luck=0)
    disk.write(backlog)
    backlog.take(rows("c", first=4), 2)
    (probe,) = begin_all(backlog, 2)
    backlog.delivered(probe, 2)
    disk.write(backlog)
    assert begin_all(backlog, 2) == [], "they have a problem of their own"


def test_what_was_given_up_is_tried_once_more_when_asked_for() -> None:
    disk = Disk(pace=Pace(1.0, 1))
    backlog = disk.load()
    backlog.take(rows("a", "a"), 0)
    for _ in range(2):
        (attempt,) = begin_all(backlog)
        backlog.failed(attempt, "no", 0, luck=0)
        disk.write(backlog)
    assert all(row.given_up for row in disk.undelivered.values())
    assert disk.load().next_due() is None, "what was given up stays so after a restart"
    backlog.take(rows("a", first=3), 0)
    (under_way,) = begin_all(backlog)
    backlog.revive([row._replace(given_up=False) for row in disk.undelivered.values()], 0)
    assert begin_all(backlog) == []
    backlog.delivered(under_way, 0)
    disk.write(backlog)
    (attempt,) = begin_all(backlog)
    assert (attempt.sequence, attempt.number) == (1, 2)
    backlog.failed(attempt, "no", 0, luck=0)
    disk.write(backlog)
    assert disk.undelivered[1].given_up
    (attempt,) = begin_all(backlog)
    assert attempt.sequence == 2
    backlog.delivered(attempt, 0)
    disk.write(backlog)
    assert list(disk.undelivered) == [1]
    assert backlog.next_due() is None


def test_what_is_delivered_is_not_tried_again_because_the_disk_does_not_know_yet() -> None:
    disk = Disk()
    backlog = disk.load()
    backlog.take(rows("a"), 0)
    (attempt,) = begin_all(backlog)
    backlog.failed(attempt, "no", 0, luck=0)
    disk.write(backlog)
    asked_for = list(disk.undelivered.values())
    (attempt,) = begin_all(backlog, 1)
    backlog.revive(asked_for, 1)  # while it is under way
    backlog.delivered(attempt, 1)
    backlog.revive(asked_for, 1)
    settlement = backlog.settlement()
    assert settlement is not None
    backlog.revive(asked_for, 1)
    backlog.written(settlement)
    assert backlog.next_due() is None


def test_what_history_has_let_go_of_is_skipped_and_counted_once() -> None:
    disk = Disk(HOOK._replace(position=2, ahead=(4,)))
    backlog = disk.load()
    assert backlog.skip(3) == 0
    assert backlog.skip(7) == 3, "3, 5 and 6: the fourth was delivered"
    assert backlog.skip(7) == 0
    assert (backlog.skip(6), backlog.newest) == (0, 6), "it does not go back"
    backlog.take(rows("a", first=7), 0)
    (attempt,) = begin_all(backlog)
    backlog.delivered(attempt, 0)
    disk.write(backlog)
    assert (disk.webhook.position, disk.webhook.ahead) == (7, ())


def test_a_receiver_that_is_away_costs_a_bounded_amount_of_memory_and_disk() -> None:
    disk = Disk(pace=Pace(1.0, 80))
    backlog = disk.load()
    newest = 0
    while backlog.has_room:
        assert newest < 2 * MOST_WAITING, "it reads on for ever"
        backlog.take(rows(*(f"group-{i % 3000}" for i in range(newest, newest + 200)), first=newest + 1), 0)
        newest += 200
        for attempt in begin_all(backlog):
            backlog.failed(attempt, "down", 0, luck=0)
        disk.write(backlog)
        assert len(disk.webhook.ahead) <= WINDOW
    assert MOST_WAITING <= len(disk.undelivered) <= MOST_WAITING + 200
    delivered = 0
    while attempts := begin_all(backlog, 2.0):
        for attempt in attempts:
            backlog.delivered(attempt, 2.0)
            delivered += 1
        disk.write(backlog)
    assert (delivered, disk.undelivered, disk.webhook.position) == (newest, {}, newest)
    assert backlog.has_room


def test_one_slow_row_does_not_let_the_list_of_what_is_ahead_grow_for_ever() -> None:
    disk = Disk()
    backlog = disk.load()
    backlog.take(rows("slow"), 0)
    (slow,) = begin_all(backlog)
    newest = 1
    while backlog.has_room:
        assert newest < 3 * WINDOW
        backlog.take(rows(*"b" * 100, first=newest + 1), 0)
        newest += 100
        while attempts := begin_all(backlog):
            for attempt in attempts:
                backlog.delivered(attempt, 0)
            disk.write(backlog)
    assert WINDOW <= len(disk.webhook.ahead) <= WINDOW + 100
    again = disk.load()  # as a kill would leave it
    while again.has_room and again.newest < newest:
        again.take(rows("slow" if again.newest == 0 else "b", first=again.newest + 1), 0)
    assert sequences(begin_all(again)) == [1], "what is missing before all that is found again"
    backlog.delivered(slow, 0)
    disk.write(backlog)
    assert backlog.has_room


@settings(max_examples=amount(300))
@given(seed=st.integers(0, 2**32), groups=st.integers(1, 4), length=st.integers(1, 40), limit=st.integers(1, 4))
def test_whatever_happens_each_row_is_taken_once_and_in_order(seed: int, groups: int, length: int, limit: int) -> None:
    """Failures, writes, kills and retries at random. At the end everything has been taken that was not given up."""
    luck = random.Random(seed)  # noqa: S311
    history = rows(*(f"group-{luck.randrange(groups)}" for _ in range(length)))
    disk = Disk(HOOK._replace(groups=("group-0", "group-1")), Pace(1.0, limit))
    wanted = [entry for entry in history if entry.group in disk.webhook.groups]
    backlog, under_way, now = disk.load(), list[Attempt](), 0.0
    taken: list[int] = []
    unwritten: set[int] = set()
    in_doubt: set[int] = set()  # delivered, and killed before that was written
    for _ in range(2000):
        now += luck.random()
        match luck.randrange(8):
            case 0 | 1:
                after = backlog.newest
                backlog.take(history[after : after + luck.randint(1, 5)], now)
            case 2 | 3:
                if (attempt := backlog.begin(now)) is not None:
                    assert attempt.group not in {other.group for other in under_way}
                    under_way.append(attempt)
            case 4 | 5:
                if under_way:
                    attempt = under_way.pop(luck.randrange(len(under_way)))
                    if luck.random() < 0.6:
                        backlog.delivered(attempt, now)
                        taken.append(attempt.sequence)
                        unwritten.add(attempt.sequence)
                    else:
                        backlog.failed(attempt, "no", now, luck.random())
            case 6:
                disk.write(backlog, whole=luck.random() < 0.5)
                unwritten.clear()
            case 7:
                if luck.random() < 0.1:
                    backlog, under_way = disk.load(now), []
                    in_doubt |= unwritten
                    unwritten.clear()
    for _ in range(10 * length + 10):
        now += 10_000
        backlog.take(history[backlog.newest :], now)
        for attempt in [*under_way, *begin_all(backlog, now)]:
            backlog.delivered(attempt, now)
            taken.append(attempt.sequence)
        under_way = []
        disk.write(backlog, whole=True)
    given_up = {sequence for sequence, row in disk.undelivered.items() if row.given_up}
    assert given_up == disk.undelivered.keys()
    assert {*taken, *given_up} == {entry.sequence for entry in wanted}
    assert {number for number in taken if taken.count(number) > 1 or number in given_up} <= in_doubt
    for group in disk.webhook.groups:
        in_order = [number for number in dict.fromkeys(taken) if history[number - 1].group == group]
        assert in_order == sorted(in_order)
    assert (disk.webhook.position, disk.webhook.ahead) == (length, ())


@settings(max_examples=amount(300))
@given(seed=st.integers(0, 2**32), groups=st.integers(1, 3), length=st.integers(1, 20), limit=st.integers(1, 3))
def test_whenever_rows_are_asked_for_again_each_is_taken_once(seed: int, groups: int, length: int, limit: int) -> None:
    """Retries before, with and after a commit, and before whoever ordered it goes on. At the end all are taken."""
    luck = random.Random(seed)  # noqa: S311
    history = rows(*(f"group-{luck.randrange(groups)}" for _ in range(length)))
    disk = Disk(pace=Pace(1.0, limit))
    backlog, under_way, now = disk.load(), list[Attempt](), 0.0
    taken: list[int] = []
    writing: Settlement | None = None
    on_disk = False

    def commit(settlement: Settlement | None, *, asked: bool) -> None:
        """What a dispatcher does when it follows a commit."""
        changes: dict[int, Undelivered | None] = dict(settlement.undelivered) if settlement is not None else {}
        if asked:
            after = {**disk.undelivered, **changes}
            given_up = (row for row in after.values() if row is not None and row.given_up)
            changes |= {row.sequence: row._replace(given_up=False) for row in given_up}
        for sequence, row in changes.items():
            if row is None:
                del disk.undelivered[sequence]
            else:
                disk.undelivered[sequence] = row
        backlog.revive([row for row in changes.values() if row is not None], now)

    for step in range(600):
        now += luck.random()
        ending = step >= 300  # from here on the receiver takes everything
        match luck.randrange(7):
            case 0:
                backlog.take(history[backlog.newest : backlog.newest + luck.randint(1, 5)], now)
            case 1:
                if (attempt := backlog.begin(now)) is not None:
                    assert attempt.group not in {other.group for other in under_way}
                    under_way.append(attempt)
            case 2 if under_way:
                attempt = under_way.pop(luck.randrange(len(under_way)))
                if ending or luck.random() < 0.4:
                    backlog.delivered(attempt, now)
                    taken.append(attempt.sequence)
                else:
                    backlog.failed(attempt, "no", now, luck.random())
            case 3 if writing is None:
                writing, on_disk = backlog.settlement(whole=True), False
            case 4 if writing is not None and not on_disk:
                commit(writing, asked=luck.random() < 0.5)
                on_disk = True
            case 5 if writing is not None and on_disk:
                backlog.written(writing)
                disk.webhook, writing = writing.after, None
            case 6:
                commit(None, asked=True)
                backlog.wake({f"group-{luck.randrange(groups)}"}, now)
    for _ in range(4 * length + 10):
        now += 10_000
        if writing is not None:
            if not on_disk:
                commit(writing, asked=False)
            backlog.written(writing)
            disk.webhook, writing = writing.after, None
        commit(None, asked=True)
        backlog.take(history[backlog.newest :], now)
        for attempt in [*under_way, *begin_all(backlog, now)]:
            backlog.delivered(attempt, now)
            taken.append(attempt.sequence)
        under_way = []
        writing, on_disk = backlog.settlement(whole=True), False
    assert sorted(taken) == list(range(1, length + 1))
    assert (disk.undelivered, disk.webhook.position, disk.webhook.ahead) == ({}, length, ())

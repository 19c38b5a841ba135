"""Delivery statistics of webhooks: the maintained counts equal a recount of the rows."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from depth import amount
from forewarn.core.state import Changes, DeliveryStats, WebhookDeliveries
from forewarn.core.webhooks import Undelivered


@settings(max_examples=amount(200))
@given(seed=st.integers(0, 2**32))
def test_the_counts_stay_correct_through_random_changes(seed: int) -> None:
    luck, deliveries = random.Random(seed), WebhookDeliveries()  # noqa: S311
    for _ in range(100):
        changes = Changes()
        for _ in range(luck.randrange(4)):
            name, sequence = luck.choice(["a", "b"]), luck.randrange(20)
            row = Undelivered(name, sequence, luck.randrange(3), luck.randrange(2), "no")
            changes.undelivered[name, sequence] = luck.choice([row, None])
        deliveries.absorb(changes)
        if luck.random() < 0.05:
            oldest = luck.randrange(20)
            before = {name: len(deliveries.undelivered(name)) for name in "ab"}
            lost = deliveries.forget_before(oldest)
            assert all(lost[name] == before[name] - len(deliveries.undelivered(name)) for name in "ab")
            assert not any(sequence < oldest for name in "ab" for sequence in deliveries.undelivered(name))
        for name in "ab":
            rows, stats = deliveries.undelivered(name).values(), deliveries.stats(name)
            assert stats.failed == sum(row.failed for row in rows)
            assert stats.pending == len(rows) - stats.failed


def test_the_last_problem_is_that_of_the_latest_failure_while_anything_is_undelivered() -> None:
    deliveries = WebhookDeliveries()
    deliveries.absorb(
        Changes(undelivered={("a", 7): Undelivered("a", 7, 1, 79, "late"), ("a", 8): Undelivered("a", 8, 0, 80)})
    )
    assert deliveries.stats("a") == DeliveryStats(2, 0, "late")
    given_up = Undelivered("a", 3, 80, 0, "later still")
    deliveries.absorb(Changes(undelivered={("a", 3): given_up}))
    assert deliveries.stats("a") == DeliveryStats(2, 1, "later still")
    deliveries.absorb(Changes(undelivered={("a", 7): Undelivered("a", 7, 2, 78, "again")}))
    deliveries.absorb(Changes(undelivered={("a", 3): given_up._replace(attempts_left=1)}))
    assert deliveries.stats("a") == DeliveryStats(3, 0, "again"), "a retry is no failure"
    deliveries.absorb(Changes(undelivered={("a", 3): None, ("a", 7): None, ("a", 8): None}))
    assert deliveries.stats("a") == DeliveryStats()


def test_counts_and_rows_are_found_without_iterating_over_the_rows() -> None:
    class Rows(dict[int, Undelivered]):
        def __iter__(self) -> None:  # type: ignore[override]
            raise AssertionError("a million rows")

        values = items = keys = __iter__  # type: ignore[assignment]

    deliveries = WebhookDeliveries()
    deliveries._undelivered["a"] = Rows({1: Undelivered("a", 1, 1, 79)})
    assert deliveries.stats("a") == DeliveryStats(1)
    assert deliveries.is_undelivered("a", 1)
    assert not deliveries.is_undelivered("a", 2)
    assert not deliveries.is_undelivered("b", 1)

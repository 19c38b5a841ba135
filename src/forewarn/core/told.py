"""How far webhooks have been told: the part of the ledger that is about them, with counts that are kept as it changes.

Whoever looks at how webhooks fare does so often, and there may be a million rows: they are never gone through for it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from forewarn.core.ledger import Changes
    from forewarn.core.webhooks import Undelivered, Webhook


class Tally(NamedTuple):
    """How a webhook fares."""

    waiting: int = 0
    """Rows that are tried again, or wait behind such a one."""
    given_up: int = 0
    last_problem: str = ""
    """Of the latest failure, as long as anything is undelivered."""
    lost: int = 0
    """Rows that are not delivered and never will be, since the service was started."""


class Told:
    """Webhooks, and what each could not be told yet."""

    def __init__(self) -> None:
        self.webhooks: dict[str, Webhook] = {}
        self._undelivered: dict[str, dict[int, Undelivered]] = {}
        self._given_up: Counter[str] = Counter()
        self._problems: dict[str, str] = {}
        self.lost: Counter[str] = Counter()
        """How many rows each webhook will never be told of."""

    def undelivered(self, webhook: str) -> dict[int, Undelivered]:
        """By sequence; a copy."""
        return dict(self._undelivered.get(webhook, ()))

    def tally(self, webhook: str) -> Tally:
        count, given_up = len(self._undelivered.get(webhook, ())), self._given_up[webhook]
        return Tally(count - given_up, given_up, self._problems.get(webhook, ""), self.lost[webhook])

    def absorb(self, changes: Changes) -> None:
        """Take over what has been committed."""
        for name, webhook in changes.webhooks.items():
            if webhook is None:
                self.webhooks.pop(name, None)
            else:
                self.webhooks[name] = webhook
        for (name, sequence), row in changes.undelivered.items():
            self._put(name, sequence, row)

    def forget_before(self, oldest: int) -> Counter[str]:
        """Rows of history before this one are not kept any more. Returns how many each webhook has lost by it."""
        lost: Counter[str] = Counter()
        for name, rows in list(self._undelivered.items()):
            for sequence in [sequence for sequence in rows if sequence < oldest]:
                self._put(name, sequence, None)
                lost[name] += 1
        self.lost.update(lost)
        return lost

    def _put(self, name: str, sequence: int, row: Undelivered | None) -> None:
        rows = self._undelivered.setdefault(name, {})
        before = rows.pop(sequence, None)
        if before is not None and before.given_up:
            self._given_up[name] -= 1
        if row is not None:
            rows[sequence] = row
            self._given_up[name] += row.given_up
            if row.attempts > (before.attempts if before is not None else 0):
                self._problems[name] = row.problem
        if not rows:
            del self._undelivered[name]
            self._given_up.pop(name, None)
            self._problems.pop(name, None)

"""What one webhook is still to be told, group by group, and how far it has come. Pure: `now` is an argument.

A group's rows go out one after the other, in their sequence; groups do not wait for each other. A row that
fails is noted as undelivered, and so is what comes behind it, so that the position can pass them by. What is
held in memory is bounded, however long a receiver is away: then history is simply not read any further.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.webhooks import Undelivered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.core.ledger import Entry
    from forewarn.core.webhooks import Webhook

WINDOW = 1000
"""How many rows beyond the position may be taken, and how many of them be settled ahead of it."""
MOST_WAITING = 10_000
"""How many undelivered rows a webhook may have before it is given more."""
_LONGEST_PAUSE_SECONDS = 3600.0
_JITTER = 0.2


class Pace(NamedTuple):
    """How often, and how many times, a row is tried."""

    retry_seconds: float = 1.0
    attempts: int = 80

    def pause_seconds(self, attempts: int, luck: float) -> float:
        """After so many attempts: twice as long each time, and by luck (from 0 to 1) a little longer."""
        doubled = self.retry_seconds * 2.0 ** min(attempts - 1, 60)
        return min(doubled, _LONGEST_PAUSE_SECONDS) * (1 + _JITTER * luck)


class Attempt(NamedTuple):
    """A row of history that is to be sent now."""

    sequence: int
    group: str
    number: int


class Settlement(NamedTuple):
    """What is to be written: the webhook as it was and as it is to be, and what is undelivered, or no more."""

    before: Webhook
    after: Webhook
    undelivered: dict[int, Undelivered | None]
    groups: dict[str, float]
    """Whose next row may go out once it is written, and from when on."""


class Backlog:
    """The queues of one webhook."""

    def __init__(self, webhook: Webhook, undelivered: Iterable[Undelivered], pace: Pace, now: float) -> None:
        self.webhook = webhook
        """As it is on disk."""
        self.newest = webhook.position
        """Up to where history has been taken."""
        self._pace = pace
        self._queues: dict[str, deque[int]] = {}
        self._waiting: dict[int, Undelivered] = {}
        """What is undelivered and not given up."""
        self._open: dict[int, None] = {}
        """What is taken and not settled, in sequence."""
        self._ahead = set(webhook.ahead)
        self._furthest = max(webhook.ahead, default=0)
        """Up to where history was taken before the start: it must be read again, for what is missing there."""
        self._agenda: list[tuple[float, int, str]] = []
        self._due_at: dict[str, float] = {}
        """When each group's next attempt is due; entries of the agenda that differ are outdated."""
        self._busy: dict[str, int] = {}
        """Groups with an attempt under way, or one whose outcome is not written; and of which row."""
        self._finished: dict[str, float] = {}
        """Of those, the ones with an outcome; and when the next attempt may be."""
        self._unwritten: dict[int, Undelivered | None] = {}
        self._being_written: dict[int, Undelivered | None] = {}
        """Of the settlement that is under way."""
        self._stuck: set[str] = set()
        """Groups whose first row has failed."""
        self._hopeful: set[str] = set()
        """Of those, the ones that nothing was delivered since: perhaps the receiver was away."""
        self.revive(undelivered, now)

    # --- What comes in ------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether more of history may be taken."""
        if len(self._waiting) >= MOST_WAITING or len(self._open) >= WINDOW:
            return False
        return len(self._ahead) < WINDOW or self.newest < self._furthest

    def skip(self, oldest: int) -> int:
        """History is not kept before this row. How many it had not come to are gone with that, wanted or not."""
        if oldest <= self.newest + 1:
            return 0
        known = sum(self.newest < sequence < oldest for sequence in self._ahead)
        gone = oldest - 1 - self.newest - known
        self.newest = oldest - 1
        return gone

    def take(self, entries: Iterable[Entry], now: float) -> None:
        """The next rows of history."""
        for entry in entries:
            self.newest = entry.sequence
            if entry.sequence in self._ahead or not self.webhook.wants(entry):
                continue
            queue = self._queues.setdefault(entry.group, deque())
            self._open[entry.sequence] = None
            if queue and queue[0] in self._waiting:
                self._put_off(entry.sequence, entry.group)
            queue.append(entry.sequence)
            if len(queue) == 1:
                self._plan(entry.group, now)

    def revive(self, rows: Iterable[Undelivered], now: float) -> None:
        """Undelivered rows, as they are on disk: what is not given up is to be tried, unless it is known here.

        All at a start; later what was given up and is asked for again.
        """
        found: dict[str, list[int]] = {}
        for row in rows:
            if not row.given_up and not self._knows(row.sequence):
                self._waiting[row.sequence] = row
                found.setdefault(row.group, []).append(row.sequence)
        for group, sequences in found.items():
            queue = sorted([*self._queues.get(group, ()), *sequences])
            if (under_way := self._busy.get(group)) in queue:  # it stays first
                queue.insert(0, queue.pop(queue.index(under_way)))
            self._queues[group] = deque(queue)
            self._plan(group, now)

    def wake(self, groups: Iterable[str], now: float) -> None:
        """Wait no longer: try the first row of each of these groups now."""
        for group in self._queues.keys() & groups:
            self._plan(group, now)

    # --- What goes out ------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """When the next attempt is due."""
        while self._agenda and self._due_at.get(self._agenda[0][2]) != self._agenda[0][0]:
            heapq.heappop(self._agenda)
        return self._agenda[0][0] if self._agenda else None

    def begin(self, now: float) -> Attempt | None:
        """The next row to send, if one is due."""
        due_at = self.next_due()
        if due_at is None or due_at > now:
            return None
        _, _, group = heapq.heappop(self._agenda)
        del self._due_at[group]
        sequence = self._busy[group] = self._queues[group][0]
        known = self._waiting.get(sequence)
        return Attempt(sequence, group, 1 + (known.attempts if known else 0))

    def abandon(self, attempt: Attempt, now: float) -> None:
        """It did not come to the attempt: it is due at another time."""
        del self._busy[attempt.group]
        self._plan(attempt.group, now)

    def pass_over(self, attempt: Attempt, now: float) -> bool:
        """There is nothing to send any more. Whether it was noted as undelivered."""
        self._queues[attempt.group].popleft()
        noted = self._waiting.pop(attempt.sequence, None) is not None
        if noted:
            self._unwritten[attempt.sequence] = None
        self._settle(attempt.sequence)
        self._stuck.discard(attempt.group)
        self._hopeful.discard(attempt.group)
        self._finished[attempt.group] = now
        return noted

    def delivered(self, attempt: Attempt, now: float) -> None:
        """The receiver has it."""
        self.pass_over(attempt, now)
        # The receiver is there. Who has only failed since it was last there need not wait any longer; who
        # fails again now has a problem of its own, and keeps to its pauses.
        for group in self._hopeful:
            self._plan(group, now)
        self._hopeful &= self._busy.keys()

    def failed(self, attempt: Attempt, problem: str, now: float, luck: float) -> None:
        """The receiver has not taken it."""
        group = attempt.group
        given_up = attempt.number >= self._pace.attempts
        row = Undelivered(self.webhook.name, attempt.sequence, group, attempt.number, problem, given_up)
        self._unwritten[attempt.sequence] = row
        self._settle(attempt.sequence)
        if given_up:
            self._queues[group].popleft()
            self._waiting.pop(attempt.sequence, None)
            self._stuck.discard(group)
            self._hopeful.discard(group)
            self._finished[group] = now
            return
        self._waiting[attempt.sequence] = row
        for sequence in self._queues[group]:
            if sequence in self._open:
                self._put_off(sequence, group)
        if group not in self._stuck:
            self._stuck.add(group)
            self._hopeful.add(group)
        self._finished[group] = now + self._pace.pause_seconds(attempt.number, luck)

    @property
    def is_behind(self) -> bool:
        """Whether anything is tried again, or waits behind such a one."""
        return bool(self._waiting)

    # --- What is to be written ------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Everything up to here is settled."""
        return next(iter(self._open), self.newest + 1) - 1

    def settlement(self, *, whole: bool = False) -> Settlement | None:
        """What has changed since the last, if it is worth a write; `whole`: however little."""
        position = self.position
        moved = position - self.webhook.position
        if not (self._finished or self._unwritten or moved >= WINDOW or (whole and moved)):
            return None
        self._ahead = {sequence for sequence in self._ahead if sequence > position}
        after = self.webhook._replace(position=position, ahead=tuple(sorted(self._ahead)))
        found = Settlement(self.webhook, after, self._unwritten, self._finished)
        self._being_written = self._unwritten
        self._unwritten, self._finished = {}, {}
        return found

    def written(self, settlement: Settlement) -> None:
        """It is on disk."""
        self.webhook = settlement.after
        self._being_written = {}
        for group, next_at in settlement.groups.items():
            del self._busy[group]
            if self._queues[group]:
                self._plan(group, next_at)
            else:
                del self._queues[group]

    # --- Inside ---------------------------------------------------------------------------------------

    def _knows(self, sequence: int) -> bool:
        """Whether the disk says nothing new of an undelivered row: it waits, or its outcome is about to be written."""
        if sequence in self._waiting or sequence in self._unwritten:
            return True
        # What is given up in this very write is asked for again if the disk has it as not given up after that.
        outcome = self._being_written.get(sequence)
        return sequence in self._being_written and (outcome is None or not outcome.given_up)

    def _put_off(self, sequence: int, group: str) -> None:
        """It waits behind a row that has failed."""
        self._waiting[sequence] = self._unwritten[sequence] = Undelivered(self.webhook.name, sequence, group)
        self._settle(sequence)

    def _settle(self, sequence: int) -> None:
        if sequence in self._open:
            del self._open[sequence]
            self._ahead.add(sequence)

    def _plan(self, group: str, moment: float) -> None:
        """When the group's first row is tried. While one is under way that is not known: `written` will say."""
        if group not in self._busy:
            self._due_at[group] = moment
            heapq.heappush(self._agenda, (moment, self._queues[group][0], group))

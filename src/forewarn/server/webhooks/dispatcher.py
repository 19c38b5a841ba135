"""All webhooks of a service: follows what is committed, and has each of them told."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import TYPE_CHECKING

from forewarn.clock import real_seconds, unix_seconds
from forewarn.core.webhooks import Backlog, find_webhook, retry
from forewarn.errors import Stopping
from forewarn.server.webhooks.channel import Channel
from forewarn.wire.cloud_event import signed_headers, source_of, trial_event

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.limits import Terms
    from forewarn.core.state import Changes, Draft
    from forewarn.core.webhooks import Pace, Undelivered, Webhook
    from forewarn.engine import Engine
    from forewarn.server.webhooks.outbound import Outbound, Outcome

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
            await self._engine.order(_name_installation, uuid.uuid4().hex)
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
        webhook, rows = await self._engine.order(retry, name, sequence)
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
                self._engine.draft().told.lost.pop(name, None)
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

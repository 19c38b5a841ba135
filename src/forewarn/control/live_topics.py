"""The live topics of the feed: the clock, and the state of webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from forewarn.control.clock import clock_shape
from forewarn.control.schema import Count, Shape, help_text
from forewarn.delivery.live_topics import LiveTopic

if TYPE_CHECKING:
    from forewarn.control.clock import ClockShape
    from forewarn.core.state import Changes
    from forewarn.delivery.live_topics import LiveTopics
    from forewarn.delivery.webhooks import Dispatcher
    from forewarn.engine.engine import Engine

CLOCK, WEBHOOKS = TOPICS = ("clock", "webhooks")
TENANT_CLOCK = "tenant-clock"
"""The clock without what is due next, which may concern other groups."""
QUICK_SECONDS = 0.1
WEBHOOK_SECONDS = 1.0


class WebhookStateShape(Shape):
    """The delivery state of a webhook."""

    name: str
    backlog: Annotated[Count, help_text("Rows that it has not received yet.")]
    failed: Count
    last_error: str | None


class LiveStates:
    """Reads the states of the topics, and reports their changes."""

    def __init__(self, engine: Engine, topics: LiveTopics, webhooks: Dispatcher) -> None:
        self._engine = engine
        self._topics = topics
        self._webhooks = webhooks

    def start(self) -> None:
        """Report changes from now on."""
        only = ("",)
        self._topics.add(CLOCK, LiveTopic("clock", lambda: only, lambda _: self._clock(), QUICK_SECONDS))
        self._topics.add(
            TENANT_CLOCK, LiveTopic("clock", lambda: only, lambda _: self._clock(tenant=True), QUICK_SECONDS)
        )
        self._topics.add(
            WEBHOOKS,
            LiveTopic("webhook", lambda: self._engine.draft().webhooks(), self._webhook, WEBHOOK_SECONDS),
        )
        self._engine.clock_hold.on_change = self.clock_changed
        self._engine.subscribe_to_commits(self._on_commit)

    def clock_changed(self) -> None:
        for name in (CLOCK, TENANT_CLOCK):
            self._topics.changed(name)

    def _on_commit(self, changes: Changes) -> None:
        if self._engine.clock.virtual and (changes.operations or changes.events or changes.rollouts):
            self._topics.changed(CLOCK)  # something else may be due next
        if self._topics.has_readers(WEBHOOKS):
            for name in self._engine.draft().webhooks():
                self._topics.changed(WEBHOOKS, name)

    def _clock(self, *, tenant: bool = False) -> ClockShape:
        return clock_shape(self._engine, tenant=tenant)

    def _webhook(self, name: str) -> WebhookStateShape | None:
        webhook = self._engine.draft().webhook(name)
        if webhook is None:
            return None
        stats = self._webhooks.stats(webhook)
        return WebhookStateShape(name, stats.pending, stats.failed, stats.last_error or None)

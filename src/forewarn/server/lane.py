"""What all connections of the metadata service share, and what they make of the head of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from forewarn.engine import Engine, Published
    from forewarn.server.callers import Callers
    from forewarn.server.pages import Pages
    from forewarn.server.stamp import Stamp
    from forewarn.server.tally import Tallies
    from forewarn.server.waiters import Waiters
    from forewarn.wire.versions import ApiVersion

EVENTS_PATH = "/metadata/scheduledevents"


class Poll(NamedTuple):
    """All that matters of the head of a GET of the document, or of a POST to it."""

    version: ApiVersion
    if_none_match: bytes | None
    length: int = 0
    """How long the body is."""
    wait_seconds: int = 0
    """How long it may be held while the tag is still the document's."""
    applied: bytes = b""
    """The header line that says so; also when it may be held for no time at all."""


class Lane:
    """The parts of the metadata service, for its connections and for its application."""

    def __init__(
        self,
        engine: Engine,
        callers: Callers,
        pages: Pages,
        stamp: Stamp,
        waiters: Waiters,
        tallies: Tallies,
        versions: dict[str, ApiVersion],
        *,
        limited: bool = True,
        fast: bool = True,
    ) -> None:
        self.engine = engine
        self.callers = callers
        self.pages = pages
        self.stamp = stamp
        self.waiters = waiters
        self.tallies = tallies
        self.versions = versions
        self.asked = engine.asked
        self.limited = limited
        self.epoch = 0
        """Goes up with every change of any document or of the fleet: an answer holds within one."""
        # The whole request target says at once that path, query and version are in order.
        self._fast_targets = (
            {f"{EVENTS_PATH}?api-version={name}".encode(): version for name, version in versions.items()}
            if fast
            else {}
        )
        self.targets = self._fast_targets
        engine.subscribe(self._on_published)
        engine.hearing.held = waiters.by_group

    def go_slow(self) -> None:
        """Hand everything to the application from now on, also polls that are held."""
        self.targets = {}
        self.epoch += 1
        self.waiters.look_again()

    def go_fast(self) -> None:
        """Answer polls in the protocol again."""
        self.targets = self._fast_targets
        self.epoch += 1

    def _on_published(self, _: Published) -> None:
        self.epoch += 1

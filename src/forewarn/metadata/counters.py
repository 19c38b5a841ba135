"""Counts of responses, for GET and POST of the events document."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

OTHER = "other"
"""Label for every unknown api-version. Clients could otherwise create any number of series."""


class RequestCounter:
    """A counter. A connection keeps a reference, so counting a repeated poll is one addition."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class RequestCounters:
    """All counters of the metadata service."""

    def __init__(self, versions: Container[str]) -> None:
        self._versions = versions
        self._polls: dict[tuple[str, int], RequestCounter] = {}
        self._approvals: dict[int, RequestCounter] = {}

    def poll(self, version: str, status: int) -> RequestCounter:
        """Return the counter of GETs at this api-version (empty: none was given) with this response status."""
        key = (version if not version or version in self._versions else OTHER, status)
        counter = self._polls.get(key)
        if counter is None:
            counter = self._polls[key] = RequestCounter()
        return counter

    def approval(self, status: int) -> RequestCounter:
        """Return the counter of POSTs with this response status."""
        counter = self._approvals.get(status)
        if counter is None:
            counter = self._approvals[status] = RequestCounter()
        return counter

    def polls(self) -> dict[tuple[str, int], int]:
        """Return the number of GETs by api-version and status."""
        return {key: counter.count for key, counter in self._polls.items()}

    def approvals(self) -> dict[int, int]:
        """Return the number of POSTs by status."""
        return {status: counter.count for status, counter in self._approvals.items()}

"""Counters of GET and POST requests for the document, by HTTP status of the response."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

OTHER = "other"
"""Label for all versions that the service does not have: a client must not be able to add labels."""


class Counter:
    """A number that only grows. Code that counts often keeps a reference to it, and skips the lookup."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Counters:
    """All counters of the metadata endpoint. Each request is counted in one of them."""

    def __init__(self, versions: Container[str]) -> None:
        self._versions = versions
        self._polls: dict[tuple[str, int], Counter] = {}
        self._approvals: dict[int, Counter] = {}

    def poll(self, version: str, status: int) -> Counter:
        """Return the counter of GET requests with this api-version (empty: none) and response status."""
        key = (version if not version or version in self._versions else OTHER, status)
        counter = self._polls.get(key)
        if counter is None:
            counter = self._polls[key] = Counter()
        return counter

    def approval(self, status: int) -> Counter:
        """Return the counter of POST requests with this response status."""
        counter = self._approvals.get(status)
        if counter is None:
            counter = self._approvals[status] = Counter()
        return counter

    def polls(self) -> dict[tuple[str, int], int]:
        """Return the number of GET requests, by api-version and status."""
        return {key: counter.count for key, counter in self._polls.items()}

    def approvals(self) -> dict[int, int]:
        """Return the number of POST requests, by status."""
        return {status: counter.count for status, counter in self._approvals.items()}

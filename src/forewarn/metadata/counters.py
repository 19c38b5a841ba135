"""How often each answer was given, to GETs of the document and to POSTs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

OTHER = "other"
"""Stands for every version that is not served here: what a client can make up must not make a row each."""


class Counter:
    """One number that goes up. Whoever counts often keeps it: to add one is all that it costs then."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Counters:
    """All counters of the metadata service. Each answered request is in one of them."""

    def __init__(self, versions: Container[str]) -> None:
        self._versions = versions
        self._polls: dict[tuple[str, int], Counter] = {}
        self._approvals: dict[int, Counter] = {}

    def poll(self, version: str, status: int) -> Counter:
        """GETs at this api-version (empty when none was named) that were answered with this status."""
        key = (version if not version or version in self._versions else OTHER, status)
        counter = self._polls.get(key)
        if counter is None:
            counter = self._polls[key] = Counter()
        return counter

    def approval(self, status: int) -> Counter:
        """POSTs that were answered with this status."""
        counter = self._approvals.get(status)
        if counter is None:
            counter = self._approvals[status] = Counter()
        return counter

    def polls(self) -> dict[tuple[str, int], int]:
        """How many GETs, by version and status."""
        return {key: counter.count for key, counter in self._polls.items()}

    def approvals(self) -> dict[int, int]:
        """How many POSTs, by status."""
        return {status: counter.count for status, counter in self._approvals.items()}

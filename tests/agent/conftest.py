"""What tests of the agent may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.circles import Party

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def make_party() -> Iterator[Callable[..., Party]]:
    """Makes circles of some machines that can hear each other."""
    parties: list[Party] = []

    def make(count: int, secrets: dict[str, bytes] | None = None) -> Party:
        parties.append(Party(count, secrets=secrets))
        return parties[-1]

    yield make
    for party in parties:
        party.close()

"""Fixtures for tests of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.peer_groups import Machines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def make_machines() -> Iterator[Callable[..., Machines]]:
    """Create machines whose peer groups can reach each other."""
    made: list[Machines] = []

    def make(count: int, silence: float = 1.0, secrets: dict[str, bytes] | None = None) -> Machines:
        made.append(Machines(count, silence, secrets))
        return made[-1]

    yield make
    for machines in made:
        machines.close()

"""One list of requests, first on a connection and repeated on one: the same bytes, and those that the list says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from golden.cases import MARKS
from golden.responses import ANSWERS
from golden.world import World, build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from golden.rows import Row


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = build(tmp_path_factory.mktemp("world"))
    yield made
    made.stop()


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: row.name)
def test_the_first_and_the_repeated_response_match_the_list(world: World, row: Row) -> None:
    first, repeated = world.send_on_new_connections(row, times=2), world.send_on_one_connection(row, times=3)
    for reply in (*first, *repeated):
        assert world.named(reply) == row.expected
    assert len({reply.masked for reply in (*first, *repeated)}) == 1
    numbers = [reply.header("x-ms-request-id") for reply in (*first, *repeated)]
    assert len(set(numbers)) == len(numbers)


def test_an_unknown_id_among_known_ones_approves_nothing(world: World) -> None:
    row = next(row for row in ANSWERS if row.name == "approval with one id unknown")
    assert [reply.status for reply in world.send_on_one_connection(row, times=1)] == [400]
    assert not world.approved("untouched")


def test_an_approval_is_noted(world: World) -> None:
    row = next(row for row in ANSWERS if row.name == "approval")
    assert [reply.status for reply in world.send_on_one_connection(row, times=1)] == [200]
    assert world.approved("waiting")


def test_the_list_has_each_response_once_with_its_source() -> None:
    names = [row.name for row in ANSWERS]
    assert len(names) == len(set(names))
    assert {row.mark for row in ANSWERS} == set(MARKS)
    assert all(row.says for row in ANSWERS)

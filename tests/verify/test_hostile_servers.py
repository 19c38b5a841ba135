"""Servers that answer nonsense, or nothing: every check ends, none with a stack trace, and few pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forewarn.verify.catalogue import CHECKS
from forewarn.verify.run import Result
from verify.broken import Answer, Ask, Fault, running
from verify.faults import document, header, instance, instead, member
from verify.test_broken import verify

if TYPE_CHECKING:
    from collections.abc import Callable


def _after_the_first(change: Callable[[Ask, Answer], object]) -> Callable[[Ask, Answer], object]:
    """The first answer to each VM is right, as that of a server that breaks down later."""
    met: set[str] = set()

    def answer(ask: Ask, found: Answer) -> None:
        if ask.vm in met:
            change(ask, found)
        met.add(ask.vm)

    return answer


def _nonsense(_: Ask, found: Answer) -> None:
    found.body = b'{"Events":' + b"[" * 5000


def _cut_short(_: Ask, found: Answer) -> None:
    found.headers["Content-Length"] = str(len(found.body) + 1)
    found.closes = True


VALUES: tuple[Any, ...] = (None, {"a": [1]})
HOSTILE = (
    Fault("events that are texts", (), answer=document(lambda value: value.update(Events=["x", 1, None]))),
    Fault("an incarnation that is a list", (), answer=document(lambda value: value.update(DocumentIncarnation=[1]))),
    Fault("no incarnation", (), answer=document(lambda value: value.pop("DocumentIncarnation"))),
    Fault("null everywhere", (), answer=_after_the_first(instead(lambda _: True, 200, b"null"))),
    Fault("deep nonsense", (), answer=_nonsense),
    *(
        Fault(f"{name} is {value!r}", (), answer=member(name, value))
        for name in ("EventId", "EventStatus", "Resources", "NotBefore")
        for value in VALUES
    ),
    Fault("types that are none", (), answer=member("EventType", None)),
    Fault("a tree of numbers", (), answer=instance(lambda _: 7)),
    Fault("a tree that is a list", (), answer=instance(lambda _: [{"compute": 1}])),
    Fault("dates that are none", (), answer=header("Date", "yesterday, or so")),
    Fault("a length that is none", (), answer=_after_the_first(header("Content-Length", "ten"))),
    Fault("500 later on", (), answer=_after_the_first(instead(lambda _: True, 500, b"\x00"))),
    Fault("answers cut short", (), answer=_after_the_first(_cut_short)),
)


@pytest.mark.parametrize("fault", HOSTILE, ids=lambda fault: fault.name)
def test_every_check_ends(fault: Fault) -> None:
    with running(fault) as server:
        outcomes: dict[str, Any] = verify(server, [check for check in CHECKS if "slow" not in check.name])
    assert any(outcome.result is Result.FAILED for outcome in outcomes.values())
    assert len(outcomes) > 140

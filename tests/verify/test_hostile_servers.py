"""Servers that answer nonsense, or nothing: every check ends, none with a stack trace, and few pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forewarn.verify.check import Check, Mark, Skip
from forewarn.verify.endpoint import Endpoint
from forewarn.verify.exchange import LARGEST_ANSWER
from forewarn.verify.runner import CHECKS, Result, chosen
from verify.broken import Answer, Ask, Fault, running
from verify.faults import document, header, instance, instead, member
from verify.test_broken import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.verify.session import Session


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


_COUNT = iter(range(10**9))


def _large(_: Ask, found: Answer) -> None:
    found.body += b" " * 900_000


def _large_and_new(ask: Ask, found: Answer) -> None:
    _large(ask, found)
    found.body += str(next(_COUNT)).encode()


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
    Fault("dates that no clock knows", (), answer=header("Date", f"Mon, 16 Nov 2026 06:28:43 +{'9' * 20}")),
    Fault("NotBefore that no clock knows", (), answer=member("NotBefore", f"Mon, 16 Nov 2026 06:28:43 -{'9' * 20}")),
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


def test_a_body_without_an_end_is_not_read_to_the_end() -> None:
    fault = Fault("", (), answer=_after_the_first(lambda _, found: setattr(found, "endless", True)))
    with running(fault) as server:
        outcome = verify(server, chosen(["requests/document-served"], list(Mark)))["requests/document-served"]
    assert outcome.result is Result.FAILED
    assert outcome.came == f"an answer of more than {LARGEST_ANSWER} bytes"


def test_a_length_that_is_too_large_is_not_waited_for() -> None:
    fault = Fault("", (), answer=_after_the_first(header("Content-Length", "9" * 12)))
    with running(fault) as server:
        outcome = verify(server, chosen(["requests/document-served"], list(Mark)))["requests/document-served"]
    assert outcome.came == f"an answer of more than {LARGEST_ANSWER} bytes"


def test_what_is_kept_of_large_answers_has_a_bound() -> None:
    with running(Fault("", (), answer=_large_and_new)) as server:
        here = Endpoint(server.here, 3)
        with pytest.raises(Skip, match="fewer events"):
            [here.ask() for _ in range(30)]
    assert 10 < len(here.answers) < 20


def test_answers_that_are_the_same_are_kept_once() -> None:
    with running(Fault("", (), answer=_large)) as server:
        here = Endpoint(server.here, 3)
        bodies = {id(here.ask().body) for _ in range(30)}
    assert len(bodies) == 1


def test_what_a_check_stumbles_over_is_a_failure_of_that_check() -> None:
    def stumble(_: Session) -> None:
        raise ZeroDivisionError("of all things " + "x" * 5000)

    first = Check("some/thing", 1, Mark.ASSUMED, "A rule.", (), False, stumble)
    with running(Fault("", ())) as server:
        outcomes = verify(server, [first, *chosen(["requests/document-served"], list(Mark))])
    assert [outcome.result for outcome in outcomes.values()] == [Result.FAILED, Result.PASSED]
    assert "ZeroDivisionError: of all things" in outcomes["some/thing"].right
    assert len(outcomes["some/thing"].right) < 1000

"""Servers that send nonsense or nothing: every check ends without a stack trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forewarn.verify.check import Check, CheckSkipped, Mark
from forewarn.verify.endpoint import TargetEndpoint
from forewarn.verify.exchange import MAX_RESPONSE_SIZE
from forewarn.verify.runner import CHECKS, CheckResult, select_checks
from verify.broken_server import Defect, ServerRequest, ServerResponse, running
from verify.defects import document, header, instance, member, respond_instead
from verify.test_broken_servers import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.verify.session import Session


def _after_first_response(
    change: Callable[[ServerRequest, ServerResponse], object],
) -> Callable[[ServerRequest, ServerResponse], object]:
    """Send a correct first response to each VM, then the changed ones."""
    known: set[str] = set()

    def change_response(request: ServerRequest, found: ServerResponse) -> None:
        if request.vm in known:
            change(request, found)
        known.add(request.vm)

    return change_response


def _nonsense(_: ServerRequest, found: ServerResponse) -> None:
    found.body = b'{"Events":' + b"[" * 5000


def _cut_short(_: ServerRequest, found: ServerResponse) -> None:
    found.headers["Content-Length"] = str(len(found.body) + 1)
    found.closes = True


_COUNT = iter(range(10**9))


def _large(_: ServerRequest, found: ServerResponse) -> None:
    found.body += b" " * 900_000


def _large_and_new(request: ServerRequest, found: ServerResponse) -> None:
    _large(request, found)
    found.body += str(next(_COUNT)).encode()


VALUES: tuple[Any, ...] = (None, {"a": [1]})
HOSTILE = (
    Defect("events are strings", (), response=document(lambda value: value.update(Events=["x", 1, None]))),
    Defect("incarnation is an array", (), response=document(lambda value: value.update(DocumentIncarnation=[1]))),
    Defect("no incarnation", (), response=document(lambda value: value.pop("DocumentIncarnation"))),
    Defect("null everywhere", (), response=_after_first_response(respond_instead(lambda _: True, 200, b"null"))),
    Defect("deeply nested JSON", (), response=_nonsense),
    *(
        Defect(f"{name} is {value!r}", (), response=member(name, value))
        for name in ("EventId", "EventStatus", "Resources", "NotBefore")
        for value in VALUES
    ),
    Defect("event type is null", (), response=member("EventType", None)),
    Defect("tree is a number", (), response=instance(lambda _: 7)),
    Defect("tree is an array", (), response=instance(lambda _: [{"compute": 1}])),
    Defect("invalid dates", (), response=header("Date", "yesterday, or so")),
    Defect("dates out of range", (), response=header("Date", f"Mon, 16 Nov 2026 06:28:43 +{'9' * 20}")),
    Defect("NotBefore out of range", (), response=member("NotBefore", f"Mon, 16 Nov 2026 06:28:43 -{'9' * 20}")),
    Defect("invalid Content-Length", (), response=_after_first_response(header("Content-Length", "ten"))),
    Defect("500 later on", (), response=_after_first_response(respond_instead(lambda _: True, 500, b"\x00"))),
    Defect("truncated responses", (), response=_after_first_response(_cut_short)),
)


@pytest.mark.parametrize("defect", HOSTILE, ids=lambda defect: defect.name)
def test_every_check_ends(defect: Defect) -> None:
    with running(defect) as server:
        outcomes: dict[str, Any] = verify(server, [check for check in CHECKS if "slow" not in check.name])
    assert any(outcome.result is CheckResult.FAILED for outcome in outcomes.values())
    assert len(outcomes) > 140


def test_an_endless_body_is_a_failure() -> None:
    defect = Defect("", (), response=_after_first_response(lambda _, found: setattr(found, "endless", True)))
    with running(defect) as server:
        outcome = verify(server, select_checks(["requests/document-served"], list(Mark)))["requests/document-served"]
    assert outcome.result is CheckResult.FAILED
    assert outcome.actual == f"a response of more than {MAX_RESPONSE_SIZE} bytes"


def test_a_huge_content_length_is_a_failure() -> None:
    defect = Defect("", (), response=_after_first_response(header("Content-Length", "9" * 12)))
    with running(defect) as server:
        outcome = verify(server, select_checks(["requests/document-served"], list(Mark)))["requests/document-served"]
    assert outcome.actual == f"a response of more than {MAX_RESPONSE_SIZE} bytes"


def test_kept_responses_have_a_maximum_size() -> None:
    with running(Defect("", (), response=_large_and_new)) as server:
        endpoint = TargetEndpoint(server.endpoint, 3)
        with pytest.raises(CheckSkipped, match="fewer events"):
            [endpoint.request() for _ in range(30)]
    assert 10 < len(endpoint.responses) < 20


def test_equal_responses_are_kept_once() -> None:
    with running(Defect("", (), response=_large)) as server:
        endpoint = TargetEndpoint(server.endpoint, 3)
        bodies = {id(endpoint.request().body) for _ in range(30)}
    assert len(bodies) == 1


def test_an_exception_fails_only_its_check() -> None:
    def crash(_: Session) -> None:
        raise ZeroDivisionError("unexpected " + "x" * 5000)

    first = Check("some/thing", 1, Mark.ASSUMED, "A rule.", (), False, crash)
    with running(Defect("", ())) as server:
        outcomes = verify(server, [first, *select_checks(["requests/document-served"], list(Mark))])
    assert [outcome.result for outcome in outcomes.values()] == [CheckResult.FAILED, CheckResult.PASSED]
    assert "ZeroDivisionError: unexpected" in outcomes["some/thing"].expected
    assert len(outcomes["some/thing"].expected) < 1000

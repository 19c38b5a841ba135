"""Error responses of the metadata service."""

from __future__ import annotations

import pytest

from forewarn.errors import (
    BadStartRequests,
    DatabaseFailed,
    DatabaseUnreachable,
    ForewarnError,
    LeaderLost,
    NoLeader,
    StoreFailed,
    StoreOutcomeUnknown,
    Unavailable,
    UnknownVM,
)
from forewarn.metadata import routes
from forewarn.metadata.rendered_responses import render_error
from forewarn.metadata.routes import failure
from forewarn.system.logs import OncePerMinute


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadStartRequests(problem="The body is not JSON."), 400),
        (UnknownVM(name="web-0", hint=""), 404),  # it has left the fleet
        (StoreFailed(problem="The disk is full."), 503),
    ],
    ids=["bad request", "VM that left", "full disk"],
)
def test_each_family_has_its_status(error: ForewarnError, status: int) -> None:
    answer = render_error(error)
    assert answer.status == status
    assert answer.head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-length: %d\r\n" % len(answer.body) in answer.head


@pytest.mark.parametrize(
    "error",
    [
        DatabaseUnreachable(place="forewarn@db.internal/forewarn", problem="SECRET"),
        DatabaseFailed(problem="SECRET"),
        NoLeader(problem="cannot connect to the leader at SECRET"),
        LeaderLost(problem="SECRET"),
        StoreOutcomeUnknown(problem="SECRET"),
        Unavailable(problem="SECRET"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_vm_sees_no_address_path_or_user_of_the_service(
    error: ForewarnError, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_warnings", OncePerMinute())
    answers = [failure(error) for _ in range(3)]
    assert {(answer.status, answer.body) for answer in answers} == {
        (503, b'{ "error": "Service unavailable. Try again in a while." }')
    }
    assert b"\r\nretry-after: 2\r\n" in answers[0].head
    (record,) = caplog.records
    assert "SECRET" in record.fields["error"]  # type: ignore[attr-defined]


def test_a_bug_is_a_500_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    answer = failure(RuntimeError("a bug"))
    assert (answer.status, b"a bug" in answer.body) == (500, False)
    assert "a bug" in caplog.text

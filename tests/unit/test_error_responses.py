"""Error responses of the metadata service."""

from __future__ import annotations

import pytest

from forewarn.errors import BadStartRequests, ForewarnError, StoreFailed, UnknownVM
from forewarn.metadata.rendered_responses import render_error
from forewarn.metadata.routes import failure


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


def test_a_bug_is_a_500_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    answer = failure(RuntimeError("a bug"))
    assert (answer.status, b"a bug" in answer.body) == (500, False)
    assert "a bug" in caplog.text

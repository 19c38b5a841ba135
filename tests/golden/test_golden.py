"""Golden documents in every version, byte for byte, and bodies of approvals."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from forewarn.core.durations import round_up_to_second
from forewarn.errors import BadStartRequests
from forewarn.wire.document import parse_start_requests, render
from forewarn.wire.versions import KNOWN_VERSIONS
from golden.bodies import BODIES, Body
from golden.cases import CASES, FOLDER, MARKS, Case


@pytest.mark.parametrize("version", KNOWN_VERSIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_document_equals_its_golden_file(case: Case, version: str) -> None:
    assert render(case.document, KNOWN_VERSIONS[version], case.kind) == case.file(version).read_bytes()


def test_every_case_has_one_file_per_version_and_there_are_no_other_files() -> None:
    wanted = {case.file(version) for case in CASES for version in KNOWN_VERSIONS}
    assert {path for path in FOLDER.rglob("*") if not path.is_dir()} == wanted


def test_names_are_unique_and_marks_are_valid() -> None:
    for names in ([case.name for case in CASES], [body.name for body in BODIES]):
        assert len(names) == len(set(names))
    assert {case.mark for case in CASES} | {body.mark for body in BODIES} == set(MARKS)
    assert all(case.published in ("", *KNOWN_VERSIONS) for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_ids_of_a_document_can_be_approved(case: Case) -> None:
    shown = json.loads(case.file("2024-07-09").read_bytes())["Events"]
    if shown:
        approval = {"StartRequests": [{"EventId": event["EventId"]} for event in shown]}
        assert parse_start_requests(json.dumps(approval).encode()) == [event.id for event in case.events]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.name)
def test_a_body_is_parsed_or_rejected(body: Body) -> None:
    if isinstance(body.outcome, str):
        with pytest.raises(BadStartRequests) as rejected:
            parse_start_requests(body.body)
        assert rejected.value.fields["problem"] == body.outcome
    else:
        assert tuple(parse_start_requests(body.body)) == body.outcome


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC), datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC)),
        (datetime(2026, 2, 28, 23, 59, 59, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)),
        (datetime(2026, 2, 28, 23, 59, 58, 999_999, tzinfo=UTC), datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC)),
        (
            datetime(2026, 1, 1, 0, 59, 59, 500_000, tzinfo=timezone(timedelta(hours=1))),
            datetime(2026, 1, 1, tzinfo=UTC),
        ),
    ],
)
def test_a_fraction_of_a_second_is_rounded_up(time: datetime, shown: datetime) -> None:
    assert round_up_to_second(time) == shown

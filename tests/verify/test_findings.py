"""Failures with one cause are one finding: the other failures are reported as its consequences."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from fnmatch import fnmatchcase
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

import pytest

from forewarn.verify.consequences import CONSEQUENCES
from forewarn.verify.runner import CHECKS, CheckResult, explain
from verify.broken_server import BrokenService, Defect, RunningServer, ServerRequest, ServerResponse, running
from verify.defects import DEFECTS, respond_instead
from verify.mock_server import MOCK, MockService
from verify.test_broken_servers import verify
from verify.test_verify_command import run_verify

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [check.name for check in CHECKS]
FAST = [check for check in CHECKS if "slow" not in check.name and "rate-limit" not in check.name]
DEFECT = {defect.name: defect for defect in DEFECTS}


def findings(server: RunningServer) -> dict[str, set[str]]:
    """Run all fast checks. Return each finding with its consequences."""
    outcomes = explain(verify(server, FAST).values())
    found: dict[str, set[str]] = {each.check.name: set() for each in outcomes if each.result is CheckResult.FAILED}
    for each in outcomes:
        if each.result is CheckResult.CONSEQUENCE:
            found[each.consequence_of].add(each.check.name)
    return found


@pytest.mark.parametrize(
    ("name", "finding", "consequences"),
    [
        ("ISO date", "document/not-before-format", {"document/not-before-weekday"}),
        (
            "id changes",
            "life/id-unchanged",
            {"life/starts-when-approved", "life/starts-at-not-before", "requests/approval-of-started"},
        ),
        ("an old version missing", "versions/all-served", {"versions/same-values", "versions/one-incarnation"}),
        (
            "missing header accepted",
            "requests/metadata-header-missing",
            {"requests/metadata-header-on-post", "requests/validation-order", "instance/header-required"},
        ),
        (
            "second approval rejected",
            "requests/approval-repeated",
            {"requests/approval-of-started", "requests/approval-as-json", "versions/approval-across-versions"},
        ),
        ("approval ignored", "life/starts-when-approved", {"scope/same-group-can-approve"}),
        ("start not counted", "life/start-increments", {"life/equal-incarnation-equal-document"}),
    ],
)
def test_one_defect_is_one_finding(name: str, finding: str, consequences: set[str]) -> None:
    with running(DEFECT[name]) as server:
        found = findings(server)
    assert list(found) == [finding]
    assert found[finding] >= consequences


SEE = re.compile(r"see ([a-z]+/[a-z0-9.-]+)")


@pytest.mark.parametrize("name", ["id changes", "approval ignored", "never removed", "cancel ignored", "mock"])
def test_a_skipped_check_refers_to_a_finding(name: str) -> None:
    """A reason that sends the reader to a check that passed, or to a consequence, would mislead."""
    defect, service = (MOCK, MockService) if name == "mock" else (DEFECT[name], BrokenService)
    with running(defect, service) as server:
        outcomes = explain(verify(server, FAST).values())
    results = {outcome.check.name: outcome.result for outcome in outcomes}
    referred = {outcome.check.name: SEE.findall(outcome.reason) for outcome in outcomes}
    assert any(referred.values())
    wrong = {check: names for check, names in referred.items() if any(results[n] != CheckResult.FAILED for n in names)}
    assert not wrong


@pytest.mark.parametrize("name", ["500", "redirect", "null instead of an empty array"])
def test_without_a_document_everything_else_is_a_consequence(name: str) -> None:
    with running(DEFECT[name]) as server:
        found = findings(server)
    assert list(found) == ["requests/document-served"]
    assert len(found["requests/document-served"]) > 80


def test_microsofts_mock_has_a_finding_for_each_deviation() -> None:
    with running(MOCK, MockService) as server:
        found = findings(server)
    assert found["document/not-before-format"] == {"document/not-before-weekday"}
    assert "document/event-id-guid" in found
    assert found["life/id-unchanged"] >= {"life/starts-when-approved", "life/starts-at-not-before"}
    assert found["requests/approval-empty-response"] == set()
    assert len(found["instance/whole-tree"]) > 10
    assert {"requests/large-body", "requests/approval-accepted", "requests/approval-repeated"}.isdisjoint(found)


def test_no_check_runs_after_the_server_has_stopped_to_respond() -> None:
    """The server cuts every response short once it has received a body of two megabytes."""
    broken: list[bool] = []

    def change(request: ServerRequest, response: ServerResponse) -> None:
        if request.headers.get("content-length") == "2000000":
            broken.append(True)
        if broken:
            response.closes = True
            response.headers["Content-Length"] = str(len(response.body) + 1)

    with running(Defect("", (), response=change), MockService) as server:
        outcomes = explain(verify(server, FAST).values())
    names = [outcome.check.name for outcome in outcomes]
    later = outcomes[names.index("requests/large-body") + 1 :]
    assert outcomes[names.index("requests/large-body")].result is CheckResult.FAILED
    assert {(each.result, each.consequence_of, each.reason) for each in later} == {
        (CheckResult.CONSEQUENCE, "requests/large-body", "not run: the server sends no complete response")
    }


def test_a_failure_without_its_cause_in_the_run_is_a_finding() -> None:
    with running(DEFECT["id changes"]) as server:
        outcomes = explain(
            verify(server, [check for check in CHECKS if check.name == "life/starts-when-approved"]).values()
        )
    assert [(outcome.result, outcome.consequence_of) for outcome in outcomes] == [(CheckResult.FAILED, "")]


@pytest.mark.parametrize(("name", "result"), [("id changes", "failed"), ("approval ignored", "skipped")])
def test_an_approved_start_is_enough_to_judge_the_id(name: str, result: str) -> None:
    with running(DEFECT[name]) as server:
        command = server.command("schedule", "type", "FOREWARN_EVENT_TYPE")
        run = run_verify(server.endpoint, "--only", "life/id-unchanged", "--schedule-command", command, "--json")
    (check,) = json.loads(run.stdout)["checks"]
    assert (check["result"], run.returncode) == (result, 1)


def test_text_json_junit_and_exit_code_agree(tmp_path: Path) -> None:
    file = tmp_path / "verify.xml"
    arguments = ("--only", "discovery/path-*", "--only", "discovery/no-redirect", "--junit", str(file))
    defect = Defect("", (), response=respond_instead(lambda request: request.path != request.path.lower(), 404))
    with running(defect) as server:
        text, as_json = run_verify(server.endpoint, *arguments), run_verify(server.endpoint, *arguments, "--json")
    assert (text.returncode, as_json.returncode) == (1, 1)
    lines = [" ".join(line.split()) for line in text.stdout.splitlines()]
    assert "discovery/path-any-case assumed consequence discovery/path-camel-case" in lines
    assert "consequences discovery/path-any-case" in lines
    assert lines.count("request GET /Metadata/SCHEDULEDEVENTS?api-version=2020-07-01 | Metadata: true") == 0
    assert lines[-1] == "1 passed, 1 failed with 1 consequence, 0 skipped."
    found = json.loads(as_json.stdout)
    assert found["counts"] == {"passed": 1, "failed": 1, "consequence": 1, "skipped": 0}
    consequence = next(check for check in found["checks"] if check["result"] == "consequence")
    assert (consequence["name"], consequence["consequence_of"]) == (
        "discovery/path-any-case",
        "discovery/path-camel-case",
    )
    assert consequence["request"].startswith("GET /Metadata/SCHEDULEDEVENTS")
    suites = ET.fromstring(file.read_bytes())  # noqa: S314 - written by the program under test
    assert (suites.get("tests"), suites.get("failures")) == ("3", "2")
    assert [failure.get("type") for failure in suites.iter("failure")] == ["failed", "consequence"]


def test_the_table_of_consequences_names_checks_and_has_no_cycle() -> None:
    assert set(CONSEQUENCES) <= set(NAMES)
    for patterns in CONSEQUENCES.values():
        for pattern in patterns:
            assert any(fnmatchcase(name, pattern) for name in NAMES), pattern
    graph = {
        cause: {name for name in NAMES if name != cause and any(fnmatchcase(name, pattern) for pattern in patterns)}
        for cause, patterns in CONSEQUENCES.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError

"""A disk that fails during a commit: nothing that was rejected appears after a crash, nothing acknowledged is lost."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from failing_disk import ALWAYS, FailingDisk, Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.testing import ServiceProcess

FLEET = """
[[vm]]
name = "one"
address = "127.0.0.1"

[[vm]]
name = "two"
address = "127.0.0.2"
"""
NOTHING_CHANGED = "Nothing was changed"
UNKNOWN = "It is not known whether the change was made"


@pytest.fixture
def disk(tmp_path: Path) -> FailingDisk:
    return FailingDisk.build(tmp_path)


@pytest.fixture
def service(make_service: Callable[..., ServiceProcess], disk: FailingDisk) -> ServiceProcess:
    service = make_service(fleet=FLEET, **disk.variables)
    service.document()
    return service


def restart(service: ServiceProcess) -> None:
    service.kill()
    service.start()


def create_token(service: ServiceProcess, name: str) -> Any:
    return service.control("POST", "/v1/tokens", {"name": name, "role": "admin"})


def operations(service: ServiceProcess) -> list[str]:
    return [found["id"] for found in service.control("GET", "/v1/operations").json()["operations"]]


ONE_SYNC = Failure("sync")
FAILURES = {
    "one sync": ONE_SYNC,
    "one write": Failure("write"),
    "no space for one write": Failure("write", errno.ENOSPC),
    "no space": Failure("write", errno.ENOSPC, ALWAYS),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_rejected_operation_does_not_appear_after_a_crash(
    service: ServiceProcess, disk: FailingDisk, failure: Failure
) -> None:
    known = service.request_operation("restart", "one")["id"]
    with disk.fail(failure):
        refused = service.control("POST", "/v1/operations", {"cause": "redeploy", "vms": ["two"]})
    assert refused.status == 503
    assert NOTHING_CHANGED in refused.json()["detail"]
    restart(service)
    assert operations(service) == [known]


def test_a_rejected_approval_does_not_appear_after_a_crash(service: ServiceProcess, disk: FailingDisk) -> None:
    event = service.request_operation("restart", "one")["events"][0]["id"]
    with disk.fail(ONE_SYNC):
        refused = service.approve(event)
    assert refused.status == 503
    assert refused.headers["retry-after"] == "2"
    service.until_output(NOTHING_CHANGED)
    restart(service)
    assert [found["EventStatus"] for found in service.document()["Events"]] == ["Scheduled"]


def test_a_rejected_token_does_not_appear_after_a_crash(service: ServiceProcess, disk: FailingDisk) -> None:
    with disk.fail(ONE_SYNC):
        refused = create_token(service, "rejected")
    assert refused.status == 503
    assert create_token(service, "created").status == 201
    with disk.fail(ONE_SYNC):
        assert create_token(service, "rejected").status == 503
    restart(service)
    assert [found["name"] for found in service.control("GET", "/v1/tokens").json()["tokens"]] == ["admin", "created"]


def test_a_rejected_enabling_does_not_appear_after_a_crash(service: ServiceProcess, disk: FailingDisk) -> None:
    with disk.fail(ONE_SYNC):
        assert service.request(source="127.0.0.2").status == 503
    restart(service)
    enabled = {vm["name"]: vm["events_enabled"] for vm in service.control("GET", "/v1/vms").json()["vms"]}
    assert enabled == {"one": True, "two": False}


def test_if_the_log_cannot_be_repaired_the_outcome_is_unknown_and_no_change_is_accepted(
    service: ServiceProcess, disk: FailingDisk
) -> None:
    event = service.request_operation("restart", "one")["events"][0]["id"]
    with disk.fail(Failure("sync", times=ALWAYS)):
        unknown = service.approve(event)
        assert unknown.status == 503
        service.until_output(UNKNOWN)
        rejected = create_token(service, "rejected")
        assert rejected.status == 503
        assert NOTHING_CHANGED in rejected.json()["detail"], "it was not tried"
        assert service.control("GET", "/readyz").status == 503
        assert [found["EventStatus"] for found in service.document()["Events"]] == ["Scheduled"]
    created = create_token(service, "created")
    assert created.status == 201, "the log was repaired first"
    assert service.control("GET", "/readyz").status == 200
    restart(service)
    assert [found["EventStatus"] for found in service.document()["Events"]] == ["Scheduled"], "the approval is void"
    names = [found["name"] for found in service.control("GET", "/v1/tokens").json()["tokens"]]
    assert names == ["admin", "created"]


def test_changes_are_accepted_again_when_the_disk_works_and_survive_a_crash(
    service: ServiceProcess, disk: FailingDisk
) -> None:
    for number, failure in enumerate(FAILURES.values()):
        with disk.fail(failure):
            assert create_token(service, f"rejected-{number}").status == 503
        assert create_token(service, f"created-{number}").status == 201
    restart(service)
    names = [found["name"] for found in service.control("GET", "/v1/tokens").json()["tokens"]]
    assert names == ["admin", *(f"created-{number}" for number in range(len(FAILURES)))]


def test_of_many_changes_at_once_none_that_was_rejected_appears_after_a_crash(
    service: ServiceProcess, disk: FailingDisk
) -> None:
    names = [f"token-{number}" for number in range(12)]
    with disk.fail(Failure("sync", times=ALWAYS)):
        with ThreadPoolExecutor(len(names)) as threads:
            answers = dict(zip(names, threads.map(partial(create_token, service), names), strict=True))
        service.kill()
    service.start()
    details = {name: answer.json()["detail"] for name, answer in answers.items()}
    assert any(UNKNOWN in detail for detail in details.values())
    found = {token["name"] for token in service.control("GET", "/v1/tokens").json()["tokens"]}
    assert not {name for name, detail in details.items() if NOTHING_CHANGED in detail} & found

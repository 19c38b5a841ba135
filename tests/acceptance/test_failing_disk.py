"""A disk that fails during a commit: nothing that was rejected appears after a crash, nothing acknowledged is lost."""

from __future__ import annotations

import errno
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from failing_disk import ALWAYS, DATABASE, LOG, FailingDisk, Failure

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


# --- Reads that fail ------------------------------------------------------------------------------------

NO_READS = tuple(Failure("read", times=ALWAYS, path=path) for path in (LOG, DATABASE))


@pytest.mark.parametrize("action", ["cancel", "done", "failed"])
def test_a_change_that_was_made_is_answered_although_nothing_can_be_read(
    make_service: Callable[..., ServiceProcess], disk: FailingDisk, action: str
) -> None:
    service = make_service("--fabric", "manual", "--clock", "virtual", fleet=FLEET, **disk.variables)
    service.document()
    operation = service.request_operation("restart", "one")
    if action != "cancel":
        assert service.approve(operation["events"][0]["id"]).status == 200
    with disk.fail(*NO_READS):
        answer = service.control("POST", f"/v1/operations/{operation['id']}/{action}", {})
    assert answer.status == 200, answer.json()
    after = service.get_json(f"/v1/operations/{operation['id']}")
    assert after["ended_at"]
    assert answer.json() == after


def test_the_repetition_of_a_request_does_not_say_that_nothing_was_changed(
    service: ServiceProcess, disk: FailingDisk
) -> None:
    def repeat() -> Any:
        body, key = {"cause": "restart", "vms": ["one"]}, {"Idempotency-Key": "once"}
        return service.control("POST", "/v1/operations", body, headers=key)

    first = repeat()
    with disk.fail(*NO_READS):
        answer = repeat()
    assert (answer.status, answer.json()["type"]) == (503, "urn:forewarn:ChangeMade")
    assert NOTHING_CHANGED not in answer.json()["detail"]
    assert repeat().json() == first.json()


def test_a_read_that_fails_says_so_and_the_service_is_not_ready_until_it_works(
    service: ServiceProcess, disk: FailingDisk
) -> None:
    operation = service.request_operation("restart", "one")["id"]
    assert service.control("POST", f"/v1/operations/{operation}/cancel", {}).status == 200
    assert service.control("GET", "/readyz").status == 200
    with disk.fail(*NO_READS):
        for path in (f"/v1/operations/{operation}", "/v1/history"):
            answer = service.control("GET", path)
            assert (answer.status, answer.json()["type"]) == (503, "urn:forewarn:StoreNotReadable")
            assert answer.headers["retry-after"] == "2"
            assert "Cannot read" in answer.json()["detail"]
        for _ in range(3):
            ready = service.control("GET", "/readyz")
            assert (ready.status, ready.json()["problems"]) == (503, [answer.json()["detail"]])
    assert service.control("GET", "/readyz").status == 200
    assert service.control("GET", "/v1/history").status == 200


def test_the_service_is_not_ready_while_reads_fail_although_nobody_has_read(
    service: ServiceProcess, disk: FailingDisk
) -> None:
    assert service.control("GET", "/readyz").status == 200
    with disk.fail(*NO_READS):
        until = time.monotonic() + 10
        while service.control("GET", "/readyz").status == 200:
            assert time.monotonic() < until
        for _ in range(3):
            ready = service.control("GET", "/readyz")
            assert ready.status == 503
            assert "Cannot read" in str(ready.json()["problems"])
    assert service.control("GET", "/readyz").status == 200


@pytest.mark.parametrize("failures", [NO_READS, (Failure("sync", times=ALWAYS),)], ids=["reads", "writes"])
def test_all_probes_at_the_same_time_say_that_the_service_is_not_ready(
    service: ServiceProcess, disk: FailingDisk, failures: tuple[Failure, ...]
) -> None:
    with disk.fail(*failures), ThreadPoolExecutor(8) as threads:
        create_token(service, "rejected")
        service.control("GET", "/v1/history")
        probes = list(threads.map(lambda _: service.control("GET", "/readyz").status, range(100)))
    assert set(probes) == {503}


def test_a_clock_that_moves_and_then_cannot_write_says_where_it_is(
    make_service: Callable[..., ServiceProcess], disk: FailingDisk
) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET, **disk.variables)
    service.document()
    service.request_operation("restart", "one")
    with disk.fail(Failure("sync", times=ALWAYS)):
        answer = service.control("POST", "/v1/clock/advance", {"by": "1h"})
        now = service.get_json("/v1/clock")["now"]
    assert (answer.status, answer.json()["type"]) == (503, "urn:forewarn:PartlyDone")
    assert f"The clock is at {now[:10]} {now[11:19]}" in answer.json()["detail"]
    assert NOTHING_CHANGED not in answer.json()["detail"]

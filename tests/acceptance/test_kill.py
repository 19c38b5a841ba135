"""kill -9 at random times, while requests, approvals and polls are in progress.

Every acknowledged change must be there afterwards: the same ids, no lower incarnation, each step
of an event once. Notices are shortened so that starting, settling and ending fall between kills too.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from depth import amount
from forewarn.testing.client import DOCUMENT
from watched_process import WatchedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forewarn.testing import ServiceProcess

KILLS_EACH = amount(34, 4)
SEEDS = (1, 2, 3)
"""In the deep profile more than a hundred kills together; apart, so that they can run side by side."""

FLEET = """
[[group]]
name = "web"
kind = "scale-set"

[[vm]]
group = "web"
count = 4
addresses = "127.0.0.2"

[[vm]]
name = "db"
address = "127.0.0.9"
"""
CALLERS = {"127.0.0.2": "web", "127.0.0.3": "web", "127.0.0.9": "db"}
VMS = ["web_0", "web_1", "web_2", "web_3", "db"]


class Witness:
    """Records every acknowledged change."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answers = 0
        self.enough = threading.Event()
        self.wanted = 0
        self.events: dict[str, dict[str, Any]] = {}
        self.approved: set[str] = set()
        self.documents: dict[tuple[str, str], tuple[int, bytes]] = {}

    def expect(self, answers: int) -> None:
        with self.lock:
            self.wanted = self.answers + answers
            self.enough.clear()

    def _count(self) -> None:
        self.answers += 1
        if self.answers >= self.wanted:
            self.enough.set()

    def operation(self, operation: dict[str, Any]) -> None:
        with self.lock:
            for event in operation["events"]:
                self.events[event["id"]] = event
            self._count()

    def approval(self, event_id: str) -> None:
        with self.lock:
            self.approved.add(event_id.lower())
            self._count()

    def document(self, group: str, tag: str, body: bytes) -> None:
        enabling = tag.strip('"').partition(".")[0]
        incarnation = json.loads(body)["DocumentIncarnation"]
        with self.lock:
            latest, known = self.documents.get((group, enabling), (-1, b""))
            # Answers to two callers may be handed to their threads the wrong way round: only equal
            # numbers can be compared here. One thread checks after the kill that none has decreased.
            assert incarnation != latest or body == known, "equal incarnations, different documents"
            if incarnation > latest:
                self.documents[group, enabling] = (incarnation, body)
            self._count()


def client(service: WatchedProcess, witness: Witness, number: int, stop: threading.Event) -> None:
    """Restarts, polls and approves until the service dies."""
    rng = random.Random(number)  # noqa: S311
    source = rng.choice(list(CALLERS))
    connection = http.client.HTTPConnection(*service.metadata_address, timeout=20, source_address=(source, 0))
    try:
        while not stop.is_set():
            if rng.random() < 0.3:
                answer = service.control("POST", "/v1/operations", {"cause": "restart", "vms": [rng.choice(VMS)]})
                if answer.status == 201:
                    witness.operation(answer.json()["operations"][0])
            connection.request("GET", DOCUMENT, headers={"Metadata": "true"})
            got = connection.getresponse()
            body = got.read()
            assert got.status == 200, (got.status, body)
            witness.document(CALLERS[source], got.headers["etag"], body)
            service.notices.document(source, json.loads(body))
            for event in json.loads(body)["Events"][:2]:
                if event["EventStatus"] == "Scheduled" and rng.random() < 0.7:
                    service.notices.approving(event["EventId"])
                    start = json.dumps({"StartRequests": [{"EventId": event["EventId"]}]})
                    connection.request("POST", DOCUMENT, start, {"Metadata": "true"})
                    answered = connection.getresponse()
                    answered.read()
                    # 400: another approval was first, and the event has already ended.
                    assert answered.status in (200, 400)
                    if answered.status == 200:
                        witness.approval(event["EventId"])
    except (OSError, http.client.HTTPException):
        return  # it was killed; what was not answered is not promised
    finally:
        connection.close()


def check(service: ServiceProcess, witness: Witness) -> None:
    for source, group in CALLERS.items():
        answer = service.request(source=source)
        enabling = answer.headers["etag"].strip('"').partition(".")[0]
        incarnation = answer.json()["DocumentIncarnation"]
        latest, known = witness.documents.get((group, enabling), (-1, b""))
        assert incarnation >= latest, "an incarnation went back"
        assert incarnation != latest or answer.body == known
        assert witness.documents.keys() <= {(group, enabling)} | {key for key in witness.documents if key[0] != group}
    for event_id, promised in witness.events.items():
        answer = service.control("GET", f"/v1/events/{event_id}")
        assert answer.status == 200, f"{event_id} is lost"
        event = answer.json()
        for name in ("id", "operation", "group", "vms", "type", "created_at"):
            assert event[name] == promised[name]
        if event["not_before"] != promised["not_before"]:  # on a slow machine, the restart takes more than ten seconds
            assert event["not_before"] > promised["not_before"]
            rows = service.control("GET", f"/v1/history?event={event_id}").json()["history"]
            assert any("the service was down for" in row["reason"] for row in rows)
        if event_id in witness.approved:
            assert event["approved_at"] or event["started_at"], "an acknowledged approval is lost"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[WatchedProcess]:
    with WatchedProcess(tmp_path) as made:
        yield made


@pytest.mark.parametrize("seed", SEEDS)
def test_no_acknowledged_change_is_lost(service: WatchedProcess, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    witness = Witness()
    numbers = itertools.count(seed * 100_000)
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(FLEET)
    service.start("--fleet", str(fleet), FOREWARN_SPEED="600")
    for source in CALLERS:
        service.request(source=source)
    for _ in range(KILLS_EACH):
        stop = threading.Event()
        witness.expect(rng.randint(1, 60))
        threads = [
            threading.Thread(target=client, args=(service, witness, next(numbers), stop), daemon=True) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        assert witness.enough.wait(timeout=60), "the service answers nothing"
        service.kill()
        stop.set()
        for thread in threads:
            thread.join(timeout=30)
            assert not thread.is_alive()
        service.start("--fleet", str(fleet), FOREWARN_SPEED="600")
        check(service, witness)
        forget_what_is_over(service, witness)
    end(service, witness)


def forget_what_is_over(service: ServiceProcess, witness: Witness) -> None:
    """Check an event once after its end, not after every further kill."""
    live = {event["id"] for event in service.list_all("/v1/events")}
    for event_id in [event_id for event_id in witness.events if event_id not in live]:
        check_history(service, event_id)
        del witness.events[event_id]


def check_history(service: ServiceProcess, event_id: str) -> None:
    entries = service.control("GET", f"/v1/history?event={event_id}").json()["history"]
    event_kinds = [entry["kind"] for entry in entries if entry["event"] == event_id]
    assert sorted(set(event_kinds)) == sorted(event_kinds), f"something happened twice: {event_kinds}"
    assert event_kinds[0] == "scheduled"
    assert event_kinds[-1] in ("completed", "cancelled")
    assert [entry["kind"] for entry in entries].count("executed") == 1


def end(service: WatchedProcess, witness: Witness) -> None:
    """Left alone, the service carries on to the end of every event."""
    for _ in range(100_000):
        if not service.list_all("/v1/events"):
            break
    else:
        pytest.fail("events are left over")
    forget_what_is_over(service, witness)
    assert witness.events == {}
    service.check_notices()
    assert service.stop() == 0

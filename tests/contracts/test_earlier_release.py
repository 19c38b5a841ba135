"""The current release opens data folders of earlier releases, and their operations continue to their end.

The releases themselves wrote the folders, and were killed during their work. The tests use only public interfaces:
a change of names, modules or tables must not need a change here.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from fixtures.releases import PROSE, RELEASES, differences, stored_addresses, unpack
from forewarn.testing import ServiceProcess
from webhook_receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from webhook_receiver import ReceivedRequest

OPTIONS = (
    *("--clock", "virtual", "--preview-versions", "true", "--inactivity-timeout", "3650d"),
    *("--webhook-private-networks", "127.0.0.0/8", "--webhook-retry-delay", "0.01s"),
)
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
LISTS = ("vms", "hosts", "groups", "operations", "events", "tokens", "webhooks", "history")
VOLATILE = {
    "vms": frozenset(("last_seen_at",)),  # written each minute only: a kill may take the last minute back
    "webhooks": frozenset(("position", "pending", "failed")),  # they go on as soon as the service runs
}
LONGEST = "20d"
"""By then all that was under way is over, also what waits for a maintenance window."""


class Scene(NamedTuple):
    """A service over a folder of an earlier release, and the receiver of its webhooks."""

    service: ServiceProcess
    receiver: Receiver
    facts: Any
    """What the release showed before it was killed."""

    def to_the_end(self, *, with_kill: bool) -> None:
        """Approve what the rollout waits for, let time pass, and withdraw the advice, which never ends by itself."""
        rollout = self.service.get_json(f"/v1/rollouts/{self.facts['rollout']}")
        waiting = next(row for row in rollout["in_progress"] if row["host"] == "rack-08")
        (event,) = self.service.get_json(f"/v1/operations/{waiting['operation']}")["events"]
        assert self.service.approve(event["id"], source=self.facts["addresses"]["web-0"]).status == 200
        if with_kill:
            self.service.kill()
            self.service.start(*OPTIONS)
        self.service.advance(LONGEST)
        advice = self.facts["named"]["advice"]
        assert self.service.control("POST", f"/v1/operations/{advice}/cancel").status == 200

    def look(self) -> View:
        service, facts = self.service, self.facts
        paths = {what: f"/v1/{what}?all=true" if what in ("operations", "events") else f"/v1/{what}" for what in LISTS}
        rollouts = [service.get_json(f"/v1/rollouts/{row['id']}") for row in service.list_all("/v1/rollouts?all=true")]
        return View(
            facts,
            {what: service.list_all(path) for what, path in paths.items()} | {"rollouts": rollouts},
            service.get_json("/v1/clock")["now"],
        )


class View(NamedTuple):
    """What the control API shows, beside what the release showed before it was killed."""

    facts: Any
    lists: dict[str, list[Any]]
    now: str

    def operation(self, name: str) -> dict[str, Any]:
        """An operation of the release, as it showed it."""
        wanted = self.facts["named"][name]
        found: dict[str, Any] = next(row for row in self.facts["operations"] if row["id"] == wanted)
        return found

    def rollouts(self) -> list[Any]:
        """The rollout that was under way, as it was shown by the release, and as it is."""
        lists = (self.facts["rollouts"], self.lists["rollouts"])
        return [next(row for row in rows if row["id"] == self.facts["rollout"]) for rows in lists]

    def event(self, name: str, group: str) -> dict[str, Any]:
        """The event of an operation for a group, as the release showed it."""
        found: dict[str, Any] = next(row for row in self.operation(name)["events"] if row["group"] == group)
        return found


@contextmanager
def opened(release: str, folder: Path) -> Iterator[Scene]:
    facts = unpack(release, "service", folder)
    with stored_addresses(), closing(Receiver(*facts["hooks"])) as receiver, ServiceProcess(folder) as service:
        yield Scene(service.start(*OPTIONS), receiver, facts)


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scene(release: str, tmp_path: Path) -> Iterator[Scene]:
    with opened(release, tmp_path) as found:
        yield found


# --- What is stored -------------------------------------------------------------------------------------


def test_all_stored_objects_are_still_there(scene: Scene) -> None:
    view = scene.look()
    for what, rows in view.lists.items():
        ignored = PROSE | VOLATILE.get(what, frozenset())
        assert list(differences(view.facts[what], rows, what, ignored)) == []
    _, rollout = view.rollouts()
    assert [len(rollout[name]) for name in ("pending", "in_progress", "done")] == [1, 2, 2], "in the middle of a wave"
    shown = scene.service.cli("event", "list")
    assert shown.returncode == 0, shown.stderr
    live = [event["id"] for event in view.facts["events"] if not event["ended_at"]]
    assert [event_id for event_id in live if event_id[:8] not in shown.stdout] == []


def test_vms_see_the_same_document_at_the_same_time(scene: Scene) -> None:
    service, facts = scene.service, scene.facts
    assert service.get_json("/v1/clock")["now"] == facts["now"]
    for vm, document in facts["documents"].items():
        source, tag = facts["addresses"][vm], facts["tags"][vm]
        headers = {"Metadata": "true", "If-None-Match": tag}
        answer = service.request(target=TARGET, source=source, headers=headers)
        if len(tag.partition(".")[0]) == len('"01234567'):  # release 0.1 had random names instead of numbers
            assert (answer.status, answer.json()) == (200, document), vm
            headers["If-None-Match"] = answer.headers["etag"]
        assert service.request(target=TARGET, source=source, headers=headers).status == 304, vm
    (door,) = (vm for vm in facts["vms"] if vm["name"] == "door")
    host, port = door["listen"].split(":")
    answer = service.request(target=TARGET, address=(host, int(port)))
    assert answer.json() == facts["documents"]["door"], "it has an address of its own"


def test_advice_is_an_advisory_and_an_earlier_approval_of_it_starts_nothing(scene: Scene) -> None:
    """Release 0.1 stored it as Scheduled. Then it would start now, because its NotBefore has passed."""
    service, source = scene.service, scene.facts["addresses"]["spot-1"]
    target = "/metadata/scheduledevents?api-version=2024-07-09"
    shown = service.document(target=target, source=source)
    (advice,) = shown["Events"]
    wanted = {"EventStatus": "Advisory", "EventType": "SpotRebalanceRecommendation", "NotBefore": ""}
    assert advice == advice | wanted
    assert service.approve(advice["EventId"], source=source).status == 200
    service.advance("1d")
    assert service.document(target=target, source=source) == shown
    assert service.get_json(f"/v1/operations/{scene.facts['named']['advice']}")["status"] == "pending"


def test_new_requests_respect_the_stored_state(scene: Scene) -> None:
    service = scene.service
    assert not service.get_json("/v1/vms/Worker_IN_0")["events_enabled"], "idle was silent for a day"
    document = service.document(target=TARGET, source=scene.facts["addresses"]["idle-0"])
    assert (document["DocumentIncarnation"], document["Events"]) == (0, [])
    newest = service.list_all("/v1/history")[-1]
    assert (newest["sequence"], newest["kind"], newest["group"]) == (len(scene.facts["history"]) + 1, "enabled", "idle")
    redeployed = service.request_operation("redeploy", "web-0")
    assert redeployed["events"][0]["status"] == "started", "web approves redeploys by itself"
    deleted = service.request_operation("scale-in", "batch_0")
    assert deleted["events"][0]["status"] == "scheduled", "batch gets notice of a deletion"
    migrated = service.request_operation("live-migration", *service.get_json("/v1/hosts/rack-10")["vms"])
    assert migrated["events"][0]["not_before"].endswith("T01:00:00.000000Z"), "db has a window, at 2 o'clock in Berlin"
    assert service.control("POST", "/v1/hosts/rack-05/return").status == 200
    degraded = service.get_json(f"/v1/operations/{scene.facts['named']['degraded']}")
    assert degraded["status"] == "cancelled", "no VM must leave a host that is healthy again"


# --- What was under way ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def end(release: str, tmp_path_factory: pytest.TempPathFactory) -> View:
    """When all that was under way is over. The service was killed once more on the way."""
    with opened(release, tmp_path_factory.mktemp(release)) as scene:
        scene.to_the_end(with_kill=True)
        return scene.look()


def test_all_is_done_and_nothing_twice(end: View) -> None:
    rows = end.lists["history"]
    operations = {row["id"]: row for row in end.lists["operations"]}
    assert operations.keys() >= {row["id"] for row in end.facts["operations"]}
    ends = {name: operations[number]["status"] for name, number in end.facts["named"].items()}
    assert ends == dict.fromkeys(ends, "done") | {"cancelled": "cancelled", "advice": "cancelled"}
    done = Counter((row["operation"], row["event"], row["kind"]) for row in rows if row["operation"] in operations)
    assert [what for what, count in done.items() if count > 1] == []
    for operation in operations.values():
        assert operation["ended_at"]
        assert ((operation["id"], None, "executed") in done) == (operation["status"] == "done")
        for event in operation["events"]:
            happened = {what for _, event_id, what in done if event_id == event["id"]} - {"approved", "postponed"}
            went = {"started", "completed"} if operation["status"] == "done" else {"cancelled"}
            assert happened == {"scheduled"} | went


def test_history_continues_without_a_gap(end: View) -> None:
    before, rows = end.facts["history"], end.lists["history"]
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    assert list(differences(before, rows[: len(before)])) == []
    types = {operation["id"]: (operation["type"], operation["cause"]) for operation in end.lists["operations"]}
    of_operations = [row for row in rows if row["operation"] in types]
    assert [(row["type"], row["cause"]) for row in of_operations] == [types[row["operation"]] for row in of_operations]
    # Only new rows have the event as it was.
    assert [row["snapshot"] is None for row in rows] == [
        row["event"] is None or row["sequence"] <= len(before) for row in rows
    ]


def test_nothing_starts_before_its_time(end: View) -> None:
    """An event without approval starts at its NotBefore, also if only one of two groups has approved."""
    started = {row["event"]: row["time"] for row in end.lists["history"] if row["kind"] == "started"}
    for name, group in {
        "scheduled": "web",
        "shared": "db",
        "windowed": "db",
        "degraded": "db",
        "hurried": "batch",
    }.items():
        event = end.event(name, group)
        assert (event["status"], event["approved_at"]) == ("scheduled", None)
        assert started[event["id"]] == event["not_before"], name
    held = end.operation("held")
    assert held["holds_until"], "a group with a window gets no notice"
    (after,) = (row for row in end.lists["operations"] if row["id"] == held["id"])
    assert after["started_at"] == held["holds_until"]
    for name, group in {"shared": "web", "terminated": "batch"}.items():
        event = end.event(name, group)
        assert (event["status"], bool(event["approved_at"])) == ("scheduled", True)
        assert started[event["id"]] == event["not_before"], f"{name}: one was approved, but not the other"


def test_a_rollout_continues_from_its_wave(end: View) -> None:
    before, after = end.rollouts()
    assert (after["id"], after["status"], after["wave"]) == (before["id"], "done", before["wave"] + 1)
    hosts = [*before["done"], *(row["host"] for row in before["in_progress"]), *before["pending"]]
    assert sorted(after["done"]) == sorted(hosts)
    updates = [row for row in end.lists["operations"] if row["rollout"] == before["id"]]
    assert sorted(row["host"] for row in updates) == sorted(hosts), "each host once"
    assert {row["health"] for row in updates} == {"good"}


def test_only_running_operations_have_changed_the_fleet(end: View) -> None:
    before, after = ({vm["name"]: vm for vm in vms} for vms in (end.facts["vms"], end.lists["vms"]))
    assert before.keys() - after.keys() == {"batch_1", "batch_3"}, "they were being deleted"
    assert {name for name, vm in after.items() if vm["host"] != before[name]["host"]} == {"db-1", "batch_0"}
    changing = frozenset(("host", "configured_host", "incarnation", "events", "last_seen_at"))
    assert list(differences([before[name] for name in after], list(after.values()), "vms", changing)) == []
    states = [{host["name"]: host["state"] for host in hosts} for hosts in (end.facts["hosts"], end.lists["hosts"])]
    assert states[0].items() <= states[1].items(), "one may have come: a spare for db-1"
    assert {vm: after[vm]["incarnation"] > before[vm]["incarnation"] for vm in ("web-0", "db-0", "batch_0")} == {
        "web-0": True,
        "db-0": True,
        "batch_0": True,
    }


# --- Webhooks -------------------------------------------------------------------------------------------


def test_webhooks_get_their_missing_rows_and_nothing_twice(scene: Scene) -> None:
    service, receiver, facts = scene.service, scene.receiver, scene.facts
    failures = {row["sequence"]: row["failed"] for row in facts["webhooks/pager/failures"]}
    assert {*failures.values()} == {True, False}, "some are given up, some wait"
    pager = next(hook for hook in facts["webhooks"] if hook["name"] == "pager")
    assert pager["position"] < facts["history"][-1]["sequence"], "some are not even looked at, or were in flight"
    scene.to_the_end(with_kill=False)  # what is on its way at a kill may come twice
    rows = {row["sequence"]: row for row in service.list_all("/v1/history")}
    first = min(facts["taken"]["/pager"])
    wanted = {
        "/pager": {number for number in rows if number >= first and not failures.get(number)},
        "/narrow": {number for number, row in rows.items() if number >= first and is_for_narrow(row)},
    }
    expected = {path: sorted(numbers - set(facts["taken"][path])) for path, numbers in wanted.items()}
    receiver.until(lambda: all({*numbers} <= {*taken(receiver, path)} for path, numbers in expected.items()))
    assert {path: taken(receiver, path) for path in expected} == expected, "each once, and what was left out first"
    for got in receiver.taken:
        assert got.event["source"] == facts["source"]
        assert is_signed_with(facts[f"secret of {got.path[1:]}"], got)
    given_up = {number for number, is_given_up in failures.items() if is_given_up}
    shown = {row["sequence"] for row in service.list_all("/v1/webhooks/pager/failures") if row["failed"]}
    assert shown == given_up
    assert service.control("POST", "/v1/webhooks/pager/retry").status == 200
    receiver.until(lambda: given_up <= {*taken(receiver, "/pager")})
    assert service.stop() == 0
    assert sorted(taken(receiver, "/pager")) == sorted([*expected["/pager"], *given_up])


def taken(receiver: Receiver, path: str) -> list[int]:
    return [int(got.id) for got in receiver.taken if got.path == path]


def is_for_narrow(row: dict[str, Any]) -> bool:
    return row["group"] == "web" and row["kind"] in ("scheduled", "started", "completed")


def is_signed_with(secret: str, got: ReceivedRequest) -> bool:
    signed = got.headers["forewarn-timestamp"].encode() + b"." + got.body
    return got.headers["forewarn-signature"] == "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


# --- Tokens and keys ------------------------------------------------------------------------------------


def test_tokens_keep_their_permissions(scene: Scene) -> None:
    service, facts = scene.service, scene.facts
    assert service.token == facts["admin"], "the file with the first token is not written anew"
    body = {"cause": "restart", "vms": ["web-1"], "dry_run": True}
    statuses = {
        name: (
            service.control("GET", "/v1/hosts", token=facts[name]).status,
            service.control("POST", "/v1/operations", body, token=facts[name]).status,
        )
        for name in ("admin", "ops", "brief", "web-team", "revoked")
    }
    assert statuses == {
        "admin": (200, 200),
        "ops": (200, 200),
        "brief": (200, 403),
        "web-team": (403, 403),
        "revoked": (401, 401),
    }
    seen = service.control("GET", "/v1/events", token=facts["web-team"]).json()["events"]
    live = [event["id"] for event in facts["events"] if event["group"] == "web" and not event["ended_at"]]
    assert sorted(event["id"] for event in seen) == sorted(live)
    service.advance("31d")
    assert service.control("GET", "/v1/vms", token=facts["brief"]).status == 401, "it has expired"


def test_a_repeated_request_gets_its_stored_response(scene: Scene) -> None:
    service, facts = scene.service, scene.facts
    headers = {"Idempotency-Key": "restart-web-2"}

    def ask(body: dict[str, Any]) -> Any:
        return service.control("POST", "/v1/operations", body, token=facts["ops"], headers=headers)

    again = ask(facts["asked"])
    assert (again.status, again.json()) == (201, facts["answered"])
    assert again.headers["idempotency-replayed"] == "true"
    assert ask({**facts["asked"], "vms": ["web-1"]}).status == 409
    late = {"name": "late", "role": "viewer"}
    token = service.control("POST", "/v1/tokens", late, headers={"Idempotency-Key": "late"})
    assert (token.status, token.json()["name"], token.json()["token"]) == (201, "late", None)
    assert len(service.list_all("/v1/history")) == len(facts["history"])
    service.advance("1d")
    assert ask(facts["asked"]).json()["operations"][0]["id"] != facts["named"]["scheduled"], "its day is over"

"""The feed of a real service: every row once and in order, also across restarts and with slow readers."""

from __future__ import annotations

import json
import random
import signal
import threading
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import foreground
from acceptance.feed_client import Feed, Follower
from forewarn.testing import ServiceProcess
from forewarn.testing.client import COMMAND

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import Service
    from forewarn.testing.client import ServiceClient

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
SHARED_HOST = """
[[host]]
name = "rack"

[[group]]
name = "web"
kind = "availability-set"

[[vm]]
name = "web-0"
group = "web"
host = "rack"
address = "127.0.0.2"

[[vm]]
name = "db"
host = "rack"
address = "127.0.0.9"
"""
MANY = '[[vm]]\nname = "vm-{n}"\ncount = 1000\n'

pytestmark = pytest.mark.forewarn(fleet=FLEET)


def newest(service: ServiceClient) -> int:
    row = service.get_json("/v1/history?order=newest&limit=1")["history"][0]
    return int(row["sequence"])


def listen(service: ServiceProcess) -> None:
    for source in ("127.0.0.2", "127.0.0.9"):
        service.request(source=source)


def readers(service: ServiceClient) -> int:
    lines = service.control("GET", "/metrics").body.decode().splitlines()
    return int(float(next(line for line in lines if line.startswith("forewarn_feed_readers ")).split()[1]))


def wait_for_readers(service: ServiceClient, number: int) -> None:
    for _ in range(10_000):
        if readers(service) == number:
            return
    pytest.fail(f"there are {readers(service)} readers, not {number}")


# --- Restarts -------------------------------------------------------------------------------------------


def give_orders(service: ServiceProcess, seed: int, stop: threading.Event) -> None:
    """Restarts and cancellations until the service is gone."""
    rng = random.Random(seed)  # noqa: S311
    try:
        while not stop.is_set():
            vm = rng.choice(["web_0", "web_1", "web_2", "web_3", "db"])
            answer = service.control("POST", "/v1/operations", {"cause": "restart", "vms": [vm]})
            if answer.status == 409 or rng.random() < 0.5:  # it has one already, perhaps of another thread
                for operation in service.get_json("/v1/operations")["operations"]:
                    if operation["vms"] == [vm]:
                        service.control("POST", f"/v1/operations/{operation['id']}/cancel")
    except (OSError, HTTPException, AssertionError, ValueError):
        return  # 503 while it stops, or nothing at all


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_across_restarts_no_row_is_lost_or_repeated(make_service: Callable[..., ServiceProcess], end: str) -> None:
    service = make_service(fleet=FLEET)
    listen(service)
    followers = [
        Follower(service, "?after=0"),
        Follower(service),
        Follower(service, "?after=0&group=db&kind=scheduled"),
    ]
    seeds = iter(range(1000))
    fleet_file = str(service.folder / "fleet.toml")
    for life in range(6):
        if life:
            service.start("--fleet", fleet_file)
        for follower in followers:
            follower.up()
        stop = threading.Event()
        threads = [
            threading.Thread(target=give_orders, args=(service, next(seeds), stop), daemon=True) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for follower in followers:
            follower.wait_for_more()
        # In the middle of it: orders and feeds are under way.
        assert (service.stop() == 0) if end == "stop" else service.kill()
        stop.set()
        for thread in threads:
            thread.join(60)
        assert "Traceback" not in service.output
        assert "graceful" not in service.output, "the stop waited for a feed"
    service.start("--fleet", fleet_file)
    for follower in followers:
        follower.up()
    service.request_operation("redeploy", "db")
    history = service.list_all("/v1/history")
    assert [row["sequence"] for row in history] == list(range(1, len(history) + 1))
    wanted = [row for row in history if row["group"] == "db" and row["kind"] == "scheduled"]
    for follower in followers[:2]:
        follower.wait_for(history[-1]["sequence"])
    followers[2].wait_for(wanted[-1]["sequence"])
    assert service.stop() == 0
    for follower in followers:
        follower.end()
        assert follower.connections == 7
    assert followers[0].found == history
    # From when it came: without a gap since.
    assert followers[1].found == history[-len(followers[1].found) :]
    assert followers[2].found == wanted


def test_a_reader_without_any_row_yet_misses_nothing(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    follower = Follower(service)
    follower.up()
    wait_for_readers(service, 1)
    service.kill()
    service.start("--fleet", str(service.folder / "fleet.toml"))
    before = newest(service)
    service.request_operation("restart", "db")  # while nobody follows
    follower.up()
    follower.wait_for(before + 1)
    assert follower.found[0]["sequence"] == before + 1
    service.stop()
    follower.end()


# --- The event in a row ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_row_has_the_event_as_it_was_also_after_a_restart(
    make_service: Callable[..., ServiceProcess], end: str
) -> None:
    service = make_service("--clock", "virtual", fleet=SHARED_HOST)
    listen(service)
    with Feed(service, "?after=0") as feed:
        (operation,) = service.control("POST", "/v1/operations", {"cause": "host-update", "host": "rack"}).json()[
            "operations"
        ]
        web, db = (next(e for e in operation["events"] if e["group"] == group) for group in ("web", "db"))
        events = {"scheduled": web}
        events["postponed"] = service.control("POST", f"/v1/events/{web['id']}/postpone", {"by": "1h"}).json()
        service.request(source="127.0.0.2")
        events["approved"] = service.control("POST", f"/v1/events/{web['id']}/approve").json()
        service.control("POST", f"/v1/events/{db['id']}/approve")
        events["started"] = service.get_json(f"/v1/events/{web['id']}")
        service.advance("1h")
        events["completed"] = service.get_json(f"/v1/events/{web['id']}")
        live_rows = feed.until(newest(service))
    assert [event["status"] for event in events.values()] == [
        *("scheduled", "scheduled", "scheduled", "started", "completed")
    ]
    assert (service.stop() == 0) if end == "stop" else service.kill()
    service.start("--clock", "virtual", "--fleet", str(service.folder / "fleet.toml"))
    service.advance("5d")
    with Feed(service, "?after=0") as feed:
        replayed = feed.until(live_rows[-1]["sequence"])
    assert replayed == live_rows == service.list_all("/v1/history")[: len(live_rows)]
    rows = {row["kind"]: row for row in replayed if row["event"] == web["id"]}
    assert {row["type"] for row in rows.values()} == {"Freeze"}
    snapshots = {kind: dict(row["snapshot"]) for kind, row in rows.items()}
    waits = {kind: snapshot.pop("waits") for kind, snapshot in snapshots.items()}
    assert {snapshot.pop("cause") for snapshot in snapshots.values()} == {"host-update"}
    assert snapshots == events
    both = [("approval", "web"), ("approval", "db")]
    assert {kind: [(wait["kind"], wait["group"]) for wait in found] for kind, found in waits.items()} == {
        "scheduled": both,
        "postponed": both,
        "approved": both[1:],
        "started": [],
        "completed": [],
    }
    assert {wait["until"] for wait in waits["postponed"]} == {events["postponed"]["not_before"]}
    # Rows without an event say what the operation is.
    requested, executed = (next(row for row in replayed if row["kind"] == kind) for kind in ("requested", "executed"))
    for row in (requested, executed):
        assert (row["type"], row["cause"], row["host"], row["snapshot"]) == ("Freeze", "host-update", "rack", None)


@pytest.mark.forewarn(fleet=FLEET, enable_groups=False)
def test_a_group_that_is_not_notified_learns_what_happens(forewarn: Service) -> None:
    forewarn.request_operation("redeploy", "db")
    (row,) = forewarn.list_all("/v1/history?kind=not-notified")
    assert (row["group"], row["vms"], row["type"], row["cause"]) == ("db", ["db"], "Redeploy", "redeploy")
    assert row["snapshot"] is None


# --- Filters and positions ------------------------------------------------------------------------------


def test_by_group_and_kind(forewarn: Service) -> None:
    for name in ("web_0", "db", "web_1"):
        forewarn.request_operation("restart", name)
    history = forewarn.list_all("/v1/history")
    cases: dict[str, Callable[[dict[str, Any]], bool]] = {
        "": lambda row: True,
        "&group=web": lambda row: row["group"] == "web",
        "&group=web&group=db": lambda row: row["group"] in ("web", "db"),
        "&kind=requested": lambda row: row["kind"] == "requested",
        "&type=reboot": lambda row: row["type"] == "Reboot",
        "&type=Reboot&kind=scheduled&group=web": lambda row: (row["kind"], row["group"]) == ("scheduled", "web"),
        "&kind=fleet-applied&kind=scheduled&group=db": lambda row: row["group"] == "db" and row["kind"] == "scheduled",
    }
    for query, fits in cases.items():
        expected = [row for row in history if fits(row)]
        with Feed(forewarn, f"?after=0{query}") as feed:
            assert feed.answer.headers["content-type"].startswith("text/event-stream")
            assert feed.until(expected[-1]["sequence"]) == expected


def test_the_start_of_the_feed(forewarn: Service) -> None:
    forewarn.request_operation("restart", "db")
    history = forewarn.list_all("/v1/history")
    last = history[-1]["sequence"]
    with Feed(forewarn, "?after=2") as feed:
        assert feed.until(last) == history[2:]
    with Feed(forewarn, "?after=0", last_id="3") as feed:  # the header is newer than the URL
        assert feed.until(last) == history[3:]
    with Feed(forewarn) as feed:
        forewarn.request_operation("redeploy", "db")
        assert feed.until(last + 1)[0]["sequence"] == last + 1


@pytest.mark.forewarn(fleet=MANY, enable_groups=False)
def test_a_cursor_older_than_the_rows_in_memory(forewarn: Service) -> None:
    names = [f"vm-{number}" for number in range(1000)]
    for _ in range(5):
        answer = forewarn.control("POST", "/v1/operations", {"cause": "restart", "vms": names})
        assert answer.status == 201
        forewarn.advance("1h")
    history = forewarn.list_all("/v1/history")
    assert len(history) > 12_000
    with Feed(forewarn, "?after=0") as feed:
        assert feed.until(len(history)) == history
    with Feed(forewarn, "?after=17&group=vm-5") as feed:
        expected = [row for row in history if row["group"] == "vm-5" and row["sequence"] > 17]
        assert feed.until(expected[-1]["sequence"]) == expected


@pytest.mark.forewarn(enable_groups=False, history_retention="1d")
def test_a_cursor_beyond_the_retention_is_gone(forewarn: Service) -> None:
    forewarn.request_operation("restart", "db")
    forewarn.advance("3d")
    forewarn.request_operation("restart", "db")
    oldest = forewarn.list_all("/v1/history")[0]["sequence"]
    assert oldest > 3
    with Feed(forewarn, "?after=1") as feed:
        assert feed.answer.status == 404
        problem = feed.answer.read().decode()
    assert "HistoryExpired" in problem
    assert f"the oldest stored row is {oldest}" in problem
    for after in (0, oldest - 1):
        with Feed(forewarn, f"?after={after}") as feed:
            assert feed.until(oldest)[0]["sequence"] == oldest


@pytest.mark.parametrize(
    ("query", "last_id", "status", "words"),
    [
        ("?after=-1", "", 400, "whole number"),
        ("?after=x", "", 400, "whole number"),
        ("?after=", "", 400, "whole number"),
        ("?after=1&after=2", "", 400, "more than once"),
        ("?after=999999", "", 400, "the newest is"),
        ("?after=99999999999999999999", "", 400, "whole number"),
        ("", "999999", 400, "the newest is"),
        ("", "one", 400, "Last-Event-ID"),
        ("", "9" * 5000, 400, "Last-Event-ID"),
        ("?kind=strated", "", 400, "Did you mean 'started'"),
        ("?type=rebot", "", 400, "Did you mean 'Reboot'"),
        ("?type=", "", 400, "empty"),
        ("?kind=", "", 400, "kind"),
        ("?group=", "", 400, "empty"),
        ("?group=wep", "", 404, "Did you mean 'web'"),
        ("?groups=web", "", 400, "Did you mean 'group'"),
    ],
)
def test_invalid_requests_are_rejected(
    shared: ServiceProcess, query: str, last_id: str, status: int, words: str
) -> None:
    with Feed(shared, query, last_id) as feed:
        assert (feed.answer.status, words in feed.answer.read().decode()) == (status, True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One service for all that changes nothing."""
    folder = tmp_path_factory.mktemp("feed")
    (folder / "fleet.toml").write_text(FLEET)
    service = ServiceProcess(folder).start("--fleet", str(folder / "fleet.toml"))
    yield service
    service.kill()


def test_a_token_is_needed(shared: ServiceProcess) -> None:
    with Feed(shared, token="wrong") as feed:  # noqa: S106
        assert feed.answer.status == 401


def test_a_look_at_the_head_does_not_stay(shared: ServiceProcess) -> None:
    answer = shared.control("HEAD", "/v1/feed")
    assert (answer.status, answer.body) == (200, b"")
    wait_for_readers(shared, 0)


def test_a_tenant_gets_the_rows_of_its_group_until_its_token_is_revoked(forewarn: Service) -> None:
    forewarn.request_operation("restart", "web_0")
    forewarn.request_operation("restart", "db")
    made = forewarn.control("POST", "/v1/tokens", {"name": "shop", "role": "tenant", "group": "db"})
    token = made.json()["token"]
    own = [row for row in forewarn.list_all("/v1/history") if row["group"] == "db"]
    for query in ("?after=0", "?after=0&group=db"):
        with Feed(forewarn, query, token=token) as feed:
            assert feed.until(own[-1]["sequence"]) == own
    for query in ("?group=web", "?after=0&group=web", "?after=0&group=db&group=web"):
        with Feed(forewarn, query, token=token) as feed:
            assert feed.answer.status == 404
    with Feed(forewarn, token=token) as feed:
        assert forewarn.control("DELETE", "/v1/tokens/shop").status == 200
        assert list(feed.rows()) == []


# --- Clients that do not read, or go away ---------------------------------------------------------------


def resident_bytes(service: ServiceProcess) -> int:
    assert service.process is not None
    lines = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) * 1024


def test_a_reader_that_does_not_read_delays_neither_others_nor_the_stop(
    make_service: Callable[..., ServiceProcess],
) -> None:
    service = make_service("--clock", "virtual", fleet=MANY)
    names = [f"vm-{number}" for number in range(1000)]
    deaf = [Feed(service, small=True) for _ in range(10)]
    try:
        with Feed(service) as other:
            for _ in range(3):
                assert service.control("POST", "/v1/operations", {"cause": "restart", "vms": names}).status == 201
                service.advance("1h")
            history = service.list_all("/v1/history")
            last = history[-1]["sequence"]
            found = other.until(last)
            assert found == history[-len(found) :]
        before = resident_bytes(service)
        deaf += [Feed(service, "?after=0", small=True) for _ in range(20)]
        with Feed(service, "?after=0") as other:
            assert other.until(last) == history
            # All of it for each of them would be three times as much.
            assert resident_bytes(service) - before < 20 * len(json.dumps(history)) / 3
            assert readers(service) == 31
            assert service.stop() == 0
            assert list(other.rows()) == []
        assert "graceful" not in service.output, "the stop waited for who does not read"
        assert "Traceback" not in service.output
    finally:
        for feed in deaf:
            feed.__exit__()


def test_a_disconnected_reader_is_removed(forewarn: Service) -> None:
    feeds = [Feed(forewarn) for _ in range(10)]
    assert readers(forewarn) == 10
    for feed in feeds[:7]:
        feed.__exit__()
    wait_for_readers(forewarn, 3)
    for feed in feeds[7:]:
        feed.__exit__()
    wait_for_readers(forewarn, 0)


# --- forewarn event watch -------------------------------------------------------------------------------


class Watch:
    """`forewarn event watch`, as typed in another terminal."""

    def __init__(self, service: ServiceClient, *arguments: str) -> None:
        self.process = foreground.start([*COMMAND, "event", "watch", *arguments], service.environment)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def until(self, words: str) -> list[str]:
        lines: list[str] = []
        while not lines or words not in lines[-1]:
            line = self.line()
            assert line, f"it ended: {lines}"
            lines.append(line)
        return lines

    def end(self) -> tuple[int, str, str]:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.mark.parametrize("selected", [(), ("--service", "watched")])
def test_watching_continues_after_a_kill(
    selected: tuple[str, ...], make_service: Callable[..., ServiceProcess]
) -> None:
    service = make_service("--name", "watched", fleet=FLEET)
    listen(service)
    watch = Watch(service, "--after", "0", "--kind", "scheduled", "--kind", "cancelled", *selected)
    operation = service.request_operation("restart", "db")
    (first,) = watch.until("scheduled")
    assert "db  Reboot, scheduled; restart (user); not before " in first
    assert (
        "; Virtual machine is going to be restarted as requested by authorized user; waits for approval of db; "
        in first
    )
    assert "; by admin: NotBefore" in first
    service.kill()
    assert watch.process.stderr is not None
    assert "connection lost" in watch.process.stderr.readline()
    service.start("--name", "watched", "--fleet", str(service.folder / "fleet.toml"))
    assert service.control("POST", f"/v1/operations/{operation['id']}/cancel").status == 200
    (second,) = watch.until("cancelled")
    assert "db  Reboot, cancelled; restart (user); Virtual machine" in second
    assert "waits" not in second
    assert watch.end() == (130, "", "")


def test_waiting_continues_after_a_kill(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    listen(service)
    with foreground.running([*COMMAND, "vm", "restart", "db", "--wait"], service.environment) as waiting:
        assert waiting.stdout is not None
        assert waiting.stderr is not None
        assert next(line for line in iter(waiting.stdout.readline, "") if "not approved by db" in line)
        (operation,) = service.control("GET", "/v1/operations").json()["operations"]
        service.kill()
        assert "connection lost" in waiting.stderr.readline()
        service.start("--fleet", str(service.folder / "fleet.toml"))
        assert service.control("POST", f"/v1/operations/{operation['id']}/cancel").status == 200
        out, err = waiting.communicate(timeout=60)
    assert err == "forewarn: restart of db was cancelled.\n"
    assert (waiting.returncode, out) == (4, "restart of db: cancelled\n")


@pytest.mark.parametrize(
    ("duration", "shown"),
    [("9s", "Freeze of 9s"), ("0s", "Freeze of 0s"), ("unknown", "Freeze of unknown duration")],
)
def test_watching_shows_cause_source_and_duration(forewarn: Service, duration: str, shown: str) -> None:
    watch = Watch(forewarn, "--after", "0", "--kind", "scheduled")
    host = forewarn.control("GET", "/v1/vms/db").json()["host"]
    forewarn.request_operation("host-update", host=host, duration=duration, description="New firmware.")
    (line,) = watch.until("scheduled")
    assert f"db  {shown}, scheduled; host-update (platform); not before " in line
    assert "; New firmware; waits for approval of db; by operator: " in line
    assert watch.end()[0] == 130


def test_watching_as_json_until_the_pipe_is_closed(forewarn: Service) -> None:
    watch = Watch(forewarn, "--json", "--after", "0")
    first = forewarn.list_all("/v1/history")[0]
    assert watch.line() == service_json(first)
    assert watch.process.stdout is not None
    watch.process.stdout.close()
    for name in ("web_0", "web_1", "web_2", "web_3", "db"):
        forewarn.request_operation("restart", name)
    assert watch.process.stderr is not None
    assert (watch.process.wait(60), watch.process.stderr.read()) == (0, "")
    watch.process.stderr.close()


def service_json(row: dict[str, Any]) -> str:
    # As it came over the wire.

    return json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n"


def test_watching_reports_errors(shared: ServiceProcess) -> None:
    for arguments, code, words in (
        (("--kind", "strated"), 2, "Did you mean 'started'"),
        (("--type", "rebot"), 2, "Did you mean 'Reboot'"),
        (("--group", "wep"), 3, "Did you mean 'web'"),
        (("--after", "999999"), 2, "the newest is"),
        (("--after", "-1"), 2, "whole number"),
    ):
        result = shared.cli("event", "watch", *arguments)
        assert (result.returncode, words in result.stderr) == (code, True), result
    gone = shared.cli("event", "watch", FOREWARN_DATA=str(shared.folder / "nothing"))
    assert gone.returncode == 3
    assert "Found no Forewarn service" in gone.stderr

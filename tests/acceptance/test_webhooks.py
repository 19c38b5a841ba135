"""Webhooks of a real service, to a real receiver: by the command line and the control API."""

from __future__ import annotations

import json
import resource
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.causes import request_one
from command_line import run_command
from forewarn.assembly import FixedLimits
from forewarn.core.webhooks import WebhookRetryPolicy
from forewarn.testing import Service
from webhook_receiver import Receiver, Reply, authority_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forewarn.testing import ServiceProcess
    from forewarn.testing.client import ServiceClient
    from webhook_receiver import ReceivedRequest

ROOT = Path(__file__).parents[2]
FLEET = """
[[group]]
name = "web"
kind = "availability-set"

[[vm]]
name = "web-0"
group = "web"
address = "127.0.0.1"

[[vm]]
name = "db"
address = "127.0.0.2"
"""
LOCAL = ("--webhook-private-networks", "127.0.0.1/32", "--clock", "virtual")
"""For a service in a process of its own, which has the usual delay of retries."""
QUICK = FixedLimits(webhook_retry=WebhookRetryPolicy(retry_seconds=0.01))
pytestmark = pytest.mark.forewarn(fleet=FLEET, webhook_private_networks="127.0.0.1/32", limits=QUICK)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def process(make_service: Callable[..., ServiceProcess]) -> ServiceProcess:
    """One that may send to 127.0.0.1, with both groups listening."""
    started = make_service(*LOCAL, fleet=FLEET)
    for source in ("127.0.0.1", "127.0.0.2"):
        started.request(source=source)
    return started


def run(service: ServiceClient, *arguments: str) -> str:
    result = run_command(service, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def parsed(service: ServiceClient, *arguments: str) -> Any:
    return json.loads(run(service, *arguments, "--json"))


def events(service: ServiceClient, operations: list[dict[str, Any]]) -> dict[str, str]:
    """The rows of history about operations: their ids, each with its group."""
    rows: dict[str, str] = {}
    for operation in operations:
        for row in service.get_json(f"/v1/history?operation={operation['id']}")["history"]:
            rows[str(row["sequence"])] = row["group"] or ""
    return rows


def check_order(got: list[ReceivedRequest], expected: dict[str, str]) -> None:
    """Each once, and in order."""
    assert [one.id for one in got] == sorted(expected, key=int)


def test_from_adding_to_removing_by_command_line(forewarn: Service, receiver: Receiver) -> None:
    secret = run(forewarn, "webhook", "add", "pager", receiver.url()).strip()
    assert len(secret) >= 32
    operation = request_one(forewarn, "restart", "web-0")
    expected = events(forewarn, [operation])
    receiver.wait_until_accepted(set(expected))
    check_order(receiver.got, expected)
    for got in receiver.got:
        verify(got, secret)
        assert got.event["specversion"] == "1.0"
        assert got.event["source"].startswith("/forewarn/")
    scheduled = next(got.event for got in receiver.got if got.event["type"] == "forewarn.scheduled")
    assert scheduled["subject"] == operation["events"][0]["id"]
    assert (scheduled["partitionkey"], scheduled["data"]["vms"]) == ("web", ["web-0"])
    snapshot = dict(scheduled["data"]["snapshot"])
    (wait,) = snapshot.pop("waits")
    assert (wait["kind"], wait["group"], wait["until"]) == ("approval", "web", snapshot["not_before"])
    assert snapshot.pop("cause") == "restart"
    assert snapshot == operation["events"][0]
    assert "127.0.0.1" in run(forewarn, "webhook", "list")
    shown = run(forewarn, "webhook", "show", "pager")
    assert "by " in shown
    assert secret not in shown + run(forewarn, "webhook", "list", "--json") + run(forewarn, "webhook", "show", "pager")
    assert "accepted the test event (HTTP 200)" in run(forewarn, "webhook", "test", "pager")
    assert receiver.got[-1].event["type"] == "forewarn.test"
    verify(receiver.got[-1], secret)
    assert "No undelivered rows." in run(forewarn, "webhook", "failures", "pager")
    assert "No undelivered rows." in run(forewarn, "webhook", "retry", "pager")
    before = len(receiver.got)
    assert run(forewarn, "webhook", "remove", "pager") == "Webhook pager was removed.\n"
    forewarn.request_operation("restart", "db")
    assert "No webhooks." in run(forewarn, "webhook", "list")
    assert len(receiver.got) == before
    assert run_command(forewarn, "webhook", "show", "pager").returncode == 3


def verify(got: ReceivedRequest, secret: str) -> None:
    """Verify the signature as the documentation describes."""
    example: dict[str, Any] = {}
    exec(compile(documented_example(), "docs/how-to/webhooks.md", "exec"), example)  # noqa: S102 - our own documentation
    verified = example["verified"]
    headers = {name.title(): value for name, value in got.headers.items()}
    sent = int(headers["Forewarn-Timestamp"])
    assert verified(secret, headers, got.body, time.time()), "by the real time, also where the clock is virtual"
    assert verified(secret, headers, got.body, sent + 300)
    assert not verified(secret, headers, got.body, sent + 301)
    assert not verified(secret, headers, got.body, sent - 301)
    assert not verified(secret, headers, got.body + b" ", sent)
    assert not verified(secret + "x", headers, got.body, sent)
    for wrong in (str(sent + 1), "soon", ""):
        assert not verified(secret, {**headers, "Forewarn-Timestamp": wrong}, got.body, sent)
    assert not verified(secret, {}, got.body, sent)


def documented_example() -> str:
    page = (ROOT / "docs" / "how-to" / "webhooks.md").read_text()
    return page.partition("```python\n")[2].partition("```")[0]


def until(is_so: Callable[[], bool]) -> None:
    """Ask until it is so."""
    for _ in range(1000):
        if is_so():
            return
    pytest.fail("it never comes about")


def test_a_receiver_that_fails_hangs_redirects_and_recovers(forewarn: Service, receiver: Receiver) -> None:
    other = Receiver()
    parsed(forewarn, "webhook", "add", "pager", receiver.url())
    receiver.respond = lambda got: Reply(503) if got.group == "web" else Reply()
    operations = [request_one(forewarn, cause, vm) for cause in ("restart", "redeploy") for vm in ("web-0", "db")]
    expected = events(forewarn, operations)
    first = min((number for number, group in expected.items() if group == "web"), key=int)
    receiver.until(lambda: [got.id for got in receiver.got].count(first) > 2)
    before = {number for number in expected if int(number) < int(first)}
    assert {got.id for got in receiver.got} == {*before, first}, "all that comes after it waits"
    (row,) = parsed(forewarn, "webhook", "failures", "pager")["failures"]
    assert (str(row["sequence"]), row["error"]) == (first, "HTTP 503")
    assert (row["failed"], row["attempts"] > 1, row["entry"]["kind"]) == (False, True, "scheduled")
    assert "retrying" in run(forewarn, "webhook", "failures", "pager")
    shown = parsed(forewarn, "webhook", "show", "pager")
    assert (shown["position"], shown["failed"], shown["last_error"]) == (int(first), 0, "HTTP 503")
    assert shown["pending"] == len(expected) - len(before)
    metrics = forewarn.control("GET", "/metrics").body.decode()
    assert f'forewarn_webhook_undelivered_rows{{state="pending",webhook="pager"}} {shown["pending"]}.0' in metrics
    # To where it may not go: the answer is as good as none.
    receiver.respond = lambda _: Reply(307, {"Location": f"http://127.0.0.2:{other.port}/"})
    count = len(receiver.got)
    receiver.until(lambda: len(receiver.got) > count + 1)
    assert other.got == []
    # To where it may, and from there on it arrives.
    receiver.respond = lambda _: Reply(307, {"Location": other.url("/moved")})
    other.wait_until_accepted(expected.keys() - before)
    until(lambda: not forewarn.list_all("/v1/webhooks/pager/failures"))  # written a moment after it was taken
    assert run(forewarn, "webhook", "failures", "pager") == "No undelivered rows.\n"
    check_order([*receiver.taken, *other.taken], expected)
    other.close()


def test_a_receiver_that_hangs_is_no_reason_to_stop_late_or_to_lose_anything(
    process: ServiceProcess, receiver: Receiver
) -> None:
    parsed(process, "webhook", "add", "pager", receiver.url())
    receiver.respond = lambda _: Reply(hang=True)
    expected = events(process, [process.request_operation("restart", "db")])
    receiver.until(lambda: len(receiver.got) > 0)
    assert process.stop() == 0
    receiver.respond = lambda _: Reply()
    process.start(*LOCAL)
    receiver.wait_until_accepted(set(expected))
    check_order(receiver.taken, expected)


def test_a_delivery_during_a_full_disk_is_stored_later_and_not_repeated(
    process: ServiceProcess, receiver: Receiver
) -> None:
    parsed(process, "webhook", "add", "pager", receiver.url(), "--kind", "requested")
    answered = threading.Event()

    def answer_late(_: ReceivedRequest) -> Reply:
        assert answered.wait(60)
        return Reply()

    receiver.respond = answer_late
    first = min(events(process, [process.request_operation("restart", "db")]), key=int)
    receiver.until(lambda: len(receiver.got) == 1)
    assert process.process is not None
    _, most = resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (0, most))
    answered.set()
    receiver.wait_until_accepted({first})
    until(lambda: "Cannot write the change" in str(process.control("GET", "/readyz", token="").json()))
    resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (most, most))
    second = min(events(process, [process.request_operation("redeploy", "db")]), key=int)
    receiver.wait_until_accepted({second})
    assert process.stop() == 0
    process.start(*LOCAL)
    third = min(events(process, [process.request_operation("live-migration", "db")]), key=int)
    receiver.wait_until_accepted({third})
    assert [got.id for got in receiver.got] == [first, second, third]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """One that gives up after two attempts, and can be started again."""
    twice = QUICK._replace(webhook_retry=WebhookRetryPolicy(retry_seconds=0.01, attempts=2))
    with Service(FLEET, data=tmp_path / "data", webhook_private_networks="127.0.0.1/32", limits=twice) as made:
        yield made


def test_failed_rows_are_shown_and_can_be_retried(service: Service, receiver: Receiver) -> None:
    parsed(service, "webhook", "add", "pager", receiver.url(), "--kind", "requested")
    receiver.respond = lambda _: Reply(400)
    expected = {
        number
        for operation in (request_one(service, "restart", "web-0"), request_one(service, "restart", "db"))
        for number in events(service, [operation])
    }
    receiver.until(lambda: len(receiver.got) == 4)
    until(lambda: all(row["failed"] for row in service.list_all("/v1/webhooks/pager/failures")))
    table = run(service, "webhook", "failures", "pager")
    assert table.count("failed") == 2
    assert parsed(service, "webhook", "show", "pager")["failed"] == 2
    metrics = service.control("GET", "/metrics").body.decode()
    assert 'forewarn_webhook_delivery_attempts_total{result="failed",webhook="pager"} 4.0' in metrics
    assert 'forewarn_webhook_undelivered_rows{state="failed",webhook="pager"} 2.0' in metrics
    # The same after a restart: nothing is tried that was given up.
    service.stop()
    service.start()
    rows = parsed(service, "webhook", "failures", "pager")["failures"]
    assert [(row["attempts"], row["failed"]) for row in rows] == [(2, True), (2, True)]
    receiver.respond = lambda _: Reply()
    assert "Retrying 1 row." in run(service, "webhook", "retry", "pager", "--sequence", str(rows[0]["sequence"]))
    receiver.wait_until_accepted({str(rows[0]["sequence"])})
    # That a row was taken is written a moment later.
    until(lambda: len(service.list_all("/v1/webhooks/pager/failures")) == 1)
    assert "Retrying 1 row." in run(service, "webhook", "retry", "pager")
    receiver.wait_until_accepted({str(row["sequence"]) for row in rows})
    until(lambda: not service.list_all("/v1/webhooks/pager/failures"))
    assert {got.id for got in receiver.taken} <= expected
    assert run(service, "webhook", "failures", "pager") == "No undelivered rows.\n"


def test_a_failed_webhook_test_gives_the_reason(forewarn: Service, receiver: Receiver) -> None:
    parsed(forewarn, "webhook", "add", "pager", receiver.url())
    receiver.respond = lambda _: Reply(401)
    result = run_command(forewarn, "webhook", "test", "pager")
    assert result.returncode == 6
    assert "HTTP 401" in result.stderr
    answer = forewarn.control("POST", "/v1/webhooks/pager/test")
    assert (answer.status, answer.json()) == (
        200,
        {"delivered": False, "status": 401, "error": "HTTP 401"},
    )
    receiver.close()
    assert "Connection refused" in run_command(forewarn, "webhook", "test", "pager").stderr
    receiver.open()


def test_a_webhook_over_tls_by_host_name(make_service: Callable[..., ServiceProcess], tmp_path: Path) -> None:
    receiver = Receiver(tls=True)
    targets = ("--webhook-private-networks", "all")
    service = make_service(*targets, fleet=FLEET, SSL_CERT_FILE=authority_file(tmp_path))
    parsed(service, "webhook", "add", "pager", receiver.url(host="localhost"))
    assert "HTTP 200" in run(service, "webhook", "test", "pager")
    assert service.stop() == 0
    service.start(*targets)  # nobody trusts it now
    assert "certificate" in run_command(service, "webhook", "test", "pager").stderr
    receiver.close()


# --- Where it may not go --------------------------------------------------------------------------------------


def test_private_networks_are_rejected_unless_the_operator_allows_them(
    make_service: Callable[..., ServiceProcess], receiver: Receiver
) -> None:
    service = make_service(fleet=FLEET)
    for url in (receiver.url(), receiver.url(host="[::1]"), receiver.url(host="[::ffff:127.0.0.1]")):
        result = run_command(service, "webhook", "add", "pager", url)
        assert result.returncode == 5
        assert "webhook_private_networks" in result.stderr
    # A name can be given: it is looked up, and judged, each time.
    for name, host in (("local", "localhost"), ("short", "127.1"), ("number", "2130706433")):
        parsed(service, "webhook", "add", name, receiver.url(host=host))
        result = run_command(service, "webhook", "test", name)
        assert result.returncode == 6
        assert "webhook_private_networks" in result.stderr
    service.request_operation("restart", "web-0")
    until(lambda: service.get_json("/v1/webhooks/local")["last_error"] is not None)
    assert "webhook_private_networks" in run(service, "webhook", "show", "local")
    assert service.stop() == 0
    assert receiver.got == []
    assert "Traceback" not in service.output


def test_an_invalid_network_in_the_setting_is_rejected(make_service: Callable[..., ServiceProcess]) -> None:
    for arguments in (
        ("--webhook-private-networks", "everything"),
        ("--webhook-private-networks", "10.0.0.1/8"),
    ):
        with pytest.raises(RuntimeError, match=f"{arguments[0][2:].replace('-', '_')} = "):
            make_service(*arguments)


# --- What is wrong in a request -------------------------------------------------------------------------------

GOOD = {"name": "pager", "url": "https://example.com/hook", "kinds": ["host-failed"]}


@pytest.mark.parametrize(
    ("wrong", "status", "pointer", "words"),
    [
        ({"name": None}, 400, "/name", "is required"),
        ({"name": ""}, 400, "/name", "1 to 64"),
        ({"name": "a b"}, 400, "/name", "1 to 64"),
        ({"url": None}, 400, "/url", "is required"),
        ({"url": "example.com"}, 400, "/url", "http:// or https://"),
        ({"url": "https://me:pw@example.com/"}, 400, "/url", "user name or a password"),
        ({"url": 5}, 400, "/url", "must be a string"),
        ({"url": "http://169.254.1.1/"}, 403, "/url", "webhook_private_networks"),
        ({"secret": "short"}, 400, "/secret", "16 to 256"),
        ({"groups": "web"}, 400, "/groups", "list of strings"),
        ({"groups": ["wep"]}, 404, None, "Did you mean 'web'"),
        ({"kinds": ["schedule"]}, 400, "/kinds/0", "Did you mean 'scheduled'"),
        ({"color": "red"}, 400, "/color", "not a known member"),
    ],
)
def test_invalid_requests_are_explained(
    forewarn: Service, wrong: dict[str, Any], status: int, pointer: str | None, words: str
) -> None:
    body = {name: value for name, value in {**GOOD, **wrong}.items() if value is not None}
    answer = forewarn.control("POST", "/v1/webhooks", body)
    details = answer.json()
    assert (answer.status, details.get("pointer")) == (status, pointer)
    assert words in details["detail"]
    assert forewarn.list_all("/v1/webhooks") == []


def test_a_name_twice_an_unknown_one_and_an_unknown_row(forewarn: Service) -> None:
    assert forewarn.control("POST", "/v1/webhooks", GOOD).status == 201
    assert forewarn.control("POST", "/v1/webhooks", GOOD).status == 409
    answer = forewarn.control("GET", "/v1/webhooks/pagre")
    assert (answer.status, "Did you mean 'pager'" in answer.json()["detail"]) == (404, True)
    for method, path in (("DELETE", ""), ("POST", "/test"), ("GET", "/failures"), ("POST", "/retry")):
        assert forewarn.control(method, f"/v1/webhooks/none{path}").status == 404
    answer = forewarn.control("POST", "/v1/webhooks/pager/retry", {"sequence": 7})
    assert (answer.status, "'7'" in answer.json()["detail"]) == (404, True)
    assert forewarn.control("POST", "/v1/webhooks/pager/retry", {"sequence": "7"}).status == 400
    assert forewarn.control("POST", "/v1/webhooks/pager/retry", {"sequence": 0}).status == 404


def test_a_repeated_request_adds_one_and_shows_the_secret_once(forewarn: Service) -> None:
    headers = {"Idempotency-Key": "one"}
    first = forewarn.control("POST", "/v1/webhooks", GOOD, headers=headers).json()
    again = forewarn.control("POST", "/v1/webhooks", GOOD, headers=headers)
    assert again.status == 201
    assert again.json() == {**first, "secret": None}
    assert first["secret"] not in json.dumps(forewarn.list_all("/v1/webhooks"))


def test_a_custom_secret_from_a_file(forewarn: Service, receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("a secret of my own\n")
    said = run(forewarn, "webhook", "add", "pager", receiver.url(), "--secret-file", str(file))
    assert "secret of my own" not in said
    run(forewarn, "webhook", "test", "pager")
    verify(receiver.got[-1], "a secret of my own")
    result = run_command(forewarn, "webhook", "add", "other", receiver.url(), "--secret-file", str(tmp_path / "none"))
    assert (result.returncode, "Cannot read" in result.stderr) == (2, True)

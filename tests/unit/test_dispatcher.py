"""Webhooks over a real engine and a real receiver: what arrives, in which order, and what a stop leaves behind."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import sqlite3
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from counted_turns import CountedLoop, longest_turn
from engines import FLEET, START, approve, make_engine, request_operation
from starlette.requests import Request

from forewarn.control.metrics import webhook_metrics
from forewarn.control.paging import Paging
from forewarn.control.slices import Slices
from forewarn.control.webhooks import WebhookControl
from forewarn.core.fleet import VM, Fleet
from forewarn.core.fleet_commands import PolicyUpdate, set_policy
from forewarn.core.limits import OperatorLimits
from forewarn.core.state import DeliveryStats
from forewarn.core.webhooks import (
    MAX_UNCONFIRMED,
    MAX_WEBHOOK_GROUPS,
    MAX_WEBHOOKS,
    Undelivered,
    Webhook,
    WebhookRetryPolicy,
    add_webhook,
    parse_allowed_networks,
    record_deliveries,
    remove_webhook,
    retry,
)
from forewarn.delivery.cloud_events import cloud_event
from forewarn.delivery.outbound import OutboundClient
from forewarn.delivery.webhooks import Dispatcher
from forewarn.errors import (
    BadOption,
    ForbiddenWebhookAddress,
    LimitExceeded,
    ServiceStopping,
    UnknownResource,
    WebhookExists,
)
from forewarn.ports import HistoryFilter
from forewarn.stores.sqlite_file import DATABASE_NAME
from forewarn.wire.metrics_text import write_metrics
from webhook_receiver import Receiver, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from forewarn.core.state import HistoryEntry
    from forewarn.core.webhooks import DeliveryUpdate
    from forewarn.engine.engine import Engine
    from webhook_receiver import ReceivedRequest

SECRET = "not really a secret"  # noqa: S105
LOCAL = OperatorLimits(makes_hosts=True, webhook_private_networks=parse_allowed_networks("127.0.0.1"))
QUICK = WebhookRetryPolicy(0.01, 80)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@asynccontextmanager
async def running(
    folder: Path | None = None, *, pace: WebhookRetryPolicy = QUICK, clean: bool = True, limits: OperatorLimits = LOCAL
) -> AsyncIterator[tuple[Engine, Dispatcher]]:
    """An engine with webhooks. Not clean: it is left as a kill would leave it, with nothing written at the end."""
    engine, _ = make_engine(folder, limits=limits)
    await engine.start()
    if not engine.fleet.vms:
        await engine.apply_fleet(FLEET, by="test")
    dispatcher = Dispatcher(engine, OutboundClient(LOCAL.webhook_private_networks, 30), pace)
    await dispatcher.start()
    try:
        yield engine, dispatcher
    finally:
        if clean:
            await dispatcher.stop()
        else:
            for sender in dispatcher._senders.values():
                sender.cancel()
            await dispatcher._outbound.close()
        await engine.stop()


def hook(url: str, name: str = "hook", **options: Any) -> Webhook:
    return Webhook(name, url, SECRET, "", START, **options)


async def history(engine: Engine, after: int = 0) -> dict[str, str]:
    """The ids of rows, each with its group."""
    entries = await engine.records.history(HistoryFilter(after=after))
    return {str(entry.sequence): entry.group for entry in entries}


async def wait_until_accepted(receiver: Receiver, ids: set[str]) -> None:
    await asyncio.to_thread(receiver.wait_until_accepted, ids)


async def until(engine: Engine, is_so: Callable[[], bool]) -> None:
    """Until that is so after a commit."""
    now_so = asyncio.Event()

    def look(_: object = None) -> None:
        if not now_so.is_set() and is_so():
            now_so.set()

    engine.subscribe_to_commits(look)
    look()
    async with asyncio.timeout(60):
        await now_so.wait()


async def until_settled(engine: Engine) -> None:
    """Until all that has happened is delivered and written."""

    def is_so() -> bool:
        webhook = engine.draft().webhook("hook")
        assert webhook is not None
        return webhook.cursor == engine.draft().sequence and not undelivered(engine)

    await until(engine, is_so)


def undelivered(engine: Engine) -> dict[int, Undelivered]:
    return engine.draft().undelivered("hook")


def check_order(got: list[ReceivedRequest], expected: dict[str, str]) -> None:
    """Each once, and in order."""
    assert [one.id for one in got] == sorted(expected, key=int)


async def test_all_rows_after_the_add_arrive_once_and_signed(receiver: Receiver) -> None:
    async with running() as (engine, _):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        assert (added.created_by, added.created_at, added.cursor) == ("ops", START, engine.draft().sequence)
        for group in ("web", "db-0"):
            await engine.enable(group, by="test")
        operation = await request_operation(engine, "restart", "web-0")
        await approve(engine, *operation.events, by="web-0", group="web")
        await engine.advance(timedelta(hours=1))
        await until_settled(engine)
        expected = await history(engine, added.cursor)
        check_order(receiver.got, expected)
        assert len(expected) > 5
        first = receiver.got[0]
        assert first.event["type"] == "forewarn.enabled"
        assert first.event["source"] == f"/forewarn/{engine.facts['installation']}"
        assert first.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
        assert first.headers["forewarn-attempt"] == "1"
        for got in receiver.got:
            signed = got.headers["forewarn-timestamp"].encode() + b"." + got.body
            wanted = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
            assert got.headers["forewarn-signature"] == f"v1={wanted}"


async def test_only_rows_that_match_the_filter_arrive(receiver: Receiver) -> None:
    async with running() as (engine, _):
        wishes = hook(receiver.url(), groups=("web",), kinds=("enabled", "scheduled"))
        await engine.execute(add_webhook, wishes, "ops")
        for group in ("db-0", "web"):
            await engine.enable(group, by="test")
        await request_operation(engine, "restart", "db-0")
        await request_operation(engine, "restart", "web-1")
        await asyncio.to_thread(receiver.until, lambda: len(receiver.taken) == 2)
    assert [(got.event["type"], got.group) for got in receiver.got] == [
        ("forewarn.enabled", "web"),
        ("forewarn.scheduled", "web"),
    ]


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": CountedLoop})], ids=["counted"])
async def test_the_work_for_many_webhooks_is_done_in_many_short_turns(receiver: Receiver) -> None:
    first, *others = (vm.name for vm in FLEET.vms.values() if vm.group == "web")
    async with running() as (engine, _):
        await engine.enable("web", by="test")
        for number in range(MAX_WEBHOOKS):
            await engine.execute(add_webhook, hook(receiver.url(), f"hook-{number}", kinds=("scheduled",)), "ops")
        await request_operation(engine, "restart", first)  # imports at first use
        await asyncio.to_thread(receiver.until, lambda: len(receiver.taken) == MAX_WEBHOOKS)
        with longest_turn() as turns:
            for name in others:
                await request_operation(engine, "restart", name)
            await asyncio.to_thread(receiver.until, lambda: len(receiver.taken) == MAX_WEBHOOKS * (1 + len(others)))
    assert turns.longest < 20_000


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": CountedLoop})], ids=["counted"])
async def test_many_webhooks_with_many_groups_are_listed_in_short_turns() -> None:
    groups = [f"vm-{number}" for number in range(MAX_WEBHOOK_GROUPS)]
    async with running() as (engine, dispatcher):
        await engine.apply_fleet(Fleet([VM(name, name, "host-a") for name in groups]), by="test")
        for number in range(MAX_WEBHOOKS):
            added = hook("http://example.com/", f"hook-{number}", groups=tuple(groups), kinds=("host-failed",))
            await engine.execute(add_webhook, added, "ops")
        while any(dispatcher.position(each) < engine.records.newest for each in engine.draft().webhooks().values()):
            await engine.records.oldest()  # the senders read what they skip
        control, request = WebhookControl(engine, dispatcher, Slices()), Request({"type": "http"})
        request.state.query = Paging(limit=1000)
        with longest_turn() as turns:
            page = await control.webhooks(request)
        assert turns.longest < 1000
        with longest_turn() as turns:
            text = write_metrics(webhook_metrics(engine, dispatcher))
        assert turns.longest < 15_000
    assert bytes(page.body).count(groups[-1].encode()) == text.count("_dropped_rows_total{") == MAX_WEBHOOKS


async def test_the_connections_of_a_removed_webhook_are_closed(receiver: Receiver) -> None:
    async with running() as (engine, dispatcher):
        await engine.execute(add_webhook, hook(receiver.url()), "ops")
        await engine.enable("web", by="test")
        await until_settled(engine)
        sender = dispatcher._senders["hook"]
        pool = await sender._outbound._connection_pool()
        assert pool.connections
        await engine.remove_webhook("hook", "ops")
        await asyncio.wait([sender._task])
        assert not pool.connections


async def test_a_failing_row_blocks_the_rows_after_it(receiver: Receiver) -> None:
    receiver.respond = lambda got: Reply(500 if got.group == "web" else 200)
    async with running() as (engine, dispatcher):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        for group in ("db-0", "web"):
            await engine.enable(group, by="test")
        for cause in ("restart", "redeploy", "live-migration"):
            await request_operation(engine, cause, "web-0")
            await request_operation(engine, cause, "db-0")
        expected = await history(engine, added.cursor)
        first = min((number for number, group in expected.items() if group == "web"), key=int)
        await asyncio.to_thread(receiver.until, lambda: len([got for got in receiver.got if got.id == first]) > 3)
        assert {got.id for got in receiver.got} == {str(added.cursor + 1), first}, "what comes behind it waits"
        await until(engine, lambda: undelivered(engine)[int(first)].attempts > 3)
        assert undelivered(engine)[int(first)].error == "HTTP 500"
        assert undelivered(engine).keys() == {int(first)}
        webhook = engine.draft().webhook("hook")
        assert webhook is not None
        assert dispatcher.position(webhook) == webhook.cursor == int(first)
        assert dispatcher.stats(webhook).pending == len(expected) - 1
        attempts = [int(got.headers["forewarn-attempt"]) for got in receiver.got if got.id == first]
        assert attempts == list(range(1, len(attempts) + 1))
        receiver.respond = lambda _: Reply()
        await until_settled(engine)
        assert dispatcher.stats(webhook) == DeliveryStats()
    check_order(receiver.taken, expected)


@pytest.mark.parametrize("trouble", ["fails", "hangs", "resets", "redirects", "is away"])
@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
async def test_delivery_resumes_after_failures_and_a_restart(
    receiver: Receiver, tmp_path: Path, trouble: str, clean: bool
) -> None:
    replies = {
        "fails": Reply(503),
        "hangs": Reply(hang=True),
        "resets": Reply(reset=True),
        "redirects": Reply(307, {"Location": "http://127.0.0.2:9/"}),
    }
    async with running(tmp_path, clean=clean) as (engine, dispatcher):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        await engine.enable("web", by="test")
        await until_settled(engine)
        before = len(receiver.taken)
        if trouble == "is away":
            receiver.close()
        else:
            receiver.respond = lambda _: replies[trouble]
        if trouble == "hangs":
            dispatcher._senders["hook"]._outbound._timeout_seconds = 0.2
        for cause in ("restart", "redeploy", "live-migration"):
            await request_operation(engine, cause, "web-0")
            await request_operation(engine, cause, "db-0")
        await until(engine, lambda: any(row.attempts > 1 for row in undelivered(engine).values()))
    assert len(receiver.taken) == before
    if trouble == "hangs":  # else it would hang on for a while
        receiver.respond = lambda _: Reply()
    async with running(tmp_path, clean=clean) as (engine, _):
        await request_operation(engine, "restart", "web-1")
        expected = await history(engine, added.cursor)
        if trouble == "is away":
            receiver.open()
        receiver.respond = lambda _: Reply()
        await until_settled(engine)
    check_order(receiver.taken, expected)
    async with running(tmp_path) as (engine, _):
        await until_settled(engine)
    check_order(receiver.taken, expected)


async def test_a_delivery_that_was_not_written_before_a_kill_is_repeated_with_the_same_id(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with running(tmp_path, clean=False) as (engine, dispatcher):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")

        async def write_late(update: DeliveryUpdate | None) -> None:
            await asyncio.Event().wait()  # the kill comes first

        dispatcher._senders["hook"]._write = write_late  # type: ignore[method-assign]
        await engine.enable("web", by="test")
        expected = await history(engine, added.cursor)
        await wait_until_accepted(receiver, set(expected))
    async with running(tmp_path) as (engine, _):
        await until_settled(engine)
    assert [got.id for got in receiver.taken] == [*expected, *expected]
    assert len({got.event["source"] for got in receiver.taken}) == 1


@pytest.mark.parametrize(("status", "most"), [(200, MAX_UNCONFIRMED), (400, 1)], ids=["delivered", "given up"])
async def test_only_a_few_rows_are_sent_before_their_results_are_on_disk(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, status: int, most: int
) -> None:
    receiver.respond = lambda _: Reply(status)
    async with running(pace=WebhookRetryPolicy(3600, 1)) as (engine, dispatcher):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        order, may_write = engine.execute, asyncio.Event()

        async def order_late(what: Any, *arguments: Any) -> Any:
            if what is record_deliveries:
                await may_write.wait()
            return await order(what, *arguments)

        monkeypatch.setattr(engine, "execute", order_late)
        for name in FLEET.vms:
            await request_operation(engine, "restart", name)
        expected = await history(engine, added.cursor)
        assert len(expected) > MAX_UNCONFIRMED + 1
        await asyncio.to_thread(receiver.until, lambda: len(receiver.got) >= most)
        await dispatcher.send_test("hook")  # it takes as long as a row would
        rows = [got.id for got in receiver.got if got.event["type"] != "forewarn.test"]
        assert rows == list(expected)[:most]
        may_write.set()
        await asyncio.to_thread(receiver.until, lambda: len(receiver.got) == len(expected) + 1)


async def test_a_clean_stop_stores_the_position_of_a_webhook_without_matching_rows(tmp_path: Path) -> None:
    async with running(tmp_path) as (engine, dispatcher):
        added = await engine.execute(add_webhook, hook("http://example.com/", kinds=("host-failed",)), "ops")
        await engine.enable("web", by="test")
        while dispatcher.position(added) < engine.records.newest:
            await engine.records.oldest()
        assert engine.draft().webhook("hook") == added, "it is not worth a write of its own"
    async with running(tmp_path) as (engine, _):
        assert engine.draft().webhook("hook") == added._replace(cursor=engine.records.newest)


async def test_a_clean_stop_waits_for_a_response_that_arrives_soon(receiver: Receiver, tmp_path: Path) -> None:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()

    def answer_while_stopping(_: ReceivedRequest) -> Reply:
        asyncio.run_coroutine_threadsafe(stopping.wait(), loop).result()
        return Reply()

    receiver.respond = answer_while_stopping
    async with running(tmp_path) as (engine, dispatcher):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        await engine.enable("web", by="test")
        expected = await history(engine, added.cursor)
        await asyncio.to_thread(receiver.until, lambda: len(receiver.got) == 1)
        stop = asyncio.create_task(dispatcher.stop())
        await asyncio.sleep(0)
        stopping.set()
        await stop
    async with running(tmp_path) as (engine, _):
        await until_settled(engine)
    check_order(receiver.got, expected)


async def test_a_failed_row_is_kept_until_a_retry_and_later_rows_continue(receiver: Receiver) -> None:
    refused: set[str] = set()
    receiver.respond = lambda got: Reply(400 if got.id in refused else 200)
    async with running(pace=WebhookRetryPolicy(0.01, 3)) as (engine, dispatcher):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        refused.add(str(added.cursor + 1))
        await engine.enable("web", by="test")
        await request_operation(engine, "restart", "web-0")
        expected = await history(engine, added.cursor)
        await wait_until_accepted(receiver, expected.keys() - refused)
        first = added.cursor + 1
        await until(engine, lambda: undelivered(engine)[first].failed)
        row = undelivered(engine)[first]
        assert (row.attempts, row.error) == (3, "HTTP 400")
        assert [row.sequence for row in await dispatcher.retry("hook", first)] == [first]
        await until(engine, lambda: undelivered(engine)[first][2:] == (4, 0, "HTTP 400"))
        refused.clear()
        await dispatcher.retry("hook")
        await until_settled(engine)
        with pytest.raises(UnknownResource, match="undelivered history row '999'"):
            await dispatcher.retry("hook", 999)
        with pytest.raises(UnknownResource, match=r"Unknown webhook 'hok'\. Did you mean 'hook'"):
            await dispatcher.retry("hok")
    assert sorted(expected) == sorted(got.id for got in receiver.taken)


async def test_a_retry_waits_for_no_pause(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(500)
    async with running(pace=WebhookRetryPolicy(3600, 80)) as (engine, dispatcher):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        await engine.enable("web", by="test")
        await until(engine, lambda: bool(undelivered(engine)))
        receiver.respond = lambda _: Reply()
        await dispatcher.retry("hook")
        await until_settled(engine)
        assert [got.id for got in receiver.got] == [str(added.cursor + 1)] * 2


async def test_a_row_delivered_during_a_retry_request_is_not_sent_again(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.respond = lambda _: Reply(500)
    async with running(pace=WebhookRetryPolicy(3600, 80)) as (engine, dispatcher):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        await engine.enable("web", by="test")
        await until(engine, lambda: bool(undelivered(engine)))
        receiver.respond = lambda _: Reply()
        decided, order = asyncio.Event(), engine.execute

        async def order_and_dawdle(what: Any, *arguments: Any) -> Any:
            outcome = await order(what, *arguments)
            decided.set()
            await until_settled(engine)
            return outcome

        with monkeypatch.context() as patch:
            patch.setattr(engine, "execute", order_and_dawdle)
            slow = asyncio.create_task(dispatcher.retry("hook"))
            await decided.wait()
        await dispatcher.retry("hook")
        await slow
        await request_operation(engine, "restart", "web-0")
        await until_settled(engine)
        expected = await history(engine, added.cursor)
    check_order(receiver.taken, expected)


async def test_a_retry_happens_even_if_its_client_disconnects(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(400)
    async with running(pace=WebhookRetryPolicy(3600, 1)) as (engine, _):
        await engine.execute(add_webhook, hook(receiver.url()), "ops")
        await engine.enable("web", by="test")
        await until(engine, lambda: any(row.failed for row in undelivered(engine).values()))
        receiver.respond = lambda _: Reply()
        await engine.execute(retry, "hook")
        await until_settled(engine)
    assert [got.group for got in receiver.taken] == ["web"]


async def test_a_row_that_fails_and_is_retried_in_one_commit_is_sent_once_more(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.respond = lambda _: Reply(400)
    async with running(pace=WebhookRetryPolicy(3600, 1)) as (engine, _):
        await engine.execute(add_webhook, hook(receiver.url()), "ops")
        order, retries = engine.execute, list[asyncio.Task[Any]]()

        async def order_and_retry(what: Any, *arguments: Any) -> Any:
            if what is record_deliveries and not retries:
                receiver.respond = lambda _: Reply()
                outcome = asyncio.create_task(order(what, *arguments))
                retries.append(asyncio.create_task(order(retry, "hook")))
                return await outcome
            return await order(what, *arguments)

        monkeypatch.setattr(engine, "execute", order_and_retry)
        await engine.enable("web", by="test")
        await until_settled(engine)
        assert len(await retries[0]) == 1
    assert [got.headers["forewarn-attempt"] for got in receiver.got] == ["1", "2"]


async def test_a_retry_of_one_that_is_removed_and_added_again_sends_the_new_one_nothing_old(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(400)
    async with running(pace=WebhookRetryPolicy(3600, 1)) as (engine, dispatcher):
        await engine.execute(add_webhook, hook(receiver.url("/old")), "ops")
        await engine.enable("web", by="test")
        await until(engine, lambda: any(row.failed for row in undelivered(engine).values()))
        receiver.respond = lambda _: Reply()
        _, _, added = await asyncio.gather(
            dispatcher.retry("hook"),
            engine.execute(remove_webhook, "hook", "ops"),
            engine.execute(add_webhook, hook(receiver.url("/new")), "ops"),
        )
        await request_operation(engine, "restart", "web-0")
        expected = await history(engine, added.cursor)
        await until_settled(engine)
    check_order(receiver.taken, expected)
    assert {got.path for got in receiver.taken} == {"/new"}


async def test_new_rows_wait_for_a_row_that_is_retried(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(500)
    async with running(pace=WebhookRetryPolicy(3600, 80)) as (engine, dispatcher):
        await engine.execute(add_webhook, hook(receiver.url()), "ops")
        await engine.enable("web", by="test")
        await until(engine, lambda: bool(undelivered(engine)))
        receiver.respond = lambda _: Reply()
        await engine.enable("db-0", by="test")
        await dispatcher.retry("hook")
        await until_settled(engine)
        assert [got.group for got in receiver.got] == ["web", "web", "db-0"]


async def test_removing_ends_it_at_once_and_leaves_nothing_behind(receiver: Receiver, tmp_path: Path) -> None:
    receiver.respond = lambda got: Reply(500 if got.path == "/hook" else 200)
    async with running(tmp_path) as (engine, _):
        await engine.execute(add_webhook, hook(receiver.url("/other"), "other", kinds=("webhook-removed",)), "ops")
        await engine.execute(add_webhook, hook(receiver.url("/hook")), "ops")
        await engine.enable("web", by="test")
        await until(engine, lambda: bool(undelivered(engine)))
        await engine.execute(remove_webhook, "hook", "ops")
        assert undelivered(engine) == {}
        last = (await engine.records.history(HistoryFilter()))[-1]
        assert (last.kind, last.by, last.reason) == ("webhook-removed", "ops", "hook")
        with pytest.raises(UnknownResource):
            await engine.execute(remove_webhook, "hook", "ops")
        await engine.enable("db-0", by="test")
        await wait_until_accepted(receiver, {str(last.sequence)})
    assert [got.event["data"]["kind"] for got in receiver.taken] == ["webhook-removed"]
    assert {got.event["data"]["kind"] for got in receiver.got if got.path == "/hook"} == {"enabled"}
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        assert database.execute("SELECT name FROM webhook").fetchall() == [("other",)]
        assert database.execute("SELECT count(*) FROM undelivered").fetchone() == (0,)
    database.close()


async def test_a_removed_webhook_without_stored_state_gets_nothing(receiver: Receiver) -> None:
    async with running() as (engine, dispatcher):
        await engine.execute(add_webhook, hook(receiver.url("/old")), "ops")
        sender = dispatcher._senders["hook"]
        await engine.execute(remove_webhook, "hook", "ops")
        assert dispatcher._senders == {}
        await asyncio.wait([sender._task])
        await engine.execute(add_webhook, hook(receiver.url("/new")), "ops")
        await engine.enable("web", by="test")
        await until_settled(engine)
    assert [(got.path, got.group) for got in receiver.got] == [("/new", "web")]


async def test_a_channel_ends_when_its_webhook_is_removed(receiver: Receiver) -> None:
    """It ends even if the dispatcher does not stop it."""
    async with running() as (engine, dispatcher):
        await engine.execute(add_webhook, hook(receiver.url()), "ops")
        sender = dispatcher._senders.pop("hook")  # it is not found when the removal is followed
        await engine.execute(remove_webhook, "hook", "ops")
        sender.wake()
        async with asyncio.timeout(60):
            await asyncio.wait([sender._task])


async def test_one_removed_and_added_again_in_one_commit_is_another(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(500)
    async with running() as (engine, _):
        await engine.execute(add_webhook, hook(receiver.url("/old")), "ops")
        await engine.enable("web", by="test")
        await until(engine, lambda: bool(undelivered(engine)))
        _, added = await asyncio.gather(
            engine.execute(remove_webhook, "hook", "ops"),
            engine.execute(add_webhook, hook(receiver.url("/new")), "ops"),
        )
        receiver.respond = lambda _: Reply()
        await engine.enable("db-0", by="test")
        await until_settled(engine)
    assert [(got.path, got.group) for got in receiver.taken] == [("/new", "db-0")]
    assert added.cursor == int(receiver.taken[0].id) - 1


async def test_a_result_for_a_removed_webhook_changes_nothing() -> None:
    """The outcome of an attempt may arrive after the webhook has gone, and after another of its name has come."""
    async with running() as (engine, dispatcher):
        await dispatcher.stop()
        old = await engine.execute(add_webhook, hook("http://example.com/old"), "ops")
        moved = old._replace(cursor=old.cursor + 1)
        assert await engine.execute(record_deliveries, old, moved, {7: Undelivered("hook", 7, 1, 79, "no")}) == 0
        assert (engine.draft().webhook("hook"), list(undelivered(engine))) == (moved, [7])
        await engine.execute(remove_webhook, "hook", "ops")
        late = moved._replace(cursor=moved.cursor + 1)
        assert await engine.execute(record_deliveries, moved, late, {8: Undelivered("hook", 8, 1, 79, "no")}) is None
        assert (engine.draft().webhook("hook"), undelivered(engine)) == (None, {})
        new = await engine.execute(add_webhook, hook("http://example.com/old"), "ops")
        assert await engine.execute(record_deliveries, moved, late, {8: Undelivered("hook", 8, 1, 79, "no")}) is None
        assert (engine.draft().webhook("hook"), undelivered(engine)) == (new, {})


async def test_the_number_of_failed_rows_is_limited(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("forewarn.core.webhooks.MAX_FAILED_ROWS", 10)
    monkeypatch.setattr("forewarn.core.webhooks._DROPPED_BEYOND", 3)
    receiver.respond = lambda _: Reply(400)
    async with running(pace=WebhookRetryPolicy(3600, 1)) as (engine, dispatcher):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        deliveries = engine.draft().webhook_deliveries
        most = 0

        def all_given_up() -> bool:
            nonlocal most
            most = max(most, deliveries.stats("hook").failed)
            return engine.records.newest in undelivered(engine)

        for number in range(40):
            policy = PolicyUpdate(auto_approve=() if number % 2 else ("reboot",))
            await engine.execute(set_policy, "web", policy, "test")
            await until(engine, all_given_up)
        assert most == 10
        kept = sorted(undelivered(engine))
        assert kept == list(range(kept[0], engine.records.newest + 1)), "the oldest are dropped"
        lost = kept[0] - added.cursor - 1
        assert deliveries.stats("hook")[1:] == (len(kept), "HTTP 400", lost)
        assert lost + len(kept) == 40
        assert caplog.text.count("the oldest are dropped") == 1
        receiver.respond = lambda _: Reply()
        await dispatcher.retry("hook")
        await until_settled(engine)
        assert [int(got.id) for got in receiver.taken] == kept
        await engine.execute(remove_webhook, "hook", "ops")
        assert deliveries.stats("hook") == DeliveryStats()


async def test_delivering_writes_no_history(receiver: Receiver) -> None:
    async with running() as (engine, _):
        for name in ("one", "two"):
            await engine.execute(add_webhook, hook(receiver.url(), name), "ops")
        for group in ("web", "db-0"):
            await engine.enable(group, by="test")
        sequence = engine.draft().sequence
        await until(engine, lambda: {hook.cursor for hook in engine.draft().webhooks().values()} == {sequence})
        assert engine.draft().sequence == sequence
    assert len(receiver.got) == 2 + 2 + 1, "the first webhook gets the row of the second"


async def test_a_backlog_of_many_pages_arrives_in_order(receiver: Receiver, tmp_path: Path) -> None:
    receiver.close()
    async with running(tmp_path, pace=WebhookRetryPolicy(60, 80)) as (engine, _):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        for number in range(600):
            policy = PolicyUpdate(auto_approve=("reboot",) if number % 2 else ())
            await engine.execute(set_policy, "web" if number % 3 else "auto", policy, "test")
        expected = await history(engine, added.cursor)
    receiver.open()
    async with running(tmp_path) as (engine, _):
        await until_settled(engine)
    check_order(receiver.taken, expected)
    assert len(expected) > 300


@pytest.mark.parametrize("attempts", [1, 80], ids=["given up", "waiting"])
async def test_rows_beyond_the_retention_are_not_delivered(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture, attempts: int
) -> None:
    receiver.respond = lambda _: Reply(500)
    week = OperatorLimits(
        makes_hosts=True, webhook_private_networks=LOCAL.webhook_private_networks, history_retention=timedelta(days=7)
    )
    async with running(tmp_path, pace=WebhookRetryPolicy(3600, attempts), limits=week) as (engine, dispatcher):
        await engine.execute(add_webhook, hook(receiver.url()), "ops")
        await engine.enable("web", by="test")
        await until(engine, lambda: any(row.attempts for row in undelivered(engine).values()))
        (old,) = undelivered(engine)
        await engine.advance(timedelta(days=8))
        assert old not in undelivered(engine)
        assert engine.draft().webhook_deliveries.stats("hook").dropped == 1
        assert expired_rows(caplog) == [1]
        # Nothing waits for it any longer. That the group has been silent is refused as well.
        await dispatcher.retry("hook")
        await until(engine, lambda: engine.records.newest in undelivered(engine))
        receiver.respond = lambda _: Reply()
        await dispatcher.retry("hook")
        await engine.enable("web", by="test")
        await until_settled(engine)
        newest = engine.records.newest
        assert str(old) not in {got.id for got in receiver.taken}
        assert str(newest) in {got.id for got in receiver.taken}
        assert engine.draft().webhook_deliveries.stats("hook").dropped == 1, "each is counted once"
    async with running(tmp_path, limits=week) as (engine, _):
        assert undelivered(engine) == {}
        await until_settled(engine)


def expired_rows(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Numbers of rows of the webhook `hook` that expired, as logged."""
    records = [record for record in caplog.records if getattr(record, "event_name", "") == "webhook_rows_expired"]
    fields: list[dict[str, Any]] = [vars(record)["fields"] for record in records]
    return [each["rows"] for each in fields if each["webhook"] == "hook"]


async def test_rows_removed_before_delivery_count_as_dropped(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One row, so that it does not read more while it sends the first.
    monkeypatch.setattr("forewarn.delivery.webhooks.PAGE_ROWS", 1)
    let_go, loop = asyncio.Event(), asyncio.get_running_loop()

    def answer_late(_: ReceivedRequest) -> Reply:
        asyncio.run_coroutine_threadsafe(let_go.wait(), loop).result()
        return Reply()

    receiver.respond = answer_late
    week = OperatorLimits(
        makes_hosts=True, webhook_private_networks=LOCAL.webhook_private_networks, history_retention=timedelta(days=7)
    )
    async with running(limits=week) as (engine, _):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        for number in range(10):
            policy = PolicyUpdate(auto_approve=() if number % 2 else ("reboot",))
            await engine.execute(set_policy, "web", policy, "test")
        await asyncio.to_thread(receiver.until, lambda: len(receiver.got) == 1)
        await engine.advance(timedelta(days=8))
        lost = await engine.records.oldest() - (added.cursor + 1) - 1  # without the first, which is under way
        assert lost >= 8
        let_go.set()
        await engine.enable("web", by="test")
        await until_settled(engine)
        expected = await history(engine)
        assert engine.draft().webhook_deliveries.stats("hook").dropped == lost
        assert sum(expired_rows(caplog)) == lost
    assert [got.id for got in receiver.taken] == [str(added.cursor + 1), *expected]


async def test_a_row_that_cannot_be_sent_fails_and_later_rows_continue(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(pace=WebhookRetryPolicy(0.01, 2)) as (engine, _):
        added = await engine.execute(add_webhook, hook(receiver.url()), "ops")
        bad = added.cursor + 1

        def write_badly(entry: HistoryEntry, source: str) -> bytes:
            if entry.sequence == bad:
                raise ValueError("no row of history")
            return cloud_event(entry, source)

        monkeypatch.setattr("forewarn.delivery.webhooks.cloud_event", write_badly)
        await engine.enable("web", by="test")
        await request_operation(engine, "restart", "web-0")
        expected = await history(engine, added.cursor)
        await wait_until_accepted(receiver, expected.keys() - {str(bad)})
        await until(engine, lambda: list(undelivered(engine)) == [bad])
        assert undelivered(engine)[bad][2:] == (2, 0, "ValueError: no row of history")


async def test_the_result_of_an_attempt_is_stored_after_failed_writes(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forewarn.delivery.webhooks.RETRY_SECONDS", 0.0)
    async with running() as (engine, _):
        await engine.execute(add_webhook, hook(receiver.url()), "ops")
        order, failures = engine.execute, [ValueError("who knows")]

        async def order_badly(what: Any, *arguments: Any) -> Any:
            if what is record_deliveries and failures:
                raise failures.pop()
            return await order(what, *arguments)

        monkeypatch.setattr(engine, "execute", order_badly)
        await engine.enable("web", by="test")
        await request_operation(engine, "restart", "web-0")
        await until_settled(engine)
        assert failures == []


async def test_the_counts_of_a_webhook_that_is_added_again_start_at_zero(receiver: Receiver) -> None:
    async with running() as (engine, dispatcher):
        await engine.execute(add_webhook, hook(receiver.url()), "ops")
        await engine.enable("web", by="test")
        await until_settled(engine)
        assert dispatcher.attempts == {("hook", "delivered"): 1}
        await engine.execute(remove_webhook, "hook", "ops")
        assert dispatcher.attempts == {}


async def test_a_webhook_test_returns_its_result(receiver: Receiver) -> None:
    async with running() as (engine, dispatcher):
        await engine.execute(add_webhook, hook(receiver.url()), "ops")
        assert (await dispatcher.send_test("hook")).delivered
        receiver.respond = lambda _: Reply(418)
        outcome = await dispatcher.send_test("hook")
        assert (outcome.delivered, outcome.status) == (False, 418)
        with pytest.raises(UnknownResource):
            await dispatcher.send_test("none")
        assert undelivered(engine) == {}
    assert [got.event["type"] for got in receiver.got] == ["forewarn.test"] * 2
    assert len({got.id for got in receiver.got}) == 2


async def test_a_hanging_webhook_test_does_not_block_a_stop(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(hang=True)
    async with running() as (engine, dispatcher):
        await engine.execute(add_webhook, hook(receiver.url()), "ops")
        trial = asyncio.create_task(dispatcher.send_test("hook"))
        await asyncio.to_thread(receiver.until, lambda: len(receiver.got) == 1)
    with pytest.raises(ServiceStopping):
        await trial


async def test_the_source_of_events_stays_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as (engine, _):
        first = engine.facts["installation"]
    async with running(tmp_path) as (engine, _):
        assert engine.facts["installation"] == first
    async with running() as (engine, _):
        assert engine.facts["installation"] != first


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"name": "-"}, BadOption, "starting with a letter"),
        ({"name": "a/b"}, BadOption, "starting with a letter"),
        ({"name": "taken"}, WebhookExists, "A webhook named 'taken' exists"),
        ({"url": "http://10.0.0.1/"}, ForbiddenWebhookAddress, "webhook_private_networks"),
        ({"secret": "short"}, BadOption, "16 to 256 characters"),
        ({"secret": "a" * 257}, BadOption, "16 to 256 characters"),
        ({"secret": "two lines of words\nof a secret"}, BadOption, "on one line"),
        ({"kinds": ("schedulde",)}, BadOption, "Did you mean 'scheduled'"),
        ({"groups": ("wep",)}, UnknownResource, "Unknown group 'wep'. Did you mean 'web'"),
        ({"groups": tuple(map(str, range(1001)))}, LimitExceeded, "maximum is 1,000"),
    ],
)
async def test_an_invalid_webhook_is_rejected_with_its_error(
    wrong: dict[str, Any], error: type[Exception], words: str
) -> None:
    async with running() as (engine, _):
        await engine.execute(add_webhook, hook("http://example.com/", "taken"), "ops")
        sequence = engine.draft().sequence
        with pytest.raises(error, match=words) as caught:
            await engine.execute(add_webhook, hook("http://example.com/")._replace(**wrong), "ops")
        if "secret" in wrong:
            assert wrong["secret"] not in str(caught.value)
        assert list(engine.draft().webhooks()) == ["taken"]
        assert engine.draft().sequence == sequence


async def test_there_is_a_bound_to_how_many_there_are() -> None:
    async with running() as (engine, _):
        for number in range(MAX_WEBHOOKS):
            wishes = hook(
                "http://example.com/", f"hook-{number}", kinds=("host-failed",), groups=("web",) * MAX_WEBHOOK_GROUPS
            )
            await engine.execute(add_webhook, wishes, "ops")
        with pytest.raises(LimitExceeded, match="maximum is 100"):
            await engine.execute(add_webhook, hook("http://example.com/"), "ops")
        await asyncio.gather(  # in one batch: the one makes room for the other
            engine.execute(remove_webhook, "hook-0", "ops"),
            engine.execute(add_webhook, hook("http://example.com/", kinds=("host-failed",)), "ops"),
        )


async def test_history_has_the_host_of_a_webhook_but_no_secrets() -> None:
    async with running() as (engine, _):
        await engine.execute(add_webhook, hook("https://example.com/T0/B1/secret?key=x", kinds=("host-failed",)), "ops")
        last = (await engine.records.history(HistoryFilter()))[-1]
        assert (last.kind, last.by, last.reason) == ("webhook-added", "ops", "hook: https://example.com")

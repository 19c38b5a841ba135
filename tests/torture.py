"""Nodes and a database that fail at random while clients use all nodes, and a checker of everything that they saw.

The clients poll, approve, create tokens, restart and evict VMs, update hosts in rollouts, apply fleets, follow feeds,
and receive a webhook. A schedule says what the nodes run with. Its failures come from a seed. `run` returns what must
never happen and did.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from acceptance.feed_client import Feed
from cluster import ADDRESSES, FLEET, Cluster
from forewarn.testing.client import UnexpectedResponse
from order_log import OrderLog
from pooler import Pooler
from postgresql import INSTALLED, PostgresServer
from safety_rules import RULES, copy_without
from shifted_system_clock import ShiftedSystemClock
from webhook_receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster import NodeProcess

OPTIONS = ("--webhook-private-networks", "127.0.0.1/32")
SCHEMA = "torture"
FAILURES = (
    "kill",
    "pause",
    "pause",
    "stop",
    "cut from the database",
    "cut from the nodes",
    "cut from both",
    "torn commit",
    "torn renewal",
    "wrong clock",
    "database",
)
LOST = (OSError, HTTPException)
WORK_SECONDS = 0.2
"""How long the work of each order takes, so that requests fall into the middle of it."""
QUIET_SECONDS = 40
"""How long it may take until all operations have ended, at the usual speed."""
RECOVERY_SECONDS = 30
"""How long nodes may take until they make changes again. The documents say 5 seconds; this machine may be busy."""
MAX_CLOCK_ERROR = timedelta(minutes=2)
"""A node whose clock is wrong by more than a minute must not lead."""
CONNECTIONS = 3
"""How many connections a node needs, as docs/nodes.md says, and each machine that may fail."""


class Schedule(NamedTuple):
    """What the nodes of a run have in common, and what else happens to them."""

    vms: int = 0
    """So many more VMs, each with user data. The database has statistics."""
    users: int = 1
    """So many users of the database, without the permission to end the connections of each other."""
    version: int = 0
    pooler: bool = False
    delay: float = 0.0
    """How long each packet takes, between nodes and to the database. A VM sees an event some round trips later."""
    speed: int = 600
    """A notice of 15 minutes takes 1.5 seconds."""
    restores: bool = False


SCHEDULES = {
    "failures": Schedule(),
    "large": Schedule(vms=50_000),
    "users": Schedule(users=2),
    "oldest": Schedule(version=INSTALLED[0]),
    "pooler": Schedule(pooler=True),
    "delay": Schedule(delay=0.1, speed=100),
    "restore": Schedule(restores=True),
}


class Seen(NamedTuple):
    """A document that a client got."""

    order: tuple[int, ...]
    body: bytes


class Witness:
    """What the clients sent and received."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._confirmed: list[tuple[str, str, float, float]] = []
        """What was confirmed: its kind, its name, when it was sent, and when the answer arrived."""
        self.restored: list[tuple[float, float]] = []
        """When backups began that were restored, and when the restores ended. What was confirmed meanwhile is lost."""
        self.rejected: set[str] = set()
        """Names of tokens whose creation was certainly rejected."""
        self.rows: dict[int, dict[str, Any]] = {}
        """The rows of history that feeds sent."""
        self.fleets = [""]
        """The extra VM of each fleet, since the last one that was confirmed. It and those after it may be in force.
        The first fleet has none."""
        self.counts: Counter[str] = Counter()
        self._documents: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def violation(self, text: str) -> None:
        with self._lock:
            self.violations.append(text)

    def confirm(self, kind: str, name: str, sent_at: float) -> None:
        """The service has confirmed something. It must exist in the end."""
        self._confirmed.append((kind, name, sent_at, monotonic()))

    def confirmed(self, kind: str) -> set[str]:
        """Return what must exist in the end."""
        return {
            name
            for found, name, sent_at, at in self._confirmed
            if found == kind and not any(sent_at < until and at > since for since, until in self.restored)
        }

    def document(self, vm: str, before: Seen | None, tag: str, body: bytes) -> Seen:
        """A client that follows ETags got a document."""
        *numbers, _ = tag.strip('"').split(".")
        now = Seen(tuple(int(number) for number in numbers), body)
        if before is not None and now.order < before.order and not self.restored:  # a restore brings old documents back
            self.violation(f"{vm} saw {before.order}, and then {now.order}")
        with self._lock:
            known = self._documents.setdefault(tag, body)
        if known != body:
            self.violation(f"{vm} saw two documents with the tag {tag}: {known!r} and {body!r}")
        return now

    def row(self, row: dict[str, Any], before: int | None, *, gaps: bool) -> None:
        """A feed sent a row, after the row `before`."""
        number = row["sequence"]
        if before is not None and (number <= before or (number > before + 1 and not gaps)):
            self.violation(f"a feed sent row {number} after row {before}")
        if datetime.fromisoformat(row["time"]) > datetime.now(UTC) + MAX_CLOCK_ERROR:
            self.violation(f"row {number} is of {row['time']}: a node with a wrong clock leads")
        with self._lock:
            known = self.rows.setdefault(number, row)
        if known != row:
            self.violation(f"two feeds sent different rows {number}: {known} and {row}")


class Torture:
    """A cluster, its clients, and the failures."""

    def __init__(
        self,
        cluster: Cluster,
        server: PostgresServer,
        receiver: Receiver,
        orders: OrderLog,
        schedule: Schedule,
        clocks: dict[str, ShiftedSystemClock],
        options: Sequence[str],
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self.cluster = cluster
        self._schedule = schedule
        self.clocks = clocks
        self._options = options
        self._orders = cluster.notices.orders = orders
        self._server = server
        self._receiver = receiver
        self.witness = Witness()
        self._random = random.Random(seed)  # noqa: S311 - a schedule
        self._say = say
        self._ending = threading.Event()
        self._watched = threading.Event()
        """Set when there is nothing to watch any more: later than the end of the other clients."""
        self._down: set[str] = set()
        self._token = cluster.nodes[0].token
        """One client uses the same token on all nodes: it is a part of an idempotency key."""
        self.failures: Counter[str] = Counter()
        self.failovers = 0
        self.slowest = 0.0
        """The longest time from a failure, or from its end, until a change was confirmed."""

    def node(self, rng: random.Random) -> NodeProcess:
        running = [node for node in self.cluster.nodes if node.name not in self._down]
        return rng.choice(running or self.cluster.nodes)

    # --- Clients --------------------------------------------------------------------------------------

    def poll_and_approve(self, vm: str, seed: int) -> None:
        """A VM behind a load balancer: it follows ETags, and approves half of its events."""
        rng = random.Random(seed)  # noqa: S311 - a schedule
        seen: Seen | None = None
        tag = ""
        while not self._ending.wait(0.03):
            node = self.node(rng)
            try:
                answer = node.poll(vm, tag)
                self.witness.counts[f"poll {answer.status}"] += 1
                if answer.status != 200:
                    continue
                tag = answer.headers["etag"]
                seen = self.witness.document(vm, seen, tag, answer.body)
                for event in answer.json()["Events"]:
                    if event["EventStatus"] == "Scheduled" and rng.random() < 0.5:
                        sent_at = monotonic()
                        approval = self.node(rng).approve_as(vm, event["EventId"])
                        self.witness.counts[f"approval {approval.status}"] += 1
                        if approval.status == 200:
                            self.witness.confirm("approval", event["EventId"].lower(), sent_at)
            except LOST:
                self.witness.counts["poll lost"] += 1

    def watch_notices(self, vm: str, node: NodeProcess) -> None:
        """A VM that polls one node: a VM sees an event if any of its nodes shows it."""
        while not self._watched.wait(0.15):
            if node.name not in self._down:
                with suppress(*LOST):
                    node.poll(vm)

    def follow(self, seed: int) -> None:
        """Feeds that connect to a node, leave after a while or when the connection is lost, and continue elsewhere."""
        rng = random.Random(seed)  # noqa: S311 - a schedule
        last_id = ""
        while not self._ending.wait(0.1):
            ends_at = monotonic() + rng.uniform(0.5, 4)
            with suppress(*LOST), Feed(self.node(rng), last_id=last_id, token=self._token, seconds=2) as feed:
                self.witness.counts[f"feed {feed.answer.status}"] += 1
                if feed.answer.status == 400 and self._schedule.restores:
                    last_id = ""  # it knows rows that are lost
                elif feed.answer.status not in (200, 503):
                    self.witness.violation(f"the feed after {last_id} got {feed.answer.status}")
                elif feed.answer.status == 200:
                    for row in feed.rows():
                        self.witness.row(row, int(last_id) if last_id else None, gaps=self._schedule.restores)
                        last_id = feed.last_id
                        if monotonic() > ends_at:
                            break

    def operate(self, number: int, seed: int) -> None:
        """An operator: creates tokens with unique names, restarts, moves and evicts VMs, and updates hosts."""
        rng = random.Random(seed)  # noqa: S311 - a schedule
        count = 0
        while not self._ending.wait(0.05):
            count += 1
            name = f"t-{number}-{count}"
            self._create(rng, name)
            if not count % 4:
                cause, vm = rng.choice([*(("restart", vm) for vm in ADDRESSES), ("eviction", "batch-0")])
                self._request(rng, f"{name}-{cause}", {"cause": cause, "vms": [vm]})
                self._request(rng, f"{name}-start", {"cause": "start", "vms": ["batch-0"]})
            if not count % 8:
                self._request(rng, f"{name}-move", {"cause": "redeploy", "vms": [rng.choice([*ADDRESSES])]})
            if not count % 16:
                self._roll_out(rng, f"{name}-rollout")

    def apply_fleets(self, seed: int) -> None:
        """An operator whose fleet file has another VM each time."""
        rng = random.Random(seed)  # noqa: S311 - a schedule
        count = 0
        while not self._ending.wait(15 if self._schedule.vms else 0.5):
            count += 1
            name = f"extra-{count}"
            text = f'{fleet_text(self._schedule)}\n[[vm]]\nname = "{name}"\naddress = "127.0.1.{count % 250}"\n'
            self.witness.fleets.append(name)
            try:
                answer = self.node(rng).control("PUT", "/v1/fleet?force=true", text.encode(), self._token)
            except LOST:
                self.witness.counts["fleet lost"] += 1
                continue
            self.witness.counts[f"fleet {answer.status}"] += 1
            if answer.status == 200:
                self.witness.fleets = [name]
            elif answer.status == 503 and b"not known" not in answer.body:
                self.witness.fleets.remove(name)
            elif answer.status != 503:
                self.witness.violation(f"the fleet with {name} got {answer.status}: {answer.body!r}")

    def _create(self, rng: random.Random, name: str) -> None:
        body, key = {"name": name, "role": "viewer"}, {"Idempotency-Key": name}
        uncertain = False
        sent_at = monotonic()
        while not self._ending.is_set():
            try:
                answer = self.node(rng).control("POST", "/v1/tokens", body, self._token, headers=key)
            except LOST:
                uncertain = True  # repeat it with the same key, on any node
                continue
            self.witness.counts[f"change {answer.status}"] += 1
            if answer.status == 201:
                self.witness.confirm("token", name, sent_at)
                return
            if answer.status != 503:
                self.witness.violation(f"the token {name} got {answer.status}: {answer.body!r}")
                return
            uncertain = uncertain or b"not known" in answer.body
        if not uncertain:
            self.witness.rejected.add(name)

    def _request(self, rng: random.Random, key: str, body: dict[str, Any]) -> None:
        sent_at = monotonic()
        answer = self._post(rng, "/v1/operations", key, body)
        if answer is not None:
            self.witness.confirm("operation", answer["operations"][0]["id"], sent_at)

    def _roll_out(self, rng: random.Random, key: str) -> None:
        sent_at = monotonic()
        answer = self._post(rng, "/v1/rollouts", key, {"hosts": ["rack-*"], "max_unavailable": 2, "notice": "15m"})
        if answer is not None:
            self.witness.confirm("rollout", answer["id"], sent_at)

    def _post(self, rng: random.Random, path: str, key: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request that can conflict with others. Returns the answer if it was confirmed."""
        try:
            answer = self.node(rng).control("POST", path, body, self._token, {"Idempotency-Key": key})
        except LOST:
            return None
        self.witness.counts[f"{path[4:]} {answer.status}"] += 1
        if answer.status not in (201, 409, 503):
            self.witness.violation(f"{path} {body} got {answer.status}: {answer.body!r}")
        return dict(answer.json()) if answer.status == 201 else None

    # --- Failures -------------------------------------------------------------------------------------

    def fail(self) -> None:
        """One failure, of the leader more often than of others. The others must soon make changes."""
        rng = self._random
        nodes = self.cluster.nodes
        leaders = [node for node in nodes if self._leads(node)]
        node = leaders[0] if leaders and rng.random() < 0.75 else rng.choice(nodes)
        kind = rng.choice((*FAILURES, *(["restore"] * 5 if self._schedule.restores else [])))
        seconds = rng.uniform(3.5, 6)
        self.failures[kind] += 1
        self._say(f"{kind}: {node.name} for {seconds:.1f} s")
        began_at = monotonic()
        if kind == "database":
            self._server.stop(signal.SIGQUIT)
            self._ending.wait(seconds)
            self._server.start()
        elif kind == "restore":
            backup = self._server.back_up()
            self._ending.wait(seconds)
            self._server.restore(backup)
            self.witness.restored.append((began_at, monotonic()))
        else:
            self._fail_node(kind, node, began_at + seconds)
        self._until_changes(f"after {kind}", nodes)
        self.failovers += leaders != [each for each in nodes if self._leads(each)]

    def _fail_node(self, kind: str, node: NodeProcess, ends_at: float) -> None:
        others = [each for each in self.cluster.nodes if each is not node]
        relays = (
            [node.relay] if kind in ("cut from the database", "cut from both", "torn commit", "torn renewal") else []
        )
        relays += [node.node_relay] if kind in ("cut from the nodes", "cut from both") else []
        if kind in ("kill", "stop", "wrong clock"):
            self._down.add(node.name)
            node.stop() if kind == "stop" else node.kill()
        elif kind == "pause":
            node.pause()
        elif kind.startswith("torn"):
            node.relay.tear(f"forewarn {SCHEMA}".encode() if kind == "torn commit" else node.name.encode())
        else:
            for relay in relays:
                relay.cut()
        if kind == "wrong clock":
            self._lead_with_wrong_clock(node, others)
        # Without the permission to end its connections, others may have to wait for it.
        elif self._schedule.users == 1:
            self._until_changes(f"during {kind}", [node] if kind == "cut from the nodes" else others)
        self._ending.wait(max(ends_at - monotonic(), 0))
        for relay in relays:
            relay.mend()
        if kind == "pause":
            node.resume()
        if self._down:
            self.start(node)

    def _lead_with_wrong_clock(self, node: NodeProcess, others: list[NodeProcess]) -> None:
        """A machine boots with a wrong clock, and then all others hang."""
        self.start(node, self._random.choice([3600, -3600]))
        for each in others:
            each.pause()
        self._ending.wait(6)
        for each in others:
            each.resume()
        self._down.add(node.name)
        node.kill()

    def start(self, node: NodeProcess, shift: int = 0) -> None:
        """Start a node, as if its machine had just booted."""
        self.clocks[node.name].boot(shift)
        node.up(*self._options, **self.clocks[node.name].variables)
        self._down.discard(node.name)

    def _until_changes(self, when: str, among: list[NodeProcess]) -> None:
        """Wait until these nodes confirm a change that is sent now."""
        started = monotonic()
        name, number = f"t-{when}-{started}".replace(" ", "-"), 0
        while (passed := monotonic() - started) < RECOVERY_SECONDS:
            with suppress(*LOST):
                body = {"name": name, "role": "viewer"}
                key = {"Idempotency-Key": name}
                answer = among[number % len(among)].control("POST", "/v1/tokens", body, self._token, key)
                if answer.status == 201:
                    self.witness.confirm("token", name, started)
                    self.slowest = max(self.slowest, monotonic() - started)
                    return
            number += 1
            self._ending.wait(0.1)
        self.witness.violation(f"no change was made for {passed:.0f} s {when}")

    def _leads(self, node: NodeProcess) -> bool:
        try:
            return node.role == "leader"
        except (*LOST, AssertionError, KeyError, ValueError, StopIteration):
            return False

    # --- The run --------------------------------------------------------------------------------------

    def run(self, seconds: float, *, to_first: bool) -> list[str]:
        """Let nodes fail for this long, then heal everything and check. Returns the violations.

        With `to_first`, it ends at the first one.
        """
        created = self.cluster.leader().control("POST", "/v1/webhooks", {"name": "all", "url": self._receiver.url()})
        assert created.status == 201, created.body
        seeds = [self._random.random() for _ in range(10)]
        clients = [
            *(
                threading.Thread(daemon=True, target=self.poll_and_approve, args=(vm, seeds[n]))
                for n, vm in enumerate(ADDRESSES)
            ),
            *(threading.Thread(daemon=True, target=self.operate, args=(n, seeds[n + 4])) for n in range(3)),
            threading.Thread(daemon=True, target=self.apply_fleets, args=(seeds[7],)),
            *(threading.Thread(daemon=True, target=self.follow, args=(seeds[n + 8],)) for n in range(2)),
        ]
        watchers = [
            threading.Thread(daemon=True, target=self.watch_notices, args=(vm, node))
            for vm in ADDRESSES
            for node in self.cluster.nodes
        ]
        for client in (*watchers, *clients):
            client.start()
        ends_at = monotonic() + seconds
        try:
            while monotonic() < ends_at and not (to_first and self.witness.violations):
                self._ending.wait(self._random.uniform(0.5, 3))
                if self._schedule.vms:
                    self._server.execute("ANALYZE")
                self.fail()
        finally:
            self._ending.set()
            for client in clients:
                client.join()
        ends_early = to_first and self.witness.violations
        if not ends_early:
            self.until_quiet()
        self._watched.set()
        for watcher in watchers:
            watcher.join()
        if not ends_early:
            self.check()
        what = ", ".join(f"{kind}: {count}" for kind, count in sorted(self.failures.items()))
        self._say(f"Failures: {what}. {self.failovers} failovers. The slowest took {self.slowest:.1f} s.")
        self._say(", ".join(f"{name}: {count}" for name, count in sorted(self.witness.counts.items())))
        return self.witness.violations

    def until_quiet(self) -> None:
        """Wait until all operations and rollouts have ended, and all nodes have applied that."""
        ends_at = monotonic() + QUIET_SECONDS * 600 / self._schedule.speed
        try:
            leader = self.cluster.leader()
            while leader.list_all("/v1/operations") or leader.list_all("/v1/rollouts"):
                if monotonic() > ends_at:
                    self.witness.violation("some operations or rollouts never end")
                    return
                threading.Event().wait(0.2)
            self.cluster.until_equal()
        except (*LOST, AssertionError, UnexpectedResponse) as error:
            self.witness.violation(f"the nodes do not agree at the end: {error}")

    def check(self) -> None:
        """Check the end against everything that the clients saw."""
        witness, nodes = self.witness, self.cluster.nodes
        histories = [node.list_all("/v1/history") for node in nodes]
        documents = [[node.poll(vm).body for vm in ADDRESSES] for node in nodes]
        if any(each != documents[0] for each in documents):
            witness.violation("the nodes end with different documents")
        if any(each != histories[0] for each in histories):
            witness.violation("the nodes end with different histories")
        self._check_history(histories[0])
        names = {token["name"] for node in nodes[:1] for token in node.list_all("/v1/tokens")}
        for name in sorted(witness.confirmed("token") - names):
            witness.violation(f"the confirmed token {name} is lost")
        for name in sorted(witness.rejected & names):
            witness.violation(f"the rejected token {name} exists")
        if not witness.confirmed("operation"):
            witness.violation("no operation was confirmed, so this run shows little")
        found = {row["operation"] for row in histories[0]}
        for operation in sorted(witness.confirmed("operation") - found):
            witness.violation(f"the confirmed operation {operation} is lost")
        rollouts = {rollout["id"] for rollout in nodes[0].list_all("/v1/rollouts?all=true")}
        for rollout in sorted(witness.confirmed("rollout") - rollouts):
            witness.violation(f"the confirmed rollout {rollout} is lost")
        extra = {vm["name"] for vm in nodes[0].list_all("/v1/vms") if vm["name"].startswith("extra-")}
        if not self._schedule.restores and not (extra or {""}) & {*witness.fleets}:
            witness.violation(f"the fleet has {extra}, and the last confirmed fleet has {witness.fleets[0]}")
        self._check_webhook(histories[0])
        if not self._schedule.restores:  # machines were touched by operations that are lost
            self._check_rows(histories[0])
            self._check_notices(nodes[0])

    def _check_rows(self, history: list[dict[str, Any]]) -> None:
        """What feeds have sent is in the history."""
        rows = {row["sequence"]: row for row in history}
        wrong = [number for number, row in sorted(self.witness.rows.items()) if rows.get(number) != row]
        if wrong:
            self.witness.violation(f"feeds sent rows that are not in the history: {wrong[:5]}")
        self.witness.counts["rows of feeds"] = len(self.witness.rows)

    def _check_notices(self, node: NodeProcess) -> None:
        """No VM was touched without its notice."""
        orders = self._orders.read()
        self.witness.counts["orders"] = len({logged.operation for logged in orders})
        for text in self.cluster.notices.violations(node):
            self.witness.violation(text)

    def _check_webhook(self, history: list[dict[str, Any]]) -> None:
        """Every row since the webhook was created has arrived, and the rows of a group in their order."""
        first = next(row["sequence"] for row in history if row["kind"] == "webhook-added")
        expected = {str(row["sequence"]) for row in history if row["sequence"] > first}
        try:
            self._receiver.wait_until_accepted(expected)
        except AssertionError:
            missing = sorted(expected - {got.id for got in self._receiver.taken}, key=int)
            self.witness.violation(f"the webhook never got the rows {missing[:5]}")
        by_group: dict[str, dict[int, None]] = defaultdict(dict)
        known: dict[str, Any] = {}
        for got in self._receiver.taken:
            if known.setdefault(got.id, got.event) != got.event:
                self.witness.violation(f"the webhook got two rows {got.id}: {known[got.id]} and {got.event}")
            by_group[got.group].setdefault(int(got.id))  # a row can arrive again after a failure
        for group, numbers in by_group.items():
            if [*numbers] != sorted(numbers):
                self.witness.violation(f"the webhook got the rows of {group or 'no group'} out of order")

    def _check_rollouts(self, history: list[dict[str, Any]]) -> None:
        """A rollout never has two update domains of a group out at once."""
        out: dict[str, str] = {}
        for row in history:
            if row["cause"] != "host-update" or row["group"] != "web":
                continue
            if row["kind"] == "started":
                out[row["event"]] = row["snapshot"]["operation"]
            elif row["kind"] == "completed":
                out.pop(row["event"], None)
            if len(out) > 1:
                self.witness.violation(f"two update domains of web are out at once: {out}")

    def _check_history(self, history: list[dict[str, Any]]) -> None:
        witness = self.witness
        sequences = [row["sequence"] for row in history]
        if sequences != list(range(1, len(history) + 1)):
            twice = [number for number, count in Counter(sequences).items() if count > 1]
            missing = sorted(set(range(1, sequences[-1] + 1)) - {*sequences})
            if twice or not self._schedule.restores:  # a restore skips numbers
                witness.violation(f"history has {twice[:5]} twice and {missing[:5]} not, with {len(sequences)} rows")
        created = Counter(row["reason"] for row in history if row["kind"] == "token-created")
        for name in [name for name, count in created.items() if count > 1]:
            witness.violation(f"the token {name} was created twice")
        by_event: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        for row in history:
            if not row["event"]:
                continue
            if row["kind"] in by_event[row["event"]] and row["kind"] in ("scheduled", "started", "completed"):
                witness.violation(f"the event {row['event']} was {row['kind']} twice")
            by_event[row["event"]].setdefault(row["kind"], row)
        for event, rows in by_event.items():
            started = rows.get("started")
            is_early = started is not None and started["time"] < started["snapshot"]["not_before"]
            if is_early and "approved" not in rows:
                witness.violation(f"the event {event} started before its NotBefore without an approval")
        self._check_rollouts(history)
        for event in sorted(witness.confirmed("approval")):
            if event not in by_event or not by_event[event].keys() & {"approved", "started", "cancelled"}:
                witness.violation(f"the confirmed approval of {event} is lost")


def fleet_text(schedule: Schedule) -> str:
    """The fleet file: a few VMs that poll, and many more that only need memory."""
    more = (f'[[vm]]\nname = "bulk-{n}"\nuser_data = "{str(n) * (200 // len(str(n)))}"\n' for n in range(schedule.vms))
    return f"{FLEET}\n{''.join(more)}"


def _create_users(server: PostgresServer, count: int) -> list[str]:
    """Create users of the database, as the documentation does, without the right to end connections of each other."""
    users = [f"user{n}" for n in range(count)]
    server.execute(f"CREATE ROLE owner; CREATE SCHEMA {SCHEMA} AUTHORIZATION owner")
    for user in users:
        server.execute(f"CREATE ROLE {user} LOGIN IN ROLE owner; ALTER ROLE {user} SET role = owner")
    return users


def run(
    seconds: float,
    seed: int,
    nodes: int,
    schedule: str = "failures",
    *,
    without: Sequence[str] = (),
    say: Callable[[str], None],
) -> list[str]:
    """Run a service with a database of its own, without some safety rules. Returns the violations."""
    chosen = SCHEDULES[schedule]
    with ExitStack() as stack:
        server = PostgresServer(chosen.version).start()
        stack.callback(server.close)
        receiver = Receiver()
        stack.callback(receiver.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forewarn-torture-")))
        cluster = Cluster(folder, server, SCHEMA)
        stack.callback(cluster.close)
        (folder / "fleet.toml").write_text(fleet_text(chosen))
        if chosen.pooler:
            pooler = Pooler(server, "session", CONNECTIONS * nodes + CONNECTIONS)
            stack.callback(pooler.close)
            cluster.database_port = pooler.port
        users = _create_users(server, chosen.users) if chosen.users > 1 else ["forewarn"]
        orders = OrderLog(folder / "orders", seconds=WORK_SECONDS)
        source = {"PYTHONPATH": str(copy_without(without, folder))} if without else {}
        clocks = {}
        options = [*OPTIONS, "--speed", f"{chosen.speed}", *orders.options]
        cluster.notices.slack += timedelta(seconds=20 * chosen.delay)
        for number in range(nodes):
            (folder / f"clock-{number}").mkdir()
            clock = clocks[f"node-{number}"] = ShiftedSystemClock(folder / f"clock-{number}")
            clock.boot()
            clock.variables |= source
            user = users[number % len(users)]
            node = cluster.add(*options, user=user, **clock.variables)
            node.relay.delay = node.node_relay.delay = chosen.delay
        if chosen.vms:
            server.execute("ANALYZE")
            polling = [vm for vm in cluster.nodes[0].list_all("/v1/vms") if vm["address"]]
            cluster.notices.first_look(polling, datetime.now(UTC))
        say(f"{schedule}: {nodes} nodes with PostgreSQL {server.version}, seed {seed}.")
        torture = Torture(cluster, server, receiver, orders, chosen, clocks, options, seed, say)
        return torture.run(seconds, to_first=bool(without))


def main() -> int:
    """Run, print, and return 1 if something happened that must never happen."""
    parser = argparse.ArgumentParser(prog="script/torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="of each schedule; default 5")
    parser.add_argument("--seed", type=int, default=random.randrange(100_000))  # noqa: S311 - a schedule
    parser.add_argument("--nodes", type=int, default=3, help="default 3")
    parser.add_argument("--schedule", choices=SCHEDULES, help="default: one after the other")
    text = "run a copy of the source without this safety rule, until the checker finds what happens then"
    parser.add_argument("--without", choices=RULES, action="append", default=[], help=text)
    given = parser.parse_args()
    schedules = [given.schedule] if given.schedule else [*SCHEDULES]
    found = 0
    for schedule in schedules:
        started = monotonic()
        violations = run(
            given.minutes * 60,
            given.seed,
            given.nodes,
            schedule,
            without=given.without,
            say=lambda text: print(text, flush=True),  # noqa: T201
        )
        for violation in [*dict.fromkeys(violations)][:10]:
            print(f"VIOLATION: {violation}")  # noqa: T201
        print(f"{schedule}: {len(violations)} violations with seed {given.seed}, {monotonic() - started:.0f} s.")  # noqa: T201
        found += len(violations)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

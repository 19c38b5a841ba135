"""Nodes and a database that fail at random while clients use all nodes, and a checker of everything that they saw.

The clients poll, approve, create tokens, restart and evict VMs, update hosts in rollouts, apply fleets, and receive a
webhook. The schedule of failures comes from a seed. `run` returns what must never happen and did.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster import ADDRESSES, FLEET, Cluster
from forewarn.testing.client import UnexpectedResponse
from order_log import OrderLog
from postgresql import PostgresServer
from webhook_receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster import NodeProcess

SPEED = 600
OPTIONS = ("--speed", f"{SPEED}", "--webhook-private-networks", "127.0.0.1/32", "--webhook-retry-delay", "1s")
"""A notice of 15 minutes takes 1.5 seconds."""
FAILURES = (
    "kill",
    "pause",
    "pause",
    "stop",
    "cut from the database",
    "cut from the nodes",
    "cut from both",
    "database",
)
WITHOUT_FENCE = """
CREATE OR REPLACE FUNCTION {schema}.check_epoch(expected bigint) RETURNS void LANGUAGE sql AS '';
ALTER TABLE {schema}.journal DROP CONSTRAINT journal_pkey;
ALTER TABLE {schema}.history DROP CONSTRAINT history_pkey;
"""
"""Removes the check of the epoch, and keys that would also reject most rows of a deposed leader."""
UNFENCED = (sys.executable, str(Path(__file__).with_name("unfenced_node.py")))
LOST = (OSError, HTTPException)
WORK_SECONDS = 0.2
"""How long the work of each order takes, so that requests fall into the middle of it."""
QUIET_SECONDS = 40


class Seen(NamedTuple):
    """A document that a client got."""

    order: tuple[int, int]
    body: bytes


class Witness:
    """What the clients sent and received."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.tokens: set[str] = set()
        """Names of tokens whose creation was confirmed."""
        self.rejected: set[str] = set()
        """Names of tokens whose creation was certainly rejected."""
        self.approved: set[str] = set()
        """Events whose approval was confirmed."""
        self.operations: set[str] = set()
        """Operations whose request was confirmed."""
        self.rollouts: set[str] = set()
        self.fleets: list[str] = []
        """The extra VM of each fleet, since the last one that was confirmed. It and those after it may be in force."""
        self.counts: Counter[str] = Counter()
        self._documents: dict[tuple[str, tuple[int, int]], bytes] = {}
        self._lock = threading.Lock()

    def violation(self, text: str) -> None:
        with self._lock:
            self.violations.append(text)

    def document(self, vm: str, before: Seen | None, now: Seen) -> None:
        """A client that follows ETags got a document."""
        scope = "web" if vm.startswith("web") else vm
        if before is not None and now.order < before.order:
            self.violation(f"{vm} saw {before.order}, and then {now.order}")
        with self._lock:
            known = self._documents.setdefault((scope, now.order), now.body)
        if known != now.body:
            self.violation(f"{vm} saw two documents with the tag {now.order}")


class Torture:
    """A cluster, its clients, and the failures."""

    def __init__(
        self,
        cluster: Cluster,
        server: PostgresServer,
        receiver: Receiver,
        orders: OrderLog,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self.cluster = cluster
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
                enabling, incarnation, _ = tag.strip('"').split(".")
                now = Seen((int(enabling), int(incarnation)), answer.body)
                self.witness.document(vm, seen, now)
                seen = now
                for event in answer.json()["Events"]:
                    if event["EventStatus"] == "Scheduled" and rng.random() < 0.5:
                        approval = self.node(rng).approve_as(vm, event["EventId"])
                        self.witness.counts[f"approval {approval.status}"] += 1
                        if approval.status == 200:
                            self.witness.approved.add(event["EventId"].lower())
            except LOST:
                self.witness.counts["poll lost"] += 1

    def watch_notices(self, vm: str, node: NodeProcess) -> None:
        """A VM that polls one node: a VM sees an event if any of its nodes shows it."""
        while not self._watched.wait(0.15):
            if node.name not in self._down:
                with suppress(*LOST):
                    node.poll(vm)

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
        while not self._ending.wait(0.5):
            count += 1
            name = f"extra-{count}"
            text = f'{FLEET}\n[[vm]]\nname = "{name}"\naddress = "127.0.1.{count % 250}"\n'
            self.witness.fleets.append(name)
            try:
                answer = self.node(rng).control("PUT", "/v1/fleet?force=true", text.encode(), self._token)
            except LOST:
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
        while not self._ending.is_set():
            try:
                answer = self.node(rng).control("POST", "/v1/tokens", body, self._token, headers=key)
            except LOST:
                uncertain = True  # repeat it with the same key, on any node
                continue
            self.witness.counts[f"change {answer.status}"] += 1
            if answer.status == 201:
                self.witness.tokens.add(name)
                return
            if answer.status != 503:
                self.witness.violation(f"the token {name} got {answer.status}: {answer.body!r}")
                return
            uncertain = uncertain or b"not known" in answer.body
        if not uncertain:
            self.witness.rejected.add(name)

    def _request(self, rng: random.Random, key: str, body: dict[str, Any]) -> None:
        answer = self._post(rng, "/v1/operations", key, body)
        if answer is not None:
            self.witness.operations.add(answer["operations"][0]["id"])

    def _roll_out(self, rng: random.Random, key: str) -> None:
        answer = self._post(rng, "/v1/rollouts", key, {"hosts": ["rack-*"], "max_unavailable": 2, "notice": "15m"})
        if answer is not None:
            self.witness.rollouts.add(answer["id"])

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
        """One failure, of the leader more often than of others."""
        rng = self._random
        nodes = self.cluster.nodes
        leaders = [node for node in nodes if self._leads(node)]
        node = leaders[0] if leaders and rng.random() < 0.75 else rng.choice(nodes)
        kind = rng.choice(FAILURES)
        seconds = rng.uniform(3.5, 6)
        if kind == "database":
            self._say(f"the database crashes and is away for {seconds:.1f} s")
            self._server.stop(signal.SIGQUIT)
            self._ending.wait(seconds)
            self._server.start()
            return
        self._say(f"{kind} {node.name} for {seconds:.1f} s")
        if kind in ("kill", "stop"):
            self._down.add(node.name)
            node.kill() if kind == "kill" else node.stop()
            self._ending.wait(seconds / 3)
            node.up(*OPTIONS, *self._orders.options)
            self._down.discard(node.name)
        elif kind == "pause":
            node.pause()
            self._ending.wait(seconds)
            node.resume()
        else:
            both = kind == "cut from both"
            relays = [node.relay] if kind == "cut from the database" or both else []
            relays += [node.node_relay] if kind == "cut from the nodes" or both else []
            for relay in relays:
                relay.cut()
            self._ending.wait(seconds)
            for relay in relays:
                relay.mend()

    def _leads(self, node: NodeProcess) -> bool:
        try:
            return node.role == "leader"
        except (*LOST, AssertionError, KeyError, ValueError, StopIteration):
            return False

    # --- The run --------------------------------------------------------------------------------------

    def run(self, seconds: float) -> list[str]:
        """Let nodes fail for this long, then heal everything and check. Returns the violations."""
        created = self.cluster.leader().control("POST", "/v1/webhooks", {"name": "all", "url": self._receiver.url()})
        assert created.status == 201, created.body
        seeds = [self._random.random() for _ in range(8)]
        clients = [
            *(threading.Thread(target=self.poll_and_approve, args=(vm, seeds[n])) for n, vm in enumerate(ADDRESSES)),
            *(threading.Thread(target=self.operate, args=(n, seeds[n + 4])) for n in range(3)),
            threading.Thread(target=self.apply_fleets, args=(seeds[7],)),
        ]
        watchers = [
            threading.Thread(target=self.watch_notices, args=(vm, node))
            for vm in ADDRESSES
            for node in self.cluster.nodes
        ]
        for client in (*watchers, *clients):
            client.start()
        ends_at = monotonic() + seconds
        try:
            while monotonic() < ends_at:
                self._ending.wait(self._random.uniform(0.5, 3))
                self.fail()
        finally:
            self._ending.set()
            for client in clients:
                client.join()
        self.until_quiet()
        self._watched.set()
        for watcher in watchers:
            watcher.join()
        self.check()
        self._say(", ".join(f"{name}: {count}" for name, count in sorted(self.witness.counts.items())))
        return self.witness.violations

    def until_quiet(self) -> None:
        """Wait until all operations and rollouts have ended, and all nodes have applied that."""
        ends_at = monotonic() + QUIET_SECONDS
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
        for name in sorted(witness.tokens - names):
            witness.violation(f"the confirmed token {name} is lost")
        for name in sorted(witness.rejected & names):
            witness.violation(f"the rejected token {name} exists")
        if not witness.operations:
            witness.violation("no operation was confirmed, so this run shows little")
        found = {row["operation"] for row in histories[0]}
        for operation in sorted(witness.operations - found):
            witness.violation(f"the confirmed operation {operation} is lost")
        rollouts = {rollout["id"] for rollout in nodes[0].list_all("/v1/rollouts?all=true")}
        for rollout in sorted(witness.rollouts - rollouts):
            witness.violation(f"the confirmed rollout {rollout} is lost")
        extra = {vm["name"] for vm in nodes[0].list_all("/v1/vms")} - {*ADDRESSES}
        if witness.fleets and not extra & {*witness.fleets}:
            witness.violation(f"the fleet has {extra}, and the last confirmed fleet has {witness.fleets[0]}")
        self._check_webhook(histories[0])
        self._check_notices(nodes[0])

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
        for got in self._receiver.taken:
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
        for event in sorted(witness.approved):
            if event not in by_event or not by_event[event].keys() & {"approved", "started", "cancelled"}:
                witness.violation(f"the confirmed approval of {event} is lost")


def run(seconds: float, seed: int, nodes: int, *, fence: bool = True, say: Callable[[str], None]) -> list[str]:
    """Run a service with a database of its own. Returns the violations."""
    server, receiver = PostgresServer().start(), Receiver()
    with tempfile.TemporaryDirectory(prefix="forewarn-torture-") as folder:
        cluster = Cluster(Path(folder), server, "torture")
        orders = OrderLog(Path(folder) / "orders", seconds=WORK_SECONDS)
        try:
            if not fence:
                cluster.command = UNFENCED
            for _ in range(nodes):
                cluster.add(*OPTIONS, *orders.options)
            if not fence:
                server.execute(WITHOUT_FENCE.format(schema="torture"))
            return Torture(cluster, server, receiver, orders, seed, say).run(seconds)
        finally:
            cluster.close()
            receiver.close()
            server.close()


def main() -> int:
    """`torture.py MINUTES SEED NODES`: run, print, and return 1 if something happened that must never happen."""
    minutes, seed, nodes = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    fence = "--without-epoch-check" not in sys.argv
    violations = run(minutes * 60, seed, nodes, fence=fence, say=lambda text: print(text, flush=True))  # noqa: T201
    for violation in violations[:20]:
        print(f"VIOLATION: {violation}")  # noqa: T201
    print(f"{len(violations)} violations with seed {seed}.")  # noqa: T201
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main())
